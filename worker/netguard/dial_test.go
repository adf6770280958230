package netguard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"
	"sallyport.dev/errs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nameServer is a DNS server on loopback. Each question takes the next of its answers; the last one stays.
type nameServer struct {
	mu        sync.Mutex
	answers   map[string][][]netip.Addr
	questions map[string]int // A questions by name
}

// resolver serves answers over UDP and returns a real resolver that asks there.
func resolver(t *testing.T, answers map[string][][]netip.Addr) (*net.Resolver, *nameServer) {
	t.Helper()
	s := &nameServer{answers: answers, questions: map[string]int{}}
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if out, err := s.answer(buf[:n]); err == nil {
				conn.WriteTo(out, from)
			}
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}, s
}

func (s *nameServer) answer(query []byte) ([]byte, error) {
	var p dnsmessage.Parser
	head, err := p.Start(query)
	if err != nil {
		return nil, err
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	name := strings.TrimSuffix(q.Name.String(), ".")
	s.mu.Lock()
	list, known := s.answers[name]
	i := 0
	if q.Type == dnsmessage.TypeA {
		i = s.questions[name]
		s.questions[name]++
	} else if s.questions[name] > 0 {
		i = s.questions[name] - 1
	}
	s.mu.Unlock()
	rcode := dnsmessage.RCodeSuccess
	if !known {
		rcode = dnsmessage.RCodeNameError
	}
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: head.ID, Response: true, RecursionAvailable: true, RecursionDesired: head.RecursionDesired, RCode: rcode})
	b.StartQuestions()
	b.Question(q)
	b.StartAnswers()
	if known {
		for _, a := range list[min(i, len(list)-1)] {
			h := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET}
			switch {
			case q.Type == dnsmessage.TypeA && a.Is4():
				b.AResource(h, dnsmessage.AResource{A: a.As4()})
			case q.Type == dnsmessage.TypeAAAA && a.Is6():
				b.AAAAResource(h, dnsmessage.AAAAResource{AAAA: a.As16()})
			}
		}
	}
	return b.Finish()
}

func (s *nameServer) asked(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.questions[name]
}

func addrs(list ...string) []netip.Addr {
	out := make([]netip.Addr, len(list))
	for i, s := range list {
		out[i] = netip.MustParseAddr(s)
	}
	return out
}

func mustOrigin(t testing.TB, s string) Origin {
	t.Helper()
	o, err := ParseOrigin(s)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func mustPolicy(t testing.TB, plain bool, allow ...string) Policy {
	t.Helper()
	p, err := ParsePolicy(allow, plain)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestResolveChecksEveryAnswer(t *testing.T) {
	names := map[string][][]netip.Addr{
		"public.example":    {addrs("93.184.215.14", "2606:4700::1111")},
		"private.example":   {addrs("10.0.0.7")},
		"mixed.example":     {addrs("93.184.215.14", "10.0.0.7")},
		"mixed6.example":    {addrs("93.184.215.14", "fd00::1")},
		"metadata.example":  {addrs("169.254.169.254")},
		"azure.example":     {addrs("168.63.129.16")},
		"mapped.example":    {addrs("::ffff:127.0.0.1")},
		"compat.example":    {addrs("::127.0.0.1")},
		"nat64.example":     {addrs("64:ff9b::7f00:1")},
		"local64.example":   {addrs("64:ff9b:1::5db8:d70e")},
		"sixtofour.example": {addrs("2002:7f00:1::")},
		"zero.example":      {addrs("0.0.0.0")},
		"empty.example":     {nil},
	}
	r, _ := resolver(t, names)
	g := &Guard{Resolver: r}
	for host, want := range map[string]struct {
		step    Step
		verdict Verdict
	}{
		"public.example": {}, "private.example": {StepAddress, Private}, "mixed.example": {StepAddress, Private}, "mixed6.example": {StepAddress, Private},
		"metadata.example": {StepAddress, Metadata}, "azure.example": {StepAddress, Metadata}, "mapped.example": {StepAddress, Loopback},
		"compat.example": {StepAddress, Embedded}, "nat64.example": {StepAddress, Embedded}, "local64.example": {StepAddress, Embedded},
		"sixtofour.example": {StepAddress, Embedded}, "zero.example": {StepAddress, Unspecified}, "empty.example": {step: StepResolve}, "unknown.example": {step: StepResolve},
	} {
		c, err := g.Resolve(t.Context(), mustOrigin(t, "https://"+host), Policy{})
		if want.step == "" {
			if err != nil || len(c.Addresses()) != 2 {
				t.Errorf("%s: %v, %v", host, c.Addresses(), err)
			}
			continue
		}
		var e *Error
		if !errors.As(err, &e) || e.Step != want.step || e.Verdict != want.verdict {
			t.Errorf("%s: got %v, want %v %v", host, err, want.step, want.verdict)
			continue
		}
		code := errs.Unreachable
		if want.step == StepAddress {
			code = errs.NotAllowed
		}
		if errs.CodeOf(err) != code {
			t.Errorf("%s: code %s, want %s", host, errs.CodeOf(err), code)
		}
	}
}

func TestResolveLiteralsAndScheme(t *testing.T) {
	g := &Guard{Resolver: nobody{t}}
	for s, ok := range map[string]bool{
		"https://1.1.1.1": true, "https://[2606:4700::1111]": true, "https://127.0.0.1": true, "https://10.0.0.1": false, "https://[::1]": false,
		"https://[::ffff:127.0.0.1]": false, "https://[::ffff:1.1.1.1]": false, "https://169.254.169.254": false, "http://1.1.1.1": false, "http://127.0.0.1": false,
	} {
		_, err := g.Resolve(t.Context(), mustOrigin(t, s), mustPolicy(t, false, "127.0.0.0/8"))
		if (err == nil) != ok {
			t.Errorf("%s: %v", s, err)
		}
	}
	if _, err := g.Resolve(t.Context(), mustOrigin(t, "http://1.1.1.1"), mustPolicy(t, true)); err != nil {
		t.Errorf("plain http with network.http: %v", err)
	}
}

// nobody fails the test when it is asked.
type nobody struct{ t *testing.T }

func (n nobody) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	n.t.Error("an address was looked up")
	return nil, errors.New("no")
}

// A name that answers well once and badly afterwards: what is dialed is the checked address, and the name is asked once for each opening.
func TestRebinding(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	r, ns := resolver(t, map[string][][]netip.Addr{
		"rebind.example": {addrs("127.0.0.1"), addrs("169.254.169.254"), addrs("127.0.0.1", "10.0.0.1")},
	})
	g := &Guard{Resolver: r}
	o := mustOrigin(t, "http://rebind.example:"+itoa(port))
	p := mustPolicy(t, true, "127.0.0.0/8")
	c, err := g.Resolve(t.Context(), o, p)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		conn, addr, err := g.Dial(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if addr.Addr() != netip.MustParseAddr("127.0.0.1") || conn.RemoteAddr().String() != addr.String() {
			t.Errorf("dialed %s, connected to %s", addr, conn.RemoteAddr())
		}
		conn.Close()
	}
	if n := ns.asked("rebind.example"); n != 1 {
		t.Errorf("the name was asked %d times for one check", n)
	}
	for range 2 {
		if _, err := g.Resolve(t.Context(), o, p); errs.CodeOf(err) != errs.NotAllowed {
			t.Errorf("a bad answer passed: %v", err)
		}
	}
}

func itoa(n int) string {
	return netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(n)).String()[len("0.0.0.0:"):]
}

// The check on the socket stands by itself: an unchecked address inside a Checked, which nothing outside this package can make, is refused.
func TestDialChecksTheSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := Checked{policy: Policy{}, addrs: []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()}}
	_, _, err = (&Guard{}).Dial(t.Context(), c)
	var e *Error
	if !errors.As(err, &e) || e.Step != StepAddress || e.Verdict != Loopback {
		t.Fatalf("got %v", err)
	}
}

func TestDialTriesTheNextAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skip("no second loopback address on this system")
	}
	defer l.Close()
	ap := l.Addr().(*net.TCPAddr).AddrPort()
	c := Checked{policy: mustPolicy(t, true, "127.0.0.0/8"), addrs: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), ap.Port()), ap}}
	conn, got, err := (&Guard{}).Dial(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if got != ap {
		t.Errorf("connected to %s", got)
	}
	l.Close()
	if _, _, err := (&Guard{}).Dial(t.Context(), c); errs.CodeOf(err) != errs.Unreachable {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestDialCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := Checked{policy: mustPolicy(t, true, "127.0.0.0/8"), addrs: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9"), netip.MustParseAddrPort("127.0.0.1:10")}}
	if _, _, err := (&Guard{}).Dial(ctx, c); err == nil {
		t.Fatal("dialed after cancellation")
	}
	if _, _, err := (&Guard{}).Dial(t.Context(), Checked{}); err == nil {
		t.Fatal("dialed without an address")
	}
}

func TestHandshake(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.TLS.ServerName) }))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	port := itoa(srv.Listener.Addr().(*net.TCPAddr).Port)
	r, _ := resolver(t, map[string][][]netip.Addr{"example.com": {addrs("127.0.0.1")}, "other.example": {addrs("127.0.0.1")}})
	p := mustPolicy(t, false, "127.0.0.0/8")
	g := &Guard{Resolver: r, RootCAs: roots}
	open := func(g *Guard, origin string) (*tls.Conn, error) {
		o := mustOrigin(t, origin+":"+port)
		c, err := g.Resolve(t.Context(), o, p)
		if err != nil {
			t.Fatal(err)
		}
		conn, _, err := g.Dial(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return g.Handshake(t.Context(), conn, o, Trust{})
	}
	conn, err := open(g, "https://example.com") // httptest's certificate has this name
	if err != nil {
		t.Fatal(err)
	}
	if s := conn.ConnectionState(); s.NegotiatedProtocol != "http/1.1" || s.ServerName != "example.com" || s.Version < tls.VersionTLS12 {
		t.Errorf("state %+v", s)
	}
	conn.Close()
	for name, bad := range map[string]struct {
		g      *Guard
		origin string
	}{
		"other host":   {g, "https://other.example"},
		"unknown root": {&Guard{Resolver: r, RootCAs: x509.NewCertPool()}, "https://example.com"},
	} {
		_, err := open(bad.g, bad.origin)
		var e *Error
		if !errors.As(err, &e) || e.Step != StepTLS || !strings.Contains(errs.Message(err), "not trusted") {
			t.Errorf("%s: %v", name, err)
		}
	}
	srv.TLS.MaxVersion = tls.VersionTLS11
	srv.TLS.MinVersion = tls.VersionTLS10
	if _, err := open(g, "https://example.com"); err == nil {
		t.Error("TLS 1.1 was accepted")
	}
}

func TestHTTPClientFollowsNothing(t *testing.T) {
	var hits atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusTemporaryRedirect)
	}))
	defer srv.Close()
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	client := (&Guard{}).HTTPClient(mustPolicy(t, true, "127.0.0.0/8"), Origin{}, Trust{})
	resp, err := client.Post(srv.URL, "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusTemporaryRedirect || hits.Load() != 1 {
		t.Errorf("status %d, %d requests", resp.StatusCode, hits.Load())
	}
	if _, err := client.Get("http://169.254.169.254/"); errs.CodeOf(err) != errs.NotAllowed {
		t.Errorf("metadata: %v", err)
	}
	if _, err := (&Guard{}).HTTPClient(Policy{}, Origin{}, Trust{}).Get(srv.URL); errs.CodeOf(err) != errs.NotAllowed {
		t.Errorf("plain http without network.http: %v", err)
	}
}

func TestPolicyKey(t *testing.T) {
	a, b, c := mustPolicy(t, false, "10.0.0.0/8"), mustPolicy(t, true, "10.0.0.0/8"), mustPolicy(t, false, "10.0.0.0/8", "127.0.0.0/8")
	if a.Key() == b.Key() || a.Key() == c.Key() || a.Key() != mustPolicy(t, false, "10.0.0.0/8").Key() {
		t.Error("keys do not tell policies apart")
	}
}

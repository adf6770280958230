package enrol_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.uber.org/goleak"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/identity/enrol"
	"sallyport.dev/identity/link"
	"sallyport.dev/identity/statefile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var root = []byte(strings.Repeat("\x07", 32))

// office is control's side of enrolment: a real listener, the real CA, tokens that work once.
type office struct {
	ca      *identity.CA
	control spiffeid.ID
	address string

	mu      sync.Mutex
	tokens  map[string]spiffeid.ID // by digest
	removed map[spiffeid.ID]bool
}

func (o *office) Join(_ context.Context, r *sallyportv1.JoinRequest) (*sallyportv1.JoinResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	digest := identity.TokenDigest(r.GetToken())
	id, ok := o.tokens[digest]
	if !ok {
		return nil, connect.NewError(connect.CodePermissionDenied, "the token is unknown or was used")
	}
	delete(o.tokens, digest)
	chain, err := o.ca.Issue(r.GetCsr(), id, time.Now())
	if err != nil {
		return nil, err
	}
	return &sallyportv1.JoinResponse{Chain: chain, Ca: o.ca.Bundle(), IntentRoot: root}, nil
}

type peerKey struct{}

func (o *office) Renew(ctx context.Context, r *sallyportv1.RenewRequest) (*sallyportv1.RenewResponse, error) {
	id, ok := ctx.Value(peerKey{}).(spiffeid.ID)
	if !ok {
		return nil, connect.NewError(connect.CodeUnauthenticated, "renewing needs the identity that is to be renewed")
	}
	chain, err := o.ca.Issue(r.GetCsr(), id, time.Now())
	if err != nil {
		return nil, err
	}
	return &sallyportv1.RenewResponse{Chain: chain, Ca: o.ca.Bundle()}, nil
}

func (o *office) authorize(id spiffeid.ID) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.removed[id] {
		return errs.New(errs.NotAllowed, "removed")
	}
	return nil
}

func id(t *testing.T, n identity.Name) spiffeid.ID {
	t.Helper()
	n.Domain = "example.org"
	i, err := n.ID()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func start(t *testing.T, listener net.Listener, address string) *office {
	t.Helper()
	ca, err := identity.NewCA("example.org", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	o := &office{ca: ca, control: id(t, identity.Name{Role: identity.Control, Name: "a"}), address: address, tokens: map[string]spiffeid.ID{}, removed: map[spiffeid.ID]bool{}}
	m, err := enrol.Issue(ca, o.control, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	src, err := identity.NewSource(m, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l := link.Listen(listener, src, o.authorize, slog.New(slog.DiscardHandler))
	server := connect.NewServer()
	sallyportv1connect.RegisterJoinHandler(server, o)
	mux := http.NewServeMux()
	connecthttp.Mount(mux, server)
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if peer, err := identity.Peer(r.TLS); err == nil {
			r = r.WithContext(context.WithValue(r.Context(), peerKey{}, peer))
		}
		mux.ServeHTTP(w, r)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = web.Serve(l.Joins) }()
	t.Cleanup(func() {
		web.Close()
		l.Close()
		<-done
	})
	return o
}

func startTCP(t *testing.T) *office {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return start(t, l, l.Addr().String())
}

func (o *office) token(t *testing.T) identity.Token {
	t.Helper()
	tok, err := identity.NewToken(identity.Token{
		Role: identity.Worker, Name: "w1", Pool: "default", Domain: "example.org", Control: o.control, Address: o.address, CAKey: o.ca.KeyHash(),
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	want, err := tok.ID()
	if err != nil {
		t.Fatal(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tokens[identity.TokenDigest(tok.Text())] = want
	return tok
}

func dir(t *testing.T) *statefile.Dir {
	t.Helper()
	d, err := statefile.Open(filepath.Join(t.TempDir(), "worker"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestJoinAndRenew(t *testing.T) {
	for name, o := range map[string]*office{"tcp": startTCP(t), "unix": startUnix(t)} {
		t.Run(name, func(t *testing.T) {
			d := dir(t)
			tok := o.token(t)
			src, e, err := enrol.Join(t.Context(), tok.Text(), d)
			if err != nil {
				t.Fatal(err)
			}
			if want, _ := tok.ID(); src.ID() != want || string(e.IntentRoot) != string(root) || e.Control[0].Address != o.address {
				t.Errorf("%v %+v", src.ID(), e)
			}
			// Once.
			if _, _, err := enrol.Join(t.Context(), tok.Text(), dir(t)); !errs.Is(err, errs.NotAllowed) || !strings.Contains(errs.Message(err), "used") {
				t.Errorf("a second use: %v", err)
			}
			// The same files serve the next start.
			again, e2, err := enrol.Load(d, time.Now())
			if err != nil || again.ID() != src.ID() || e2.ID != e.ID {
				t.Fatalf("%v %v", again, err)
			}
			renew(t, src, d, e)
		})
	}
}

func startUnix(t *testing.T) *office {
	t.Helper()
	dir, err := os.MkdirTemp("", "sp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "link.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return start(t, l, "unix:"+path)
}

func renew(t *testing.T, src *identity.Source, d *statefile.Dir, e enrol.Enrolment) {
	t.Helper()
	req, err := identity.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	chain, ca, err := enrol.Asker(src, e.Control)(t.Context(), req.CSR)
	if err != nil {
		t.Fatal(err)
	}
	m, err := req.Accept(chain, ca, src.ID(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := enrol.Keep(d, e, m); err != nil {
		t.Fatal(err)
	}
	again, _, err := enrol.Load(d, time.Now())
	if err != nil || again.ID() != src.ID() {
		t.Fatalf("%v %v", again, err)
	}
}

func TestJoinRefuses(t *testing.T) {
	o, other := startTCP(t), startTCP(t)
	good := o.token(t)
	join := func(change func(*identity.Token)) error {
		k := identity.Token{Role: good.Role, Name: good.Name, Pool: good.Pool, Domain: good.Domain, Control: good.Control, Address: good.Address, CAKey: good.CAKey}
		change(&k)
		tok, err := identity.NewToken(k, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = enrol.Join(t.Context(), tok.Text(), dir(t))
		return err
	}
	for _, c := range []struct {
		name   string
		change func(*identity.Token)
		code   errs.Code
		word   string
	}{
		{"another control plane answers", func(k *identity.Token) { k.Address = other.address }, errs.NotAllowed, "not the control plane that made the token"},
		{"another control node answers", func(k *identity.Token) { k.Control = id(t, identity.Name{Role: identity.Control, Name: "b"}) }, errs.NotAllowed, "the token names"},
		{"the token is unknown", func(*identity.Token) {}, errs.NotAllowed, "unknown or was used"},
		{"a changed name is an unknown token", func(k *identity.Token) { k.Name = "w2" }, errs.NotAllowed, "unknown or was used"},
		{"nobody answers", func(k *identity.Token) { k.Address = "127.0.0.1:1" }, errs.Unreachable, "127.0.0.1:1"},
		{"no socket", func(k *identity.Token) { k.Address = "unix:/nowhere/link.sock" }, errs.Unreachable, "does not answer"},
	} {
		err := join(c.change)
		if !errs.Is(err, c.code) || !strings.Contains(errs.Message(err), c.word) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// Something that is not control.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "SSH-2.0-hello\r\n")
			c.Close()
		}
	}()
	if err := join(func(k *identity.Token) { k.Address = l.Addr().String() }); !errs.Is(err, errs.Unreachable) {
		t.Errorf("not control: %v", err)
	}
	if _, _, err := enrol.Join(t.Context(), "nonsense", dir(t)); !errs.Is(err, errs.Invalid) {
		t.Errorf("no token: %v", err)
	}
	// The good token is still good: nothing above used it.
	if _, _, err := enrol.Join(t.Context(), good.Text(), dir(t)); err != nil {
		t.Error(err)
	}
}

func TestRenewRefused(t *testing.T) {
	o := startTCP(t)
	src, e, err := enrol.Join(t.Context(), o.token(t).Text(), dir(t))
	if err != nil {
		t.Fatal(err)
	}
	o.mu.Lock()
	o.removed[src.ID()] = true
	o.mu.Unlock()
	req, err := identity.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := enrol.Asker(src, e.Control)(t.Context(), req.CSR); err == nil {
		t.Error("a removed machine renewed its identity")
	}
	// Without a certificate there is nothing to renew.
	raw, err := net.Dial("tcp", o.address)
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(raw, identity.JoinClient(o.ca.KeyHash(), o.control, time.Now))
	defer conn.Close()
	body := `{"csr":"AAAA"}`
	_, err = io.WriteString(conn, "POST /sallyport.v1.Join/Renew HTTP/1.1\r\nHost: control\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: 14\r\n\r\n"+body)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 401") {
		t.Errorf("%q %v", answer, err)
	}
}

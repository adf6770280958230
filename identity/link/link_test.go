package link_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/identity/enrol"
	"sallyport.dev/identity/link"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plane is control's end: a gRPC server that says who dialed, and what both ends export.
type plane struct {
	sallyportv1.UnimplementedWorkerServer
	ca      *identity.CA
	id      spiffeid.ID
	address string
	links   chan link.Other

	mu      sync.Mutex
	refused map[spiffeid.ID]bool
}

func (p *plane) Link(s grpc.BidiStreamingServer[sallyportv1.WorkerFrames, sallyportv1.Jobs]) error {
	other, err := link.OtherEnd(s.Context())
	if err != nil {
		return err
	}
	if err := s.Send(&sallyportv1.Jobs{}); err != nil {
		return err
	}
	p.links <- other
	_, err = s.Recv()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (p *plane) authorize(id spiffeid.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused[id] {
		return errs.New(errs.NotAllowed, "removed")
	}
	return nil
}

func name(t *testing.T, n identity.Name) spiffeid.ID {
	t.Helper()
	n.Domain = "example.org"
	id, err := n.ID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func source(t *testing.T, ca *identity.CA, id spiffeid.ID) *identity.Source {
	t.Helper()
	m, err := enrol.Issue(ca, id, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	src, err := identity.NewSource(m, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func start(t *testing.T) *plane {
	t.Helper()
	ca, err := identity.NewCA("example.org", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{ca: ca, id: name(t, identity.Name{Role: identity.Control, Name: "a"}), address: inner.Addr().String(), links: make(chan link.Other, 8), refused: map[spiffeid.ID]bool{}}
	l := link.Listen(inner, source(t, ca, p.id), p.authorize, slog.New(slog.DiscardHandler))
	g := grpc.NewServer(link.ServerOptions()...)
	sallyportv1.RegisterWorkerServer(g, p)
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, err := identity.Peer(r.TLS)
		if err != nil {
			_, _ = io.WriteString(w, "nobody")
			return
		}
		_, _ = io.WriteString(w, peer.String())
	})}
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Serve(l.Links) })
	wg.Go(func() { _ = web.Serve(l.Joins) })
	t.Cleanup(func() {
		g.Stop()
		web.Close()
		l.Close()
		wg.Wait()
	})
	return p
}

func dial(t *testing.T, src *identity.Source, control spiffeid.ID, address string) (link.Other, error) {
	t.Helper()
	cc, err := link.Dial(src, control, address)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, err := sallyportv1.NewWorkerClient(cc).Link(ctx)
	if err != nil {
		return link.Other{}, err
	}
	if _, err := s.Recv(); err != nil {
		return link.Other{}, err
	}
	other, err := link.OtherEnd(s.Context())
	if err != nil {
		return link.Other{}, err
	}
	return other, s.CloseSend()
}

func TestLinkKnowsBothEnds(t *testing.T) {
	p := start(t)
	worker := name(t, identity.Name{Role: identity.Worker, Pool: "default", Name: "w1"})
	mine, err := dial(t, source(t, p.ca, worker), p.id, p.address)
	if err != nil {
		t.Fatal(err)
	}
	theirs := <-p.links
	if mine.ID != p.id || theirs.ID != worker {
		t.Errorf("met %v, was met as %v", mine.ID, theirs.ID)
	}
	if mine.State.Version != tls.VersionTLS13 {
		t.Errorf("TLS version %x", mine.State.Version)
	}
	a, err := mine.State.ExportKeyingMaterial("EXPORTER-test", nil, 32)
	if err != nil {
		t.Fatal(err)
	}
	b, err := theirs.State.ExportKeyingMaterial("EXPORTER-test", nil, 32)
	if err != nil || string(a) != string(b) {
		t.Errorf("the ends export different keys: %v", err)
	}
}

func TestLinkRefuses(t *testing.T) {
	p, other := start(t), start(t)
	worker := name(t, identity.Name{Role: identity.Worker, Pool: "default", Name: "w1"})
	good := source(t, p.ca, worker)
	for _, c := range []struct {
		why     string
		src     *identity.Source
		control spiffeid.ID
		address string
	}{
		{"another control node answers", good, name(t, identity.Name{Role: identity.Control, Name: "b"}), p.address},
		{"a host answers in control's place", good, name(t, identity.Name{Role: identity.Host, Name: "a"}), p.address},
		{"another CA's control plane answers", good, p.id, other.address},
		{"a worker of another CA dials", source(t, other.ca, worker), p.id, p.address},
		{"nobody listens", good, p.id, "127.0.0.1:1"},
	} {
		if _, err := dial(t, c.src, c.control, c.address); err == nil {
			t.Errorf("%s, and the link stands", c.why)
		}
	}
	p.mu.Lock()
	p.refused[worker] = true
	p.mu.Unlock()
	if _, err := dial(t, good, p.id, p.address); err == nil {
		t.Error("a removed worker's link stands")
	}
	if len(p.links)+len(other.links) != 0 {
		t.Error("a refused peer reached the service")
	}
}

// What a listener gives to whom: HTTP/2 alone must show a certificate, everything else may.
func TestListenerSorts(t *testing.T) {
	p := start(t)
	get := func(config *tls.Config) (string, error) {
		raw, err := net.Dial("tcp", p.address)
		if err != nil {
			return "", err
		}
		defer raw.Close()
		conn := tls.Client(raw, config)
		if err := conn.Handshake(); err != nil {
			return "", err
		}
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: control\r\nConnection: close\r\n\r\n"); err != nil {
			return "", err
		}
		b, err := io.ReadAll(conn)
		return string(b), err
	}
	anonymous := identity.JoinClient(p.ca.KeyHash(), p.id, time.Now)
	if b, err := get(anonymous); err != nil || !strings.HasSuffix(b, "nobody") {
		t.Errorf("without a certificate: %q %v", b, err)
	}
	both := anonymous.Clone()
	both.NextProtos = []string{"h2", "http/1.1"} // as curl offers
	if b, err := get(both); err != nil || !strings.HasSuffix(b, "nobody") {
		t.Errorf("offering both: %q %v", b, err)
	}
	host := name(t, identity.Name{Role: identity.Host, Name: "h1"})
	if b, err := get(identity.RenewClient(source(t, p.ca, host), p.id)); err != nil || !strings.HasSuffix(b, host.String()) {
		t.Errorf("with a certificate: %q %v", b, err)
	}
	h2 := anonymous.Clone()
	h2.NextProtos = []string{"h2"}
	if b, err := get(h2); err == nil && b != "" {
		t.Errorf("HTTP/2 without a certificate: %q", b)
	}
	old := anonymous.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, err := get(old); err == nil {
		t.Error("TLS 1.2 is served")
	}
	// A certificate of another CA is refused even where none is needed.
	foreign, err := identity.NewCA("example.org", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	config := anonymous.Clone()
	svid, _ := source(t, foreign, host).GetX509SVID()
	config.Certificates = []tls.Certificate{{Certificate: [][]byte{svid.Certificates[0].Raw}, PrivateKey: svid.PrivateKey}}
	if b, err := get(config); err == nil && b != "" {
		t.Errorf("a foreign certificate: %q", b)
	}
}

// Peers that never finish their handshake do not keep others out, and Close does not wait for them.
func TestSilentPeersDoNotBlock(t *testing.T) {
	p := start(t)
	for range 20 {
		c, err := net.Dial("tcp", p.address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if _, err := dial(t, source(t, p.ca, name(t, identity.Name{Role: identity.Worker, Pool: "default", Name: "w1"})), p.id, p.address); err != nil {
		t.Fatal(err)
	}
	<-p.links
}

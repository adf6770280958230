package worker

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/identity"
	"sallyport.dev/identity/enrol"
	links "sallyport.dev/identity/link"
	"sallyport.dev/intent"
	"sallyport.dev/intent/seal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plane is a control node in small: the real CA, listener, enrolment and signatures, and a Link on which the test speaks.
type plane struct {
	sallyportv1.UnimplementedWorkerServer
	t       *testing.T
	ca      *identity.CA
	control spiffeid.ID
	address string
	root    intent.SigningKey
	node    intent.SigningKey
	cert    intent.NodeKey

	mu     sync.Mutex
	tokens map[string]spiffeid.ID

	accept chan *session
}

// session is one Link of a worker.
type session struct {
	p      *plane
	hello  *sallyportv1.WorkerHello
	key    intent.LinkKey
	stream grpc.BidiStreamingServer[sallyportv1.WorkerFrames, sallyportv1.Jobs]
	end    chan struct{}
	frames chan *sallyportv1.WorkerFrame
}

func mustID(t *testing.T, n identity.Name) spiffeid.ID {
	t.Helper()
	n.Domain = "example.org"
	id, err := n.ID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	ca, err := identity.NewCA("example.org", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{t: t, ca: ca, control: mustID(t, identity.Name{Role: identity.Control, Name: "a"}), tokens: map[string]spiffeid.ID{}, accept: make(chan *session, 8)}
	for _, k := range []*intent.SigningKey{&p.root, &p.node} {
		if *k, err = intent.GenerateKey(); err != nil {
			t.Fatal(err)
		}
	}
	p.cert = p.root.Certify(p.node.Public(), time.Now().Add(time.Hour))
	m, err := enrol.Issue(ca, p.control, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	src, err := identity.NewSource(m, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = inner.Addr().String()
	l := links.Listen(inner, src, func(spiffeid.ID) error { return nil }, slog.New(slog.DiscardHandler))
	g := grpc.NewServer(links.ServerOptions()...)
	sallyportv1.RegisterWorkerServer(g, p)
	joins := connect.NewServer()
	sallyportv1connect.RegisterJoinHandler(joins, p)
	mux := http.NewServeMux()
	connecthttp.Mount(mux, joins)
	web := &http.Server{Handler: mux}
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

func (p *plane) token() string {
	p.t.Helper()
	tok, err := identity.NewToken(identity.Token{
		Role: identity.Worker, Name: "w1", Pool: "default", Domain: "example.org", Control: p.control, Address: p.address, CAKey: p.ca.KeyHash(),
	}, time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	id, err := tok.ID()
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens[identity.TokenDigest(tok.Text())] = id
	return tok.Text()
}

// Join implements sallyport.v1.Join.
func (p *plane) Join(_ context.Context, r *sallyportv1.JoinRequest) (*sallyportv1.JoinResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id, ok := p.tokens[identity.TokenDigest(r.GetToken())]
	if !ok {
		return nil, connect.NewError(connect.CodePermissionDenied, "the token is unknown or was used")
	}
	delete(p.tokens, identity.TokenDigest(r.GetToken()))
	chain, err := p.ca.Issue(r.GetCsr(), id, time.Now())
	if err != nil {
		return nil, err
	}
	return &sallyportv1.JoinResponse{Chain: chain, Ca: p.ca.Bundle(), IntentRoot: p.root.Public()}, nil
}

// Renew implements sallyport.v1.Join: nothing here lives so long.
func (p *plane) Renew(context.Context, *sallyportv1.RenewRequest) (*sallyportv1.RenewResponse, error) {
	return nil, connect.NewError(connect.CodeUnavailable, "not now")
}

// Link implements sallyport.v1.Worker.
func (p *plane) Link(stream grpc.BidiStreamingServer[sallyportv1.WorkerFrames, sallyportv1.Jobs]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	other, err := links.OtherEnd(stream.Context())
	if err != nil {
		return err
	}
	s := &session{p: p, hello: first.GetFrames()[0].GetHello(), stream: stream, end: make(chan struct{}), frames: make(chan *sallyportv1.WorkerFrame, 256)}
	if s.key, err = intent.ExportLinkKey(other.State); err != nil {
		return err
	}
	err = stream.Send(&sallyportv1.Jobs{Jobs: []*sallyportv1.Job{
		{Job: &sallyportv1.Job_Welcome{Welcome: &sallyportv1.WorkerWelcome{Wire: 1, ProtectedVersion: intent.Protected, Node: "a"}}},
		{Job: &sallyportv1.Job_Keys{Keys: &sallyportv1.Keys{Keys: []*sallyportv1.NodeKey{
			{KeyId: p.cert.ID, PublicKey: p.cert.Public, NotAfterUnix: p.cert.NotAfter.Unix(), Signature: p.cert.Signature},
		}}}},
	}})
	if err != nil {
		return err
	}
	p.accept <- s
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			for _, f := range m.GetFrames() {
				if f.GetHealth() == nil {
					s.frames <- f
				}
			}
		}
	}()
	select {
	case <-s.end:
		return nil
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

// link waits for a worker.
func (p *plane) link() *session {
	p.t.Helper()
	select {
	case s := <-p.accept:
		return s
	case <-p.t.Context().Done():
		p.t.Fatal("no worker came")
		return nil
	}
}

func (s *session) send(jobs ...*sallyportv1.Job) {
	s.p.t.Helper()
	if err := s.stream.Send(&sallyportv1.Jobs{Jobs: jobs}); err != nil {
		s.p.t.Fatal(err)
	}
}

// next waits for a frame that is no progress.
func (s *session) next() *sallyportv1.WorkerFrame {
	s.p.t.Helper()
	select {
	case f := <-s.frames:
		return f
	case <-s.p.t.Context().Done():
		s.p.t.Fatal("no frame came")
		return nil
	}
}

// intent makes a call of a tool for this run.
func (s *session) intent(effect, origin, path, tool, arguments string, n byte) intent.Intent {
	id := func(kind string) string {
		b := []byte(kind + "aaaaaaaaaaaaaaaaaaaaaaaaaa")[:26]
		b[25] = 'a' + n
		return string(b)
	}
	now := time.Now()
	return intent.Intent{
		V: intent.Protected, ID: id("intent"), Org: "default", Kind: intent.Call, Call: id("call"), Attempt: 1, Session: id("session"),
		Binding: intent.Digest([]byte("b")), Connection: "tracker", Revision: 1, Pool: "default", Transport: intent.TransportMCP, Origin: origin, Path: path,
		Allow: []string{"127.0.0.0/8"}, PlainHTTP: true, AuthType: intent.AuthBearer, Subject: "shared", Version: 1, Tool: tool, Effect: effect,
		Arguments: intent.Digest([]byte(arguments)), Authority: "rule", ResultBytes: 1 << 20, ConnectMS: 5000, AnswerMS: 20_000, SilenceMS: 20_000,
		NotBefore: now.UnixMilli(), StartBefore: now.Add(30 * time.Second).UnixMilli(), FinishBefore: now.Add(time.Minute).UnixMilli(), Audience: s.hello.GetRun(),
	}
}

// job signs an intent and seals its credential.
func (s *session) job(in intent.Intent, arguments, secret string) *sallyportv1.Job {
	s.p.t.Helper()
	encoded, err := intent.Encode(in)
	if err != nil {
		s.p.t.Fatal(err)
	}
	pool, err := seal.ParsePublicKey(s.hello.GetPoolKey())
	if err != nil {
		s.p.t.Fatal(err)
	}
	b := seal.Bound{Org: in.Org, Connection: in.Connection, Subject: in.Subject, Version: in.Version, Origin: in.Origin, PathPrefix: in.Path}
	sealed, err := seal.Seal(pool, seal.Credential, b.Bytes(), []byte(secret))
	if err != nil {
		s.p.t.Fatal(err)
	}
	j := &sallyportv1.IntentJob{Intent: encoded, Arguments: []byte(arguments), SealedCredential: sealed}
	if in.Kind == intent.Call && in.Effect == intent.Read {
		j.Go, j.Signature, j.KeyId = true, s.key.MAC(encoded), intent.LinkKeyID
	} else {
		j.Go, j.Signature, j.KeyId = in.Kind != intent.Call, s.p.node.Sign(encoded), s.p.node.ID()
	}
	return &sallyportv1.Job{Job: &sallyportv1.Job_Intent{Intent: j}}
}

func goJob(id string) *sallyportv1.Job {
	return &sallyportv1.Job{Job: &sallyportv1.Job_Go{Go: &sallyportv1.Go{Intent: id}}}
}

func ackJob(id string) *sallyportv1.Job {
	return &sallyportv1.Job{Job: &sallyportv1.Job_Ack{Ack: &sallyportv1.OutcomeAck{Intent: id}}}
}

func attestJob(id string) *sallyportv1.Job {
	return &sallyportv1.Job{Job: &sallyportv1.Job_Attest{Attest: &sallyportv1.Attest{Intent: id}}}
}

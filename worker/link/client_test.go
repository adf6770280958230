package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/identity"
	"sallyport.dev/identity/enrol"
	links "sallyport.dev/identity/link"
	"sallyport.dev/intent"
	"sallyport.dev/worker/executor"
)

// plane is control's end of the Link: real TLS and gRPC, and what it says is the test's.
type plane struct {
	sallyportv1.UnimplementedWorkerServer
	address string
	control spiffeid.ID
	worker  *identity.Source
	root    intent.SigningKey

	accept chan *session // each Link that said Hello
	refuse func() error
}

// session is one Link, from control's side.
type session struct {
	hello  *sallyportv1.WorkerHello
	key    intent.LinkKey
	stream grpc.BidiStreamingServer[sallyportv1.WorkerFrames, sallyportv1.Jobs]
	end    chan error
	frames chan *sallyportv1.WorkerFrame
}

func (p *plane) Link(stream grpc.BidiStreamingServer[sallyportv1.WorkerFrames, sallyportv1.Jobs]) error {
	if p.refuse != nil {
		if err := p.refuse(); err != nil {
			return err
		}
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	other, err := links.OtherEnd(stream.Context())
	if err != nil {
		return err
	}
	s := &session{hello: first.GetFrames()[0].GetHello(), stream: stream, end: make(chan error, 1), frames: make(chan *sallyportv1.WorkerFrame, 64)}
	if s.key, err = intent.ExportLinkKey(other.State); err != nil {
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
	case err := <-s.end:
		return err
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

func (s *session) send(t *testing.T, jobs ...*sallyportv1.Job) {
	t.Helper()
	if err := s.stream.Send(&sallyportv1.Jobs{Jobs: jobs}); err != nil {
		t.Fatal(err)
	}
}

func welcome(wire, protected int32) *sallyportv1.Job {
	return &sallyportv1.Job{Job: &sallyportv1.Job_Welcome{Welcome: &sallyportv1.WorkerWelcome{Wire: wire, ProtectedVersion: protected, Node: "a", Build: "test"}}}
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

func start(t *testing.T) *plane {
	t.Helper()
	ca, err := identity.NewCA("example.org", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	source := func(n identity.Name) *identity.Source {
		m, err := enrol.Issue(ca, id(t, n), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		s, err := identity.NewSource(m, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	root, err := intent.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{
		address: inner.Addr().String(), control: id(t, identity.Name{Role: identity.Control, Name: "a"}),
		worker: source(identity.Name{Role: identity.Worker, Pool: "default", Name: "w1"}), root: root, accept: make(chan *session, 8),
	}
	l := links.Listen(inner, source(identity.Name{Role: identity.Control, Name: "a"}), func(spiffeid.ID) error { return nil }, slog.New(slog.DiscardHandler))
	g := grpc.NewServer(links.ServerOptions()...)
	sallyportv1.RegisterWorkerServer(g, p)
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Serve(l.Links) })
	t.Cleanup(func() {
		g.Stop()
		l.Close()
		wg.Wait()
	})
	return p
}

// record is an executor that writes down what it is told, in words.
type record struct {
	mu    sync.Mutex
	told  []string
	heard chan string
	jobs  []*sallyportv1.IntentJob
	link  executor.Link
}

func (r *record) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, fmt.Sprintf(format, args...))
	r.heard <- r.told[len(r.told)-1]
}

func (r *record) Attach(l executor.Link) {
	r.mu.Lock()
	r.link = l
	r.mu.Unlock()
	r.say("attach")
}
func (r *record) Detach(executor.Link) { r.say("detach") }
func (r *record) Intent(l executor.Link, j *sallyportv1.IntentJob) {
	r.mu.Lock()
	r.jobs = append(r.jobs, j)
	r.mu.Unlock()
	how := "unsigned"
	if l.VerifyMAC(j.GetIntent(), j.GetSignature()) {
		how = "by MAC"
	}
	r.say("intent %d %s", len(j.GetArguments()), how)
}
func (r *record) Go(_ executor.Link, id string)                  { r.say("go %s", id) }
func (r *record) Attest(_ executor.Link, id string)              { r.say("attest %s", id) }
func (r *record) CloseIntent(_ executor.Link, id, reason string) { r.say("close %s %s", id, reason) }
func (r *record) Ack(id string)                                  { r.say("ack %s", id) }

func (r *record) expect(t *testing.T, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-r.heard:
			if got != w {
				t.Fatalf("the executor was told %q, want %q", got, w)
			}
		case <-t.Context().Done():
			t.Fatalf("the executor was not told %q", w)
		}
	}
}

func (p *plane) run(t *testing.T, log *slog.Logger) (*record, *intent.Ring, *HighWater) {
	t.Helper()
	r := &record{heard: make(chan string, 256)}
	ring, high := intent.NewRing(p.root.Public()), &HighWater{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Run(ctx, Config{
			Control: p.control, Address: p.address, Source: p.worker, Executor: r, Ring: ring, HighWater: high,
			Hello: func() *sallyportv1.WorkerHello {
				return &sallyportv1.WorkerHello{Pool: "default", Run: "run", Capacity: 3}
			},
			Health: func() *sallyportv1.Health { return &sallyportv1.Health{} }, Log: log,
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the link ended with %v", err)
		}
	})
	return r, ring, high
}

func intentJob(j *sallyportv1.IntentJob) *sallyportv1.Job {
	return &sallyportv1.Job{Job: &sallyportv1.Job_Intent{Intent: j}}
}

func sample(t *testing.T, args []byte) []byte {
	t.Helper()
	b, err := intent.Encode(intent.Intent{
		V: intent.Protected, ID: "intentaaaaaaaaaaaaaaaaaaaa", Org: "default", Kind: intent.Call, Call: "callaaaaaaaaaaaaaaaaaaaaaa", Attempt: 1,
		Session: "sessionaaaaaaaaaaaaaaaaaaa", Binding: intent.Digest([]byte("b")), Connection: "tracker", Pool: "default", Transport: intent.TransportMCP,
		Origin: "https://mcp.tracker.example.org", Path: "/mcp", AuthType: intent.AuthNone, Tool: "t", Effect: intent.Read, Arguments: intent.Digest(args),
		Authority: "rule", ResultBytes: 1, ConnectMS: 1, AnswerMS: 1, SilenceMS: 1, NotBefore: 1, StartBefore: 1, FinishBefore: 1, Audience: "run",
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestJobsAndFrames(t *testing.T) {
	p := start(t)
	r, ring, high := p.run(t, slog.New(slog.DiscardHandler))
	s := <-p.accept
	if s.hello.GetRun() != "run" || s.hello.GetCapacity() != 3 || s.hello.GetHighWater() != nil {
		t.Errorf("hello: %v", s.hello)
	}
	small := []byte(`{}`)
	large := bytes.Repeat([]byte("x"), chunkSize+100)
	encoded := sample(t, small)
	bigIntent := sample(t, large)
	node, err := intent.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	cert := p.root.Certify(node.Public(), time.Now().Add(time.Hour))
	digest := decode(t, intent.Digest(large))
	s.send(t, welcome(Wire, intent.Protected),
		&sallyportv1.Job{Job: &sallyportv1.Job_Keys{Keys: &sallyportv1.Keys{Keys: []*sallyportv1.NodeKey{
			{KeyId: cert.ID, PublicKey: cert.Public, NotAfterUnix: cert.NotAfter.Unix(), Signature: cert.Signature},
		}}}},
		&sallyportv1.Job{Job: &sallyportv1.Job_HighWater{HighWater: &sallyportv1.HighWater{Incarnation: "i", Counter: 7}}},
		intentJob(&sallyportv1.IntentJob{Intent: encoded, Signature: s.key.MAC(encoded), KeyId: intent.LinkKeyID, Arguments: small}),
		intentJob(&sallyportv1.IntentJob{Intent: encoded, Signature: []byte("no"), KeyId: intent.LinkKeyID, Arguments: small}),
		&sallyportv1.Job{Job: &sallyportv1.Job_Chunk{Chunk: &sallyportv1.WorkerChunk{Digest: digest, Data: large[:chunkSize]}}},
		&sallyportv1.Job{Job: &sallyportv1.Job_Go{Go: &sallyportv1.Go{Intent: "a"}}},
	)
	s.send(t, &sallyportv1.Job{},
		&sallyportv1.Job{Job: &sallyportv1.Job_Chunk{Chunk: &sallyportv1.WorkerChunk{Digest: digest, Offset: chunkSize, Data: large[chunkSize:]}}},
		intentJob(&sallyportv1.IntentJob{Intent: bigIntent}),
		&sallyportv1.Job{Job: &sallyportv1.Job_Attest{Attest: &sallyportv1.Attest{Intent: "b"}}},
		&sallyportv1.Job{Job: &sallyportv1.Job_Close{Close: &sallyportv1.CloseIntent{Intent: "c", Reason: "why"}}},
		&sallyportv1.Job{Job: &sallyportv1.Job_Ack{Ack: &sallyportv1.OutcomeAck{Intent: "d"}}},
	)
	r.expect(t, "attach", "intent 2 by MAC", "intent 2 unsigned", "go a", fmt.Sprintf("intent %d unsigned", len(large)), "attest b", "close c why", "ack d")
	if !bytes.Equal(r.jobs[2].GetArguments(), large) {
		t.Error("the chunked arguments are others")
	}
	if !ring.Verify(node.ID(), encoded, node.Sign(encoded), time.Now()) || high.Seen().GetCounter() != 7 {
		t.Error("keys or high water were not taken")
	}
	// Keys of another root leave the ones known.
	s.send(t, &sallyportv1.Job{Job: &sallyportv1.Job_Keys{Keys: &sallyportv1.Keys{Keys: []*sallyportv1.NodeKey{{KeyId: "x"}}}}},
		&sallyportv1.Job{Job: &sallyportv1.Job_Go{Go: &sallyportv1.Go{Intent: "e"}}})
	r.expect(t, "go e")
	if !ring.Verify(node.ID(), encoded, node.Sign(encoded), time.Now()) {
		t.Error("bad keys replaced good ones")
	}
	r.link.Push(frame("one"), frame("two"))
	r.link.PushBody(chunk("three", 10), frame("four"))
	r.link.PushBody(frame("five"))
	var got []string
	for range 5 {
		got = append(got, names([]*sallyportv1.WorkerFrame{<-s.frames})...)
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"five", "four", "one", "three", "two"}) {
		t.Errorf("control heard %q", got)
	}
}

func decode(t *testing.T, hexDigest string) []byte {
	t.Helper()
	var b []byte
	if _, err := fmt.Sscanf(hexDigest, "%x", &b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestReconnects(t *testing.T) {
	p := start(t)
	r, _, _ := p.run(t, slog.New(slog.DiscardHandler))
	for i := range 3 {
		s := <-p.accept
		if i > 0 && s.hello.GetHighWater().GetCounter() != int64(i) {
			t.Errorf("hello %d remembers %v", i, s.hello.GetHighWater())
		}
		s.send(t, welcome(Wire, intent.Protected), &sallyportv1.Job{Job: &sallyportv1.Job_HighWater{HighWater: &sallyportv1.HighWater{Incarnation: "i", Counter: int64(i + 1)}}},
			&sallyportv1.Job{Job: &sallyportv1.Job_Go{Go: &sallyportv1.Go{Intent: "x"}}})
		r.expect(t, "attach", "go x")
		s.end <- nil
		r.expect(t, "detach")
	}
	s := <-p.accept
	// Control breaks the contract: the Link ends, and comes back.
	s.send(t, welcome(Wire, intent.Protected), welcome(Wire, intent.Protected))
	r.expect(t, "attach", "detach")
	s = <-p.accept
	s.send(t, welcome(Wire, intent.Protected), &sallyportv1.Job{Job: &sallyportv1.Job_Chunk{Chunk: &sallyportv1.WorkerChunk{}}})
	r.expect(t, "attach", "detach")
	<-p.accept
}

// Control that refuses, or that speaks another version, is told in words, and its jobs are never handed on.
func TestRefusedByControl(t *testing.T) {
	for name, c := range map[string]struct {
		first  *sallyportv1.Job
		refuse error
		word   string
	}{
		"removed":           {nil, status.Error(codes.PermissionDenied, "this identity was removed"), "this identity was removed"},
		"protected version": {welcome(Wire, intent.Protected+1), nil, "both must be the same"},
		"wire version":      {welcome(Wire+2, intent.Protected), nil, "upgrade the older side"},
		"no welcome":        {intentJob(&sallyportv1.IntentJob{}), nil, "not its welcome"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t)
			if c.refuse != nil {
				p.refuse = func() error { return c.refuse }
			}
			lines := &lines{wait: make(chan string, 16)}
			r, _, _ := p.run(t, slog.New(slog.NewTextHandler(lines, nil)))
			if c.first != nil {
				s := <-p.accept
				s.send(t, c.first, intentJob(&sallyportv1.IntentJob{}))
			}
			line := <-lines.wait
			if !strings.Contains(line, "control refuses this worker") || !strings.Contains(line, c.word) {
				t.Errorf("the log says %s", line)
			}
			if len(r.heard) != 0 {
				t.Errorf("the executor was told %q", <-r.heard)
			}
		})
	}
}

type lines struct{ wait chan string }

func (l *lines) Write(b []byte) (int, error) {
	l.wait <- string(b)
	return len(b), nil
}

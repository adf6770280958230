package link_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/host/link"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// control is the other end: a real gRPC server whose Link is the test's.
type control struct {
	sallyportv1.UnimplementedHostServer
	link func(grpc.BidiStreamingServer[sallyportv1.HostFrames, sallyportv1.ControlFrames]) error
}

func (c *control) Link(s grpc.BidiStreamingServer[sallyportv1.HostFrames, sallyportv1.ControlFrames]) error {
	return c.link(s)
}

// peer records what the link tells it.
type peer struct {
	next     chan []*sallyportv1.HostFrame
	up       chan *sallyportv1.Welcome
	down     chan error
	received chan []*sallyportv1.ControlFrame
	refuse   error
}

func newPeer() *peer {
	return &peer{
		next: make(chan []*sallyportv1.HostFrame, 16), up: make(chan *sallyportv1.Welcome, 16), down: make(chan error, 16),
		received: make(chan []*sallyportv1.ControlFrame, 16),
	}
}

func (p *peer) Hello() *sallyportv1.HostHello {
	return &sallyportv1.HostHello{Sessions: []*sallyportv1.SessionAt{{Session: "s", Epoch: 3}}}
}
func (p *peer) Up(w *sallyportv1.Welcome) { p.up <- w }
func (p *peer) Down(err error)            { p.down <- err }
func (p *peer) Receive(frames []*sallyportv1.ControlFrame) error {
	p.received <- frames
	return p.refuse
}

func (p *peer) Next(ctx context.Context) ([]*sallyportv1.HostFrame, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case frames := <-p.next:
		return frames, nil
	}
}

// connect runs a client against serve until the test ends.
func connect(t *testing.T, p *peer, serve func(grpc.BidiStreamingServer[sallyportv1.HostFrames, sallyportv1.ControlFrames]) error) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	sallyportv1.RegisterHostServer(server, &control{link: serve})
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	cc, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	client := link.New(link.Config{Conn: cc, Build: "b1", Protected: 7, Log: slog.New(slog.DiscardHandler)})
	running.Go(func() {
		if err := client.Run(ctx, p); !errors.Is(err, context.Canceled) {
			t.Error("run:", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		server.Stop()
		running.Wait()
		cc.Close()
	})
}

func welcome(wire, protected int32) *sallyportv1.ControlFrames {
	return &sallyportv1.ControlFrames{Frames: []*sallyportv1.ControlFrame{
		{Frame: &sallyportv1.ControlFrame_Welcome{Welcome: &sallyportv1.Welcome{Wire: wire, ProtectedVersion: protected, Node: "n"}}},
		{Frame: &sallyportv1.ControlFrame_Origins{Origins: &sallyportv1.Origins{DenyHosts: []string{"x"}}}},
	}}
}

func TestClient(t *testing.T) {
	p := newPeer()
	hellos := make(chan *sallyportv1.HostHello, 16)
	frames := make(chan *sallyportv1.HostFrames, 16)
	connect(t, p, func(s grpc.BidiStreamingServer[sallyportv1.HostFrames, sallyportv1.ControlFrames]) error {
		first, err := s.Recv()
		if err != nil {
			return err
		}
		hellos <- first.GetFrames()[0].GetHello()
		if err := s.Send(welcome(link.Wire, 7)); err != nil {
			return err
		}
		for {
			batch, err := s.Recv()
			if err != nil {
				return err
			}
			frames <- batch
			if batch.GetFrames()[0].GetAck() != nil {
				return status.Error(codes.Unavailable, "going away")
			}
			if err := s.Send(&sallyportv1.ControlFrames{Frames: []*sallyportv1.ControlFrame{{Frame: &sallyportv1.ControlFrame_Result{Result: &sallyportv1.CallResult{}}}}}); err != nil {
				return err
			}
		}
	})
	for range 2 { // and again after the stream was lost
		hello := <-hellos
		if hello.GetBuild() != "b1" || hello.GetWire() != link.Wire || hello.GetProtectedVersion() != 7 || len(hello.GetSessions()) != 1 {
			t.Errorf("hello %v", hello)
		}
		if w := <-p.up; w.GetNode() != "n" {
			t.Errorf("welcome %v", w)
		}
		if got := <-p.received; len(got) != 1 || got[0].GetOrigins() == nil {
			t.Errorf("with the welcome came %v", got)
		}
		p.next <- []*sallyportv1.HostFrame{{Frame: &sallyportv1.HostFrame_Call{Call: &sallyportv1.HostCall{Record: []byte("r")}}}, {Frame: &sallyportv1.HostFrame_Health{}}}
		if got := <-frames; len(got.GetFrames()) != 2 || string(got.GetFrames()[0].GetCall().GetRecord()) != "r" {
			t.Errorf("control got %v", got)
		}
		if got := <-p.received; got[0].GetResult() == nil {
			t.Errorf("got %v", got)
		}
		p.next <- []*sallyportv1.HostFrame{{Frame: &sallyportv1.HostFrame_Ack{Ack: &sallyportv1.HostAck{}}}}
		<-frames
		if err := <-p.down; !errs.Is(err, errs.Unreachable) {
			t.Errorf("down: %v", err)
		}
	}
}

// A host that cannot handle what control sends gives the stream up, and begins anew.
func TestClientRefusesControlsFrames(t *testing.T) {
	p := newPeer()
	p.refuse = errs.New(errs.Invalid, "no")
	connect(t, p, func(s grpc.BidiStreamingServer[sallyportv1.HostFrames, sallyportv1.ControlFrames]) error {
		if _, err := s.Recv(); err != nil {
			return err
		}
		if err := s.Send(welcome(link.Wire, 7)); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	})
	for range 2 {
		<-p.up
		<-p.received
		if err := <-p.down; !errs.Is(err, errs.Invalid) {
			t.Errorf("down: %v", err)
		}
	}
}

func TestCheckWelcome(t *testing.T) {
	for name, tc := range map[string]struct {
		frames *sallyportv1.ControlFrames
		want   errs.Code
	}{
		"ours":              {welcome(link.Wire, 7), ""},
		"a newer control":   {welcome(link.Wire+1, 7), ""},
		"an older control":  {welcome(link.Wire-1, 7), errs.TooOld},
		"another protected": {welcome(link.Wire, 8), errs.ProtectedNumber},
		"none":              {&sallyportv1.ControlFrames{}, errs.Invalid},
		"something else":    {&sallyportv1.ControlFrames{Frames: welcome(link.Wire, 7).GetFrames()[1:]}, errs.Invalid},
	} {
		if _, _, err := link.CheckWelcome(tc.frames.GetFrames(), 7); errs.CodeOf(err) != tc.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What control answers instead of a welcome reaches the log with a reason, and Up is never called.
func TestClientIsRefused(t *testing.T) {
	for _, tc := range []error{
		status.Error(codes.PermissionDenied, "removed"), status.Error(codes.FailedPrecondition, "upgrade"), errors.New("x"),
	} {
		p := newPeer()
		tries := make(chan struct{}, 16)
		connect(t, p, func(grpc.BidiStreamingServer[sallyportv1.HostFrames, sallyportv1.ControlFrames]) error {
			select {
			case tries <- struct{}{}:
			default:
			}
			return tc
		})
		<-tries
		<-tries
		if len(p.up)+len(p.down) != 0 {
			t.Errorf("%v: a stream that was never up", tc)
		}
	}
}

// The first moments without control are short, so that a restart of control is hardly noticed.
func TestClientWaitsForControl(t *testing.T) {
	p := newPeer()
	socket := filepath.Join(t.TempDir(), "s")
	cc, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err = link.New(link.Config{Conn: cc, Log: slog.New(slog.DiscardHandler)}).Run(ctx, p)
	if !errors.Is(err, context.DeadlineExceeded) || len(p.up) != 0 {
		t.Errorf("got %v", err)
	}
}

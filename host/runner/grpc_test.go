package runner

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/host/link"
	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

// echoControl answers every call at once, over a real stream.
type echoControl struct {
	sallyportv1.UnimplementedHostServer
}

func (echoControl) Link(s grpc.BidiStreamingServer[sallyportv1.HostFrames, sallyportv1.ControlFrames]) error {
	if _, err := s.Recv(); err != nil {
		return err
	}
	if err := s.Send(&sallyportv1.ControlFrames{Frames: []*sallyportv1.ControlFrame{
		{Frame: &sallyportv1.ControlFrame_Welcome{Welcome: &sallyportv1.Welcome{Wire: link.Wire, ProtectedVersion: 1}}},
	}}); err != nil {
		return err
	}
	for {
		batch, err := s.Recv()
		if err != nil {
			return err
		}
		out := &sallyportv1.ControlFrames{}
		for _, f := range batch.GetFrames() {
			c := f.GetCall()
			if c == nil {
				continue
			}
			record, err := relay.ParseCall(c.GetRecord())
			if err != nil {
				return err
			}
			digest := relay.Sum(c.GetRecord())
			result, err := relay.AppendResult(nil, &relay.Result{ID: record.ID, Call: digest, State: "answered", Result: []byte(answer("done"))})
			if err != nil {
				return err
			}
			out.Frames = append(out.Frames,
				&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Journaled{Journaled: &sallyportv1.Journaled{
					Session: c.GetSession(), Epoch: c.GetEpoch(), RecordId: record.ID, RecordDigest: digest[:],
				}}},
				&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Result{Result: &sallyportv1.CallResult{
					Session: c.GetSession(), Epoch: c.GetEpoch(), RecordId: record.ID, Record: result,
				}}})
		}
		if len(out.GetFrames()) > 0 {
			if err := s.Send(out); err != nil {
				return err
			}
		}
	}
}

// overGRPC runs a runner against echoControl until the test ends, and returns a session with its guest.
func overGRPC(t testing.TB, dir string) (Session, *relay.Guest) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	sallyportv1.RegisterHostServer(server, echoControl{})
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	cc, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	r := New(Config{Link: link.New(link.Config{Conn: cc, Build: "test", Protected: 1, Log: log}), Log: log})
	ctx, cancel := context.WithCancel(context.Background())
	running.Go(func() { _ = r.Run(ctx) })
	s := Session{ID: relay.NewID(), Epoch: 1, Open: true, Owners: []uint32{uint32(os.Getuid())}, Folder: hostside.Folder{Root: filepath.Join(dir, "session")}}
	if err := s.Folder.Create(os.Getuid(), os.Getgid(), false); err != nil {
		t.Fatal(err)
	}
	if err := r.Add(s); err != nil {
		t.Fatal(err)
	}
	g := relay.NewGuest(s.Folder.In(), s.Folder.Out())
	t.Cleanup(func() {
		g.Close()
		cancel()
		server.Stop()
		running.Wait()
		cc.Close()
	})
	return s, g
}

func roundTrip(ctx context.Context, s Session, g *relay.Guest) (string, error) {
	p, err := g.Call(&relay.Call{Session: s.ID, Epoch: 1, Tool: "echo", Arguments: []byte(`{}`), TimeoutMS: 120_000})
	if err != nil {
		return "", err
	}
	r, err := p.Wait(ctx)
	if err != nil {
		return "", err
	}
	return string(r.Result), g.Ack(p.ID())
}

func TestOverGRPC(t *testing.T) {
	s, g := overGRPC(t, t.TempDir())
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 20 {
				if got, err := roundTrip(t.Context(), s, g); err != nil || got != answer("done") {
					t.Errorf("%s, %v", got, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkOverGRPC is a call from a guest through the host to a control that answers at once, over a stream without TLS, all in one process.
func BenchmarkOverGRPC(b *testing.B) {
	dir := b.TempDir()
	if shm, err := os.MkdirTemp("/dev/shm", "runner"); err == nil {
		b.Cleanup(func() { os.RemoveAll(shm) })
		dir = shm
	}
	s, g := overGRPC(b, dir)
	for b.Loop() {
		if _, err := roundTrip(b.Context(), s, g); err != nil {
			b.Fatal(err)
		}
	}
}

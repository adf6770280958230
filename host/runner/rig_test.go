package runner

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/host/link/linktest"
	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if guestDir != "" {
			os.RemoveAll(guestDir)
		}
		os.Exit(code)
	}))
}

// rig is a runner with a strict control behind it.
type rig struct {
	t       *testing.T
	control *linktest.Control
	runner  *Runner
	stop    func()

	mu       sync.Mutex
	breaches []error
	exceeded chan string
	frames   chan *sallyportv1.ControlFrame
	changes  chan *sallyportv1.SessionChange
}

func newRig(t *testing.T) *rig {
	t.Helper()
	x := &rig{t: t}
	x.control = linktest.New(func(err error) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.breaches = append(x.breaches, err)
	})
	x.begin(nil)
	t.Cleanup(func() {
		x.stop()
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, err := range x.breaches {
			t.Error("the host broke the rules:", err)
		}
	})
	return x
}

// begin starts a host process; the one before it, if any, has stopped.
func (x *rig) begin(w *hostside.Watcher) {
	x.exceeded = make(chan string, 16)
	x.frames = make(chan *sallyportv1.ControlFrame, 1024)
	x.changes = make(chan *sallyportv1.SessionChange, 16)
	x.runner = New(Config{
		Link: x.control, Log: slog.New(slog.DiscardHandler), Watcher: w,
		Exceeded: func(session string, _ error) { x.exceeded <- session },
		Frame:    func(f *sallyportv1.ControlFrame) { x.frames <- f },
		Changed:  func(c *sallyportv1.SessionChange) { x.changes <- c },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- x.runner.Run(ctx) }()
	x.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			x.t.Error("run:", err)
		}
	})
}

// sandbox is a session's folder with a guest in it.
type sandbox struct {
	rig *rig
	Session
	guest *relay.Guest
}

func (x *rig) folder() Session {
	x.t.Helper()
	s := Session{
		ID: relay.NewID(), Epoch: 1, Open: true, Owners: []uint32{uint32(os.Getuid())},
		Folder: hostside.Folder{Root: filepath.Join(x.t.TempDir(), "session")},
	}
	if err := s.Folder.Create(os.Getuid(), os.Getgid(), false); err != nil {
		x.t.Fatal(err)
	}
	return s
}

func (x *rig) sandbox() *sandbox {
	x.t.Helper()
	s := x.folder()
	if err := x.runner.Add(s); err != nil {
		x.t.Fatal(err)
	}
	b := &sandbox{rig: x, Session: s, guest: relay.NewGuest(s.Folder.In(), s.Folder.Out())}
	x.t.Cleanup(func() { b.guest.Close() })
	return b
}

func (b *sandbox) record() *relay.Call {
	return &relay.Call{Session: b.ID, Epoch: b.Epoch, Tool: "echo", Arguments: []byte(`{"text": "é", "n": 12345678901234567890}`), TimeoutMS: 120_000}
}

func (b *sandbox) call() *relay.Pending {
	b.rig.t.Helper()
	p, err := b.guest.Call(b.record())
	if err != nil {
		b.rig.t.Fatal(err)
	}
	return p
}

// text waits for a result and returns its text, and whether it is an error.
func (b *sandbox) text(p *relay.Pending) string {
	b.rig.t.Helper()
	r, err := p.Wait(b.rig.context())
	if err != nil {
		b.rig.t.Fatal(err)
	}
	return string(r.Result)
}

// context bounds what would otherwise wait for ever where the code is wrong.
func (x *rig) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	x.t.Cleanup(cancel)
	return ctx
}

func (x *rig) await(what string, done func(*linktest.View) bool) {
	x.t.Helper()
	if err := x.control.Await(x.context(), done); err != nil {
		x.t.Fatalf("%s: %v", what, err)
	}
}

// arrived waits until control has the call.
func (x *rig) arrived(session, id string) (k *linktest.Call) {
	x.t.Helper()
	x.await("the call did not arrive", func(v *linktest.View) bool {
		k = v.Call(session, id)
		return k != nil
	})
	return k
}

// echo has control answer every call at once.
func (x *rig) echo() {
	x.control.OnCall(func(k *linktest.Call) { k.Answer("answered", answer("done")) })
}

func answer(text string) string { return `{"content":[{"type":"text","text":"` + text + `"}]}` }

// inside waits until a file of the session's folder exists, or no longer does.
func (b *sandbox) inside(name string, exists bool) {
	b.rig.t.Helper()
	b.rig.eventually(name, func() bool {
		_, err := os.Lstat(filepath.Join(b.Folder.Root, name))
		return (err == nil) == exists
	})
}

// eventually waits for what nothing announces.
func (x *rig) eventually(what string, done func() bool) {
	x.t.Helper()
	ctx := x.context()
	for !done() {
		select {
		case <-ctx.Done():
			x.t.Fatal(what)
		case <-time.After(time.Millisecond):
		}
	}
}

func (b *sandbox) names(dir string) []string {
	b.rig.t.Helper()
	entries, err := os.ReadDir(filepath.Join(b.Folder.Root, dir))
	if err != nil {
		b.rig.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func wantText(t *testing.T, got string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			t.Errorf("got %s\nwithout %q", got, part)
		}
	}
}

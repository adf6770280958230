package daemon

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/host/egress"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/process"
	"sallyport.dev/relay"
)

const (
	session1 = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	openArg  = "test-open-and-wait"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == openArg {
		os.Exit(openAndWait(os.Args[2]))
	}
	goleak.VerifyTestMain(m)
}

// openAndWait is a supervisor that opens a session and then waits for the end of its standard input.
func openAndWait(socket string) int {
	o, err := Open(context.Background(), socket, Request{Profile: "dev", Ticket: "t", Driver: process.Name, Insecure: true})
	if err != nil {
		fmt.Println("refused:", errs.Message(err))
		return 1
	}
	fmt.Println("opened:", o.Session)
	bufio.NewReader(os.Stdin).ReadByte()
	return 0
}

// fakeControl is control's side of one host: strict about what a host may ask.
type fakeControl struct {
	sallyportv1.UnimplementedHostServer
	model  *sallyportv1.ModelPolicy
	refuse error

	mu     sync.Mutex
	opened int
	closed map[string]string // session: reason
	ended  chan string
}

func (c *fakeControl) OpenSession(_ context.Context, r *sallyportv1.OpenSessionRequest) (*sallyportv1.OpenSessionResponse, error) {
	if c.refuse != nil {
		return nil, c.refuse
	}
	if r.GetOwnerTicket() == "" || r.GetFacts().GetDriver() == "" {
		return nil, status.Error(codes.InvalidArgument, "no ticket or no facts")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opened++
	js, err := relay.AppendSession(nil, &relay.Session{
		V: relay.Version, Session: session1, Epoch: 1, Build: "test", Server: "sallyport", Await: "await_call", HoldMS: 1000, TimeoutMS: 60000, Limits: relay.DefaultLimits(),
	})
	if err != nil {
		return nil, err
	}
	return &sallyportv1.OpenSessionResponse{
		Session: session1, Epoch: 1, SessionJson: js, ToolsJson: []byte(`{"v":1,"tools":[]}`), Model: c.model, PolicyDigest: strings.Repeat("0", 64),
		Sandbox: &sallyportv1.SandboxPolicy{Driver: process.Name, Closed: "no", Workspace: "none"}, Owner: "local:x", ServerName: "sallyport",
	}, nil
}

func (c *fakeControl) CloseSession(_ context.Context, r *sallyportv1.CloseSessionRequest) (*sallyportv1.CloseSessionResponse, error) {
	c.mu.Lock()
	c.closed[r.GetSession()] = r.GetReason()
	c.mu.Unlock()
	c.ended <- r.GetReason()
	return &sallyportv1.CloseSessionResponse{}, nil
}

func (c *fakeControl) Link(stream grpc.BidiStreamingServer[sallyportv1.HostFrames, sallyportv1.ControlFrames]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := stream.Send(&sallyportv1.ControlFrames{Frames: []*sallyportv1.ControlFrame{{Frame: &sallyportv1.ControlFrame_Welcome{Welcome: &sallyportv1.Welcome{
		Wire: 1, ProtectedVersion: 1, HighWater: &sallyportv1.HighWater{Incarnation: "i", Counter: 7},
	}}}}}); err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return nil //nolint:nilerr // the host went away: that is how a Link ends
		}
	}
}

type host struct {
	t       *testing.T
	control *fakeControl
	dir     string
	config  Config
	conn    *grpc.ClientConn
	socket  string
}

func newHost(t *testing.T) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "sp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &host{t: t, dir: dir, control: &fakeControl{closed: map[string]string{}, ended: make(chan string, 8)}, socket: filepath.Join(dir, "host.sock")}
	pipe := bufconn.Listen(1 << 20)
	s := grpc.NewServer()
	sallyportv1.RegisterHostServer(s, h.control)
	served := make(chan error, 1)
	go func() { served <- s.Serve(pipe) }()
	h.conn, err = grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return pipe.DialContext(ctx)
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.conn.Close()
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return h
}

// run starts a daemon and returns how to end it.
func (h *host) run() (stop func()) {
	h.t.Helper()
	listen := func(path string) net.Listener {
		os.Remove(path)
		l, err := net.Listen("unix", path)
		if err != nil {
			h.t.Fatal(err)
		}
		return l
	}
	l, gates := listen(h.socket), listen(filepath.Join(h.dir, "gate.sock"))
	d := New(Options{
		Build: "test", Protected: 1, Conn: h.conn, Dir: filepath.Join(h.dir, "host"), Config: h.config, Drivers: sandbox.NewRegistry(&process.Driver{}),
		GatePath: filepath.Join(h.dir, "gate.sock"), Guest: func(name string) ([]byte, error) { return []byte("#!" + name), nil }, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx, l, gates) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				h.t.Error(err)
			}
		})
	}
	h.t.Cleanup(stop)
	return stop
}

func (h *host) open(change func(*Request)) (*Opened, error) {
	r := Request{Profile: "dev", Ticket: "t", Driver: process.Name, Insecure: true}
	if change != nil {
		change(&r)
	}
	return Open(h.t.Context(), h.socket, r)
}

func (h *host) sessions() []string {
	h.t.Helper()
	entries, err := os.ReadDir(filepath.Join(h.dir, "host", "sessions"))
	if err != nil {
		h.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestOpenMakesEverythingReady(t *testing.T) {
	h := newHost(t)
	h.run()
	o, err := h.open(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{relay.SessionName, relay.ToolsName, relay.BridgeName, "bin/sallyport-guest", "bin/sallyport-bridge"} {
		if _, err := os.Stat(filepath.Join(o.In, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(o.In, relay.OpenName)); err == nil {
		t.Error("the gate is open before anybody proved anything")
	}
	if info, err := os.Stat(o.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the session's directory: %v %v", info, err)
	}
	if o.Session != session1 || o.Server != "sallyport" || o.Gate == "" {
		t.Errorf("opened: %+v", o)
	}
}

// A model without its key: the session opens, because a key may come later, and the person is told what to set.
func TestOpenNotesAMissingModelKey(t *testing.T) {
	for _, c := range []struct{ key, note string }{
		{"", "this host has no usable model key: set SALLYPORT_TEST_KEY for sallyport up (or sallyport host) and start it again"},
		{"two\nlines", "this host has no usable model key: set SALLYPORT_TEST_KEY for sallyport up (or sallyport host) and start it again"},
		{"a-key", ""},
	} {
		t.Setenv("SALLYPORT_TEST_KEY", c.key)
		h := newHost(t)
		h.config.Models = map[string]egress.Source{"main": {Provider: "anthropic", Env: "SALLYPORT_TEST_KEY"}}
		h.control.model = &sallyportv1.ModelPolicy{Provider: "anthropic", Source: "main"}
		h.run()
		o, err := h.open(nil)
		if err != nil {
			t.Fatal(err)
		}
		if o.Note != c.note {
			t.Errorf("key %q: the note is %q", c.key, o.Note)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	h := newHost(t)
	h.config.Models = map[string]egress.Source{"main": {Provider: "anthropic", Env: "X"}}
	h.run()
	if _, err := h.open(func(r *Request) { r.Driver = "vm" }); !errs.Is(err, errs.NotFound) || !strings.Contains(errs.Message(err), "process") {
		t.Errorf("an unknown driver: %v", err)
	}
	if _, err := h.open(func(r *Request) { r.Insecure = false }); !errs.Is(err, errs.NotAllowed) || !strings.Contains(errs.Message(err), "--insecure-no-sandbox") {
		t.Errorf("no sandbox without the user's word: %v", err)
	}
	if h.control.opened != 0 {
		t.Error("control was asked before the driver was chosen")
	}
	h.control.refuse = status.Error(codes.PermissionDenied, "the owner ticket is used")
	if _, err := h.open(nil); !errs.Is(err, errs.NotAllowed) || errs.Message(err) != "the owner ticket is used" {
		t.Errorf("control's refusal: %v", err)
	}
	h.control.refuse = nil
	// A model source that host.yaml does not name: the session is closed at control, and nothing is left.
	h.control.model = &sallyportv1.ModelPolicy{Provider: "openai", Source: "other"}
	if _, err := h.open(nil); !errs.Is(err, errs.NotConnected) || !strings.Contains(errs.Message(err), `"other"`) {
		t.Errorf("an unknown model source: %v", err)
	}
	<-h.control.ended
	if left := h.sessions(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	h.control.model = &sallyportv1.ModelPolicy{Provider: "openai", Source: "main"}
	if _, err := h.open(nil); !errs.Is(err, errs.Invalid) {
		t.Errorf("a source of another provider: %v", err)
	}
	<-h.control.ended
}

func TestNonsenseOnTheSocket(t *testing.T) {
	h := newHost(t)
	h.run()
	for _, line := range []string{"", "{}\n", "{\"v\":1,\"v\":1}\n", "{\"v\":1,\"what\":2}\n", "nonsense\n", strings.Repeat("x", maxProtocolLine+1) + "\n"} {
		c, err := net.Dial("unix", h.socket)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, line)
		c.(*net.UnixConn).CloseWrite()
		var got reply
		if err := readLine(c, &got); err == nil && got.Code == "" {
			t.Errorf("%.20q was taken", line)
		}
		c.Close()
	}
	if _, err := h.open(nil); err != nil {
		t.Errorf("the daemon serves no more: %v", err)
	}
}

// supervisor starts a process that opens a session, and returns it once the session is open.
func (h *host) supervisor() *exec.Cmd {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), os.Args[0], openArg, h.socket)
	in, err := cmd.StdinPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { in.Close() })
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "opened: ") {
		h.t.Fatalf("%q %v", line, err)
	}
	return cmd
}

// A supervisor that dies takes its session along: nothing is adopted, nothing is left, control knows.
func TestSupervisorGone(t *testing.T) {
	h := newHost(t)
	h.run()
	cmd := h.supervisor()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if reason := <-h.control.ended; !strings.Contains(reason, "supervisor is gone") {
		t.Errorf("control was told %q", reason)
	}
	if left := h.sessions(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A supervisor and the daemon that end together leave nothing either: nobody may come back to clean up.
func TestSupervisorAndDaemonEndTogether(t *testing.T) {
	h := newHost(t)
	stop := h.run()
	cmd := h.supervisor()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	stop()
	if left := h.sessions(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A daemon that restarts serves what its supervisor still holds, and ends what it does not.
func TestDaemonRestarts(t *testing.T) {
	h := newHost(t)
	stop := h.run()
	cmd := h.supervisor()
	stop()
	if left := h.sessions(); len(left) != 1 {
		t.Fatalf("a restart lost the session: %v", left)
	}
	stop = h.run()
	stop()
	h.control.mu.Lock()
	if len(h.control.closed) != 0 {
		t.Errorf("a live supervisor's session was closed: %v", h.control.closed)
	}
	h.control.mu.Unlock()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	h.run()
	<-h.control.ended
	if left := h.sessions(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	// What this host saw of control's store outlives it.
	if b, err := os.ReadFile(filepath.Join(h.dir, "host", markFile)); err != nil || !strings.Contains(string(b), `"counter":7`) {
		t.Errorf("high water: %s %v", b, err)
	}
}

func TestReadConfig(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "host.yaml")
	if c, err := ReadConfig(path); err != nil || len(c.Models) != 0 {
		t.Errorf("no file: %v", err)
	}
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	good := "version: 1\nmodels:\n  main: {provider: anthropic, env: K}\n  cmd: {provider: openai, command: [echo, x]}\n"
	write(good, 0o600)
	if c, err := ReadConfig(path); err != nil || len(c.Models) != 2 || c.Models["cmd"].Command[1] != "x" {
		t.Errorf("%+v %v", c, err)
	}
	write(good, 0o666)
	if _, err := ReadConfig(path); !errs.Is(err, errs.NotAllowed) {
		t.Errorf("writable by others: %v", err)
	}
	for name, bad := range map[string]string{
		"unknown member": "version: 1\nmodel: {}\n", "version": "version: 2\n", "provider": "version: 1\nmodels: {m: {provider: x, env: K}}\n",
		"two keys": "version: 1\nmodels: {m: {provider: openai, env: K, file: f}}\n", "not YAML": "{",
	} {
		write(bad, 0o600)
		if _, err := ReadConfig(path); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

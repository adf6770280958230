package gate

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/proc"
)

func TestMain(m *testing.M) {
	switch os.Getenv("SALLYPORT_TEST_ROLE") {
	case "child": // the first process of a sandbox: it lives until its parent's end of the pipe closes
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	case "supervisor":
		os.Exit(supervise())
	}
	goleak.VerifyTestMain(m)
}

// child starts a process in a network namespace of its own, as a driver does.
func child(t testing.TB) sandbox.Process {
	t.Helper()
	p, end := startChild()
	if end == nil {
		t.Fatal("no namespace could be made")
	}
	t.Cleanup(end)
	return p
}

func startChild() (sandbox.Process, func()) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "SALLYPORT_TEST_ROLE=child")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getegid(), Size: 1}},
	}
	in, err := cmd.StdinPipe()
	if err != nil || cmd.Start() != nil {
		return sandbox.Process{}, nil
	}
	s, _ := proc.Read(cmd.Process.Pid)
	ns, _ := proc.Namespace(cmd.Process.Pid, "net")
	return sandbox.Process{PID: s.PID, Start: s.Start, Outer: s.PID, NetNS: ns}, func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// host is a hub with its socket, and everything that was asked of it in order.
type host struct {
	hub  *Hub
	path string
	stop func()

	mu    sync.Mutex
	asked []string
}

func newHost(t testing.TB, path string) *host {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{hub: NewHub(slog.New(slog.NewTextHandler(testLog{t}, nil))), path: path}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := h.hub.Serve(ctx, l); err != nil {
			t.Error(err)
		}
	}()
	h.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		h.hub.Close()
	})
	t.Cleanup(h.stop)
	return h
}

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func (h *host) did(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, what)
}

func (h *host) story() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.asked, " ")
}

// box is a sandbox whose gate opens.
func (h *host) box(t testing.TB, p sandbox.Process) Box {
	t.Helper()
	self, err := proc.Self()
	if err != nil {
		t.Fatal(err)
	}
	return Box{
		Session: "s", Epoch: 1, Closed: sandbox.Proven, Demanded: sandbox.Proven, Policy: "digest", Supervisor: self, Timeout: 20 * time.Second,
		Record: func(context.Context) (Record, []byte, error) {
			h.did("record")
			return Record{Session: "s", Epoch: 1, NetNS: p.NetNS, Probe: Probe{Clear: true, Interfaces: []string{"lo"}}}, []byte("{}"), nil
		},
		Confirm: func(_ context.Context, c Confirm) (bool, string, error) {
			h.did("confirm")
			if !strings.Contains(c.Parent, "net="+p.NetNS) || c.Policy != "digest" || string(c.Probe) != "{}" {
				return false, "wrong facts: " + c.Parent, nil
			}
			return true, "", nil
		},
		Opening: func(Known) error { h.did("opening"); return nil },
		Open:    func() error { h.did("open"); return nil },
		Recover: func(context.Context) error { h.did("recover"); return nil },
		Ended:   func(r Result) { h.did("ended") },
	}
}

func open(t testing.TB, path string, p sandbox.Process) (*Client, error) {
	t.Helper()
	c, err := NewClient(Dial(path))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return c, c.Open(ctx, Proof{Session: "s", Epoch: 1, Sandbox: p})
}

func TestHubOpens(t *testing.T) {
	h := newHost(t, filepath.Join(t.TempDir(), "s"))
	p := child(t)
	if err := h.hub.Admit(h.box(t, p)); err != nil {
		t.Fatal(err)
	}
	if err := h.hub.Admit(h.box(t, p)); !errs.Is(err, errs.Conflict) {
		t.Errorf("admitted twice: %v", err)
	}
	c, err := open(t, h.path, p)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(Ended{Ran: true, Absent: true})
	if got := h.story(); got != "record confirm opening open" {
		t.Errorf("the host did: %s", got)
	}
}

func TestHubRefuses(t *testing.T) {
	cases := []struct {
		name   string
		change func(t *testing.T, b *Box, p *sandbox.Process)
		reason Reason
		story  string // what was asked
	}{
		{"another supervisor is expected", func(t *testing.T, b *Box, p *sandbox.Process) { b.Supervisor.Start++ }, ParentUnknown, ""},
		{"another epoch", func(t *testing.T, b *Box, p *sandbox.Process) { b.Epoch = 2 }, ProofElsewhere, ""},
		{"somebody else's process", func(t *testing.T, b *Box, p *sandbox.Process) {
			s, err := proc.Read(os.Getppid())
			if err != nil {
				t.Fatal(err)
			}
			p.PID, p.Start = s.PID, s.Start
		}, ChildUnknown, ""},
		{"another namespace than proven", func(t *testing.T, b *Box, p *sandbox.Process) { p.NetNS = "1:1" }, NamespaceChanged, ""},
		{"no record", func(t *testing.T, b *Box, p *sandbox.Process) {
			b.Timeout = time.Millisecond
			b.Record = func(ctx context.Context) (Record, []byte, error) {
				<-ctx.Done()
				return Record{}, nil, ctx.Err()
			}
		}, RecordMissing, ""},
		{"something answers", func(t *testing.T, b *Box, p *sandbox.Process) {
			b.Record = func(context.Context) (Record, []byte, error) {
				return Record{Session: "s", Epoch: 1, NetNS: p.NetNS, Probe: Probe{Clear: true, Interfaces: []string{"lo"}, Answered: []string{"dns"}}}, nil, nil
			}
		}, ProbeAnswered, ""},
		{"control says no", func(t *testing.T, b *Box, p *sandbox.Process) {
			b.Confirm = func(context.Context, Confirm) (bool, string, error) { return false, "revoked", nil }
		}, ControlRefused, "record"},
		{"control is away", func(t *testing.T, b *Box, p *sandbox.Process) {
			b.Confirm = func(context.Context, Confirm) (bool, string, error) {
				return true, "", errs.New(errs.Unreachable, "control does not answer")
			}
		}, ControlRefused, "record"},
		{"the host's state cannot be written", func(t *testing.T, b *Box, p *sandbox.Process) {
			b.Opening = func(Known) error { return errs.New(errs.Unavailable, "the disk is full") }
		}, ControlRefused, "record confirm"},
		{"the gate cannot be opened", func(t *testing.T, b *Box, p *sandbox.Process) {
			b.Open = func() error { return errs.New(errs.Unavailable, "the disk is full") }
		}, ControlRefused, "record confirm opening"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t, filepath.Join(t.TempDir(), "s"))
			p := child(t)
			b := h.box(t, p)
			c.change(t, &b, &p)
			if b.Supervisor.Start != h.box(t, p).Supervisor.Start {
				// Its end would be seen at once; the box is of a process that lives.
				other := child(t)
				b.Supervisor = proc.ID{PID: other.PID, Start: other.Start}
			}
			if err := h.hub.Admit(b); err != nil {
				t.Fatal(err)
			}
			client, err := open(t, h.path, p)
			client.Close(Ended{Absent: true})
			var refused refusedError
			if err == nil || !errors.As(err, &refused) || Reason(refused) != c.reason || errs.Message(err) == "" {
				t.Errorf("%v (%s)", err, refused)
			}
			if got := h.story(); got != c.story {
				t.Errorf("the host did %q, want %q", got, c.story)
			}
		})
	}
	h := newHost(t, filepath.Join(t.TempDir(), "s"))
	if _, err := open(t, h.path, child(t)); !errs.Is(err, errs.NotFound) {
		t.Errorf("an unknown session: %v", err)
	}
	h.stop()
	if _, err := open(t, h.path, child(t)); !errs.Is(err, errs.Unreachable) || !strings.Contains(errs.Message(err), "sallyport up") {
		t.Errorf("without a host: %v", err)
	}
}

// A sandbox outlives its host: the supervisor comes back, is known again, and nothing is opened twice.
func TestHubRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	h := newHost(t, path)
	p := child(t)
	b := h.box(t, p)
	var known Known
	b.Opening = func(k Known) error { known = k; return nil }
	if err := h.hub.Admit(b); err != nil {
		t.Fatal(err)
	}
	c, err := open(t, path, p)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(Ended{Ran: true, Absent: true})
	h.stop()

	again := newHost(t, path)
	b = again.box(t, p)
	b.Known = &known
	if err := again.hub.Admit(b); err != nil {
		t.Fatal(err)
	}
	// It is back once it can be told to stop.
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	until(ctx, t, func() bool {
		g := again.hub.find("s")
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.conn != nil
	})
	if got := again.story(); got != "" {
		t.Errorf("the host did %q for a sandbox that was open", got)
	}

	// A third host knows another key: the sandbox is told to end.
	again.stop()
	third := newHost(t, path)
	b = third.box(t, p)
	other := known
	other.Key = "another"
	b.Known = &other
	if err := third.hub.Admit(b); err != nil {
		t.Fatal(err)
	}
	select {
	case why := <-c.Stops():
		if !strings.Contains(why.Message, "another key") {
			t.Errorf("told to stop: %q", why.Message)
		}
	case <-ctx.Done():
		t.Fatal("a fenced sandbox was not told to stop")
	}
}

func until(ctx context.Context, t testing.TB, done func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatal("it did not come about")
		case <-tick.C:
		}
	}
}

// supervise is a supervisor process of its own: it opens its gate, and ends when told, or by force.
func supervise() int {
	p, end := startChild()
	if end == nil {
		return 1
	}
	defer end()
	os.Stdout.WriteString(p.NetNS + "\n")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // admitted
	c, err := NewClient(Dial(os.Getenv("SALLYPORT_TEST_SOCKET")))
	if err != nil {
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := c.Open(ctx, Proof{Session: "s", Epoch: 1, Sandbox: p}); err != nil {
		if os.Getenv("SALLYPORT_TEST_DEAF") != "" {
			_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		}
		c.Close(Ended{Absent: true})
		return 3
	}
	os.Stdout.WriteString("open\n")
	if os.Getenv("SALLYPORT_TEST_DEAF") != "" {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	}
	<-c.Stops()
	c.Close(Ended{Ran: true, Code: 4, Absent: true, Remarks: []string{"r"}})
	return 0
}

// process starts a supervisor process and admits its sandbox.
func process(t *testing.T, h *host, env ...string) (*exec.Cmd, *bufio.Reader, chan Result) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), "SALLYPORT_TEST_ROLE=supervisor", "SALLYPORT_TEST_SOCKET="+h.path), env...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewReader(stdout)
	ns, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	b := h.box(t, sandbox.Process{NetNS: strings.TrimSpace(ns)})
	s, err := proc.Read(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	b.Supervisor = s.ID
	ended := make(chan Result, 1)
	b.Ended = func(r Result) { ended <- r }
	if err := h.hub.Admit(b); err != nil {
		t.Fatal(err)
	}
	if _, err := stdin.Write([]byte("admitted\n")); err != nil {
		t.Fatal(err)
	}
	return cmd, lines, ended
}

func TestHubStops(t *testing.T) {
	h := newHost(t, filepath.Join(t.TempDir(), "s"))
	_, lines, ended := process(t, h)
	if line, err := lines.ReadString('\n'); err != nil || line != "open\n" {
		t.Fatalf("%q %v", line, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := h.hub.Stop(ctx, "s", StopReason{Message: "closed by a person"}); err != nil {
		t.Fatal(err)
	}
	if r := <-ended; r.Lost || !r.Ran || r.Code != 4 || !r.Absent || len(r.Remarks) != 1 || r.Err != nil {
		t.Errorf("%+v", r)
	}
	if err := h.hub.Stop(ctx, "s", StopReason{}); !errs.Is(err, errs.NotFound) {
		t.Errorf("stopped twice: %v", err)
	}
	if len(h.hub.Sessions()) != 0 {
		t.Error("it is still guarded")
	}
}

func TestHubLosesASupervisor(t *testing.T) {
	h := newHost(t, filepath.Join(t.TempDir(), "s"))
	cmd, lines, ended := process(t, h)
	if line, err := lines.ReadString('\n'); err != nil || line != "open\n" {
		t.Fatalf("%q %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if r := <-ended; !r.Lost || !r.Absent || r.Err != nil {
		t.Errorf("%+v", r)
	}
	if got := h.story(); !strings.HasSuffix(got, "open recover") {
		t.Errorf("the host did %q", got)
	}
}

// A supervisor that does not end when it is told to is killed, and what is left of its sandbox recovered.
func TestHubKillsTheDeaf(t *testing.T) {
	h := newHost(t, filepath.Join(t.TempDir(), "s"))
	_, lines, ended := process(t, h, "SALLYPORT_TEST_DEAF=1")
	if line, err := lines.ReadString('\n'); err != nil || line != "open\n" {
		t.Fatalf("%q %v", line, err)
	}
	h.hub.find("s").endSoon(time.Millisecond)
	if r := <-ended; !r.Lost || !r.Absent {
		t.Errorf("%+v", r)
	}
}

func TestServeConnRefusesNonsense(t *testing.T) {
	h := newHost(t, filepath.Join(t.TempDir(), "s"))
	for _, line := range []string{"", "\n", "{}\n", "nonsense\n", `{"v":1,"v":1}` + "\n", `{"v":9,"open":true}` + "\n", `{"v":1,"statement":"e30="}` + "\n", strings.Repeat("x", maxMessage+1) + "\n"} {
		c, err := net.Dial("unix", h.path)
		if err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		if _, err := r.ReadString('\n'); err != nil {
			t.Errorf("no challenge: %v", err)
		}
		_, _ = c.Write([]byte(line))
		_ = c.(*net.UnixConn).CloseWrite()
		for {
			if _, err := r.ReadByte(); err != nil {
				break // the host closed; a refusal may stand before that
			}
		}
		c.Close()
	}
	if h.story() != "" {
		t.Errorf("the host did %q", h.story())
	}
}

package supervisor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/errs"
	"sallyport.dev/host/gate"
	"sallyport.dev/host/harness"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/bwrap"
	"sallyport.dev/host/sandbox/launch"
	"sallyport.dev/host/sandbox/proc"
	"sallyport.dev/host/sandbox/sandboxtest"
	"sallyport.dev/host/supervisor"
)

func TestMain(m *testing.M) {
	sandboxtest.Main()
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case supervisor.Arg:
			self, _ := os.Executable()
			os.Exit(supervisor.Main(sandbox.NewRegistry(&bwrap.Driver{Launcher: []string{self, launch.Arg}})))
		case "test-run":
			os.Exit(runForTest())
		}
	}
	goleak.VerifyTestMain(m)
}

func TestPlainUser(t *testing.T) { sandboxtest.AsPlainUser(t, "^Test(Run|Terminal|Background)") }

// host opens every gate at once, or refuses, and remembers what it was told.
type host struct {
	open   func(context.Context, gate.Proof) error
	refuse error
	stops  chan gate.StopReason

	mu    sync.Mutex
	proof gate.Proof
	ended *gate.Ended
}

func (h *host) Open(ctx context.Context, p gate.Proof) error {
	h.mu.Lock()
	h.proof = p
	h.mu.Unlock()
	if h.refuse != nil {
		return h.refuse
	}
	return h.open(ctx, p)
}

func (h *host) Stops() <-chan gate.StopReason { return h.stops }

func (h *host) Close(e gate.Ended) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = &e
}

// fixture is a session, its host, and pipes in place of a person.
type fixture struct {
	*sandboxtest.Session
	host *host
	cfg  supervisor.Config
	in   *os.File // write to it
	out  *bytes.Buffer
	err  *bytes.Buffer
	done func()
}

func newFixture(t *testing.T, args ...string) *fixture {
	t.Helper()
	s := sandboxtest.New(t, args...)
	f := &fixture{Session: s, out: &bytes.Buffer{}, err: &bytes.Buffer{}}
	f.host = &host{stops: make(chan gate.StopReason, 1), open: func(context.Context, gate.Proof) error { s.Open(t); return nil }}
	var stdio supervisor.Stdio
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdio.In, f.in = r, w
	var copies sync.WaitGroup
	for _, p := range []struct {
		to **os.File
		b  *bytes.Buffer
	}{{&stdio.Out, f.out}, {&stdio.Err, f.err}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		*p.to = w
		copies.Go(func() { _, _ = io.Copy(p.b, r); r.Close() })
	}
	f.done = func() {
		stdio.Out.Close()
		stdio.Err.Close()
		copies.Wait()
		stdio.In.Close()
		f.in.Close()
	}
	f.cfg = supervisor.Config{Job: supervisor.Job{Plan: s.Plan}, Driver: sandboxtest.Driver(t), Host: f.host, Stdio: stdio, Log: slog.New(slog.DiscardHandler)}
	return f
}

// run runs the job and checks what must hold however it ended: nothing of the sandbox is left.
func (f *fixture) run(t *testing.T, ctx context.Context) (supervisor.Outcome, error) {
	t.Helper()
	o, err := supervisor.Run(ctx, f.cfg)
	f.done()
	f.gone(t)
	return o, err
}

func (f *fixture) gone(t *testing.T) {
	t.Helper()
	f.host.mu.Lock()
	p, ended := f.host.proof.Sandbox, f.host.ended
	f.host.mu.Unlock()
	if ended == nil || !ended.Absent {
		t.Errorf("the host was told %+v", ended)
	}
	left := proc.Find(func(pid int) bool {
		ns, err := proc.Namespace(pid, "pid")
		return p.PIDNS != "" && err == nil && ns == p.PIDNS && proc.Runs(pid)
	})
	if len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if entries, err := os.ReadDir(f.Work); err != nil || len(entries) != 0 {
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") {
				t.Errorf("left in the workspace: %s", e.Name())
			}
		}
	}
	if _, err := os.Stat(filepath.Join(f.Dir, "sandbox.json")); !os.IsNotExist(err) {
		t.Errorf("traces: %v", err)
	}
}

func TestRun(t *testing.T) {
	f := newFixture(t, "/bin/sh", "-c", "cat; echo err >&2; cat $HOME/.config/x; exit 3")
	f.cfg.Job.Home = []harness.File{{Path: ".config/x", Content: []byte("generated\n")}}
	var facts sandbox.Facts
	f.cfg.Started = func(got sandbox.Facts) { facts = got }
	if _, err := f.in.WriteString("typed\n"); err != nil {
		t.Fatal(err)
	}
	f.in.Close()
	o, err := f.run(t, context.Background())
	if err != nil || o.Code != 3 || !o.Ran || f.out.String() != "typed\ngenerated\n" || f.err.String() != "err\n" {
		t.Errorf("%+v %v %q %q", o, err, f.out, f.err)
	}
	if facts.Closed != sandbox.Proven || facts.Levels.Memory == "" {
		t.Errorf("%+v", facts)
	}
	p := f.host.proof
	if p.Session != f.Plan.Session || p.Epoch != 1 || p.Sandbox.PID == 0 || p.Sandbox.NetNS == "" || p.Sandbox.Outer == 0 {
		t.Errorf("proof: %+v", p)
	}
	if e := f.host.ended; !e.Ran || e.Code != 3 {
		t.Errorf("ended: %+v", e)
	}
}

func TestRunRefused(t *testing.T) {
	f := newFixture(t, "/bin/sh", "-c", "echo ran")
	f.host.refuse = errs.New(errs.NotAllowed, "the control plane did not confirm the session")
	o, err := f.run(t, context.Background())
	if !errs.Is(err, errs.NotAllowed) || o.Code != supervisor.Failed || o.Ran || f.out.String() != "" {
		t.Errorf("%+v %v %q", o, err, f.out)
	}
}

func TestRunNeverPrepared(t *testing.T) {
	f := newFixture(t, "/bin/true")
	f.cfg.Job.Plan.Workspace.Path = f.Where.State
	o, err := f.run(t, context.Background())
	if !errs.Is(err, errs.NotAllowed) || o.Code != supervisor.Failed {
		t.Errorf("%+v %v", o, err)
	}
}

func TestRunHostIsSilent(t *testing.T) {
	f := newFixture(t, "/bin/true")
	f.cfg.OpenTimeout = time.Millisecond
	f.host.open = func(ctx context.Context, _ gate.Proof) error { <-ctx.Done(); return ctx.Err() }
	o, err := f.run(t, context.Background())
	if !errs.Is(err, errs.Unavailable) || o.Code != supervisor.Failed || o.Ran {
		t.Errorf("%+v %v", o, err)
	}
}

func TestRunGateDies(t *testing.T) {
	f := newFixture(t, "/bin/true")
	f.cfg.Job.Plan.Gate = []string{"/bin/sh", "-c", "sleep 0.2; exit 9", "sh"}
	f.host.open = func(ctx context.Context, _ gate.Proof) error { <-ctx.Done(); return ctx.Err() }
	o, err := f.run(t, context.Background())
	if !errs.Is(err, errs.Unavailable) || o.Code != supervisor.Failed || o.Ran {
		t.Errorf("%+v %v", o, err)
	}
}

// stubborn ignores everything polite once it is ready.
const stubborn = "trap '' TERM INT HUP; touch $HOME/ready; while :; do sleep 300; done"

func (f *fixture) ready(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(filepath.Join(f.Dir, "home", name)); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Errorf("%s did not appear", name)
			return
		case <-tick.C:
		}
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	f := newFixture(t, "/bin/sh", "-c", stubborn)
	f.cfg.Grace = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	go func() { f.ready(t, "ready"); cancel() }()
	o, err := f.run(t, ctx)
	if err != nil || o.Code != 128+9 || !o.Ran {
		t.Errorf("%+v %v", o, err)
	}
}

func TestRunEndsForTheHost(t *testing.T) {
	f := newFixture(t, "/bin/sh", "-c", "trap 'echo saved; exit 5' TERM; touch $HOME/ready; while :; do sleep 0.01; done")
	go func() {
		f.ready(t, "ready")
		f.host.stops <- gate.StopReason{Message: "the session was revoked", Grace: 20 * time.Second, Park: true}
	}()
	o, err := f.run(t, context.Background())
	if err != nil || o.Code != 5 || o.Stopped != "the session was revoked" || !o.Parked || f.out.String() != "saved\n" {
		t.Errorf("%+v %v %q", o, err, f.out)
	}
}

func TestRunForwardsSignals(t *testing.T) {
	f := newFixture(t, "/bin/sh", "-c", "trap 'echo int' INT; trap 'echo usr1; exit 6' USR1; touch $HOME/ready; while :; do sleep 0.01; done")
	go func() {
		f.ready(t, "ready")
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
		_ = syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	}()
	o, err := f.run(t, context.Background())
	if err != nil || o.Code != 6 || !strings.HasSuffix(f.out.String(), "usr1\n") {
		t.Errorf("%+v %v %q", o, err, f.out)
	}
}

func TestRunTerminated(t *testing.T) {
	f := newFixture(t, "/bin/sh", "-c", stubborn)
	f.cfg.Grace = 10 * time.Millisecond
	go func() { f.ready(t, "ready"); _ = syscall.Kill(os.Getpid(), syscall.SIGTERM) }()
	if o, err := f.run(t, context.Background()); err != nil || o.Code != 128+9 {
		t.Errorf("%+v %v", o, err)
	}
}

// A background process that keeps the output open does not keep the run from ending.
func TestRunLeavesNobody(t *testing.T) {
	f := newFixture(t, "/bin/sh", "-c", "(trap '' HUP TERM; sleep 300) & echo done")
	o, err := f.run(t, context.Background())
	if err != nil || o.Code != 0 || f.out.String() != "done\n" {
		t.Errorf("%+v %v %q", o, err, f.out)
	}
}

func TestBackground(t *testing.T) {
	f := newFixture(t, "/bin/sh", "-c", "echo to the log; echo $0; readlink /proc/self/fd/0; exit 4")
	defer f.done()
	hub := gate.NewHub(slog.New(slog.DiscardHandler))
	defer hub.Close()
	dir := sandboxtest.Dir(t)
	socket := filepath.Join(dir, "gate.sock")
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	l := listen(t, socket)
	go func() { defer close(served); _ = hub.Serve(ctx, l) }()
	defer func() { cancel(); <-served }()

	s, err := supervisor.Spawn([]string{sandboxtest.Self(t), supervisor.Arg}, f.Dir)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan gate.Result, 1)
	var netns string
	if err := hub.Admit(gate.Box{
		Session: f.Plan.Session, Epoch: 1, Closed: sandbox.Proven, Demanded: sandbox.Proven, Supervisor: s.ID, Timeout: 20 * time.Second,
		Record: func(context.Context) (gate.Record, []byte, error) {
			// The test's gate writes no record: what it would say is read from outside.
			for _, pid := range proc.Find(func(pid int) bool { return proc.Below(pid, s.ID.PID, 2) && !proc.Below(pid, s.ID.PID, 1) }) {
				netns, _ = proc.Namespace(pid, "net")
			}
			return gate.Record{Session: f.Plan.Session, Epoch: 1, NetNS: netns, Probe: gate.Probe{Clear: true, Interfaces: []string{"lo"}}}, nil, nil
		},
		Confirm: func(context.Context, gate.Confirm) (bool, string, error) { return true, "", nil },
		Open:    func() error { f.Open(t); return nil },
		Recover: func(ctx context.Context) error { return sandboxtest.Driver(t).Recover(ctx, f.Dir) },
		Ended:   func(r gate.Result) { ended <- r },
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Go(supervisor.Background{Job: f.cfg.Job, Driver: bwrap.Name, Socket: socket}); err != nil {
		t.Fatal(err)
	}
	r := <-ended
	if r.Lost || !r.Ran || r.Code != 4 || !r.Absent || r.Refused != nil {
		log, _ := os.ReadFile(filepath.Join(f.Dir, "supervisor.log"))
		t.Errorf("%+v\n%s", r, log)
	}
	out, err := os.ReadFile(filepath.Join(f.Dir, "agent.log"))
	if err != nil || !strings.HasPrefix(string(out), "to the log\n") || !strings.Contains(string(out), "pipe:") {
		t.Errorf("%q %v", out, err)
	}
}

// runForTest is "sallyport run" for the terminal's tests: a process of its own, on the terminal that it was started on.
func runForTest() int {
	var job supervisor.Job
	if err := json.Unmarshal([]byte(os.Getenv("SALLYPORT_TEST_JOB")), &job); err != nil {
		return 99
	}
	self, _ := os.Executable()
	h := &host{stops: make(chan gate.StopReason, 1), open: func(_ context.Context, p gate.Proof) error {
		if path := os.Getenv("SALLYPORT_TEST_PROOF"); path != "" {
			if err := os.WriteFile(path+".new", []byte(p.Sandbox.PIDNS), 0o600); err != nil {
				return err
			}
			if err := os.Rename(path+".new", path); err != nil {
				return err
			}
		}
		return os.WriteFile(filepath.Join(job.Plan.In, "open"), nil, 0o644)
	}}
	if os.Getenv("SALLYPORT_TEST_REFUSE") != "" {
		h.refuse = errs.New(errs.NotAllowed, "refused")
	}
	o, err := supervisor.Run(context.Background(), supervisor.Config{
		Job: job, Driver: &bwrap.Driver{Launcher: []string{self, launch.Arg}}, Host: h, Grace: time.Second,
		Stdio: supervisor.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr},
	})
	if err != nil {
		os.Stderr.WriteString(errs.Message(err) + "\n")
	}
	return o.Code
}

// A person who interrupts while the sandbox is made is heard, whoever had the signals then: nothing of it is left, and the agent never ran.
func TestCancelledBeforeTheGate(t *testing.T) {
	cancelled := make(chan struct{})
	close(cancelled)
	for name, open := range map[string]func(context.Context, gate.Proof) error{
		"while it waits":   func(ctx context.Context, _ gate.Proof) error { <-ctx.Done(); return ctx.Err() },
		"as it was opened": nil, // at once
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "/bin/sh", "-c", "echo never")
			f.cfg.Cancelled = cancelled
			if open != nil {
				f.host.open = open
			}
			o, err := f.run(t, t.Context())
			if !errs.Is(err, errs.Cancelled) || o.Ran || o.Code != supervisor.Failed || f.out.Len() != 0 {
				t.Errorf("%+v, %v, %q", o, err, f.out)
			}
			if f.host.ended == nil || !f.host.ended.Absent {
				t.Errorf("the host was told %+v", f.host.ended)
			}
		})
	}
}

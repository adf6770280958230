package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/test/fixture/mcpserver"
)

const (
	secret    = "canary-token-5f3c9a71"
	writeArgs = `{"project":"web","title":"Fix the login","estimate":1.10}`
)

// log keeps what a worker logs.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs a worker in this process, unconfined, and returns what ends it.
func start(t *testing.T, cfg Config) (stop func() error, out *log) {
	t.Helper()
	out = &log{}
	cfg.Log = slog.New(slog.NewTextHandler(out, nil))
	cfg.Confine, cfg.Build = ConfineOff, "test"
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg) }()
	ended := false
	var err error
	stop = func() error {
		if !ended {
			cancel()
			err, ended = <-done, true
		}
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return stop, out
}

func target(s *mcpserver.Server) (origin, path string) {
	host, path, _ := strings.Cut(strings.TrimPrefix(s.URL(), "http://"), "/")
	return "http://" + host, "/" + path
}

// expect waits for the outcome of an intent, and returns the frames' words before it.
func (s *session) expect(id string) (before []string, o *sallyportv1.Outcome) {
	s.p.t.Helper()
	for {
		f := s.next()
		switch {
		case f.GetReady().GetIntent() == id:
			before = append(before, "ready")
		case f.GetSent().GetIntent() == id:
			before = append(before, "sent")
		case f.GetAttested().GetIntent() == id:
			before = append(before, "attested "+strings.ToLower(strings.TrimPrefix(f.GetAttested().GetState().String(), "ATTEST_STATE_")))
		case f.GetOutcome().GetIntent() == id:
			return before, f.GetOutcome()
		}
	}
}

// One governed call of each kind, from control's Link to a real server of each era and back.
func TestCalls(t *testing.T) {
	for name, opts := range map[string]mcpserver.Options{
		"2026-07-28": {Eras: mcpserver.Modern}, "2025-11-25 and before": {Eras: mcpserver.Legacy}, "event streams": {Framing: mcpserver.SSE},
	} {
		t.Run(name, func(t *testing.T) {
			opts.Auth = mcpserver.Auth{Kind: mcpserver.Bearer, Secret: secret}
			server := mcpserver.Start(t, opts)
			origin, path := target(server)
			p := newPlane(t)
			stop, out := start(t, Config{State: filepath.Join(t.TempDir(), "worker"), Token: p.token()})
			s := p.link()
			if s.hello.GetPool() != "default" || len(s.hello.GetPoolKey()) != 32 || s.hello.GetCapacity() == 0 || !strings.HasPrefix(s.hello.GetConfinement(), "NOT confined") {
				t.Errorf("hello: %v", s.hello)
			}

			probe := s.intent(intent.Read, origin, path, "", "", 0)
			probe.Kind, probe.Call, probe.Session, probe.Arguments, probe.Attempt = intent.Probe, "", "", "", 0
			s.send(s.job(probe, "", secret))
			if _, o := s.expect(probe.ID); !strings.Contains(string(o.GetOutput()), `"ok":true`) {
				t.Errorf("probe: %s %s", o.GetOutput(), o.GetDetail())
			}
			list := s.intent(intent.Read, origin, path, "", "", 1)
			list.Kind, list.Call, list.Session, list.Arguments, list.Attempt = intent.Catalog, "", "", "", 0
			s.send(s.job(list, "", secret))
			if _, o := s.expect(list.ID); !strings.Contains(string(o.GetOutput()), `"name":"create_issue"`) {
				t.Errorf("catalog: %.80s %s", o.GetOutput(), o.GetDetail())
			}

			read := s.intent(intent.Read, origin, path, "numbers", "{}", 2)
			s.send(s.job(read, "{}", secret))
			before, o := s.expect(read.ID)
			if len(before) != 1 || o.GetHttpStatus() != 200 || !bytes.Contains(o.GetBody(), []byte(mcpserver.NumbersResult[1:])) {
				t.Errorf("read: %q %v", before, o)
			}

			write := s.intent(intent.Write, origin, path, "create_issue", writeArgs, 3)
			s.send(s.job(write, writeArgs, secret))
			if r := s.next().GetReady(); r.GetIntent() != write.ID || !strings.HasPrefix(r.GetAddress(), "127.0.0.1:") || r.GetProtocol() == "" {
				t.Fatalf("ready: %v", r)
			}
			if n := server.Effects().Count("create_issue"); n != 0 {
				t.Fatalf("%d effects before Go", n)
			}
			s.send(goJob(write.ID), goJob(write.ID))
			before, o = s.expect(write.ID)
			if o.GetTransport() != sallyportv1.Transport_TRANSPORT_ANSWERED || o.GetBytesWritten() == 0 || !strings.Contains(string(o.GetBody()), `"number":1`) {
				t.Errorf("write: %q %v", before, o)
			}
			if n := server.Effects().CountOf("create_issue", writeArgs); n != 1 || server.CallsWith("create_issue", writeArgs) != 1 {
				t.Errorf("%d effects, %d calls with these bytes", n, server.CallsWith("create_issue", writeArgs))
			}
			s.send(ackJob(read.ID), ackJob(write.ID), ackJob(probe.ID), ackJob(list.ID), attestJob(write.ID))
			if before, o = s.expect(write.ID); len(before) != 1 || before[0] != "attested finished" || o.GetFailure() != "forgotten" {
				t.Errorf("after the acknowledgment: %q %v", before, o)
			}
			if err := stop(); err != nil {
				t.Errorf("ended with %v", err)
			}
			if strings.Contains(out.String(), "canary") {
				t.Errorf("the log has the secret: %s", out.String())
			}
		})
	}
}

// A Link that is lost in the middle of a write loses nothing: the outcome comes with the next one, and the call is not made again.
func TestLinkLostDuringAWrite(t *testing.T) {
	server := mcpserver.Start(t, mcpserver.Options{Auth: mcpserver.Auth{Kind: mcpserver.Bearer, Secret: secret}})
	origin, path := target(server)
	p := newPlane(t)
	start(t, Config{State: filepath.Join(t.TempDir(), "worker"), Token: p.token()})
	s := p.link()
	args := `{"title":"x","key":"k"}`
	write := s.intent(intent.Write, origin, path, "slow_write", args, 1)
	job := s.job(write, args, secret)
	s.send(job)
	if s.next().GetReady() == nil {
		t.Fatal("not ready")
	}
	s.send(goJob(write.ID))
	if s.next().GetSent() == nil {
		t.Fatal("not sent")
	}
	close(s.end)
	again := p.link()
	if len(again.hello.GetOpenIntents()) != 1 || again.hello.GetOpenIntents()[0] != write.ID || again.hello.GetRun() != s.hello.GetRun() {
		t.Errorf("hello: %v", again.hello)
	}
	again.send(job, goJob(write.ID), attestJob(write.ID))
	if a := again.next().GetAttested(); a.GetState() != sallyportv1.AttestState_ATTEST_STATE_RUNNING {
		t.Errorf("attested %v", a)
	}
	server.Release("k")
	if _, o := again.expect(write.ID); o.GetTransport() != sallyportv1.Transport_TRANSPORT_ANSWERED {
		t.Errorf("outcome: %v", o)
	}
	if n := server.Effects().Count("slow_write"); n != 1 {
		t.Errorf("%d effects", n)
	}
	close(again.end)
	last := p.link()
	if _, o := last.expect(write.ID); o.GetTransport() != sallyportv1.Transport_TRANSPORT_ANSWERED {
		t.Errorf("outcome, not acknowledged: %v", o)
	}
	last.send(ackJob(write.ID))
}

// What was dispatched when a worker is told to end is answered, and its outcome delivered, before it ends.
func TestDrain(t *testing.T) {
	server := mcpserver.Start(t, mcpserver.Options{Auth: mcpserver.Auth{Kind: mcpserver.Bearer, Secret: secret}})
	origin, path := target(server)
	p := newPlane(t)
	stop, _ := start(t, Config{State: filepath.Join(t.TempDir(), "worker"), Token: p.token()})
	s := p.link()
	args := `{"title":"x","key":"k"}`
	running, waiting := s.intent(intent.Write, origin, path, "slow_write", args, 1), s.intent(intent.Write, origin, path, "create_issue", writeArgs, 2)
	s.send(s.job(running, args, secret))
	s.next()
	s.send(goJob(running.ID))
	s.next()
	s.send(s.job(waiting, writeArgs, secret))
	s.next()
	ended := make(chan error)
	go func() { ended <- stop() }()
	if a := s.next().GetAttested(); a.GetIntent() != waiting.ID || a.GetState() != sallyportv1.AttestState_ATTEST_STATE_NOT_STARTED {
		t.Errorf("what was not released: %v", a)
	}
	server.Release("k")
	if _, o := s.expect(running.ID); o.GetTransport() != sallyportv1.Transport_TRANSPORT_ANSWERED {
		t.Errorf("outcome: %v", o)
	}
	s.send(ackJob(running.ID))
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestStartRefuses(t *testing.T) {
	p := newPlane(t)
	base := t.TempDir()
	run := func(cfg Config) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cfg.Confine = ConfineOff
		return Run(ctx, cfg)
	}
	if err := run(Config{State: filepath.Join(base, "a")}); !errs.Is(err, errs.NotFound) || !strings.Contains(errs.Message(err), "--join") {
		t.Errorf("not enrolled: %v", err)
	}
	if err := run(Config{State: filepath.Join(base, "a"), Token: "nonsense"}); !errs.Is(err, errs.Invalid) {
		t.Errorf("no token: %v", err)
	}
	if err := run(Config{State: filepath.Join(base, "missing", "a")}); !errs.Is(err, errs.Unavailable) {
		t.Errorf("no parent: %v", err)
	}
	stop, out := start(t, Config{State: filepath.Join(base, "b"), Token: p.token()})
	p.link()
	if err := run(Config{State: filepath.Join(base, "b")}); !errs.Is(err, errs.Conflict) {
		t.Errorf("a second process: %v", err)
	}
	if !strings.Contains(out.String(), "a new pool key was made") || !strings.Contains(out.String(), "fingerprint=") {
		t.Errorf("the fingerprint is not printed: %s", out.String())
	}
	if err := stop(); err != nil {
		t.Errorf("ended with %v", err)
	}
	// The files are enough for the next start, with the same key.
	before, err := os.ReadFile(filepath.Join(base, "b", "pool.key"))
	if err != nil {
		t.Fatal(err)
	}
	stop, _ = start(t, Config{State: filepath.Join(base, "b")})
	p.link()
	if err := stop(); err != nil {
		t.Errorf("ended with %v", err)
	}
	if after, err := os.ReadFile(filepath.Join(base, "b", "pool.key")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the pool key changed: %v", err)
	}
	if err := os.Chmod(filepath.Join(base, "b", "pool.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(Config{State: filepath.Join(base, "b")}); !errs.Is(err, errs.NotAllowed) || !strings.Contains(errs.Message(err), "chmod 0600") {
		t.Errorf("a key that others can read: %v", err)
	}
}

func TestReplaced(t *testing.T) {
	p := newPlane(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := Run(ctx, Config{State: filepath.Join(t.TempDir(), "worker"), Token: p.token(), Confine: ConfineOff, Life: time.Nanosecond})
	if !errors.Is(err, ErrReplace) {
		t.Errorf("ended with %v", err)
	}
}

func TestPorts(t *testing.T) {
	for address, want := range map[string]uint16{"control.example.org:7443": 7443, "[2001:db8::1]:443": 443, "10.0.0.1:1": 1, "nonsense": 0} {
		if got := portOf(address); got != want {
			t.Errorf("%s: %d", address, got)
		}
	}
	if got := directory("/run/sallyport/link.sock"); got != "/run/sallyport" {
		t.Error(got)
	}
}

func TestRunIDsAreIDs(t *testing.T) {
	a, b := newRun(), newRun()
	if !intent.IsID(a) || a == b {
		t.Errorf("%s %s", a, b)
	}
}

// A worker as it ships, wholly confined, does everything that a worker does.
func TestConfinedProcess(t *testing.T) {
	if abi, err := ll.LandlockGetABIVersion(); err != nil || abi < 4 {
		t.Skipf("this kernel's landlock is too old to confine wholly (%d, %v)", abi, err)
	}
	bin := filepath.Join(t.TempDir(), "worker")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./testdata/worker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	server := mcpserver.Start(t, mcpserver.Options{Eras: mcpserver.Legacy, Auth: mcpserver.Auth{Kind: mcpserver.Bearer, Secret: secret}})
	origin, path := target(server)
	other := mcpserver.Start(t, mcpserver.Options{})
	p := newPlane(t)
	out := &log{}
	cmd := exec.CommandContext(t.Context(), bin, filepath.Join(t.TempDir(), "state"), p.token(), string(ConfineRequire), fmt.Sprint(server.Port()))
	cmd.Stderr = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := p.link()
	if !strings.HasPrefix(s.hello.GetConfinement(), "cannot ") || strings.Contains(s.hello.GetConfinement(), "still can") {
		t.Errorf("the level is %q", s.hello.GetConfinement())
	}
	write := s.intent(intent.Write, origin, path, "create_issue", writeArgs, 1)
	s.send(s.job(write, writeArgs, secret))
	if s.next().GetReady() == nil {
		t.Fatalf("not ready: %s", out)
	}
	s.send(goJob(write.ID))
	if _, o := s.expect(write.ID); o.GetTransport() != sallyportv1.Transport_TRANSPORT_ANSWERED {
		t.Errorf("write: %v", o)
	}
	// By name, so that the resolver runs confined.
	named := s.intent(intent.Read, strings.Replace(origin, "127.0.0.1", "localhost", 1), path, "echo", `{"text":"x"}`, 2)
	named.Allow = append(named.Allow, "::1/128")
	s.send(s.job(named, `{"text":"x"}`, secret))
	if _, o := s.expect(named.ID); o.GetFailure() != "" {
		t.Errorf("by name: %v", o)
	}
	// A port that was not named is shut by the kernel.
	otherOrigin, otherPath := target(other)
	shut := s.intent(intent.Read, otherOrigin, otherPath, "echo", `{"text":"x"}`, 3)
	s.send(s.job(shut, `{"text":"x"}`, secret))
	if _, o := s.expect(shut.ID); o.GetTransport() != sallyportv1.Transport_TRANSPORT_NOT_SENT || o.GetFailure() != "connect" {
		t.Errorf("another port: %v", o)
	}
	if n := len(other.Recorder().Connections()); n != 0 {
		t.Errorf("%d connections to the other port", n)
	}
	s.send(ackJob(write.ID), ackJob(named.ID), ackJob(shut.ID))
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if strings.Contains(out.String(), "canary") {
		t.Errorf("the log has the secret: %s", out)
	}
}

package up

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/errs"
)

// The parts of these tests are real processes: this test binary, told by its first argument what to be.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "part" {
		os.Exit(part(os.Args[2], os.Args[3:]))
	}
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("sallyport.dev/cmd/sallyport/up.init.0.func1"))
}

// part is one child: what it does, then its name.
func part(kind string, args []string) int {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	say := func(what string) { fmt.Fprintln(os.Stderr, what, name) }
	switch kind {
	case "good":
		ended := make(chan os.Signal, 1)
		signal.Notify(ended, syscall.SIGTERM)
		if os.Getenv("NAME") != name || os.Getenv("HOME") != "" {
			say("not its own environment:")
		}
		say("begin")
		if err := Ready(); err != nil {
			say(err.Error())
			return 1
		}
		<-ended
		say("end")
		return 0
	case "deaf": // does not end when it is told to
		signal.Ignore(syscall.SIGTERM)
		if Ready() != nil {
			return 1
		}
		select {}
	case "broken":
		say("it is broken:")
		return 3
	case "brief": // serves, and ends at once
		if Ready() != nil {
			return 1
		}
		return 7
	case "silent": // never ready
		ended := make(chan os.Signal, 1)
		signal.Notify(ended, syscall.SIGTERM)
		<-ended
		return 0
	case "parent": // leaves a child that holds its standard error
		child := exec.Command(os.Args[0], "part", "silent") //nolint:noctx // it outlives this process on purpose
		child.Stderr = os.Stderr
		if child.Start() != nil || Ready() != nil {
			return 1
		}
		fmt.Fprintf(os.Stderr, "child %d\n", child.Process.Pid)
		return 0
	case "lines":
		fmt.Fprintf(os.Stderr, "%s\nno line end", strings.Repeat("x", 3*maxLine))
		return 0
	case "supervise": // an up of its own, to be killed
		s := &Supervisor{Exe: os.Args[0], Stderr: os.Stderr, Log: slog.New(slog.DiscardHandler), Parts: []Part{child("good", "a")}}
		s.Started = func() { fmt.Fprintln(os.Stderr, "started") }
		if s.Run(context.Background()) != nil {
			return 1
		}
		return 0
	}
	return 2
}

// output collects what parts and the supervisor print, and lets a test wait for it.
type output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{}
}

func newOutput() *output { return &output{changed: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// wait waits until text holds n times.
func (o *output) wait(t *testing.T, text string, n int) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		o.mu.Lock()
		got, changed := strings.Count(o.text.String(), text), o.changed
		o.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("%q stands there %d times, want %d:\n%s", text, got, n, o)
		}
	}
}

func supervisor(out *output, parts ...Part) *Supervisor {
	return &Supervisor{
		Exe: os.Args[0], Parts: parts, Stderr: out, Log: slog.New(slog.NewTextHandler(out, nil)),
		Started: func() { fmt.Fprintln(out, "started") },
	}
}

func child(kind, name string) Part {
	p := Part{Name: name, Args: []string{"part", kind, name}, Env: []string{"NAME=" + name}}
	if testing.CoverMode() != "" {
		p.Env = append(p.Env, "GOCOVERDIR="+os.TempDir()) // or it complains on its standard error
	}
	return p
}

// run runs a supervisor until the test ends it, and returns how to.
func run(t *testing.T, s *Supervisor) (end func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var once sync.Once
	var err error
	end = func() error {
		once.Do(func() {
			cancel()
			err = <-done
		})
		return err
	}
	t.Cleanup(func() { end() })
	return end
}

func TestOrder(t *testing.T) {
	out := newOutput()
	var asked, ended []string
	var parts []Part
	for _, name := range []string{"a", "b", "c"} {
		p := child("good", name)
		p.Serves = func(context.Context) error { // asked by one goroutine at a time: the next part is not there before this one serves
			if asked = append(asked, name); name == "a" && len(asked) < 3 {
				return errors.New("not yet")
			}
			return nil
		}
		parts = append(parts, p)
	}
	end := run(t, supervisor(out, parts...))
	out.wait(t, "started\n", 1)
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(asked, " "); got != "a a a b c" {
		t.Errorf("asked %s", got)
	}
	// A part's lines are all there before the next one is told to end.
	for line := range strings.Lines(out.String()) {
		if name, ok := strings.CutPrefix(line, "end "); ok {
			ended = append(ended, strings.TrimSpace(name))
		}
		if strings.HasPrefix(line, "not its own") {
			t.Error(line)
		}
	}
	if got := strings.Join(ended, " "); got != "c b a" {
		t.Errorf("ended %s", got)
	}
}

// A part that ends before it served is not started again: up says which one, and takes the others along.
func TestFirstStartFails(t *testing.T) {
	out := newOutput()
	err := supervisor(out, child("good", "a"), child("broken", "b"), child("good", "c")).Run(t.Context())
	if !errs.Is(err, errs.Unavailable) || errs.Message(err) != "b ended as soon as it was started; the lines above say why" {
		t.Error(err)
	}
	if got, want := out.String(), "begin a\nit is broken: b\nend a\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestNeverReady(t *testing.T) {
	s := supervisor(newOutput(), child("silent", "a"))
	s.ready = 50 * time.Millisecond
	if err := s.Run(t.Context()); !errs.Is(err, errs.Unavailable) || errs.Message(err) != "a is not ready after 50ms; the lines above may say why" {
		t.Error(err)
	}
	a := child("good", "a")
	a.Serves = func(context.Context) error { return errs.New(errs.Unavailable, "it is not linked") }
	s = supervisor(newOutput(), a)
	s.ready = 500 * time.Millisecond
	if err := s.Run(t.Context()); errs.Message(err) != "a does not serve after 500ms: it is not linked" {
		t.Error(err)
	}
}

func TestNoProgram(t *testing.T) {
	s := supervisor(newOutput(), child("good", "a"))
	s.Exe = "/nowhere/sallyport"
	if err := s.Run(t.Context()); !errs.Is(err, errs.Unavailable) || !strings.HasPrefix(errs.Message(err), "a cannot be started: ") {
		t.Error(err)
	}
}

// It is told to end while the first part is still being waited for.
func TestEndWhileStarting(t *testing.T) {
	out := newOutput()
	a := child("good", "a")
	a.Serves = func(context.Context) error {
		fmt.Fprintln(out, "asked")
		return errors.New("not yet")
	}
	end := run(t, supervisor(out, a))
	out.wait(t, "asked", 1)
	if err := end(); err != nil || strings.Contains(out.String(), "started") {
		t.Error(err, out)
	}
	out.wait(t, "end a", 1)
}

// childPID finds a child of this process by the last of its arguments.
func childPID(t *testing.T, name string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && bytes.HasSuffix(cmdline, []byte("\x00"+name+"\x00")) && bytes.HasPrefix(cmdline, []byte(os.Args[0])) && parentOf(e.Name()) == os.Getpid() {
			return pid
		}
	}
	t.Fatalf("no child is %s", name)
	return 0
}

func parentOf(pid string) int {
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "PPid:"); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(v))
			return n
		}
	}
	return 0
}

func TestKilledPartComesBack(t *testing.T) {
	out := newOutput()
	end := run(t, supervisor(out, child("good", "kept"), child("good", "killed")))
	out.wait(t, "started\n", 1)
	kept := childPID(t, "kept")
	if err := syscall.Kill(childPID(t, "killed"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	out.wait(t, `msg="part ended; starting it again" part=killed how="signal: killed" in=200ms`, 1)
	out.wait(t, `msg="part serves again" part=killed`, 1)
	if childPID(t, "kept") != kept {
		t.Error("the other part was started again too")
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	out.wait(t, "end killed", 1)
	if n := strings.Count(out.String(), "started\n"); n != 1 {
		t.Errorf("Started was called %d times", n)
	}
}

// A part that ends again and again is started ever more slowly.
func TestBackoff(t *testing.T) {
	out := newOutput()
	end := run(t, supervisor(out, child("brief", "a")))
	for _, in := range []string{"200ms", "400ms", "800ms"} {
		out.wait(t, `part=a how="exit status 7" in=`+in, 1)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

// A part that does not end is killed, so that up ends.
func TestDeafPart(t *testing.T) {
	out := newOutput()
	s := supervisor(out, child("deaf", "deaf"))
	s.kill = 50 * time.Millisecond
	end := run(t, s)
	out.wait(t, "started\n", 1)
	pid := childPID(t, "deaf")
	if err := end(); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is still there: %v", pid, err)
	}
}

// A child of a part that holds its standard error does not keep the part from being started again.
func TestGrandchildHoldsStderr(t *testing.T) {
	out := newOutput()
	s := supervisor(out, child("parent", "a"))
	s.kill = 50 * time.Millisecond
	end := run(t, s)
	out.wait(t, `msg="part ended; starting it again" part=a how="exit status 0"`, 1)
	out.wait(t, "child ", 2)
	if err := end(); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(out.String()) {
		if pid, ok := strings.CutPrefix(line, "child "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(pid))
			if err != nil {
				t.Fatal(err)
			}
			syscall.Kill(n, syscall.SIGKILL)
		}
	}
}

// What parts print arrives in whole lines; one that is very long in pieces, and nothing is lost.
func TestLines(t *testing.T) {
	out := newOutput()
	if err := supervisor(out, child("lines", "a")).Run(t.Context()); err == nil {
		t.Error("a part that was never ready")
	}
	text := out.String()
	if strings.Count(text, "x") != 3*maxLine || !strings.HasSuffix(text, "\nno line end\n") {
		t.Errorf("%d bytes, ending %q", len(text), text[max(0, len(text)-20):])
	}
}

// A supervisor that is killed takes its parts along.
func TestKilledSupervisor(t *testing.T) {
	up := exec.CommandContext(t.Context(), os.Args[0], "part", "supervise")
	errOut, err := up.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(errOut)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == "started\n" {
			break
		}
	}
	if err := up.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The part holds a copy of no pipe of this test, but of its supervisor's: it has ended when the kernel has no such process any more.
	up.Wait()
	deadline := time.Now().Add(time.Minute)
	for left := true; left; {
		left = false
		entries, err := os.ReadDir("/proc")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			cmdline, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
			if err == nil && string(cmdline) == os.Args[0]+"\x00part\x00good\x00a\x00" {
				left = true
			}
		}
		if left && time.Now().After(deadline) {
			t.Fatal("its part lives on")
		}
		<-time.After(10 * time.Millisecond)
	}
}

func TestReady(t *testing.T) {
	if err := Ready(); err != nil {
		t.Error("without a supervisor:", err)
	}
	for _, bad := range []string{"x", "2", "-1", "3x"} {
		t.Setenv(readyEnv, bad)
		if err := Ready(); err == nil {
			t.Errorf("%q was taken", bad)
		}
		if os.Getenv(readyEnv) != "" {
			t.Error("a child would inherit it")
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fd, err := syscall.Dup(int(w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Setenv(readyEnv, strconv.Itoa(fd))
	if err := Ready(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); string(b) != readyLine || err != nil {
		t.Errorf("%q %v", b, err)
	}
	if err := Ready(); err != nil {
		t.Error("a second time:", err)
	}
}

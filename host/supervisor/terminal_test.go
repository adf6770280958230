package supervisor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"sallyport.dev/host/sandbox/proc"
	"sallyport.dev/host/sandbox/sandboxtest"
	"sallyport.dev/host/supervisor"
)

func listen(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// person sits at a terminal on which a run was started.
type person struct {
	t        *testing.T
	terminal *os.File // the person's side
	tty      *os.File
	cmd      *exec.Cmd
	proof    string

	mu     sync.Mutex
	screen bytes.Buffer
	copied chan struct{}
	ended  chan error
	signal chan struct{}
}

func sit(t *testing.T, s *sandboxtest.Session, env ...string) *person {
	t.Helper()
	job, err := json.Marshal(supervisor.Job{Plan: s.Plan})
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	p := &person{t: t, terminal: ours, tty: theirs, proof: filepath.Join(sandboxtest.Dir(t), "proof"), copied: make(chan struct{}), ended: make(chan error, 1), signal: make(chan struct{}, 1)}
	p.size(24, 80)
	p.cmd = exec.Command(sandboxtest.Self(t), "test-run")
	p.cmd.Env = append(append(os.Environ(), "SALLYPORT_TEST_JOB="+string(job), "SALLYPORT_TEST_PROOF="+p.proof), env...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirs, theirs, theirs
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.copied)
		buffer := make([]byte, 4096)
		for {
			n, err := ours.Read(buffer)
			p.mu.Lock()
			p.screen.Write(buffer[:n])
			p.mu.Unlock()
			select {
			case p.signal <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = theirs.Close()
		<-p.copied
		_ = ours.Close()
	})
	return p
}

func (p *person) size(rows, cols uint16) {
	p.t.Helper()
	if err := pty.Setsize(p.terminal, &pty.Winsize{Rows: rows, Cols: cols}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *person) types(text string) {
	p.t.Helper()
	if _, err := p.terminal.WriteString(text); err != nil {
		p.t.Fatal(err)
	}
}

func (p *person) sees() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.screen.String()
}

// awaits waits until a text is on the screen, and forgets everything up to it.
func (p *person) awaits(text string) {
	p.t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		p.mu.Lock()
		before, after, found := bytes.Cut(p.screen.Bytes(), []byte(text))
		if found {
			_ = before
			rest := bytes.Clone(after)
			p.screen.Reset()
			p.screen.Write(rest)
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		select {
		case <-p.signal:
		case <-timeout:
			p.t.Fatalf("the screen has no %q:\n%s", text, p.sees())
		}
	}
}

// leaves waits for the end of the run and returns its exit status.
func (p *person) leaves() int {
	p.t.Helper()
	select {
	case err := <-p.ended:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			p.t.Fatal(err)
		}
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(30 * time.Second):
		p.t.Fatalf("the run did not end:\n%s", p.sees())
		return -1
	}
}

// mode is the terminal's mode as the person's shell would find it.
func (p *person) mode() unix.Termios {
	p.t.Helper()
	m, err := unix.IoctlGetTermios(int(p.tty.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return *m
}

func TestTerminal(t *testing.T) {
	s := sandboxtest.New(t, "/bin/sh", "-c", `
stty size; tty; ps -o tty= -p $$ 2>/dev/null
trap 'echo interrupted' INT
trap 'echo resized to $(stty size)' WINCH
echo ready
while :; do
	read line || continue # interrupted
	[ "$line" = quit ] && exit 7
	echo "read $line"
done`)
	p := sit(t, s)
	cooked := p.mode()
	p.awaits("24 80")
	p.awaits("ready")
	if m := p.mode(); m.Lflag&unix.ICANON != 0 || m.Lflag&unix.ECHO != 0 || m.Lflag&unix.ISIG != 0 {
		t.Error("the caller's terminal is not in the agent's hands")
	}
	p.types("hello\r")
	p.awaits("read hello")
	p.size(40, 132)
	p.types("\r")
	p.awaits("resized to 40 132")
	p.types("\x03")
	p.awaits("interrupted")
	p.types("quit\r")
	if code := p.leaves(); code != 7 {
		t.Errorf("exit status %d", code)
	}
	if p.mode() != cooked {
		t.Error("the caller's terminal was not restored")
	}
}

// The agent's terminal is ours: nothing leads to the caller's.
func TestTerminalIsNotTheCallers(t *testing.T) {
	s := sandboxtest.New(t, append([]string{"/bin/sh", "-c", `"$@"; ls -l /proc/self/fd | grep -c "` + "$0" + `"; exit 0`, "0 -> /dev/pts"}, sandboxtest.Probe("tiocsti")...)...)
	p := sit(t, s)
	p.awaits("tiocsti: operation not permitted")
	if code := p.leaves(); code != 0 {
		t.Errorf("exit status %d: %s", code, p.sees())
	}
}

func TestTerminalRestoredWhenTerminated(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		s := sandboxtest.New(t, "/bin/sh", "-c", "trap '' TERM HUP; echo ready; while :; do sleep 300; done")
		p := sit(t, s)
		cooked := p.mode()
		p.awaits("ready")
		if err := p.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if code := p.leaves(); code != 128+9 {
			t.Errorf("%v: exit status %d", sig, code)
		}
		if p.mode() != cooked {
			t.Errorf("%v: the caller's terminal was not restored", sig)
		}
		p.awaits("\x1b[?25h")
	}
}

// Before the gate is open the terminal is the caller's: Ctrl-C ends the attempt.
func TestTerminalBeforeTheGate(t *testing.T) {
	s := sandboxtest.New(t, "/bin/true")
	p := sit(t, s, "SALLYPORT_TEST_REFUSE=1")
	cooked := p.mode()
	if code := p.leaves(); code != supervisor.Failed {
		t.Errorf("exit status %d", code)
	}
	p.awaits("refused")
	if p.mode() != cooked {
		t.Error("the caller's terminal was not restored")
	}
}

func TestTerminalSuspends(t *testing.T) {
	s := sandboxtest.New(t, "/bin/sh", "-c", "echo ready; read line; echo got $line")
	p := sit(t, s)
	cooked := p.mode()
	p.awaits("ready")
	if err := p.cmd.Process.Signal(syscall.SIGTSTP); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool {
		st, err := proc.Read(p.cmd.Process.Pid)
		return err == nil && st.State == 'T'
	})
	if p.mode() != cooked {
		t.Error("a shell would find the terminal in the agent's mode")
	}
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return p.mode().Lflag&unix.ICANON == 0 })
	p.types("again\r")
	p.awaits("got again")
	if code := p.leaves(); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

func until(t *testing.T, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
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

// Standard error that is no terminal stays apart.
func TestTerminalWithErrorsElsewhere(t *testing.T) {
	s := sandboxtest.New(t, "/bin/sh", "-c", "echo out; echo err >&2; test -t 1 && test ! -t 2")
	job, err := json.Marshal(supervisor.Job{Plan: s.Plan})
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(sandboxtest.Self(t), "test-run")
	cmd.Env = append(os.Environ(), "SALLYPORT_TEST_JOB="+string(job))
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	screen := make(chan string, 1)
	go func() {
		var b bytes.Buffer
		_, _ = io.Copy(&b, ours)
		screen <- b.String()
	}()
	err = cmd.Run()
	theirs.Close()
	if got := <-screen; err != nil || got != "out\r\n" || stderr.String() != "err\n" {
		t.Errorf("%v %q %q", err, got, stderr.String())
	}
	ours.Close()
}

// Killed without a chance to say anything, a supervisor takes its sandbox with it.
func TestTerminalKilled(t *testing.T) {
	s := sandboxtest.New(t, "/bin/sh", "-c", "trap '' TERM HUP INT; (sleep 300) & echo ready; while :; do sleep 300; done")
	p := sit(t, s)
	p.awaits("ready")
	ns, err := os.ReadFile(p.proof)
	if err != nil {
		t.Fatal(err)
	}
	left := func() []int {
		return proc.Find(func(pid int) bool {
			have, err := proc.Namespace(pid, "pid")
			return err == nil && have == string(ns) && proc.Runs(pid)
		})
	}
	if len(left()) < 3 {
		t.Fatalf("processes: %v", left())
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.leaves()
	until(t, func() bool { return len(left()) == 0 })
	if err := sandboxtest.Driver(t).Recover(context.Background(), s.Dir); err != nil {
		t.Error(err)
	}
	if groups, _ := filepath.Glob("/sys/fs/cgroup/*/sallyport-" + s.Plan.Session + "*"); len(groups) != 0 {
		t.Errorf("left: %v", groups)
	}
	if strings.Contains(p.sees(), "panic") {
		t.Error(p.sees())
	}
}

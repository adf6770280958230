package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sallyport.dev/guest/fakehost"
	"sallyport.dev/relay"
)

// The tests run the programs as they ship. The test's own binary plays the parts around them, by the variable role.
const roleVar = "SALLYPORT_TEST_ROLE"

var programs struct{ dir, guest, bridge string }

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	code, err := buildPrograms()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if code == 0 {
		if code = m.Run(); code == 0 {
			if err := goleak.Find(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	_ = os.RemoveAll(programs.dir)
	os.Exit(code)
}

func buildPrograms() (int, error) {
	dir, err := os.MkdirTemp("", "sallyport-guest-")
	if err != nil {
		return 1, err
	}
	programs.dir, programs.guest, programs.bridge = dir, filepath.Join(dir, "sallyport-guest"), filepath.Join(dir, "sallyport-bridge")
	if err := os.Chmod(dir, 0o755); err != nil {
		return 1, err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w -X main.build=test", "-o", dir, "../sallyport-guest", "../sallyport-bridge")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("%w\n%s", err, out)
	}
	return 0, nil
}

// play is what the test's own binary does in another process.
func play(role string, args []string) int {
	fail := func(err error) int {
		fmt.Println(role+":", err)
		return 99
	}
	switch role {
	case "loopback": // bring lo up in a new network namespace, then become the rest
		if err := loopbackUp(); err != nil {
			return fail(err)
		}
		return fail(syscall.Exec(args[0], args, without(os.Environ(), roleVar)))
	case "parent": // start the rest with our streams, say its pid, and wait for a line before dying without a word to it
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = without(os.Environ(), roleVar)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.NewFile(3, "stdin"), os.NewFile(4, "stdout"), os.Stderr
		if err := cmd.Start(); err != nil {
			return fail(err)
		}
		fmt.Println(cmd.Process.Pid)
		_, _ = os.Stdin.Read(make([]byte, 1))
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "thread": // start the rest from a thread that ends at once, and live on
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = without(os.Environ(), roleVar)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.NewFile(3, "stdin"), os.NewFile(4, "stdout"), os.Stderr
		thread := make(chan int)
		var begin func()
		begin = func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			if syscall.Gettid() == os.Getpid() {
				go begin()
				select {} // the first thread only ends with the process
			}
			if err := cmd.Start(); err != nil {
				fmt.Println(err)
			}
			thread <- syscall.Gettid()
		}
		go begin()
		task := fmt.Sprintf("/proc/self/task/%d", <-thread)
		for _, err := os.Stat(task); err == nil; _, err = os.Stat(task) {
			runtime.Gosched()
		}
		fmt.Println("thread gone")
		_, _ = os.Stdin.Read(make([]byte, 1))
		return 0
	case "talk": // through the bridge, once for each line of input
		for {
			if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
				return 0
			}
			c, err := net.Dial("tcp", "127.0.0.1:4199")
			if err != nil {
				fmt.Println("talk:", err)
				continue
			}
			io.WriteString(c, "hello")
			c.(*net.TCPConn).CloseWrite()
			all, err := io.ReadAll(c)
			c.Close()
			fmt.Printf("talk: %s %v\n", all, err)
		}
	case "descriptors":
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return fail(err)
		}
		for _, e := range entries {
			to, _ := os.Readlink("/proc/self/fd/" + e.Name())
			if fd, _ := strconv.Atoi(e.Name()); fd > 2 && to != "" && !strings.HasPrefix(to, "/proc/") && !strings.HasPrefix(to, "anon_inode:") && !strings.HasPrefix(to, "/sys/fs/cgroup/") { // the last are the Go runtime's
				fmt.Println("left open:", to)
			}
		}
		fmt.Println("looked")
		return 0
	case "terminal": // who controls the terminal, then wait for an interrupt
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGINT)
		var group int32
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, 0, syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&group)))
		tty, err := os.Open("/dev/tty")
		if err == nil {
			tty.Close()
		}
		fmt.Printf("terminal: foreground %v, controlled %v\n", errno == 0 && int(group) == syscall.Getpgrp(), err == nil)
		<-signals
		fmt.Println("interrupted")
		select {
		case <-signals:
			fmt.Println("interrupted twice")
		case <-time.After(50 * time.Millisecond): // a second one would have come with the first
		}
		return 5
	}
	return fail(errors.New("unknown role"))
}

func without(env []string, name string) []string {
	var out []string
	for _, e := range env {
		if !strings.HasPrefix(e, name+"=") {
			out = append(out, e)
		}
	}
	return out
}

func loopbackUp() error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	var request struct {
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:], "lo")
	request.flags = syscall.IFF_UP | syscall.IFF_RUNNING
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}

// self is the test's own binary in a role; the arguments follow it.
func self(t testing.TB, role string) []string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"/usr/bin/env", roleVar + "=" + role, path}
}

// output collects what a process prints and lets tests wait for it.
type output struct {
	mu      sync.Mutex
	b       bytes.Buffer
	changed chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// wait waits until the output contains text n times.
func (o *output) wait(t *testing.T, text string, n int) {
	t.Helper()
	limit := time.After(30 * time.Second) // only for a test that fails
	for {
		o.mu.Lock()
		got := o.b.String()
		if strings.Count(got, text) >= n {
			o.mu.Unlock()
			return
		}
		if o.changed == nil {
			o.changed = make(chan struct{})
		}
		changed := o.changed
		o.mu.Unlock()
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("%q did not come %d times; the output is\n%s", text, n, got)
		}
	}
}

// running is a process under test.
type running struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *output // standard output
	err  *output
	in   io.WriteCloser
	done chan struct{}
}

// start starts a program with piped streams. Change may alter the command before.
func start(t *testing.T, change func(*exec.Cmd), args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	r := &running{t: t, cmd: cmd, out: &output{}, err: &output{}, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = r.out, r.err
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.in = in
	if change != nil {
		change(cmd)
	}
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() {
		defer close(r.done)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-r.done
		cancel()
		if t.Failed() {
			t.Logf("standard output:\n%s\nstandard error:\n%s", r.out, r.err)
		}
	})
	return r
}

// code waits for the end and returns the exit code; that of a process ended by a signal is 1000 and the signal.
func (r *running) code() int {
	r.t.Helper()
	<-r.done
	status := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 1000 + int(status.Signal())
	}
	return status.ExitStatus()
}

func (r *running) signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Error(err)
	}
}

// gone waits until a process that is not our child has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 30_000); n != 1 {
		t.Errorf("process %d is left: %v", pid, err)
	}
}

// session is a served session with one tool, echo.
func session(t *testing.T, handle fakehost.Handle) *fakehost.Host {
	t.Helper()
	h, err := fakehost.New(t.TempDir(), [][]byte{[]byte(`{"name":"echo","inputSchema":{"type":"object"}}`)}, handle)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.Close()
		if broken := h.Seen().Broken; len(broken) > 0 {
			t.Errorf("the guest broke rules: %q", broken)
		}
	})
	return h
}

func seen(t *testing.T, h *fakehost.Host, enough func(fakehost.Seen) bool) fakehost.Seen {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := h.Wait(ctx, enough)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func open(t *testing.T, h *fakehost.Host) {
	t.Helper()
	if err := h.PublishFile(relay.OpenName, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

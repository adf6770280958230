// Package sandboxtest helps tests that run real sandboxes: sessions on disk, a gate, probes, and running a test as a plain user.
package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/bwrap"
	"sallyport.dev/host/sandbox/launch"
	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

// gateArg makes the test's own binary, as the first process of a sandbox, behave like a gate.
const gateArg = "test-gate"

// Main runs what the test's own binary is started for again: the launcher, the way into a sandbox, the gate. It returns otherwise. Every
// TestMain of a package that starts sandboxes calls it first.
func Main() {
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case launch.Arg:
		os.Exit(launch.Main())
	case bwrap.EnterArg:
		os.Exit(bwrap.EnterMain(os.Args[2:]))
	case gateArg:
		os.Exit(gate(os.Args[2:]))
	case probeArg:
		os.Exit(probe(os.Args[2:]))
	case "__never":
		os.Exit(0)
	}
}

// Self is the test's own binary.
func Self(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return self
}

// Driver returns the bubblewrap driver over the test's own binary.
func Driver(t testing.TB) *bwrap.Driver {
	t.Helper()
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Fatal("bubblewrap is not installed; install it: apt-get install bubblewrap")
	}
	return &bwrap.Driver{Launcher: []string{Self(t), launch.Arg}, Enter: []string{Self(t), bwrap.EnterArg}}
}

// gate waits for in/open, then runs the agent as a child, hands signals on, and ends as the agent ended.
func gate(args []string) int {
	for tick := time.Tick(2 * time.Millisecond); ; <-tick {
		if _, err := os.Stat(sandbox.In + "/open"); err == nil {
			break
		}
	}
	for len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1)
	cmd := exec.CommandContext(context.Background(), args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if _, err := unix.IoctlGetTermios(0, unix.TCGETS); err == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		return 127
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err := cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	if err != nil && cmd.ProcessState.ExitCode() < 0 {
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// Session is a session on disk.
type Session struct {
	Plan  sandbox.Plan
	Where sandbox.Where
	Dir   string
	Work  string // the workspace
	// Folder is the session's relay directory.
	Folder hostside.Folder
}

// NewID returns a session id that is unlike others of this process.
func NewID(testing.TB) string { return relay.NewID() }

// Dir returns a folder that a plain user may enter; it goes with the test.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sallyport-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// New makes a session whose agent is args.
func New(t testing.TB, args ...string) *Session {
	t.Helper()
	base := Dir(t)
	s := &Session{Where: sandbox.Where{State: filepath.Join(base, "state"), Run: filepath.Join(base, "run")}, Work: filepath.Join(base, "work")}
	id := NewID(t)
	s.Dir = filepath.Join(s.Where.State, "host", "sessions", id)
	for _, d := range []string{s.Where.State, s.Where.Run} {
		must(t, os.MkdirAll(d, 0o700))
	}
	must(t, os.MkdirAll(s.Work, 0o755))
	uid, gid, err := Driver(t).Owner(s.Dir)
	must(t, err)
	s.Folder = hostside.Folder{Root: s.Dir}
	must(t, s.Folder.Create(uid, gid, false))
	copyFile(t, Self(t), filepath.Join(s.Folder.Bin(), "sallyport-guest"))
	s.Plan = sandbox.Plan{
		Driver: bwrap.Name, Session: id, Epoch: 1, Dir: s.Dir, In: s.Folder.In(), Out: s.Folder.Out(), Where: s.Where,
		Workspace: sandbox.Workspace{Path: s.Work, Mode: sandbox.ReadWrite},
		Gate:      []string{sandbox.Guest, gateArg}, Args: args,
		// The race detector's runtime would wait a second at the end of every process.
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + sandbox.Home, "USER=" + sandbox.InnerUser, "GORACE=atexit_sleep_ms=0"},
	}
	return s
}

// Shut shuts the gate for the next start.
func (s *Session) Shut(t testing.TB) {
	t.Helper()
	if err := os.Remove(filepath.Join(s.Dir, "in", "open")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

// Open opens the gate.
func (s *Session) Open(t testing.TB) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(s.Dir, "in", "open"), nil, 0o644))
}

// Write writes a file below the workspace.
func (s *Session) Write(t testing.TB, name, content string) {
	t.Helper()
	p := filepath.Join(s.Work, name)
	must(t, os.MkdirAll(filepath.Dir(p), 0o755))
	must(t, os.WriteFile(p, []byte(content), 0o644))
}

// Result is what a sandbox printed and how it ended.
type Result struct {
	Out, Err string
	Exit     sandbox.Exit
	Facts    sandbox.Facts
	Remarks  []string
}

// Run runs a sandbox to its end and takes it back.
func (s *Session) Run(t testing.TB, d sandbox.Driver) Result {
	t.Helper()
	in, err := d.Prepare(context.Background(), s.Plan)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := in.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	out, stdio, done := Pipes(t)
	s.Shut(t)
	if _, err := in.Start(context.Background(), stdio); err != nil {
		done()
		t.Fatalf("%v\n%s", err, out.Err())
	}
	s.Open(t)
	exit, err := in.Wait()
	if err != nil {
		t.Fatal(err)
	}
	done()
	r := Result{Out: out.Out(), Err: out.Err(), Exit: exit, Facts: in.Facts()}
	if err := in.Stop(context.Background(), 0); err != nil {
		t.Error(err)
	}
	r.Remarks = in.Remarks()
	return r
}

// Output collects what a sandbox prints.
type Output struct{ out, err bytes.Buffer }

// Out returns standard output, Err standard error; both after done.
func (o *Output) Out() string { return o.out.String() }

// Err returns standard error.
func (o *Output) Err() string { return o.err.String() }

// Pipes returns streams for a sandbox and a function that waits for their end.
func Pipes(t testing.TB) (*Output, sandbox.Stdio, func()) {
	t.Helper()
	o := &Output{}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	var stdio sandbox.Stdio
	stdio.In = null
	ends := make(chan struct{}, 2)
	for _, p := range []struct {
		to **os.File
		b  *bytes.Buffer
	}{{&stdio.Out, &o.out}, {&stdio.Err, &o.err}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		*p.to = w
		go func() {
			_, _ = io.Copy(p.b, r)
			r.Close()
			ends <- struct{}{}
		}()
	}
	return o, stdio, func() {
		null.Close()
		stdio.Out.Close()
		stdio.Err.Close()
		<-ends
		<-ends
	}
}

// AsPlainUser runs tests of this binary again, as a user without rights. It does nothing when the test is run by one already.
func AsPlainUser(t *testing.T, pattern string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return // the tests themselves ran as a plain user
	}
	dir := Dir(t)
	self := filepath.Join(dir, "test")
	copyFile(t, Self(t), self)
	const uid = 61000 // nobody's: it needs no account
	must(t, os.Mkdir(filepath.Join(dir, "tmp"), 0o700))
	must(t, os.Chown(filepath.Join(dir, "tmp"), uid, uid))
	args := []string{"-test.run=" + pattern, "-test.count=1"}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Dir = filepath.Join(dir, "tmp")
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + cmd.Dir, "TMPDIR=" + cmd.Dir}
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "SALLYPORT_TEST_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if testing.Verbose() || err != nil {
		t.Logf("as user %d:\n%s", uid, out)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(out, []byte("PASS")) {
		t.Fatalf("no test ran as a plain user:\n%s", out)
	}
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	src, err := os.Open(from)
	must(t, err)
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	must(t, err)
	_, err = io.Copy(dst, src)
	must(t, err)
	must(t, dst.Close())
	must(t, os.Chmod(to, 0o755))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

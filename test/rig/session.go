package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"sallyport.dev/host/daemon"
	"sallyport.dev/relay"
)

// SessionOptions say which session is opened.
type SessionOptions struct {
	Profile  string
	Attended bool
	Harness  string
}

// Session is an open session without a sandbox (the process driver's), and the shim that its agent would have started. Its profile needs
// sandbox: {driver: process, closed: no}, and attached: allow for writes. Sandboxes are started with [Rig.Command]: sallyport run.
type Session struct {
	daemon.Opened
	*Shim // the first one

	rig *Rig
	cmd *exec.Cmd
	all []*Shim
}

// Open opens a session and initializes its shim.
func (r *Rig) Open(ctx context.Context, o SessionOptions) (*Session, error) {
	s := &Session{rig: r}
	args := []string{"--state", r.State(), "--profile", o.Profile, "--harness", o.Harness}
	if o.Attended {
		args = append(args, "--attended")
	}
	opened, shim, err := r.attach(args)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	defer closeOn(ctx, opened)()
	s.cmd, s.Shim = shim.cmd, shim
	if err := json.NewDecoder(opened).Decode(&s.Opened); err != nil {
		return nil, errors.Join(fmt.Errorf("no session of profile %s was opened: %w\n%s", o.Profile, err, r.Log()), shim.Close())
	}
	r.mu.Lock()
	r.sessions = append(r.sessions, s)
	r.mu.Unlock()
	return s, s.Initialize(ctx)
}

// attach starts rig-attach; what it reports comes out of the reader.
func (r *Rig) attach(args []string) (*os.File, *Shim, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer write.Close()
	cmd := exec.Command(r.opts.Programs.Path("rig-attach"), args...) //nolint:noctx // it lives until its standard input ends
	cmd.ExtraFiles = []*os.File{write}
	cmd.Stderr = logWriter{r.log}
	shim, err := startShim(cmd)
	if err != nil {
		read.Close()
		return nil, nil, err
	}
	return read, shim, nil
}

// closeOn ends a read of f with ctx.
func closeOn(ctx context.Context, f *os.File) (stop func() bool) {
	return context.AfterFunc(ctx, func() { f.Close() })
}

type logWriter struct{ l *logFile }

func (w logWriter) Write(b []byte) (int, error) {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.l.all.Write(b)
	return w.l.file.Write(b)
}

// AnotherShim starts a further shim in the session, as a second harness in its sandbox would, and initializes it.
func (s *Session) AnotherShim(ctx context.Context) (*Shim, error) {
	shim, err := s.SpawnShim()
	if err != nil {
		return nil, err
	}
	return shim, shim.Initialize(ctx)
}

// SpawnShim starts a further shim and says nothing to it.
func (s *Session) SpawnShim() (*Shim, error) {
	cmd := exec.Command(filepath.Join(s.In, relay.BinDir, "sallyport-guest"), "shim", "--in", s.In, "--out", s.Out) //nolint:noctx // ended by Close
	cmd.Env = []string{}
	cmd.Stderr = logWriter{s.rig.log}
	shim, err := startShim(cmd)
	if err == nil {
		s.rig.mu.Lock()
		s.all = append(s.all, shim)
		s.rig.mu.Unlock()
	}
	return shim, err
}

// ShimPID is the process of the session's first shim.
func (s *Session) ShimPID() (int, error) {
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for _, task := range children {
		var pid int
		data, err := os.ReadFile(task)
		if n, _ := fmt.Sscan(string(data), &pid); err == nil && n == 1 {
			return pid, nil
		}
	}
	return 0, errors.New("the session's shim does not run: " + strconv.Itoa(s.cmd.Process.Pid))
}

// Close ends the session's shims, and with the first the session. A second Close does nothing.
func (s *Session) Close() error {
	var failed []error
	s.rig.mu.Lock()
	all := s.all
	s.all = nil
	s.rig.mu.Unlock()
	for _, shim := range all {
		failed = append(failed, shim.Close())
	}
	return errors.Join(append(failed, s.Shim.Close())...)
}

// Idle is many sessions that nobody uses, held by one process.
type Idle struct {
	Sessions []daemon.Opened
	shim     *Shim
}

// OpenIdle opens n sessions without a shim.
func (r *Rig) OpenIdle(ctx context.Context, profile string, n int) (*Idle, error) {
	opened, shim, err := r.attach([]string{"--state", r.State(), "--profile", profile, "--idle", strconv.Itoa(n)})
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	defer closeOn(ctx, opened)()
	idle := &Idle{shim: shim}
	for lines := json.NewDecoder(opened); len(idle.Sessions) < n; {
		var s daemon.Opened
		if err := lines.Decode(&s); err != nil {
			return nil, errors.Join(fmt.Errorf("only %d of %d idle sessions were opened: %w\n%s", len(idle.Sessions), n, err, r.Log()), shim.Close())
		}
		idle.Sessions = append(idle.Sessions, s)
	}
	return idle, nil
}

// Close ends them.
func (i *Idle) Close() error { return i.shim.Close() }

// ended waits for a process of ours whose standard input was closed.
func ended(cmd *exec.Cmd) error {
	late := time.AfterFunc(Patience, func() { cmd.Process.Kill() }) //nolint:errcheck // it may have ended
	defer late.Stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return nil // a test killed it
		}
	}
	return err
}

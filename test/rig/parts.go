package rig

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"sallyport.dev/api/sallyport/v1"
)

// Names of the parts.
const (
	Up      = "up"
	Control = "control"
	Worker  = "worker"
	Host    = "host"
)

// part is one process of ours.
type part struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of Wait; after ended
}

// start starts a program whose standard error goes to the log.
func (r *Rig) spawn(cmd *exec.Cmd) (*part, error) {
	errs, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	// A rig that is killed takes its programs along.
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := startForGood(cmd); err != nil {
		return nil, err
	}
	p := &part{cmd: cmd, ended: make(chan struct{})}
	go func() {
		r.log.copy(errs)
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Command is a command of the sallyport program over this rig's state, in this rig's directory, not started.
func (r *Rig) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.opts.Programs.Path("sallyport"), append([]string{"--state", r.State()}, args...)...)
	cmd.Dir = r.dir
	cmd.Env = r.env()
	return cmd
}

func (r *Rig) env() []string { return append(os.Environ(), r.opts.Env...) }

// StartPart starts up, control, worker or host, and returns once it serves.
func (r *Rig) StartPart(ctx context.Context, name string) error {
	args := []string{name}
	if name == Control {
		args = append(args, "--local")
	}
	if r.opts.LogLevel != "" {
		args = append(args, "--log-level="+r.opts.LogLevel)
	}
	args = append(args, r.opts.Args[name]...)
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	mark := r.log.mark()
	p, err := r.spawn(r.Command(context.Background(), args...)) // it outlives ctx: StopPart ends it
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.parts[name] = p
	r.mu.Unlock()
	return until(ctx, name+" to serve", func() (bool, error) {
		select {
		case <-p.ended:
			return false, fmt.Errorf("%s ended as soon as it was started: %w\n%s", name, p.err, r.log.since(mark))
		default:
		}
		return r.serves(ctx, name, mark)
	})
}

// serves reports whether a part serves that was started when the log stood at mark.
func (r *Rig) serves(ctx context.Context, name string, mark int) (bool, error) {
	switch name {
	case Up:
		return strings.Contains(r.log.since(mark), "Sallyport is up"), nil
	case Control:
		_, err := r.api.Status(ctx, &sallyportv1.StatusRequest{})
		return err == nil, nil
	}
	if name == Host {
		if _, err := os.Stat(filepath.Join(r.State(), "run", "host.sock")); err != nil {
			return false, nil //nolint:nilerr // not yet
		}
	}
	got, err := r.api.ListMachines(ctx, &sallyportv1.ListMachinesRequest{Role: name})
	if err != nil {
		return false, nil //nolint:nilerr // control is being started again
	}
	for _, m := range got.GetMachines() {
		if m.GetState() == "up" {
			return true, nil
		}
	}
	return false, nil
}

// AwaitLink waits until control says that the worker, or the host, is linked: after control was started again they come back by themselves.
func (r *Rig) AwaitLink(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	return until(ctx, name+" to be linked", func() (bool, error) { return r.serves(ctx, name, 0) })
}

func (r *Rig) part(name string) *part {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.parts[name]
}

func (r *Rig) running(name string) bool {
	p := r.part(name)
	if p == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// StopPart asks a part to end and waits until it did. One that does not run is stopped already.
func (r *Rig) StopPart(ctx context.Context, name string) error {
	return r.end(ctx, name, syscall.SIGTERM)
}

// KillPart ends a part dead in its tracks (SIGKILL) and waits until it is gone. Under up it is started again by up.
func (r *Rig) KillPart(ctx context.Context, name string) error {
	if r.part(Up) == nil || name == Up {
		return r.end(ctx, name, syscall.SIGKILL)
	}
	pid, err := r.PID(name)
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

func (r *Rig) end(ctx context.Context, name string, by syscall.Signal) error {
	p := r.part(name)
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(by); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		err := p.cmd.Process.Kill()
		<-p.ended
		return errors.Join(fmt.Errorf("%s did not end by itself: %w", name, ctx.Err()), err)
	}
}

// PID is the process of control, worker or host, or of up.
func (r *Rig) PID(name string) (int, error) {
	if p := r.part(name); p != nil {
		return p.cmd.Process.Pid, nil
	}
	up := r.part(Up)
	if up == nil {
		return 0, fmt.Errorf("%s was not started", name)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", up.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for _, task := range tasks {
		children, err := os.ReadFile(task)
		if err != nil {
			continue // the thread ended
		}
		for _, child := range strings.Fields(string(children)) {
			line, err := os.ReadFile("/proc/" + child + "/cmdline")
			if err == nil && strings.Contains(string(line), "\x00"+name+"\x00") {
				return strconv.Atoi(child)
			}
		}
	}
	return 0, fmt.Errorf("up runs no %s now", name)
}

// logFile keeps what the parts write, in a file and in memory.
type logFile struct {
	mu   sync.Mutex
	file *os.File
	all  strings.Builder
}

func newLogFile(path string) (*logFile, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &logFile{file: f}, nil
}

// copy takes whole lines, so that those of several parts do not mix.
func (l *logFile) copy(from io.Reader) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		l.mu.Lock()
		l.all.WriteString(line)
		io.WriteString(l.file, line) //nolint:errcheck // the memory has it
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (l *logFile) text() string { return l.since(0) }

func (l *logFile) mark() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Len()
}

func (l *logFile) since(mark int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()[mark:]
}

func (l *logFile) close() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}

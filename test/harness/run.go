package harness

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Command is how an agent is started, without a shell and with exactly this environment. Nothing is added to it, so it may just as well
// start a program that starts the agent.
type Command struct {
	Kind  Kind
	Argv  []string
	Env   []string // NAME=VALUE
	Dir   string
	Stdin io.Reader // nil: none
}

// Process is a running agent. Its methods are safe for concurrent use.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}

	mu         sync.Mutex
	transcript Transcript
	raw        bytes.Buffer
	stderr     bytes.Buffer
	changed    chan struct{}
	err        error
}

// Start starts an agent in a process group of its own; when ctx ends, the whole group is killed.
func Start(ctx context.Context, c Command) (*Process, error) {
	if len(c.Argv) == 0 {
		return nil, errors.New("a command needs a program")
	}
	p := &Process{done: make(chan struct{}), transcript: Transcript{Kind: c.Kind, Servers: map[string]string{}}}
	p.cmd = exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	p.cmd.Env, p.cmd.Dir, p.cmd.Stdin = c.Env, c.Dir, c.Stdin
	if p.cmd.Env == nil {
		p.cmd.Env = []string{} // exec would take ours
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Cancel = func() error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }
	p.cmd.WaitDelay = 5 * time.Second
	p.cmd.Stderr = lockedWriter{p}
	stdout, w := io.Pipe()
	p.cmd.Stdout = w
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.read(stdout)
	}()
	go func() {
		defer close(p.done)
		err := p.cmd.Wait()
		w.Close()
		<-read
		p.mu.Lock()
		defer p.mu.Unlock()
		p.transcript.ExitCode = p.cmd.ProcessState.ExitCode()
		p.transcript.Stderr = p.stderr.String()
		var exit *exec.ExitError
		if p.err == nil && err != nil && !errors.As(err, &exit) {
			p.err = err
		}
		if p.err == nil && ctx.Err() != nil {
			p.err = fmt.Errorf("%s did not end in time: %w", c.Argv[0], ctx.Err())
		}
		p.wake()
	}()
	return p, nil
}

// Run starts an agent and waits for its end. The transcript is there also with an error.
func Run(ctx context.Context, c Command) (*Transcript, error) {
	p, err := Start(ctx, c)
	if err != nil {
		return nil, err
	}
	return p.Wait()
}

// maxLine bounds a line of a transcript: results of tools stand in it whole.
const maxLine = 256 << 20

func (p *Process) read(r io.Reader) {
	lines := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := readLine(lines)
		p.mu.Lock()
		p.raw.Write(line)
		if ferr := p.transcript.feed(line); ferr != nil && p.err == nil {
			p.err = ferr
		}
		if err != nil && !errors.Is(err, io.EOF) && p.err == nil {
			p.err = err
		}
		p.wake()
		p.mu.Unlock()
		if err != nil {
			io.Copy(io.Discard, r)
			return
		}
	}
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return line, errors.New("a line of the transcript is too long")
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

func (p *Process) wake() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Pid is the process's id, and that of its group.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal to the program alone.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends the whole group at once.
func (p *Process) Kill() error { return syscall.Kill(-p.Pid(), syscall.SIGKILL) }

// Wait waits for the end. The transcript is there also with an error, which says that the run itself failed: a program that ends with
// another exit code than 0 is no error here.
func (p *Process) Wait() (*Transcript, error) {
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.snapshot(), p.err
}

// Snapshot is the transcript so far.
func (p *Process) Snapshot() *Transcript {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.snapshot()
}

func (p *Process) snapshot() *Transcript {
	t := p.transcript
	t.Calls = slices.Clone(t.Calls)
	return &t
}

// Raw is everything that the program wrote on its standard output so far.
func (p *Process) Raw() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Clone(p.raw.Bytes())
}

// Until waits until the transcript so far fulfils ok. It fails when the program ends without that, or ctx does.
func (p *Process) Until(ctx context.Context, ok func(*Transcript) bool) error {
	for {
		p.mu.Lock()
		if p.changed == nil {
			p.changed = make(chan struct{})
		}
		changed, now := p.changed, p.snapshot()
		p.mu.Unlock()
		if ok(now) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.done:
			if last, err := p.Wait(); ok(last) {
				return nil
			} else if err != nil {
				return err
			}
			return errors.New("the agent ended before: " + strings.TrimSpace(p.Snapshot().Stderr))
		}
	}
}

type lockedWriter struct{ p *Process }

func (w lockedWriter) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.p.stderr.Write(b)
}

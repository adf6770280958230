// Package up supervises the parts of one machine: control, worker and host, each its own process. A part that dies is started again, ever more
// slowly; when up ends, all of them end, the last started first.
package up

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"sallyport.dev/errs"
)

// Part is one process. It calls [Ready] when it holds what is its own.
type Part struct {
	Name string
	Args []string
	Env  []string // the whole of it
	// Serves returns nil once others can use the part. It is asked after the part said that it is ready, until then or until ctx ends; nil: being
	// ready is enough.
	Serves func(ctx context.Context) error
}

// Times of the supervisor.
const (
	Drain     = 10 * time.Second // what was dispatched and unanswered after it is uncertain
	killAfter = Drain + 5*time.Second
	leastWait = 200 * time.Millisecond
	mostWait  = 10 * time.Second
	calmAfter = 30 * time.Second
	readyWait = 30 * time.Second
	askAgain  = 20 * time.Millisecond
	maxLine   = 64 << 10
)

// Supervisor runs parts in order.
type Supervisor struct {
	Exe    string
	Parts  []Part
	Stderr io.Writer // the parts' own lines, each as it is
	Log    *slog.Logger
	// Started is called once, when every part serves.
	Started func()

	mu sync.Mutex // of Stderr

	// Of tests; the constants when 0.
	ready, kill time.Duration
}

func (s *Supervisor) readyWait() time.Duration { return cmp.Or(s.ready, readyWait) }

func (s *Supervisor) killAfter() time.Duration { return cmp.Or(s.kill, killAfter) }

// Run starts the parts, each after the one before it serves, and keeps them running until ctx ends. Errors: [errs.Unavailable] when a part cannot be
// started the first time; the part itself has said why, on Stderr.
func (s *Supervisor) Run(ctx context.Context) error {
	type running struct {
		stop context.CancelFunc
		done chan struct{}
	}
	var all []running
	defer func() {
		for _, r := range slices.Backward(all) {
			r.stop()
			<-r.done
		}
	}()
	for _, p := range s.Parts {
		own, stop := context.WithCancel(context.WithoutCancel(ctx))
		r := running{stop, make(chan struct{})}
		all = append(all, r)
		first := make(chan error, 1)
		go func() {
			defer close(r.done)
			s.keep(own, p, first)
		}()
		select {
		case err := <-first:
			if err != nil && ctx.Err() == nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
	if ctx.Err() == nil && s.Started != nil {
		s.Started()
	}
	<-ctx.Done()
	return nil
}

// keep runs a part again and again until ctx ends. What became of the first start is sent once: nil when it serves, otherwise the part is not started
// again.
func (s *Supervisor) keep(ctx context.Context, p Part, first chan<- error) {
	wait, restarted := leastWait, false
	for {
		began, served := time.Now(), false
		err := s.once(ctx, p, func(err error) bool {
			served = err == nil
			switch {
			case !restarted:
				first <- err
				return served
			case served:
				s.Log.Info("part serves again", "part", p.Name)
			case ctx.Err() == nil:
				s.Log.Error("part does not serve", "part", p.Name, "err", err)
			}
			return true // what it waits for may be another part
		})
		if ctx.Err() != nil || !restarted && !served {
			return
		}
		restarted = true
		if time.Since(began) > calmAfter {
			wait = leastWait
		}
		s.Log.Error("part ended; starting it again", "part", p.Name, "how", ending(err), "in", wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, mostWait)
	}
}

func ending(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// once runs a part until it ends. served is called once: with nil when the part serves, or with what came in between; it says whether the part may go
// on.
func (s *Supervisor) once(ctx context.Context, p Part, served func(error) (goOn bool)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	cmd := exec.CommandContext(ctx, s.Exe, p.Args...)
	// Its own process group: Ctrl-C in a terminal reaches up alone, which then ends the parts in order. A supervisor that is killed takes them along.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = s.killAfter()
	ready, say, err := os.Pipe()
	if err != nil {
		err = errs.Wrap(errs.Unavailable, p.Name+" cannot be started: no pipe", err)
		served(err)
		return err
	}
	defer ready.Close()
	cmd.ExtraFiles = []*os.File{say} // descriptor 3
	cmd.Env = append(slices.Clone(p.Env), readyEnv+"=3")
	out := &lines{s: s}
	cmd.Stderr = out
	err = startLocked(cmd)
	say.Close()
	if err != nil {
		err = errs.Wrap(errs.Unavailable, p.Name+" cannot be started: "+err.Error(), err)
		served(err)
		return err
	}
	exited := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		if !served(s.await(ctx, p, ready, exited)) {
			stop()
		}
	})
	err = cmd.Wait()
	close(exited)
	ready.Close()
	asking.Wait()
	out.flush()
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil // it ended well; a child of it holds its standard error
	}
	return err
}

// await returns nil once the part said that it is ready, and serves.
func (s *Supervisor) await(ctx context.Context, p Part, ready io.Reader, exited <-chan struct{}) error {
	ended := errs.Newf(errs.Unavailable, "%s ended as soon as it was started; the lines above say why", p.Name)
	limit, cancel := context.WithTimeout(ctx, s.readyWait())
	defer cancel()
	said := make(chan error, 1)
	go func() {
		line, err := bufio.NewReader(io.LimitReader(ready, maxLine)).ReadString('\n')
		if line != readyLine {
			err = errors.Join(err, errors.New("not ready"))
		} else {
			err = nil
		}
		said <- err
	}()
	select {
	case err := <-said:
		if err != nil {
			// It closed the pipe, which it does by ending.
			select {
			case <-exited:
			case <-limit.Done():
			}
			return ended
		}
	case <-exited:
		return ended
	case <-limit.Done():
		return errs.Newf(errs.Unavailable, "%s is not ready after %s; the lines above may say why", p.Name, s.readyWait())
	}
	for p.Serves != nil {
		err := p.Serves(limit)
		if err == nil {
			return nil
		}
		select {
		case <-exited:
			return ended
		case <-limit.Done():
			return errs.Newf(errs.Unavailable, "%s does not serve after %s: %s", p.Name, s.readyWait(), errs.Message(err))
		case <-time.After(askAgain):
		}
	}
	return nil
}

// lines hands on what a part prints, in whole lines; one that is longer than maxLine comes in pieces.
type lines struct {
	s    *Supervisor
	rest []byte
}

// Write implements io.Writer. It reports no error: a part must not stand still because nobody reads.
func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			l.rest = append(l.rest, p...)
			if len(l.rest) >= maxLine {
				l.flush()
			}
			break
		}
		l.rest = append(l.rest, p[:i]...)
		l.print()
		p = p[i+1:]
	}
	return n, nil
}

func (l *lines) print() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.Stderr.Write(append(l.rest, '\n')) //nolint:errcheck // nowhere to say it
	l.rest = l.rest[:0]
}

func (l *lines) flush() {
	if len(l.rest) > 0 {
		l.print()
	}
}

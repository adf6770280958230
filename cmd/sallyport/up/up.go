// Package up supervises the parts of one machine: control, worker and host, each its own process. A part that dies is started again, ever more
// slowly; when up ends, all of them end, the last started first.
package up

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Part is one process.
type Part struct {
	Name string
	Args []string
	// Ready returns nil once the part serves. It is asked until then, or until ctx ends.
	Ready func(ctx context.Context) error
}

// Times of the supervisor.
const (
	Drain     = 10 * time.Second // what was dispatched and unanswered after it is uncertain
	killAfter = Drain + 5*time.Second
	leastWait = 200 * time.Millisecond
	mostWait  = 10 * time.Second
	calmAfter = 30 * time.Second
	readyWait = 30 * time.Second
	readyPoll = 20 * time.Millisecond
	maxLine   = 64 << 10
)

// Supervisor runs parts in order.
type Supervisor struct {
	Exe    string
	Env    []string // of every part
	Parts  []Part
	Stderr io.Writer // the parts' own lines, each as it is
	Log    *slog.Logger
	// Started is called once, when every part serves.
	Started func()

	mu sync.Mutex // of Stderr
}

// Run starts the parts, each after the one before it serves, and keeps them running until ctx ends. It returns an error when a part cannot be
// started the first time.
func (s *Supervisor) Run(ctx context.Context) error {
	type running struct {
		stop context.CancelFunc
		done chan struct{}
	}
	var all []running
	defer func() {
		for i := len(all) - 1; i >= 0; i-- {
			all[i].stop()
			<-all[i].done
		}
	}()
	failed := make(chan error, len(s.Parts))
	for _, p := range s.Parts {
		own, stop := context.WithCancel(context.WithoutCancel(ctx))
		r := running{stop, make(chan struct{})}
		all = append(all, r)
		go func() {
			defer close(r.done)
			s.keep(own, p, failed)
		}()
		if err := s.await(ctx, p, failed); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	if s.Started != nil {
		s.Started()
	}
	<-ctx.Done()
	return nil
}

func (s *Supervisor) await(ctx context.Context, p Part, failed <-chan error) error {
	limit, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	var last error
	for {
		if last = p.Ready(limit); last == nil {
			return nil
		}
		select {
		case err := <-failed:
			return err
		case <-limit.Done():
			return fmt.Errorf("%s does not serve after %s: %w", p.Name, readyWait, last)
		case <-time.After(readyPoll):
		}
	}
}

// keep runs a part again and again until ctx ends. A part that never served and exits is reported, once.
func (s *Supervisor) keep(ctx context.Context, p Part, failed chan<- error) {
	wait := leastWait
	for first := true; ; first = false {
		began := time.Now()
		err := s.once(ctx, p)
		if ctx.Err() != nil {
			return
		}
		if first && p.Ready(ctx) != nil && time.Since(began) < readyWait {
			failed <- fmt.Errorf("%s ended as soon as it was started: %w", p.Name, err)
			return
		}
		if time.Since(began) > calmAfter {
			wait = leastWait
		}
		s.Log.Error("part ended; starting it again", "part", p.Name, "err", err, "in", wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, mostWait)
	}
}

func (s *Supervisor) once(ctx context.Context, p Part) error {
	cmd := exec.CommandContext(ctx, s.Exe, p.Args...)
	cmd.Env = s.Env
	// Its own process group: Ctrl-C in a terminal reaches up alone, which then ends the parts in order. A supervisor that is killed takes them along.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = killAfter
	out, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := startLocked(cmd); err != nil {
		return err
	}
	var copied sync.WaitGroup
	copied.Go(func() { s.lines(out) })
	copied.Wait()
	err = cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	return err
}

func (s *Supervisor) lines(r io.Reader) {
	in := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := in.ReadSlice('\n')
		if len(line) > 0 {
			s.mu.Lock()
			s.Stderr.Write(line) //nolint:errcheck // nowhere to say it
			s.mu.Unlock()
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// breaker is a running stopper.
type breaker struct {
	cmd   *exec.Cmd
	lines *bufio.Reader
}

// breakAt sets breakpoints in a process and returns once they stand.
func breakAt(ctx context.Context, program string, pid int, signal string, at []string) (*breaker, error) {
	cmd := exec.CommandContext(ctx, program, append([]string{"--pid", strconv.Itoa(pid), "--signal", signal}, at...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGKILL) }
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	b := &breaker{cmd, bufio.NewReader(out)}
	if err := b.told("armed"); err != nil {
		return nil, errors.Join(err, b.end())
	}
	return b, nil
}

// told waits for one line.
func (b *breaker) told(event string) error {
	line, err := b.lines.ReadBytes('\n')
	if err != nil {
		return errNotReached
	}
	var t struct{ Event, Error string }
	if err := json.Unmarshal(line, &t); err != nil {
		return err
	}
	if t.Event != event {
		return fmt.Errorf("the stopper says %s %s", t.Event, t.Error)
	}
	return nil
}

// end takes the breakpoints' process away: what it traced and did not stop goes on, its breakpoints with it, so that the process must be started again.
func (b *breaker) end() error {
	b.cmd.Process.Kill() //nolint:errcheck // it may have ended
	b.cmd.Wait()         //nolint:errcheck // it was killed
	return nil
}

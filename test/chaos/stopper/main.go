// Command stopper stops another process dead at a function of its own: it sets breakpoints by ptrace in the program as it ships, and sends SIGKILL, or
// SIGSTOP, to the process whose thread came to the last of them before that thread makes another step. It prints a line of JSON when the breakpoints
// stand, and one when the process was stopped.
//
// Where a function begins stands in the table that the Go runtime itself needs (.gopclntab), so a stripped program has it too. A point is one or more
// breakpoints in turn, each FUNCTION, or FUNCTION:FROM:EVENT:TO for the store's own step, whose third argument tells the transition.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
)

// Told is a line of the output.
type Told struct {
	Event string `json:"event"` // armed, stopped, or ended: the process is gone, or was told to be left
	Error string `json:"error,omitempty"`
}

func main() {
	runtime.LockOSThread() // a tracee belongs to one thread
	if err := run(os.Args[1:]); err != nil {
		tell(Told{Event: "ended", Error: err.Error()})
		os.Exit(1)
	}
}

func tell(t Told) { json.NewEncoder(os.Stdout).Encode(t) } //nolint:errcheck // who does not read it does not wait for it

func run(args []string) error {
	flags := flag.NewFlagSet("stopper", flag.ContinueOnError)
	pid := flags.Int("pid", 0, "the process")
	signal := flags.String("signal", "KILL", "KILL or STOP")
	skip := flags.Int("skip", 0, "how often the last breakpoint is passed before it stops")
	if err := flags.Parse(args); err != nil {
		return err
	}
	sig, ok := map[string]syscall.Signal{"KILL": syscall.SIGKILL, "STOP": syscall.SIGSTOP}[*signal]
	if !ok || *pid <= 0 || flags.NArg() == 0 {
		return errors.New("usage: stopper --pid PID [--signal KILL|STOP] [--skip N] FUNCTION[:FROM:EVENT:TO]…")
	}
	t, err := open(*pid)
	if err != nil {
		return err
	}
	for _, arg := range flags.Args() {
		s, err := t.stop(arg)
		if err != nil {
			return err
		}
		t.stops = append(t.stops, s)
	}
	t.skip, t.signal = *skip, sig
	if err := t.attach(); err != nil {
		return fmt.Errorf("process %d cannot be traced (that takes root, or kernel.yama.ptrace_scope=0): %w", *pid, err)
	}
	if err := t.arm(); err != nil {
		return err
	}
	tell(Told{Event: "armed"})
	return t.loop()
}

// stop is one breakpoint.
type stop struct {
	addr  uint64
	where []string // from, event and to of the step, "*" for any; nil: always
}

// stop reads a breakpoint of the command line.
func (t *tracer) stop(arg string) (stop, error) {
	name, where, found := strings.Cut(arg, ":")
	addr, err := t.entry(name)
	if err != nil || !found {
		return stop{addr: addr}, err
	}
	parts := strings.Split(where, ":")
	if len(parts) != 3 {
		return stop{}, fmt.Errorf("%q names no transition", arg)
	}
	return stop{addr, parts}, nil
}

package main

import (
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"syscall"

	"github.com/creack/pty"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/term"
)

// terminal is the pty that a program of a script has.
type terminal struct {
	master, slave *os.File
	before        *term.State
}

// cmdTTY starts a program on a terminal of its own: tty NAME COMMAND...
func cmdTTY(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: tty NAME COMMAND...")
	}
	w := worldOf(ts)
	path, err := exec.LookPath(args[1])
	ts.Check(err)
	master, slave, err := pty.Open()
	ts.Check(err)
	before, err := term.GetState(int(slave.Fd()))
	ts.Check(err)
	cmd := exec.Command(path, args[2:]...) //nolint:noctx // ended with the script
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = environment(ts)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p := &program{cmd: cmd, changed: make(chan struct{}), tty: &terminal{master, slave, before}}
	ts.Check(cmd.Start())
	w.processes[args[0]] = p
	go p.collect(master)
}

// close lets go of the terminal, and reports whether the program left it as it was.
func (t *terminal) close() (restored bool) {
	after, err := term.GetState(int(t.slave.Fd()))
	t.slave.Close() // what reads the master sees the end
	return err == nil && reflect.DeepEqual(t.before, after)
}

// cmdType types into a program's terminal: type NAME TEXT, with the escapes of Go
func cmdType(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: type NAME TEXT")
	}
	text, err := strconv.Unquote(`"` + args[1] + `"`)
	ts.Check(err)
	_, err = processOf(ts, args[0]).tty.master.WriteString(text)
	ts.Check(err)
}

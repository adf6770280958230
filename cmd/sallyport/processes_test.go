package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// program is a process in the background whose lines a script waits for.
type program struct {
	cmd *exec.Cmd
	tty *terminal // nil without one

	mu      sync.Mutex
	text    []byte
	read    int           // so much of text was awaited already
	changed chan struct{} // closed, and replaced, by every line and by the end
	ended   bool
}

// cmdStart starts a program, and waits until it printed what matches: start NAME PATTERN COMMAND...
func cmdStart(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: start NAME PATTERN COMMAND...")
	}
	path := args[2]
	if !strings.Contains(path, "/") {
		var err error
		path, err = exec.LookPath(path)
		ts.Check(err)
	}
	w := worldOf(ts)
	if old := w.processes[args[0]]; old != nil {
		old.end()
	}
	cmd := exec.Command(path, args[3:]...) //nolint:noctx // ended with the script
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = environment(ts)
	p := &program{cmd: cmd, changed: make(chan struct{})}
	w.processes[args[0]] = p
	r, pw, err := os.Pipe()
	ts.Check(err)
	cmd.Stdout, cmd.Stderr = pw, pw
	ts.Check(cmd.Start())
	pw.Close()
	go p.collect(r)
	p.await(ts, args[1])
}

// environment is what a script's programs know of it.
func environment(ts *testscript.TestScript) []string {
	var out []string
	for _, name := range []string{
		"SALLYPORT_STATE", "PATH", "HOME", "TMPDIR", "GOCOVERDIR", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "SALLYPORT_GUEST_DIR", "GORACE", "NO_COLOR", "TERM",
	} {
		if v := ts.Getenv(name); v != "" {
			out = append(out, name+"="+v)
		}
	}
	return out
}

// collect keeps what comes, as it comes: a prompt has no line end.
func (p *program) collect(r io.ReadCloser) {
	b := make([]byte, 32<<10)
	for {
		n, err := r.Read(b)
		p.mu.Lock()
		p.text = append(p.text, b[:n]...)
		p.ended = err != nil
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
		if err != nil {
			r.Close()
			return
		}
	}
}

// await waits until all patterns stand, in any order, in what was not awaited yet.
func (p *program) await(ts *testscript.TestScript, patterns ...string) {
	var all []*regexp.Regexp
	for _, pattern := range patterns {
		re, err := regexp.Compile("(?m)" + pattern)
		ts.Check(err)
		all = append(all, re)
	}
	late := time.After(guard)
	for {
		p.mu.Lock()
		missing, end := "", 0
		for _, re := range all {
			if at := re.FindIndex(p.text[p.read:]); at != nil {
				end = max(end, at[1])
			} else {
				missing = re.String()
			}
		}
		if missing == "" {
			p.read += end
		}
		ended, changed := p.ended, p.changed
		p.mu.Unlock()
		switch {
		case missing == "":
			return
		case ended:
			ts.Fatalf("it ended without a line that matches %q:\n%s", missing, p.all())
		}
		select {
		case <-changed:
		case <-late:
			ts.Fatalf("no line matches %q:\n%s", missing, p.all())
		}
	}
}

func (p *program) all() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.text)
}

// end ends a process that a script left, and waits until all of its output is here.
func (p *program) end() {
	p.cmd.Process.Signal(os.Interrupt)
	late := time.AfterFunc(guard/2, func() { p.cmd.Process.Kill() })
	p.cmd.Wait()
	late.Stop()
	if p.tty != nil {
		p.tty.close()
	}
	p.drained()
}

func (p *program) drained() {
	for {
		p.mu.Lock()
		ended, changed := p.ended, p.changed
		p.mu.Unlock()
		if ended {
			return
		}
		<-changed
	}
}

func processOf(ts *testscript.TestScript, name string) *program {
	p := worldOf(ts).processes[name]
	if p == nil {
		ts.Fatalf("nothing was started as %s", name)
	}
	return p
}

// cmdAwait waits for the next lines of a program that match: await NAME PATTERN...
func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: await NAME PATTERN...")
	}
	processOf(ts, args[0]).await(ts, args[1:]...)
}

// cmdFinish ends a program and wants an exit code: finish NAME [SIGNAL [CODE]]. Code - takes any.
func cmdFinish(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 3 {
		ts.Fatalf("usage: finish NAME [SIGNAL [CODE]]")
	}
	signal, want := "INT", "0"
	if len(args) > 1 {
		signal = args[1]
	}
	if len(args) > 2 {
		want = args[2]
	}
	p := processOf(ts, args[0])
	if signal != "none" {
		ts.Check(p.cmd.Process.Signal(signals[signal]))
	}
	late := time.AfterFunc(guard, func() { p.cmd.Process.Kill() })
	err := p.cmd.Wait()
	late.Stop()
	restored := p.tty == nil || p.tty.close()
	p.drained()
	delete(worldOf(ts).processes, args[0])
	code := strconv.Itoa(p.cmd.ProcessState.ExitCode())
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		ts.Fatalf("%v", err)
	}
	fmt.Fprint(ts.Stderr(), p.all())
	if !restored {
		ts.Fatalf("%s left its terminal in another state", args[0])
	}
	if want != "-" && code != want {
		ts.Fatalf("%s ended with exit code %s, want %s:\n%s", args[0], code, want, p.all())
	}
}

// cmdInterrupt sends what Ctrl-C sends, and does not wait: interrupt NAME
func cmdInterrupt(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: interrupt NAME")
	}
	ts.Check(processOf(ts, args[0]).cmd.Process.Signal(os.Interrupt))
}

var signals = map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}

// cmdLog makes what a program printed so far the last standard error: log NAME
func cmdLog(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: log NAME")
	}
	fmt.Fprint(ts.Stderr(), processOf(ts, args[0]).all())
}

// partPID finds the part of an up among its children.
func partPID(up int, part string) (int, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", up))
	if err != nil {
		return 0, err
	}
	for _, t := range tasks {
		children, err := os.ReadFile(t)
		if err != nil {
			continue // the thread ended
		}
		for _, f := range strings.Fields(string(children)) {
			if cmdline, err := os.ReadFile("/proc/" + f + "/cmdline"); err == nil && bytes.Contains(cmdline, []byte("\x00"+part+"\x00")) {
				return strconv.Atoi(f)
			}
		}
	}
	return 0, fmt.Errorf("process %d has no child that is %s", up, part)
}

// cmdPidOf sets a variable to a part's process id: pidof VARIABLE UP PART
func cmdPidOf(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: pidof VARIABLE UP PART")
	}
	pid, err := partPID(processOf(ts, args[1]).cmd.Process.Pid, args[2])
	ts.Check(err)
	ts.Setenv(args[0], strconv.Itoa(pid))
}

// cmdKillPart sends a signal to a part of an up: killpart UP PART SIGNAL
func cmdKillPart(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: killpart UP PART SIGNAL")
	}
	pid, err := partPID(processOf(ts, args[0]).cmd.Process.Pid, args[1])
	ts.Check(err)
	ts.Check(syscall.Kill(pid, signals[args[2]]))
}

// cmdNoProcs wants no process of this script's installation, whoever its parent is: noprocs. A process that was just killed is waited for.
func cmdNoProcs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: noprocs")
	}
	state := worldOf(ts).state
	byEnvironment, byArgument := []byte("SALLYPORT_STATE="+state), []byte("\x00"+state) // a part has one or the other
	deadline := time.Now().Add(guard)
	for {
		left := ""
		all, err := filepath.Glob("/proc/[0-9]*/environ")
		ts.Check(err)
		for _, path := range all {
			dir := filepath.Dir(path)
			environ, err := os.ReadFile(path)
			cmdline, cerr := os.ReadFile(filepath.Join(dir, "cmdline"))
			if err != nil || cerr != nil || !bytes.Contains(environ, byEnvironment) && !bytes.Contains(cmdline, byArgument) {
				continue
			}
			if stat, err := os.ReadFile(filepath.Join(dir, "stat")); err != nil || bytes.Contains(stat, []byte(") Z ")) {
				continue // it ended
			}
			left += filepath.Base(dir) + " " + strings.ReplaceAll(string(cmdline), "\x00", " ") + "\n"
		}
		if left == "" {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("still there:\n%s", left)
		}
		<-time.After(20 * time.Millisecond)
	}
}

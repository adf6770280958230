package main

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"sallyport.dev/guest/fakehost"
	"sallyport.dev/relay"
)

// gateArgs are a gate's arguments for a session; bridge says whether it starts one.
func gateArgs(h *fakehost.Host, bridge bool, more ...string) []string {
	args := []string{programs.guest, "gate", "--in", h.In(), "--out", h.Out()}
	if bridge {
		args = append(args, "--bridge", programs.bridge)
	} else {
		args = append(args, "--no-bridge")
	}
	return append(args, more...)
}

func gates(n int) func(fakehost.Seen) bool {
	return func(s fakehost.Seen) bool { return len(s.Gates) >= n }
}

// closed runs a command in a new network namespace whose lo is up, as in a sandbox.
func closed(t *testing.T, args []string) (func(*exec.Cmd), []string) {
	t.Helper()
	return func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if os.Getuid() != 0 {
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
		}
	}, append(self(t, "loopback"), args...)
}

func TestGateInAClosedSandbox(t *testing.T) {
	h := session(t, nil)
	socket := filepath.Join(h.In(), relay.BridgeName)
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all, _ := io.ReadAll(c)
			io.WriteString(c, "host heard "+string(all))
			c.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-served })

	change, args := closed(t, append(gateArgs(h, true, "--port", "4199", "--"), self(t, "talk")...))
	r := start(t, change, args...)
	g := seen(t, h, gates(1)).Gates[0]
	if g.Build != "test" {
		t.Errorf("build %q", g.Build)
	}
	probe, err := relay.ParseProbe(g.Probe)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(probe.Interfaces, []string{"lo"}) || probe.Routes != 0 || len(probe.Answered()) > 0 {
		t.Errorf("found %s", g.Probe)
	}
	for _, a := range probe.Asked {
		if a.Got != relay.GotUnreachable && a.Got != relay.GotForbidden {
			t.Errorf("%s %s: %s", a.How, a.To, a.Got)
		}
	}
	var st syscall.Stat_t
	if err := syscall.Stat("/proc/"+strconv.Itoa(r.cmd.Process.Pid)+"/ns/net", &st); err != nil {
		t.Fatal(err)
	}
	if want := strconv.FormatUint(st.Dev, 10) + ":" + strconv.FormatUint(st.Ino, 10); g.NetNS != want {
		t.Errorf("network namespace %s, not %s", g.NetNS, want)
	}

	io.WriteString(r.in, "1")
	if out := r.out.String(); out != "" {
		t.Fatalf("the agent ran before the gate opened: %s", out)
	}
	open(t, h)
	r.out.wait(t, "talk: host heard hello <nil>", 1)
	// The bridge is restarted where it ends: the agent can do no more than interrupt itself.
	bridge := childNamed(t, r.cmd.Process.Pid, "sallyport-bridge")
	if err := syscall.Kill(bridge, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for n := 2; strings.Count(r.out.String(), "host heard") < 2; n++ {
		io.WriteString(r.in, "2")
		r.out.wait(t, "talk:", n)
	}
	r.in.Close()
	if code := r.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// childNamed finds a child of a process by its command.
func childNamed(t *testing.T, parent int, name string) int {
	t.Helper()
	for {
		list, err := os.ReadFile("/proc/" + strconv.Itoa(parent) + "/task/" + strconv.Itoa(parent) + "/children")
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range strings.Fields(string(list)) {
			if comm, err := os.ReadFile("/proc/" + pid + "/comm"); err == nil && strings.HasPrefix(name, strings.TrimSpace(string(comm))) {
				n, _ := strconv.Atoi(pid)
				return n
			}
		}
		select {
		case <-t.Context().Done():
			t.Fatal("no such child")
		default:
		}
	}
}

func TestGateExitCodes(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "not-executable")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("\x7fELF nothing"), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		command []string
		code    int
		says    string
	}{
		{"ends well", []string{"true"}, 0, ""},
		{"its own code", []string{"sh", "-c", "exit 37"}, 37, ""},
		{"ended by a signal", []string{"sh", "-c", "kill -SEGV $$"}, 139, ""},
		{"options are its own", []string{"--", "sh", "-c", `test "$1" = --wait`, "x", "--wait"}, 0, ""},
		{"its environment is ours", []string{"sh", "-c", `test "$GATE_TEST" = yes`}, 0, ""},
		{"not found", []string{"nothing-of-that-name"}, 127, "is in no folder of PATH; nothing was run"},
		{"not executable", []string{script}, 126, "cannot be executed; nothing was run"},
		{"no program", []string{broken}, 126, "nothing was run"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := session(t, nil)
			open(t, h)
			r := start(t, func(c *exec.Cmd) { c.Env = append(os.Environ(), "GATE_TEST=yes") }, gateArgs(h, false, tt.command...)...)
			if code := r.code(); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if got := r.err.String(); tt.says == "" && got != "" || !strings.Contains(got, tt.says) {
				t.Errorf("says %q", got)
			}
		})
	}
}

func TestGateStaysShut(t *testing.T) {
	t.Run("nobody opens", func(t *testing.T) {
		h := session(t, nil)
		mark := filepath.Join(t.TempDir(), "ran")
		r := start(t, nil, gateArgs(h, false, "--wait", "50ms", "touch", mark)...)
		if code := r.code(); code != 125 {
			t.Errorf("exit code %d", code)
		}
		if got := r.err.String(); got != "sallyport-guest gate: the host did not open this sandbox within 50ms; nothing was run\n" {
			t.Errorf("says %q", got)
		}
		if _, err := os.Stat(mark); err == nil {
			t.Error("the agent ran")
		}
	})
	t.Run("told to end", func(t *testing.T) {
		h := session(t, nil)
		r := start(t, nil, gateArgs(h, false, "true")...)
		seen(t, h, gates(1))
		r.signal(syscall.SIGTERM)
		if code := r.code(); code != 143 {
			t.Errorf("exit code %d", code)
		}
	})
	t.Run("a link is not open", func(t *testing.T) {
		h := session(t, nil)
		if err := os.Symlink("session.json", filepath.Join(h.In(), relay.OpenName)); err != nil {
			t.Fatal(err)
		}
		r := start(t, nil, gateArgs(h, false, "--wait", "50ms", "true")...)
		if code := r.code(); code != 125 {
			t.Errorf("exit code %d", code)
		}
	})
	t.Run("no relay directory", func(t *testing.T) {
		r := start(t, nil, programs.guest, "gate", "--in", "/nonexistent/in", "--out", "/nonexistent/out", "--no-bridge", "true")
		if code := r.code(); code != 125 || !strings.Contains(r.err.String(), "the relay directory is not served here") {
			t.Errorf("exit code %d, says %q", code, r.err)
		}
	})
	t.Run("no bridge", func(t *testing.T) {
		h := session(t, nil)
		open(t, h)
		r := start(t, nil, append(gateArgs(h, false)[:6], "true")...)
		if code := r.code(); code != 125 || !strings.Contains(r.err.String(), "cannot be started") {
			t.Errorf("exit code %d, says %q", code, r.err)
		}
	})
	t.Run("a bridge that cannot listen", func(t *testing.T) {
		h := session(t, nil)
		open(t, h)
		r := start(t, nil, append(gateArgs(h, false)[:6], "--bridge", "/bin/false", "true")...)
		if code := r.code(); code != 125 || !strings.Contains(r.err.String(), "does not listen") {
			t.Errorf("exit code %d, says %q", code, r.err)
		}
	})
	t.Run("a report of this start lies there", func(t *testing.T) {
		h := session(t, nil)
		h.Close() // nobody takes the first one
		open(t, h)
		if code := start(t, nil, gateArgs(h, false, "true")...).code(); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		r := start(t, nil, gateArgs(h, false, "true")...)
		if code := r.code(); code != 125 || !strings.Contains(r.err.String(), "could not be reported") {
			t.Errorf("exit code %d, says %q", code, r.err)
		}
	})
}

func TestGateHandsSignalsOn(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2} {
		t.Run(s.String(), func(t *testing.T) {
			h := session(t, nil)
			open(t, h)
			number := strconv.Itoa(int(s))
			r := start(t, nil, gateArgs(h, false, "sh", "-c", "trap 'echo got; exit 7' "+number+"; echo ready; while :; do read x || exit 1; done")...)
			r.out.wait(t, "ready", 1)
			r.signal(s)
			r.out.wait(t, "got", 1)
			if code := r.code(); code != 7 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

func TestGateEndsWhatDoesNotEnd(t *testing.T) {
	h := session(t, nil)
	open(t, h)
	r := start(t, nil, gateArgs(h, false, "--grace", "50ms", "sh", "-c", "trap '' TERM; echo ready; while :; do read x; done")...)
	r.out.wait(t, "ready", 1)
	r.signal(syscall.SIGTERM)
	if code := r.code(); code != 137 {
		t.Errorf("exit code %d", code)
	}
}

// An interrupt may be a turn's end only: no grace runs out after it.
func TestGateInterruptDoesNotInsist(t *testing.T) {
	h := session(t, nil)
	open(t, h)
	r := start(t, nil, gateArgs(h, false, "--grace", "1ms", "sh", "-c", "trap 'echo got' INT; echo ready; read x; sleep 0.1; read x; exit 4")...)
	r.out.wait(t, "ready", 1)
	r.signal(syscall.SIGINT)
	r.out.wait(t, "got", 1)
	io.WriteString(r.in, "go on\nend\n")
	if code := r.code(); code != 4 {
		t.Errorf("exit code %d", code)
	}
}

// An orphan becomes the gate's child and is reaped: its entry in /proc goes while the gate lives.
func TestGateReapsOrphans(t *testing.T) {
	h := session(t, nil)
	open(t, h)
	const script = `pid=$(sh -c 'true & echo $!'); while [ -e /proc/$pid ]; do :; done; echo reaped`
	r := start(t, nil, gateArgs(h, false, "sh", "-c", script)...)
	r.out.wait(t, "reaped", 1)
	if code := r.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// What an agent leaves behind goes with it.
func TestGateLeavesNothingBehind(t *testing.T) {
	h := session(t, nil)
	open(t, h)
	r := start(t, nil, gateArgs(h, false, "sh", "-c", "sleep 1000 & echo $!")...)
	if code := r.code(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(r.out.String()))
	if err != nil {
		t.Fatal(err)
	}
	gone(t, pid)
}

func TestGateHidesDescriptors(t *testing.T) {
	h := session(t, nil)
	open(t, h)
	secret, err := os.Create(filepath.Join(t.TempDir(), "secret"))
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	r := start(t, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{secret, secret} }, gateArgs(h, false, self(t, "descriptors")...)...)
	if code := r.code(); code != 0 || r.out.String() != "looked\n" {
		t.Errorf("exit code %d: %s", code, r.out)
	}
}

// As the first process of a pid namespace, which has no default signal actions and whose end ends the rest.
func TestGateAsFirstProcess(t *testing.T) {
	h := session(t, nil)
	open(t, h)
	r := start(t, func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWPID | syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
	}, gateArgs(h, false, "--grace", "50ms", "sh", "-c", "trap '' TERM; echo parent $PPID; (setsid sh -c 'trap \"\" TERM; echo away; while :; do sleep 1000; done') & while :; do read x; done")...)
	r.out.wait(t, "parent 1", 1)
	r.out.wait(t, "away", 1)
	r.signal(syscall.SIGTERM)
	if code := r.code(); code != 137 { // returns only once the one that went away has let go of our pipe
		t.Errorf("exit code %d", code)
	}
}

// On a terminal the agent leads the foreground group: keys reach it once, and never the gate. It is so where the gate has the terminal already,
// and where nobody controls it yet.
func TestGateOnATerminal(t *testing.T) {
	for name, attr := range map[string]*syscall.SysProcAttr{
		"controlled by the gate": {Setsid: true, Setctty: true},
		"controlled by nobody":   {Setsid: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := session(t, nil)
			open(t, h)
			args := gateArgs(h, false, self(t, "terminal")...)
			cmd := exec.Command(args[0], args[1:]...)
			master, tty, err := pty.Open()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = tty, tty, tty, attr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			tty.Close()
			out := &output{}
			copied := make(chan struct{})
			go func() { defer close(copied); io.Copy(out, master) }()
			out.wait(t, "terminal: foreground true, controlled true", 1)
			master.Write([]byte{3}) // Ctrl-C
			out.wait(t, "interrupted", 1)
			_ = cmd.Wait()
			<-copied
			master.Close()
			if code := cmd.ProcessState.ExitCode(); code != 5 || strings.Contains(out.String(), "twice") {
				t.Errorf("exit code %d:\n%s", code, out)
			}
		})
	}
}

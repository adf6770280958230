// Package gate is the first process of a sandbox. The sandbox boots shut: the gate starts the bridge, looks for a network and reports what it
// found, and runs the agent only once the host has opened. Then it is what a first process must be: it hands signals on, reaps whatever is
// orphaned, and ends as the agent ended.
package gate

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

// Config says what a gate guards.
type Config struct {
	In, Out string // the halves of the relay directory
	Build   string
	Bridge  []string      // the bridge's program and arguments, "" in front: no bridge; --ready-fd is added
	Wait    time.Duration // how long the host may take to open
	Grace   time.Duration // between a signal to end and SIGKILL
	Command []string      // the agent
}

// Defaults of a sandbox. A host that does not open within a minute tears the sandbox down anyway.
const (
	DefaultWait   = time.Minute
	DefaultGrace  = 10 * time.Second
	readyPatience = 10 * time.Second
)

// Exit codes of a gate that did not run the agent, as env(1) and shells have them.
const (
	exitNotRun        = 125
	exitNotExecutable = 126
	exitNotFound      = 127
)

// Run guards and runs, and returns the exit code: the agent's own, 128 and the signal that ended it, or one of those above. It is called once
// in a process, from its main goroutine.
func Run(c Config) int {
	// Children get a parent-death signal, which the kernel ties to the thread that forks them: it must live as long as the process.
	runtime.LockOSThread()
	g := &gate{Config: c, guest: relay.NewGuest(c.In, c.Out), signals: make(chan os.Signal, 64)}
	signal.Notify(g.signals, append([]os.Signal{syscall.SIGCHLD}, handedOn...)...)
	hideDescriptors()
	if os.Getpid() != 1 {
		becomeReaper()
	}
	defer g.stopBridge()
	if err := g.open(); err != nil {
		fmt.Fprintf(os.Stderr, "sallyport-guest gate: %s; nothing was run\n", errs.Message(err))
		return codeOf(err)
	}
	return g.serve()
}

// handedOn are the signals that the agent gets from us. Those that a terminal makes reach it by themselves: it leads the foreground group.
var handedOn = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH}

// ends reports whether a signal ends a gate that is shut.
func ends(s os.Signal) bool {
	return insists(s) || s == syscall.SIGINT || s == syscall.SIGQUIT
}

// insists reports whether a signal means that the agent must end: an interrupt only ends a turn of some agents.
func insists(s os.Signal) bool { return s == syscall.SIGTERM || s == syscall.SIGHUP }

type gate struct {
	Config
	guest   *relay.Guest
	signals chan os.Signal

	bridge      int       // pid, 0: none runs
	bridgeBegan time.Time // the last start
	agent       int       // pid
}

// stopped is the error of a gate that was told to end while it was shut.
type stopped struct{ signal syscall.Signal }

func (s stopped) Error() string { return "ended by " + s.signal.String() }

func codeOf(err error) int {
	switch e := err.(type) { //nolint:errorlint // made here, never wrapped
	case stopped:
		return 128 + int(e.signal)
	case cannotRun:
		return e.code
	}
	return exitNotRun
}

// open does everything up to the agent's start.
func (g *gate) open() error {
	path, err := lookUp(g.Command)
	if err != nil {
		return err // known before anybody is asked to open
	}
	session, err := g.guest.Session()
	if err != nil {
		return errs.Wrap(errs.CodeOf(err), "the relay directory is not served here: "+errs.Message(err), err)
	}
	if err := g.startBridge(true); err != nil {
		return err
	}
	probe, err := relay.AppendProbe(nil, look())
	if err != nil {
		return err
	}
	err = g.guest.Gate(&relay.Gate{Session: session.Session, Epoch: session.Epoch, Build: g.Build, NetNS: networkNamespace(), Probe: probe})
	if err != nil {
		return errs.Wrap(errs.CodeOf(err), "what was found of the network could not be reported: "+errs.Message(err), err)
	}
	if err := g.waitOpen(); err != nil {
		return err
	}
	g.agent, err = startAgent(path, g.Command)
	return err
}

// Polling for in/open: quick while a host usually answers, then slower. Some file systems hide the host's writes from a watch, and a gate
// waits once in its life.
const (
	pollLeast = 2 * time.Millisecond
	pollMost  = 50 * time.Millisecond
)

// waitOpen waits for in/open.
func (g *gate) waitOpen() error {
	timeout := time.NewTimer(g.Wait)
	defer timeout.Stop()
	interval := pollLeast
	poll := time.NewTimer(0)
	defer poll.Stop()
	for {
		select {
		case <-timeout.C:
			return errs.Newf(errs.Unavailable, "the host did not open this sandbox within %v", g.Wait)
		case s := <-g.signals:
			if err := g.whileShut(s); err != nil {
				return err
			}
		case <-poll.C:
			var st syscall.Stat_t
			// A socket or a link of that name is not what the host writes.
			if syscall.Lstat(g.In+"/"+relay.OpenName, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFREG {
				return nil
			}
			interval = min(interval*3/2, pollMost)
			poll.Reset(interval)
		}
	}
}

// whileShut deals with a signal before the agent runs.
func (g *gate) whileShut(s os.Signal) error {
	if ends(s) {
		return stopped{s.(syscall.Signal)}
	}
	if s == syscall.SIGCHLD {
		for pid := range dead() {
			if pid == g.bridge {
				g.bridge = 0
				return errs.New(errs.Unavailable, "the bridge ended before the gate opened")
			}
		}
	}
	return nil
}

// serve lives with the agent until it ends, and returns its exit code.
func (g *gate) serve() int {
	var grace, again <-chan time.Time
	for {
		select {
		case s := <-g.signals:
			if s != syscall.SIGCHLD {
				_ = syscall.Kill(g.agent, s.(syscall.Signal)) // it may have ended: SIGCHLD follows
				if insists(s) && grace == nil {
					grace = time.After(g.Grace)
				}
				continue
			}
			for pid, status := range dead() {
				switch {
				case pid == g.agent && status.Stopped():
					g.wake(status.StopSignal())
				case pid == g.agent:
					g.sweep()
					return exitCode(status)
				case pid == g.bridge && !status.Stopped():
					g.bridge = 0
					again = time.After(bridgePause(time.Since(g.bridgeBegan)))
				}
			}
		case <-grace:
			g.killAll()
		case <-again:
			again = nil
			if err := g.startBridge(false); err != nil {
				again = time.After(bridgePauseMost)
			}
		}
	}
}

// wake continues an agent that was stopped from its terminal: there is no shell in a sandbox that could.
func (g *gate) wake(by syscall.Signal) {
	if by == syscall.SIGTSTP || by == syscall.SIGTTIN || by == syscall.SIGTTOU {
		_ = syscall.Kill(-g.agent, syscall.SIGCONT)
	}
}

// killAll ends an agent that did not end in its time, with everything that it started as far as that can be found.
func (g *gate) killAll() {
	if os.Getpid() == 1 {
		_ = syscall.Kill(-1, syscall.SIGKILL) // all but ourselves
		return
	}
	_ = syscall.Kill(-g.agent, syscall.SIGKILL)
	_ = syscall.Kill(g.agent, syscall.SIGKILL)
}

// sweep ends what an agent left in its group. The end of a first process of a pid namespace ends the rest.
func (g *gate) sweep() { _ = syscall.Kill(-g.agent, syscall.SIGKILL) }

func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// networkNamespace is the identity of the namespace that was looked at, device:inode.
func networkNamespace() string {
	var st syscall.Stat_t
	if err := syscall.Stat("/proc/self/ns/net", &st); err != nil {
		return "unknown"
	}
	return strconv.FormatUint(st.Dev, 10) + ":" + strconv.FormatUint(st.Ino, 10)
}

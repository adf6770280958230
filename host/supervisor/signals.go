package supervisor

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// signalled receives what this process is told while it has a sandbox.
type signalled struct {
	all chan os.Signal
}

const terminate = unix.SIGTERM

// catch takes the signals over; release gives them back.
func catch() *signalled {
	s := &signalled{all: make(chan os.Signal, 16)}
	signal.Notify(s.all, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGTSTP)
	return s
}

func (s *signalled) release() { signal.Stop(s.all) }

// ends reports whether a signal ends the sandbox: those by which machines and terminals say that they go.
func ends(s os.Signal) bool { return s == unix.SIGTERM || s == unix.SIGHUP }

func suspends(s os.Signal) bool { return s == unix.SIGTSTP }

func resizes(s os.Signal) bool { return s == unix.SIGWINCH }

func number(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return int(n)
	}
	return 0
}

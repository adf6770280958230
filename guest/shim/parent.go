package shim

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// parentDied is what the kernel sends when the parent dies. It is none of the signals with which harnesses stop their servers, because it
// needs a second look.
const parentDied = syscall.SIGUSR2

// WhileWanted is called once, by the process that serves a harness. It returns a context that ends when the harness leaves: by SIGTERM, SIGINT or SIGHUP, or by dying, whoever else holds our pipe
// open. A write to a pipe that nobody reads becomes an error instead of this process's end.
func WhileWanted(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	signal.Ignore(syscall.SIGPIPE)
	parent := os.Getppid()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, parentDied)
	// The signals stay caught to the end: harnesses send several, and none may cut short what the first one began.
	go func() {
		for sig := range signals {
			// The kernel means the thread that started us, which in some harnesses ends long before its process.
			if sig != parentDied || parent == 0 || os.Getppid() != parent {
				cancel()
			}
		}
	}()
	const prSetPdeathsig = 1 // prctl(2)
	// It fails on no Linux. Where it did, the end of our pipe would still tell.
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetPdeathsig, uintptr(parentDied), 0)
	if os.Getppid() != parent { // it died before the kernel knew that we care
		cancel()
	}
	return ctx, cancel
}

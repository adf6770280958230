package up

import (
	"os/exec"
	"runtime"
)

// startLocked starts a command from a thread that lives as long as the program: a parent-death signal is sent when the starting *thread* ends, and
// the runtime ends threads at its own will.
func startLocked(cmd *exec.Cmd) error {
	done := make(chan error)
	starts <- start{cmd, done}
	return <-done
}

type start struct {
	cmd  *exec.Cmd
	done chan error
}

var starts = make(chan start)

func init() {
	go func() {
		runtime.LockOSThread() // and never unlocked
		for s := range starts {
			s.done <- s.cmd.Start()
		}
	}()
}

package rig

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// startForGood starts a command that ends with this process. The signal is sent when the thread ends that started it, so one thread, which lives as
// long as the process, starts them all.
func startForGood(cmd *exec.Cmd) error {
	starter()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	done := make(chan error)
	starts <- func() { done <- cmd.Start() }
	return <-done
}

var (
	starts  = make(chan func())
	starter = sync.OnceFunc(func() {
		go func() {
			runtime.LockOSThread() // and never unlocked
			for start := range starts {
				start()
			}
		}()
	})
)

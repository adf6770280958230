package gate

import (
	"os"
	"strconv"
	"syscall"
)

// Numbers that package syscall does not have; the same on amd64 and arm64.
const (
	sysCloseRange        = 436
	closeRangeCloexec    = 4
	prSetChildSubreaper  = 36
	firstAfterStdStreams = 3
)

// hideDescriptors keeps every descriptor but the three standard ones from children, whoever left it open.
func hideDescriptors() {
	_, _, errno := syscall.RawSyscall(sysCloseRange, firstAfterStdStreams, ^uintptr(0)>>32, closeRangeCloexec)
	if errno == 0 {
		return
	}
	// A kernel before 5.11, or one that is played by a program.
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return // what we open ourselves is closed on exec anyway
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= firstAfterStdStreams {
			syscall.CloseOnExec(fd)
		}
	}
}

// becomeReaper makes orphans of the sandbox ours, as those of a pid namespace are its first process's.
func becomeReaper() {
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0) // since Linux 3.4
}

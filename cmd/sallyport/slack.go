package main

import (
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is how late the kernel may end a sleep of a part. Go's monitor thread sleeps for 20 us over and over while a process wakes and sleeps, as
// each part does for each call; with the kernel's 50 us of slack it took a quarter of a read's processor time (docs/decisions/0016-timer-slack.md).
const timerSlack = time.Millisecond

// parts are the commands that run for long and serve calls.
var parts = []string{"up", "control", "host", "worker"}

// sleepCoarsely starts this program again with timerSlack, where args name a part: a thread's slack is that of the thread that made it, and Go makes
// its monitor before any code of ours runs. It returns where nothing is to be done, or cannot be: that costs speed alone.
func sleepCoarsely(args []string) {
	if !slices.ContainsFunc(args, func(a string) bool { return slices.Contains(parts, a) }) {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if now, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || now >= int(timerSlack) {
		return // so it ends after one start; a supervisor's parts have it from their supervisor
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0); err != nil {
		return
	}
	if now, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || now < int(timerSlack) {
		return // a thread with a real-time priority has none
	}
	if exe, err := os.Executable(); err == nil {
		_ = syscall.Exec(exe, os.Args, os.Environ())
	}
}

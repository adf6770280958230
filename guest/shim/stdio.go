package shim

import (
	"os"
	"runtime"
	"syscall"
)

// Stdio returns the harness's two streams so that waiting on them costs no thread, and a function that gives the streams back as they were.
//
// A shim waits all of its life, and two of its goroutines never have work at once. One thread of execution is quicker than several that wake
// each other, but only where no goroutine sits in a blocking read: the scheduler would have to notice and take its turn away. Measured from a
// client's pipe to the answer of a host: 0.16 ms and 90 us of processor time, against 0.24 ms and 140 us.
func Stdio() (in, out *os.File, restore func()) {
	runtime.GOMAXPROCS(1)
	in, backIn := polled(os.Stdin, 0)
	out, backOut := polled(os.Stdout, 1)
	return in, out, func() {
		backIn()
		backOut()
	}
}

// polled makes a pipe or a socket non-blocking, which is how package os learns to wait for it by the poller. A wrapper that started us may go
// on using the same stream, hence the way back. Files and terminals stay as they are, and so does a stream that is non-blocking already (a shim
// that was killed leaves its harness's pipe so): package os put it to the poller when the process began, and a second time it would be refused.
func polled(std *os.File, fd int) (stream *os.File, restore func()) {
	nothing := func() {}
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return std, nothing
	}
	if kind := st.Mode & syscall.S_IFMT; kind != syscall.S_IFIFO && kind != syscall.S_IFSOCK {
		return std, nothing
	}
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFL, 0)
	if errno != 0 || flags&syscall.O_NONBLOCK != 0 || syscall.SetNonblock(fd, true) != nil {
		return std, nothing
	}
	return os.NewFile(uintptr(fd), std.Name()), func() { _ = syscall.SetNonblock(fd, false) }
}

package bwrap

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"sallyport.dev/host/sandbox"
)

// run gives up every right that joining the sandbox took, in this thread alone, and becomes the command in the same thread: rights belong
// to threads, and the others end when a new program begins.
func (e *enter) run() error {
	runtime.LockOSThread()
	if len(e.Args) == 0 {
		return errors.New("no command")
	}
	if os.Getuid() != sandbox.InnerUID {
		return fmt.Errorf("user %d inside instead of %d", os.Getuid(), sandbox.InnerUID)
	}
	path, err := e.find()
	if err != nil {
		return err
	}
	if err := os.Chdir(e.Dir); err != nil {
		return err
	}
	if err := closeFrom(3); err != nil {
		return err
	}
	if e.Processes > 0 {
		var now unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NPROC, &now); err != nil {
			return err
		}
		n := min(e.Processes, now.Max)
		if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return os.NewSyscallError("setrlimit", err)
		}
	}
	takeTerminal()
	if err := dropCapabilities(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("no_new_privs", err)
	}
	if err := installFilter(e.Nested); err != nil {
		return err
	}
	return os.NewSyscallError("exec "+path, syscall.Exec(path, e.Args, e.Env))
}

// closeFrom makes sure that the command inherits its standard streams only.
func closeFrom(first uint) error {
	return os.NewSyscallError("close_range", unix.CloseRange(first, ^uint(0), unix.CLOSE_RANGE_CLOEXEC))
}

// takeTerminal makes a terminal on standard input the controlling one of a session of its own, so that its keys reach the command.
func takeTerminal() {
	if _, err := unix.IoctlGetTermios(0, unix.TCGETS); err != nil {
		return
	}
	if _, err := unix.Setsid(); err == nil {
		_ = unix.IoctlSetInt(0, unix.TIOCSCTTY, 0)
	}
}

// dropCapabilities gives up what there is. The bounding set is emptied where this thread may do so; where it may not, it has no
// capability left to begin with, and no_new_privs keeps every later program from getting one.
func dropCapabilities() error {
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	for c := uintptr(0); c < 64; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
				break // above the last that this kernel has; not allowed
			}
			return os.NewSyscallError("capbset_drop", err)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return os.NewSyscallError("capset", unix.Capset(&header, &none[0]))
}

func installFilter(nested bool) error {
	raw, err := filter(nested)
	if err != nil {
		return err
	}
	ins := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		ins[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	prog := unix.SockFprog{Len: uint16(len(ins)), Filter: &ins[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(ins)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}

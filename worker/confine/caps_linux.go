package confine

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// capset empties the effective, permitted and inheritable sets of every thread.
func capset() error {
	head := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	none := &[2]unix.CapUserData{}
	_, _, errno := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(head)), uintptr(unsafe.Pointer(none)), 0)
	runtime.KeepAlive(head)
	runtime.KeepAlive(none)
	if errno != 0 {
		return errno
	}
	return nil
}

package main

import (
	"os"
	"runtime/debug"
	"syscall"
)

func int80getpid() int64

// compat comes by the 32-bit door, whose numbers a filter of 64-bit numbers does not know. A kernel without that door (built or started without
// IA32 emulation) answers with a fault.
func compat(string, *os.File) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			err = errAbsent
		}
	}()
	if n := int80getpid(); n < 0 {
		return syscall.Errno(-n)
	}
	return nil
}

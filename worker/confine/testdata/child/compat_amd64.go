package main

import (
	"os"
	"syscall"
)

func int80getpid() int64

// compat comes by the 32-bit door, whose numbers a filter of 64-bit numbers does not know.
func compat(string, *os.File) error {
	if n := int80getpid(); n < 0 {
		return syscall.Errno(-n)
	}
	return nil
}

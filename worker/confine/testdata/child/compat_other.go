//go:build !amd64

package main

import "os"

// compat has no 32-bit door here.
func compat(string, *os.File) error { return errAbsent }

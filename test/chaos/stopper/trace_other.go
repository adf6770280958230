//go:build !linux || !amd64

package main

import (
	"errors"
	"syscall"
)

// tracer is nothing here: registers and breakpoints are those of x86-64.
type tracer struct {
	stops  []stop
	skip   int
	signal syscall.Signal
}

var errNowhere = errors.New("processes are stopped at their functions on Linux on x86-64 only")

func open(int) (*tracer, error)                { return nil, errNowhere }
func (t *tracer) entry(string) (uint64, error) { return 0, errNowhere }
func (t *tracer) attach() error                { return errNowhere }
func (t *tracer) arm() error                   { return errNowhere }
func (t *tracer) loop() error                  { return errNowhere }

// Package confine takes away from a worker what a worker never needs: writing files, starting programs, listening, debugging others, being dumped,
// and connecting to ports that are not known. It is a second wall behind the first: the code of a worker does none of this. It holds against code that
// somebody else made it run.
//
// Where the kernel cannot enforce a part, the worker runs on and says so: [Apply] tries each forbidden thing afterwards, and reports what it found.
package confine

import "strings"

// Config says what a worker keeps.
type Config struct {
	// Ports are the TCP ports that it may connect to; empty: any. The addresses are enforced in the one dialer (worker/netguard).
	Ports []uint16
	// Read are further files and directories that may be read.
	Read []string
	// UnixDir is the directory of control's socket, when control is reached by one; "" forbids Unix sockets.
	UnixDir string
}

// Finding is one thing that a worker must not be able to do, and whether it can.
type Finding struct {
	What   string // "write files"
	Denied bool
	Note   string // why not, or by what
}

// Report is the level that was reached.
type Report struct {
	Findings []Finding
	Notes    []string // what is unavailable, in words
}

// Whole reports whether everything is denied that should be.
func (r Report) Whole() bool {
	for _, f := range r.Findings {
		if !f.Denied {
			return false
		}
	}
	return len(r.Findings) > 0
}

// String says the level in words, for the log, for doctor and for control.
func (r Report) String() string {
	var denied, open []string
	for _, f := range r.Findings {
		if f.Denied {
			denied = append(denied, f.What)
		} else {
			open = append(open, f.What+note(f.Note))
		}
	}
	var parts []string
	if len(denied) > 0 {
		parts = append(parts, "cannot "+strings.Join(denied, ", "))
	} else {
		parts = append(parts, "NOT confined")
	}
	if len(open) > 0 {
		parts = append(parts, "still can "+strings.Join(open, ", "))
	}
	parts = append(parts, r.Notes...)
	return strings.Join(parts, "; ")
}

func note(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

// None is the report of a worker that was told not to confine itself.
func None(why string) Report { return Report{Notes: []string{why}} }

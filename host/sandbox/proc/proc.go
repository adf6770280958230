// Package proc reads what the kernel says about processes: who they are, who their parent is, in which namespaces they live, and whether
// they are gone.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ID names one process for ever: its pid and its start time in clock ticks since boot.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// Stat is the part of /proc/PID/stat that is of use.
type Stat struct {
	ID
	Parent int
	State  byte // Z: it ended and nobody asked how
}

// Read returns the stat of a process, or an error that is [fs.ErrNotExist] once it is gone.
func Read(pid int) (Stat, error) {
	data, err := os.ReadFile(path(pid, "stat"))
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			err = fs.ErrNotExist
		}
		return Stat{}, err
	}
	// The command's name stands in parentheses and may hold anything, parentheses and spaces too.
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return Stat{}, fmt.Errorf("stat of process %d: no name", pid)
	}
	fields := strings.Fields(string(data[end+1:]))
	if len(fields) < 20 {
		return Stat{}, fmt.Errorf("stat of process %d: %d fields", pid, len(fields))
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return Stat{}, err
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return Stat{}, err
	}
	return Stat{ID: ID{pid, start}, Parent: parent, State: fields[0][0]}, nil
}

// Self returns this process.
func Self() (ID, error) {
	s, err := Read(os.Getpid())
	return s.ID, err
}

// Alive reports whether the very process of id still runs; one that ended and was not reaped does not.
func (id ID) Alive() bool {
	if id.PID <= 0 {
		return false
	}
	s, err := Read(id.PID)
	return err == nil && s.Start == id.Start && s.runs()
}

func (s Stat) runs() bool { return s.State != 'Z' && s.State != 'X' }

// Runs reports whether some process has this pid and has not ended; what ended and waits to be reaped does not run.
func Runs(pid int) bool {
	s, err := Read(pid)
	return err == nil && s.runs()
}

// Namespace returns device:inode of one of a process's namespaces (net, pid, user, mnt).
func Namespace(pid int, kind string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path(pid, "ns/"+kind), &st); err != nil {
		return "", &fs.PathError{Op: "stat", Path: path(pid, "ns/"+kind), Err: err}
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}

// Interfaces returns the network interfaces that a process has.
func Interfaces(pid int) ([]string, error) {
	data, err := os.ReadFile(path(pid, "net/dev"))
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range bytes.Lines(data) {
		if name, _, ok := strings.Cut(string(line), ":"); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return names, nil
}

// Routes returns how many routes a process's network has beyond lo.
func Routes(pid int) (int, error) {
	count := 0
	data, err := os.ReadFile(path(pid, "net/route"))
	if err != nil {
		return 0, err
	}
	for i, line := range slices.Collect(strings.Lines(string(data))) {
		if f := strings.Fields(line); i > 0 && len(f) > 0 && f[0] != "lo" {
			count++
		}
	}
	// A kernel without IPv6 has no such file.
	data, err = os.ReadFile(path(pid, "net/ipv6_route"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 0 && f[len(f)-1] != "lo" {
			count++
		}
	}
	return count, nil
}

// Below reports whether pid descends from ancestor within a few steps, over the parents as they are now.
func Below(pid, ancestor, steps int) bool {
	for range steps {
		s, err := Read(pid)
		if err != nil {
			return false
		}
		if s.Parent == ancestor {
			return true
		}
		pid = s.Parent
	}
	return false
}

// Handle is a descriptor of one process: signals through it reach that process or nobody. Its methods may be called concurrently, but for
// Close.
type Handle struct {
	ID   ID
	file *os.File
	raw  syscall.RawConn
}

// Open returns a handle on a process and its identity, read after the handle was taken.
func Open(pid int) (*Handle, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	h := &Handle{file: os.NewFile(uintptr(fd), "pidfd")} // not blocking: waiting costs a goroutine, no thread
	if h.raw, err = h.file.SyscallConn(); err == nil {
		var s Stat
		s, err = Read(pid)
		h.ID = s.ID
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Signal sends a signal. It returns [os.ErrProcessDone] once the process ended.
func (h *Handle) Signal(s unix.Signal) error {
	var sent error
	if err := h.raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) }); err != nil {
		return os.ErrProcessDone
	}
	if errors.Is(sent, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return os.NewSyscallError("pidfd_send_signal", sent)
}

// Wait returns nil once the process ended, or ctx's error. For the first process of a pid namespace that means that none is left in it: the
// kernel ends and reaps all others first (pid_namespaces(7)). One goroutine at a time may wait.
func (h *Handle) Wait(ctx context.Context) error {
	_ = h.file.SetReadDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { _ = h.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err := h.raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return err == nil && n > 0
	})
	if ctx.Err() != nil && err != nil {
		return ctx.Err()
	}
	return err
}

// Close lets go of the handle.
func (h *Handle) Close() { _ = h.file.Close() }

// Find returns the processes for which match is true, as far as this user may see them.
func Find(match func(pid int) bool) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && match(pid) {
			found = append(found, pid)
		}
	}
	return found
}

// UID returns the real user of a process, or -1.
func UID(pid int) int {
	data, err := os.ReadFile(path(pid, "status"))
	if err != nil {
		return -1
	}
	for line := range bytes.Lines(data) {
		if rest, ok := strings.CutPrefix(string(line), "Uid:"); ok {
			if uid, err := strconv.Atoi(strings.Fields(rest)[0]); err == nil {
				return uid
			}
		}
	}
	return -1
}

func path(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

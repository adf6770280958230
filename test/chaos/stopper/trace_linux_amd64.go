//go:build linux && amd64

package main

import (
	"debug/elf"
	"debug/gosym"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"sallyport.dev/control"
)

const (
	breakpoint = 0xcc // int3
	// PTRACE_SEIZE: https://man7.org/linux/man-pages/man2/ptrace.2.html
	options   = unix.PTRACE_O_TRACECLONE
	eventStop = 128 // PTRACE_EVENT_STOP
)

// tracer is one traced process. All of it runs on one thread.
type tracer struct {
	pid    int
	mem    *os.File
	table  *gosym.Table
	stops  []stop
	at     int // the one that stands
	was    map[uint64]byte
	skip   int
	signal syscall.Signal
	hit    int // the thread that came to the last one; 0: none
}

// open reads where the functions of a process's program begin.
func open(pid int) (*tracer, error) {
	exe, err := elf.Open(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return nil, err
	}
	defer exe.Close()
	lines, text := exe.Section(".gopclntab"), exe.Section(".text")
	if lines == nil || text == nil {
		return nil, errors.New("it is no Go program")
	}
	data, err := lines.Data()
	if err != nil {
		return nil, err
	}
	t := &tracer{pid: pid, was: map[uint64]byte{}}
	if t.table, err = gosym.NewTable(nil, gosym.NewLineTable(data, text.Addr)); err != nil {
		return nil, err
	}
	t.mem, err = os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	return t, err
}

// entry is where a function begins.
func (t *tracer) entry(name string) (uint64, error) {
	f := t.table.LookupFunc(name)
	if f == nil {
		return 0, fmt.Errorf("the program has no function %s", name)
	}
	return f.Entry, nil
}

// attach seizes every thread, and those that they start.
func (t *tracer) attach() error {
	seized := map[int]bool{}
	for again := true; again; {
		again = false
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", t.pid))
		if err != nil {
			return err
		}
		for _, task := range tasks {
			tid, err := strconv.Atoi(task.Name())
			if err != nil || seized[tid] {
				continue
			}
			// One that a traced thread started is traced already, and says EPERM.
			_, _, errno := syscall.RawSyscall6(syscall.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, options, 0, 0)
			if errno != 0 && (len(seized) == 0 || errno != syscall.EPERM) && errno != syscall.ESRCH {
				return errno
			}
			seized[tid], again = true, true
		}
	}
	return nil
}

func (t *tracer) poke(addr uint64, b byte) error {
	_, err := t.mem.WriteAt([]byte{b}, int64(addr))
	return err
}

// arm sets the breakpoint whose turn it is.
func (t *tracer) arm() error {
	addr := t.stops[t.at].addr
	var was [1]byte
	if _, err := t.mem.ReadAt(was[:], int64(addr)); err != nil {
		return err
	}
	if was[0] != breakpoint {
		t.was[addr] = was[0]
	}
	return t.poke(addr, breakpoint)
}

// loop passes everything on until the process was stopped, or ended.
func (t *tracer) loop() error {
	for {
		var ws syscall.WaitStatus
		tid, err := syscall.Wait4(-1, &ws, syscall.WALL, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.ECHILD):
			return t.ended()
		case err != nil:
			return err
		case ws.Exited() || ws.Signaled():
			if tid == t.pid {
				return t.ended()
			}
			continue
		}
		if over, err := t.stopped(tid, ws); over || err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
}

func (t *tracer) ended() error {
	if t.hit == 0 {
		return errors.New("the process ended before it came there")
	}
	tell(Told{Event: "stopped"})
	return nil
}

// stopped treats one stop of a thread.
func (t *tracer) stopped(tid int, ws syscall.WaitStatus) (over bool, err error) {
	sig, event := ws.StopSignal(), int(ws)>>16
	switch {
	case event == eventStop && (sig == syscall.SIGSTOP || sig == syscall.SIGTSTP || sig == syscall.SIGTTIN || sig == syscall.SIGTTOU):
		if tid == t.hit { // the whole process stands; it stays so when this one leaves
			tell(Told{Event: "stopped"})
			return true, nil
		}
		return false, ptrace(unix.PTRACE_LISTEN, tid, 0)
	case event != 0:
		return false, syscall.PtraceCont(tid, 0)
	case sig != syscall.SIGTRAP:
		return false, syscall.PtraceCont(tid, int(sig))
	}
	var regs syscall.PtraceRegs
	if err := syscall.PtraceGetRegs(tid, &regs); err != nil {
		return false, err
	}
	addr := regs.Rip - 1
	was, ours := t.was[addr]
	if !ours {
		return false, syscall.PtraceCont(tid, int(sig))
	}
	regs.Rip = addr
	if err := syscall.PtraceSetRegs(tid, &regs); err != nil {
		return false, err
	}
	here := t.stops[t.at]
	if addr != here.addr || t.hit != 0 { // another thread came to one that was taken away meanwhile
		return false, syscall.PtraceCont(tid, 0)
	}
	last := t.at == len(t.stops)-1
	match, err := t.match(here, &regs)
	if err != nil {
		return false, err
	}
	if !match || last && t.skip > 0 {
		if match {
			t.skip--
		}
		return false, t.pass(tid, addr, was)
	}
	if last && t.signal == syscall.SIGKILL {
		t.hit = tid
		return false, syscall.Kill(t.pid, syscall.SIGKILL)
	}
	if err := t.poke(addr, was); err != nil {
		return false, err
	}
	if last {
		t.hit = tid
		return false, syscall.PtraceCont(tid, int(t.signal)) // it takes the signal before its next instruction
	}
	t.at++
	if err := t.arm(); err != nil {
		return false, err
	}
	return false, syscall.PtraceCont(tid, 0)
}

// match reports whether a breakpoint that was come to is the one that is wanted: of the store's step, (*tx).step(t, c, *control.Step), whose
// arguments stand in AX, BX and CX.
func (t *tracer) match(s stop, regs *syscall.PtraceRegs) (bool, error) {
	if s.where == nil {
		return true, nil
	}
	var step control.Step
	for i, off := range []uintptr{unsafe.Offsetof(step.From), unsafe.Offsetof(step.Event), unsafe.Offsetof(step.To)} {
		got, err := t.text(regs.Rcx + uint64(off))
		if err != nil {
			return false, err
		}
		if s.where[i] != "*" && s.where[i] != got {
			return false, nil
		}
	}
	return true, nil
}

// text reads a string of the process.
func (t *tracer) text(addr uint64) (string, error) {
	var head [16]byte
	if _, err := t.mem.ReadAt(head[:], int64(addr)); err != nil {
		return "", err
	}
	n := binary.LittleEndian.Uint64(head[8:])
	if n > 64 {
		return "", errors.New("the store's step does not look as it is expected to")
	}
	b := make([]byte, n)
	if n > 0 {
		if _, err := t.mem.ReadAt(b, int64(binary.LittleEndian.Uint64(head[:8]))); err != nil {
			return "", err
		}
	}
	return strings.Clone(string(b)), nil
}

// pass lets a thread over a breakpoint that stays. For an instant it is not there for others; the store has one writer.
func (t *tracer) pass(tid int, addr uint64, was byte) error {
	if err := t.poke(addr, was); err != nil {
		return err
	}
	var late []syscall.Signal
	for {
		if err := ptrace(unix.PTRACE_SINGLESTEP, tid, 0); err != nil {
			return err
		}
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(tid, &ws, syscall.WALL, nil); err != nil {
			return err
		}
		if !ws.Stopped() {
			return syscall.ESRCH
		}
		if ws.StopSignal() == syscall.SIGTRAP {
			break
		}
		late = append(late, ws.StopSignal())
	}
	if err := t.poke(addr, breakpoint); err != nil {
		return err
	}
	for _, sig := range late {
		if err := unix.Tgkill(t.pid, tid, sig); err != nil {
			return err
		}
	}
	return syscall.PtraceCont(tid, 0)
}

func ptrace(request, tid int, data uintptr) error {
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PTRACE, uintptr(request), uintptr(tid), 0, data, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

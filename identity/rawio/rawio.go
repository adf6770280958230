// Package rawio reads and writes connections by raw system calls.
//
// An ordinary read or write tells the scheduler that it may block. On a connection it does not: the descriptor is non-blocking, and the network poller
// does the waiting. Being told costs little in a busy process, but it wakes the runtime's monitor thread when the process was idle before, and that
// thread then wakes up every 20 us for as long as anything runs. In processes that hand one call on at a time this was a seventh to a quarter of all
// processor time, and on a machine with few processors the thread also stands in the way of whom the message is for.
package rawio

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// Conn is a connection that reads and writes by raw system calls. Everything else is the connection's own, deadlines included. Safe for concurrent
// use as net.Conn is.
type Conn struct {
	net.Conn
	raw syscall.RawConn
}

// New returns c as a [Conn], or c itself where it has no descriptor of a socket: a test's pipe.
func New(c net.Conn) net.Conn {
	switch c.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return c
	}
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return c // closed; its methods say so
	}
	return &Conn{Conn: c, raw: raw}
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return c.Conn.Read(p)
	}
	var n uintptr
	var errno syscall.Errno
	err := c.raw.Read(func(fd uintptr) bool {
		for {
			n, _, errno = syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
			if errno != syscall.EINTR {
				return errno != syscall.EAGAIN
			}
		}
	})
	switch {
	case err != nil:
		return 0, c.failed("read", err)
	case errno != 0: // said once: a second read would find an ordinary end
		return 0, c.failed("read", os.NewSyscallError("read", errno))
	case n == 0:
		return 0, io.EOF
	}
	return int(n), nil
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	done := 0
	var errno syscall.Errno
	err := c.raw.Write(func(fd uintptr) bool {
		for done < len(p) {
			rest := p[done:]
			n, _, e := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(rest))), uintptr(len(rest)))
			switch e {
			case 0:
				done += int(n)
			case syscall.EINTR:
			case syscall.EAGAIN:
				return false
			default:
				errno = e
				return true
			}
		}
		return true
	})
	if err == nil && errno != 0 {
		err = os.NewSyscallError("write", errno)
	}
	if err != nil {
		return done, c.failed("write", err)
	}
	return done, nil
}

// failed is an error in net's own words.
func (c *Conn) failed(op string, err error) error {
	if inner, ok := err.(*net.OpError); ok { //nolint:errorlint // as RawConn returns it
		err = inner.Err
	}
	return &net.OpError{Op: op, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

package gate

import (
	"errors"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"sallyport.dev/relay"
)

// pollFD is struct pollfd of poll(2).
type pollFD struct {
	fd      int32
	events  int16
	revents int16
}

const (
	pollIn  = 0x1
	pollOut = 0x4
)

// askAll asks every question at once, by system calls: a network package would have to be linked for less. Quiet asks the kernel only whether
// it knows a way, which sends nothing.
func askAll(ask []question, quiet bool, patience time.Duration) []relay.Asked {
	all := make([]relay.Asked, len(ask))
	fds := make([]pollFD, len(ask))
	for i, q := range ask {
		all[i] = relay.Asked{How: q.how, To: q.to}
		fds[i].fd = -1
		if quiet {
			q.kind, q.send = syscall.SOCK_DGRAM, nil // to connect a datagram socket is to look up a route
		}
		fd, got := begin(q)
		all[i].Got = got
		if fd < 0 {
			continue
		}
		if quiet {
			_ = syscall.Close(fd)
			continue
		}
		fds[i].fd = int32(fd)
		fds[i].events = pollIn
		if q.kind == syscall.SOCK_STREAM {
			fds[i].events = pollOut
		}
	}
	for deadline := time.Now().Add(patience); unanswered(fds) && wait(fds, time.Until(deadline)); {
		for i := range fds {
			if fds[i].fd >= 0 && fds[i].revents != 0 {
				all[i].Got = outcome(int(fds[i].fd), ask[i].kind)
				_ = syscall.Close(int(fds[i].fd))
				fds[i].fd = -1
			}
		}
	}
	for _, f := range fds {
		if f.fd >= 0 {
			_ = syscall.Close(int(f.fd))
		}
	}
	return all
}

// begin asks one question. A descriptor that is not negative waits for its outcome; until then it is silence.
func begin(q question) (int, relay.Got) {
	family := syscall.AF_INET
	if _, ok := q.addr.(*syscall.SockaddrInet6); ok {
		family = syscall.AF_INET6
	}
	fd, err := syscall.Socket(family, q.kind|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, relay.GotForbidden
	}
	err = syscall.Connect(fd, q.addr)
	if err == nil && q.kind == syscall.SOCK_STREAM {
		_ = syscall.Close(fd)
		return -1, relay.GotConnection
	}
	if err == nil && q.send != nil {
		_, err = syscall.Write(fd, q.send)
	}
	if err == nil || errors.Is(err, syscall.EINPROGRESS) {
		return fd, relay.GotSilence
	}
	_ = syscall.Close(fd)
	return -1, verdict(err)
}

// verdict names what an error of a socket means.
func verdict(err error) relay.Got {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return relay.GotRefusal
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return relay.GotForbidden
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, syscall.EAGAIN):
		return relay.GotSilence
	default: // ENETUNREACH, EHOSTUNREACH, EADDRNOTAVAIL, ENETDOWN
		return relay.GotUnreachable
	}
}

// outcome reads what came of a question that had to be waited for.
func outcome(fd, kind int) relay.Got {
	code, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ERROR)
	switch {
	case err != nil:
		return verdict(err)
	case code != 0:
		return verdict(syscall.Errno(code))
	case kind == syscall.SOCK_STREAM:
		return relay.GotConnection
	}
	if _, err := syscall.Read(fd, make([]byte, 512)); err != nil {
		return verdict(err)
	}
	return relay.GotReply
}

func unanswered(fds []pollFD) bool {
	for _, f := range fds {
		if f.fd >= 0 {
			return true
		}
	}
	return false
}

// wait waits until one of fds has an outcome, and reports false once the time is over. Negative descriptors are left out by the kernel.
func wait(fds []pollFD, left time.Duration) bool {
	for left > 0 {
		ts := syscall.NsecToTimespec(int64(left))
		began := time.Now()
		n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)), uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
		runtime.KeepAlive(fds)
		if errno == syscall.EINTR {
			left -= time.Since(began)
			continue
		}
		return errno == 0 && n > 0
	}
	return false
}

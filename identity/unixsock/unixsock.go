// Package unixsock listens on and dials Unix sockets wherever they lie. The kernel takes at most 107 bytes for a socket's name, less than the path of
// a state directory may have; a longer one is named through a descriptor of its directory.
package unixsock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// longest is how many bytes the name of a socket may have: sockaddr_un, with its ending zero.
const longest = len(syscall.RawSockaddrUnix{}.Path) - 1

// named calls use with a name of path that the kernel takes. The name is good for as long as the call lasts.
func named(path string, use func(name string) error) error {
	if len(path) <= longest {
		return use(path)
	}
	// A path alone opens nothing: it needs no right to read the directory.
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer unix.Close(dir) //nolint:errcheck // nothing was written
	return use(fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(path)))
}

// Dial connects to the socket at path.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	var c net.Conn
	err := named(path, func(name string) (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, "unix", name)
		return err
	})
	return c, err
}

// Listen binds a socket at path, where nothing may be yet. Close removes it.
func Listen(path string) (net.Listener, error) {
	var l *net.UnixListener
	err := named(path, func(name string) (err error) {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
		return err
	})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the name that it was bound by is gone
	return &listener{UnixListener: l, path: path}, nil
}

type listener struct {
	*net.UnixListener
	path string
	once sync.Once
}

// Addr implements net.Listener: where the socket lies.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close implements net.Listener. The socket goes first, so that nobody finds one that is not served; a second Close removes nothing.
func (l *listener) Close() (err error) {
	l.once.Do(func() {
		if err = os.Remove(l.path); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	})
	return errors.Join(l.UnixListener.Close(), err)
}

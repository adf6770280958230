package hostile_test

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// watcher is a place where nothing may come.
type watcher struct {
	mu   sync.Mutex
	came int
}

// watch listens at addresses where nothing may come.
func watch(t *testing.T, addresses ...string) *watcher {
	t.Helper()
	w := &watcher{}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait) // after each listener was closed
	for _, a := range addresses {
		// An address of version 6 is not on any interface, though it is delivered here.
		free := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) (err error) {
			if network == "tcp6" {
				return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1) }), err)
			}
			return nil
		}}
		l, err := free.Listen(t.Context(), "tcp", a)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
				w.mu.Lock()
				w.came++
				w.mu.Unlock()
			}
		})
		t.Cleanup(func() { l.Close() })
	}
	return w
}

func (w *watcher) connections() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.came
}

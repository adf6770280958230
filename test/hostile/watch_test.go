package hostile_test

import (
	"net"
	"sync"
	"testing"
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
	for _, a := range addresses {
		l, err := net.Listen("tcp", a) //nolint:noctx // closed by the test
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
		t.Cleanup(func() {
			l.Close()
			wg.Wait()
		})
	}
	return w
}

func (w *watcher) connections() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.came
}

package sqlstore

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
)

// benchStore lies on the disk of the work tree, not in a memory file system.
func benchStore(b *testing.B) *world {
	dir, err := os.MkdirTemp(".", "bench-*.tmp")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	return newWorld(b, openTest(b, testOptions(b, dir)))
}

// inFlight runs f b.N times, n at once.
func inFlight(b *testing.B, n int, f func() error) {
	b.Helper()
	var wg sync.WaitGroup
	var next atomic.Int64
	cpu := cpuTime()
	b.ResetTimer()
	for range n {
		wg.Go(func() {
			for next.Add(1) <= int64(b.N) {
				if err := f(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N), "us/call")
	b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-us/call")
}

func (w *world) oneRead() error {
	a := w.readAdmission()
	got, err := w.Admit(w.t.Context(), a)
	if err != nil || got.Result != call.Done {
		return fmt.Errorf("admission: %v %w", got.Result, err)
	}
	r, err := w.Advance(w.t.Context(), settle(a.Call, false))
	if err != nil || r != call.Done {
		return fmt.Errorf("settle: %v %w", r, err)
	}
	w.Deliver(call.Delivered{Call: a.Call.ID, Delivery: journal.DeliveryAcknowledged})
	return nil
}

// A read: one insert (admit, decide, commit), one settle with its answer, the acknowledgment riding along.
func BenchmarkRead(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("%d_in_flight", n), func(b *testing.B) {
			w := benchStore(b)
			inFlight(b, n, w.oneRead)
		})
	}
}

// A write's two durable commits: the barrier and the settle. Its question and decision are not counted.
func BenchmarkWrite(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("%d_in_flight", n), func(b *testing.B) {
			w := benchStore(b)
			w.generation = w.reload().Generation
			barriers := make(chan *call.Barrier, b.N)
			settles := make(chan *call.Advance, b.N)
			for range b.N {
				c, q := w.approved()
				barriers <- w.barrier(c, q)
				c.Attempt = 1
				settles <- settle(c, true)
			}
			inFlight(b, n, func() error {
				r, err := w.Commit(b.Context(), <-barriers)
				if err != nil || r != call.Done {
					return fmt.Errorf("barrier: %v %w", r, err)
				}
				return nil
			})
			b.ReportMetric(float64(w.fsyncUS), "us/fsync")
		})
	}
}

func BenchmarkFsync(b *testing.B) {
	w := benchStore(b)
	page := make([]byte, 4096)
	for b.Loop() {
		if _, err := w.wal.WriteAt(page, 1<<30); err != nil {
			b.Fatal(err)
		}
		if err := w.fdatasync(); err != nil {
			b.Fatal(err)
		}
	}
	runtime.KeepAlive(w)
}

// cpuTime is the processor time of this process, in microseconds.
func cpuTime() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return u.Utime.Sec*1e6 + u.Utime.Usec + u.Stime.Sec*1e6 + u.Stime.Usec
}

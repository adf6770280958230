package sqlstore

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
)

// benchStore lies in the temporary directory: set TMPDIR where that is a memory file system.
func benchStore(b *testing.B) *world {
	return newWorld(b, openTest(b, testOptions(b, b.TempDir())))
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

// What the machine asks for one fdatasync of one fresh page.
func BenchmarkFsync(b *testing.B) {
	f, err := os.CreateTemp(b.TempDir(), "page")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 4096)
	for b.Loop() {
		if _, err := f.Write(page); err != nil {
			b.Fatal(err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
	}
}

// cpuTime is the processor time of this process, in microseconds.
func cpuTime() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return u.Utime.Sec*1e6 + u.Utime.Usec + u.Stime.Sec*1e6 + u.Stime.Usec
}

// A read (admit and settle) with 10^6 calls in the journal, over 1,000 sessions, and with 10^3: in turns, so that both see the same machine.
func BenchmarkJournal(b *testing.B) {
	var worlds []*world
	var opened time.Duration
	for _, calls := range []int{1_000, 1_000_000} {
		opts := testOptions(b, b.TempDir())
		fill(b, opts, calls)
		began := time.Now()
		worlds = append(worlds, newWorldAgain(b, openTest(b, opts)))
		opened = time.Since(began)
	}
	took := make([][]time.Duration, len(worlds))
	for b.Loop() {
		for i, w := range worlds {
			at := time.Now()
			if err := w.oneRead(); err != nil {
				b.Fatal(err)
			}
			took[i] = append(took[i], time.Since(at))
		}
	}
	p50 := func(i int) float64 {
		slices.Sort(took[i])
		return float64(took[i][len(took[i])/2].Nanoseconds()) / 1000
	}
	b.ReportMetric(p50(0), "us/p50-1e3")
	b.ReportMetric(p50(1), "us/p50-1e6")
	b.ReportMetric(p50(1)/p50(0), "ratio")
	b.ReportMetric(float64(opened.Milliseconds()), "ms/open")
}

// fill makes a store with that many ended calls: a thousand real ones, copied under other ids and sessions.
func fill(b *testing.B, opts Options, calls int) {
	s, err := Open(b.Context(), opts)
	if err != nil {
		b.Fatal(err)
	}
	w := newWorld(b, s)
	for range 1000 {
		if err := w.oneRead(); err != nil {
			b.Fatal(err)
		}
	}
	head := s.head
	columns := strings.ReplaceAll(callColumns, "\n", " ")
	rest := strings.TrimPrefix(columns, "seq, id, org, session, ")
	for k := 1; k < calls/1000; k++ {
		if err := s.do(b.Context(), 0, func(t *tx) error {
			off := int64(k) * 1000
			for _, one := range []struct {
				sql  string
				args []any
			}{
				{"INSERT INTO calls (" + columns + ", unread) SELECT seq + ?, lower(substr(hex(randomblob(13)), 1, 26)), org, 'session' || ?, " + rest + ", unread FROM calls WHERE seq <= 1000", []any{off, k}},
				{"INSERT INTO bodies (key, org, at, parts, part, sealed) SELECT key + (? << 4), org, at, parts, part, sealed FROM bodies WHERE key < (1001 << 4)", []any{off}},
				{"INSERT INTO batches (first, last, org, run, at, records, link) SELECT first + ?, last + ?, org, run, at, records, link FROM batches WHERE first <= ?", []any{head.seq * int64(k), head.seq * int64(k), head.seq}},
			} {
				if _, err := t.exec(one.sql, one.args...); err != nil {
					return err
				}
			}
			t.head.calls, t.head.seq = off+1000, head.seq*int64(k+1)
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

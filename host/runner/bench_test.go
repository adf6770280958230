package runner

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"sallyport.dev/host/link/linktest"
	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

// BenchmarkIdleSessions measures what a session costs that does nothing: KiB of memory, and the processor's share of all of them. One round is
// enough (-benchtime 1x). SALLYPORT_BENCH_SESSIONS sets how many; each takes two descriptors.
func BenchmarkIdleSessions(b *testing.B) {
	n := 1000
	if s := os.Getenv("SALLYPORT_BENCH_SESSIONS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			b.Fatal(err)
		}
	}
	dir := b.TempDir()
	if shm, err := os.MkdirTemp("/dev/shm", "runner"); err == nil {
		b.Cleanup(func() { os.RemoveAll(shm) })
		dir = shm
	}
	all := make([]Session, n)
	for i := range all {
		all[i] = Session{ID: relay.NewID(), Epoch: 1, Open: true, Owners: []uint32{uint32(os.Getuid())}}
		all[i].Folder = hostside.Folder{Root: filepath.Join(dir, all[i].ID)}
		if err := all[i].Folder.Create(os.Getuid(), os.Getgid(), false); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		r := New(Config{Link: linktest.New(func(err error) { b.Error(err) }), Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = r.Run(ctx)
		}()
		before := inUse()
		for _, s := range all {
			if err := r.Add(s); err != nil {
				b.Fatal(err)
			}
		}
		<-time.After(5 * time.Second) // the first listings and measurements
		b.ReportMetric(float64(inUse()-before)/1024/float64(n), "KiB/session")
		start, used := time.Now(), processorTime()
		<-time.After(10 * time.Second)
		b.ReportMetric(100*(processorTime()-used).Seconds()/time.Since(start).Seconds(), "%cpu")
		b.ReportMetric(float64(n), "sessions")
		cancel()
		<-done
	}
}

func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

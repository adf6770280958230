package relaybench

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// Whatever the numbers are, every call of both parts has its answer.
func TestRun(t *testing.T) {
	n, err := Run(t.Context(), Options{Dir: t.TempDir(), Calls: 50, InFlight: 8})
	if err != nil {
		t.Fatal(err)
	}
	if n.N != 50 || n.P50 <= 0 || n.P99 < n.P50 || n.PerSecond <= 0 {
		t.Errorf("%+v", n)
	}
}

func BenchmarkRelay(b *testing.B) {
	dir := b.TempDir()
	if _, err := os.Stat("/dev/shm"); err == nil {
		if dir, err = os.MkdirTemp("/dev/shm", "relaybench"); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { os.RemoveAll(dir) })
	}
	for b.Loop() {
		n, err := Run(b.Context(), Options{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(n.P50.Microseconds())/1000, "p50-ms")
		b.ReportMetric(float64(n.P99.Microseconds())/1000, "p99-ms")
		b.ReportMetric(n.PerSecond, "calls/s")
	}
}

package relaybench

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
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

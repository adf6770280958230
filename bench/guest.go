package main

import (
	"context"
	"os"
	"time"

	"sallyport.dev/relay/relaybench"
)

// guestRows measure the program in the sandbox: its size, its start, its memory.
func (b *bench) guestRows(ctx context.Context, w *path) error {
	info, err := os.Stat(b.programs.Guest("sallyport-guest"))
	if err != nil {
		return err
	}
	b.report.add(row{ID: "guest_bytes", Value: float64(info.Size()), Unit: "bytes", N: 1, goal: "5 MB"})

	s := w.sessions[0]
	n := b.n(100, 30)
	spawns, err := sequential(ctx, n, func(ctx context.Context) error {
		shim, err := s.SpawnShim()
		if err != nil {
			return err
		}
		if err := shim.Initialize(ctx); err != nil {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	// What starting any program costs here: one that does nothing.
	floor, err := sequential(ctx, n, func(context.Context) error {
		p, err := os.StartProcess(b.programs.Guest("sallyport-guest"), []string{"sallyport-guest", "version"}, &os.ProcAttr{})
		if err != nil {
			return err
		}
		_, err = p.Wait()
		return err
	})
	if err != nil {
		return err
	}
	b.report.add(row{ID: "shim_init_ms", Value: ms(spawns.p50()), Unit: "ms", N: n, goal: "3", note: "baseline: start and end of the same program, doing nothing"}.
		beside(ms(floor.p50()), ratio(spawns.p50(), floor.p50())))

	shim, err := s.SpawnShim()
	if err != nil {
		return err
	}
	if err := shim.Initialize(ctx); err != nil {
		return err
	}
	if _, err := shim.Request(ctx, "tools/list", []byte(`{}`)); err != nil {
		return err
	}
	idle, err := memory(shim.PID(), "VmRSS")
	if err != nil {
		return err
	}
	const calls = 1000
	if _, err := sequential(ctx, calls, func(ctx context.Context) error { return through(ctx, shim, readLine) }); err != nil {
		return err
	}
	loaded, err := memory(shim.PID(), "VmRSS")
	if err != nil {
		return err
	}
	b.report.add(
		row{ID: "guest_rss_idle_mib", Value: float64(idle) / 1024, Unit: "MiB", N: 1, goal: "6"},
		row{ID: "guest_rss_loaded_mib", Value: float64(loaded) / 1024, Unit: "MiB", N: calls, goal: "10"},
	)
	return nil
}

// relayRows measure the relay alone, where a host that may mount puts it: in memory.
func (b *bench) relayRows(ctx context.Context) error {
	dir, err := os.MkdirTemp(memoryDir(), "sallyport-relay-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	n, err := relaybench.Run(ctx, relaybench.Options{Dir: dir, Calls: b.n(5000, 1500)})
	if err != nil {
		return err
	}
	b.report.add(
		row{ID: "relay_p50_ms", Value: ms(n.P50), Unit: "ms", N: n.N, goal: "0.20"},
		row{ID: "relay_p99_ms", Value: ms(n.P99), Unit: "ms", N: n.N, goal: "0.40"},
		row{ID: "relay_calls_s", Value: n.PerSecond, Unit: "calls/s", N: n.N, goal: "15000"},
	)
	return nil
}

// memoryDir is a file system in memory, where there is one.
func memoryDir() string {
	if _, err := os.Stat("/dev/shm"); err == nil {
		return "/dev/shm"
	}
	return ""
}

func ms(d time.Duration) float64     { return float64(d.Nanoseconds()) / 1e6 }
func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
func ratio(a, b time.Duration) float64 {
	return float64(a) / float64(max(b, 1))
}

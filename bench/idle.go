package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/test/rig"
)

// perSession is how many descriptors a session takes in the host: two of its directory, the bridge's socket, its supervisor's connection and process.
const perSession = 5

// idleRows measure what sessions cost the host's process while nobody uses them. They are real: opened by control, their gates open, their
// supervisor linked. Their guest's programs are left out (small files in their place): those are the same for every session, and no part of the
// host's process.
func (b *bench) idleRows(ctx context.Context) error {
	n := b.n(2000, 200)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		n = min(n, int(limit.Max)/perSession-100)
	}
	stub, err := os.MkdirTemp("", "sallyport-stub-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(stub)
	for _, name := range []string{"sallyport-guest", "sallyport-bridge"} {
		if err := os.WriteFile(filepath.Join(stub, name), []byte("left out\n"), 0o755); err != nil {
			return err
		}
	}
	w, err := openPath(ctx, b.programs, 0, options{env: []string{"SALLYPORT_GUEST_DIR=" + stub}})
	if err != nil {
		return err
	}
	defer func() { b.note(w.close()) }()
	pid, err := w.rig.PID(rig.Host)
	if err != nil {
		return err
	}
	few, err := w.rig.OpenIdle(ctx, "bench", 20) // what the first sessions alone bring
	if err != nil {
		return err
	}
	defer func() { b.note(few.Close()) }()
	before, err := memory(pid, "RssAnon")
	if err != nil {
		return err
	}
	idle, err := w.rig.OpenIdle(ctx, "bench", n)
	if err != nil {
		return err
	}
	defer func() { b.note(idle.Close()) }()
	settled := time.NewTimer(b.span(3*time.Second, time.Second)) // the first listings
	select {
	case <-settled.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := memory(pid, "RssAnon")
	if err != nil {
		return err
	}
	used, err := cpuTime(pid)
	if err != nil {
		return err
	}
	span := b.span(15*time.Second, 4*time.Second)
	resting := time.NewTimer(span)
	select {
	case <-resting.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	usedAfter, err := cpuTime(pid)
	if err != nil {
		return err
	}
	busy := 100 * float64(usedAfter-used) / float64(span)
	b.report.add(
		row{ID: "idle_session_kib", Value: float64(after-before) / float64(n), Unit: "KiB", N: n, goal: "20", note: "resident memory of the host's process"},
		row{ID: "idle_cpu_pct", Value: busy, Unit: "%", N: n, goal: "0.5 with 5,000", note: "of one processor"},
	)
	return nil
}

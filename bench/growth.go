package main

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"sallyport.dev/test/rig"
)

// grown is a latency at one size.
type grown struct {
	Of   string  `json:"of"` // sessions, or calls in the journal
	Size int     `json:"size"`
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	Rest float64 `json:"p50_ms_beside,omitempty"` // the same read in an installation that did not grow, in turns
}

func (b *bench) grew(g grown) {
	g.P50, g.P99, g.Rest = round(g.P50), round(g.P99), round(g.Rest)
	b.report.Growth = append(b.report.Growth, g)
	fmt.Fprintf(b.report.progress, "  read with %d %s: p50 %.3g ms, p99 %.3g ms\n", g.Size, g.Of, g.P50, g.P99)
}

// sessionsRows measure a read in one session while others are open beside it.
func (b *bench) sessionsRows(ctx context.Context) error {
	w, err := openPath(ctx, b.programs, 1, options{})
	if err != nil {
		return err
	}
	defer func() { b.note(w.close()) }()
	sizes := []int{1, 10, 100, 1000, 5000}
	if b.quick {
		sizes = sizes[:3]
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		if most := int(limit.Max)/perSession - 100; most < sizes[len(sizes)-1] {
			sizes[len(sizes)-1] = most
			b.report.missing("growth", fmt.Sprintf("%d sessions at most: this machine gives a process %d descriptors", most, limit.Max))
		}
	}
	p50, p99 := line{name: "p50"}, line{name: "p99", dash: "4 3"}
	open := 1
	var idle []*rig.Idle
	defer func() {
		for _, one := range idle {
			b.note(one.Close())
		}
	}()
	for _, size := range sizes {
		if size > open {
			more, err := w.rig.OpenIdle(ctx, "bench", size-open)
			if err != nil {
				return err
			}
			idle, open = append(idle, more), size
		}
		read := w.read(w.sessions[0])
		if _, err := sequential(ctx, 200, read); err != nil {
			return err
		}
		t, err := sequential(ctx, b.n(1000, 300), read)
		if err != nil {
			return err
		}
		b.grew(grown{Of: "sessions", Size: size, P50: ms(t.p50()), P99: ms(t.p99())})
		p50.points, p99.points = append(p50.points, point{float64(size), ms(t.p50())}), append(p99.points, point{float64(size), ms(t.p99())})
	}
	return b.draw("growth-sessions.svg", plot{title: "A governed read beside open sessions", x: "open sessions", y: "ms", lines: []line{p50, p99}})
}

// journalRows measure reads with more and more calls in the journal, and in turns with few in another installation.
func (b *bench) journalRows(ctx context.Context) error {
	small, err := openPath(ctx, b.programs, 1, options{})
	if err != nil {
		return err
	}
	defer func() { b.note(small.close()) }()
	large, err := openPath(ctx, b.programs, 1, options{})
	if err != nil {
		return err
	}
	defer func() { b.note(large.close()) }()
	for _, w := range []*path{small, large} {
		if _, err := sequential(ctx, seeds, w.read(w.sessions[0])); err != nil {
			return err
		}
	}
	sizes := []int{1000, 10_000, 100_000, 1_000_000}
	if b.quick {
		sizes = sizes[:3]
	}
	rounds, n := b.n(6, 3), b.n(300, 150)
	grow := line{name: "p50"}
	beside := line{name: "p50 with few", dash: "4 3"}
	fill := filler{}
	for _, size := range sizes {
		if err := fill.journal(ctx, large.rig, size); err != nil {
			return err
		}
		var few, lots sample
		for range rounds {
			for _, m := range []struct {
				w  *path
				to *sample
			}{{small, &few}, {large, &lots}} {
				if _, err := sequential(ctx, 30, m.w.read(m.w.sessions[0])); err != nil {
					return err
				}
				t, err := sequential(ctx, n, m.w.read(m.w.sessions[0]))
				if err != nil {
					return err
				}
				*m.to = append(*m.to, t...)
			}
		}
		b.grew(grown{Of: "calls in the journal", Size: size, P50: ms(lots.p50()), P99: ms(lots.p99()), Rest: ms(few.p50())})
		grow.points, beside.points = append(grow.points, point{float64(size), ms(lots.p50())}), append(beside.points, point{float64(size), ms(few.p50())})
		if size == sizes[len(sizes)-1] {
			r := ratio(lots.p50(), few.p50())
			note := "baseline: ms with few calls"
			if size != 1_000_000 {
				note = fmt.Sprintf("with %d calls only (--quick); ", size) + note
			}
			b.report.add(row{ID: "journal_1e6_ratio", Value: r, Unit: "ratio", N: len(lots), goal: "1.1", note: note}.beside(ms(few.p50()), r))
		}
	}
	return b.draw("growth-journal.svg", plot{title: "A governed read with many calls in the journal", x: "calls in the journal", y: "ms", lines: []line{grow, beside}})
}

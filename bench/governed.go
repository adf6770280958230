package main

import (
	"context"
	"fmt"
	"time"
)

// oneAtATime measures reads and writes, one after another, governed and direct in turns.
func (b *bench) oneAtATime(ctx context.Context, w *path) error {
	rounds, reads, writes := b.n(8, 3), b.n(500, 200), b.n(200, 80)
	s := w.sessions[0]
	for _, f := range []call{w.directRead, w.read(s), w.directWrite, w.write(s)} { // warm
		if _, err := sequential(ctx, 200, f); err != nil {
			return err
		}
	}
	var directRead, governedRead, directWrite, governedWrite sample
	var used []float64
	var readBudgets, writeBudgets []budget
	for range rounds {
		d, err := sequential(ctx, reads, w.directRead)
		if err != nil {
			return err
		}
		before, err := w.used()
		if err != nil {
			return err
		}
		g, spent, err := w.measured(ctx, "A governed read", reads, w.read(s))
		if err != nil {
			return err
		}
		after, err := w.used()
		if err != nil {
			return err
		}
		used = append(used, micros(after-before)/float64(reads))
		readBudgets = append(readBudgets, spent)
		directRead, governedRead = append(directRead, d...), append(governedRead, g...)
		if d, err = sequential(ctx, writes, w.directWrite); err != nil {
			return err
		}
		if g, spent, err = w.measured(ctx, "A governed write", writes, w.write(s)); err != nil {
			return err
		}
		writeBudgets = append(writeBudgets, spent)
		directWrite, governedWrite = append(directWrite, d...), append(governedWrite, g...)
	}
	b.report.add(
		row{ID: "read_added_p50_ms", Value: ms(governedRead.p50() - directRead.p50()), Unit: "ms", N: len(governedRead), goal: "0.4", note: "baseline: the call made directly"}.
			beside(ms(directRead.p50()), ratio(governedRead.p50(), directRead.p50())),
		row{ID: "read_added_p99_ms", Value: ms(governedRead.p99() - directRead.p99()), Unit: "ms", N: len(governedRead), goal: "1.5", note: "baseline: the call made directly"}.
			beside(ms(directRead.p99()), ratio(governedRead.p99(), directRead.p99())),
		row{ID: "write_added_p50_ms", Value: ms(governedWrite.p50() - directWrite.p50()), Unit: "ms", N: len(governedWrite), goal: "0.4 + two fsyncs", note: "baseline: the call made directly"}.
			beside(ms(directWrite.p50()), ratio(governedWrite.p50(), directWrite.p50())),
		row{ID: "read_cpu_us", Value: median(used), Unit: "us", N: len(governedRead), goal: "300", note: "all our processes, one call at a time"},
	)
	b.report.Budgets = append(b.report.Budgets, middle(readBudgets), middle(writeBudgets))
	return nil
}

// middle is the budget of the round with the median total.
func middle(all []budget) budget {
	totals := make([]float64, len(all))
	for i, one := range all {
		totals[i] = one.Total
	}
	m := median(totals)
	for _, one := range all {
		if one.Total == m {
			return one
		}
	}
	return all[0]
}

// used is the processor time of all processes of ours: control, worker, host and the shims.
func (w *path) used() (time.Duration, error) {
	var sum time.Duration
	for _, part := range []string{"control", "worker", "host"} {
		pid, err := w.rig.PID(part)
		if err != nil {
			return 0, err
		}
		t, err := cpuTime(pid)
		if err != nil {
			return 0, err
		}
		sum += t
	}
	for _, s := range w.sessions {
		pid, err := s.ShimPID()
		if err != nil {
			return 0, err
		}
		t, err := cpuTime(pid)
		if err != nil {
			return 0, err
		}
		sum += t
	}
	return sum, nil
}

// many measures 64 calls in flight, over all sessions, governed and direct in turns.
func (b *bench) many(ctx context.Context, w *path) error {
	rounds, span := b.n(5, 2), b.span(2*time.Second, 700*time.Millisecond)
	kinds := []struct {
		id, goal         string
		direct, governed []call
	}{
		{"reads_ratio", "0.5", same(inFlight, w.directRead), w.spread(inFlight, w.read)},
		{"writes_ratio", "0.3", same(inFlight, w.directWrite), w.spread(inFlight, w.write)},
	}
	for _, k := range kinds {
		var ratios, direct, used []float64
		calls := 0
		for range rounds {
			d, _, err := flood(ctx, span, k.direct)
			if err != nil {
				return err
			}
			before, err := w.used()
			if err != nil {
				return err
			}
			g, n, err := flood(ctx, span, k.governed)
			if err != nil {
				return err
			}
			after, err := w.used()
			if err != nil {
				return err
			}
			used = append(used, micros(after-before)/float64(n))
			ratios, direct = append(ratios, g/d), append(direct, d)
			calls += n
		}
		r := median(ratios)
		b.report.add(row{ID: k.id, Value: r, Unit: "ratio", N: calls, goal: k.goal, note: "baseline: calls a second made directly, 64 in flight"}.beside(median(direct), r))
		b.report.Flood = append(b.report.Flood, flooded{ID: k.id, PerSecond: round(r * median(direct)), CPU: round(median(used))})
	}
	return nil
}

// large measures what a result of 1 MiB adds, and what one of 20 MB does to memory.
func (b *bench) large(ctx context.Context, w *path) error {
	const mib = `{"bytes":1048000}` // just below the bound of a result that is handed over inline
	n := b.n(60, 20)
	s := w.sessions[0]
	big := func(ctx context.Context) error { return through(ctx, s.Shim, callParams("tracker_big", mib)) }
	directBig := func(ctx context.Context) error { return w.direct.call(ctx, readTool, mib) }
	for _, f := range []call{big, directBig} {
		if _, err := sequential(ctx, 5, f); err != nil {
			return err
		}
	}
	var small, large, directSmall, directLarge sample
	var budgets []budget
	for range 3 {
		for _, m := range []struct {
			f  call
			to *sample
		}{{w.directRead, &directSmall}, {directBig, &directLarge}, {w.read(s), &small}} {
			t, err := sequential(ctx, n/3, m.f)
			if err != nil {
				return err
			}
			*m.to = append(*m.to, t...)
		}
		t, spent, err := w.measured(ctx, "A governed read of 1 MiB", n/3, big)
		if err != nil {
			return err
		}
		large = append(large, t...)
		budgets = append(budgets, spent)
	}
	b.report.Budgets = append(b.report.Budgets, middle(budgets))
	added, directAdded := large.p50()-small.p50(), directLarge.p50()-directSmall.p50()
	b.report.add(row{ID: "big_result_added_ms", Value: ms(added), Unit: "ms", N: len(large), goal: "6", note: "baseline: what it adds to a direct call"}.
		beside(ms(directAdded), ratio(added, directAdded)))
	return b.huge(ctx, w)
}

// huge asks for 20 MB.
func (b *bench) huge(ctx context.Context, w *path) error {
	pids := map[string]int{}
	for _, part := range []string{"control", "worker", "host"} {
		pid, err := w.rig.PID(part)
		if err != nil {
			return err
		}
		pids[part] = pid
	}
	shim, err := w.sessions[0].ShimPID()
	if err != nil {
		return err
	}
	pids["shim"] = shim
	for part, pid := range pids {
		if err := resetPeak(pid); err != nil {
			return fmt.Errorf("the peak of %s cannot be measured: %w", part, err)
		}
	}
	err = through(ctx, w.sessions[0].Shim, callParams("tracker_big", `{"bytes":20000000}`))
	var peak int64
	who := ""
	for part, pid := range pids {
		p, perr := memory(pid, "VmHWM")
		if perr != nil {
			return perr
		}
		if p > peak {
			peak, who = p, part
		}
	}
	if err != nil {
		b.report.missing("huge_result_peak_mib", "results as files are not built; a result of 20 MB is refused with words ("+err.Error()[:min(len(err.Error()), 200)]+
			"), and the largest process meanwhile, the "+who+", peaked at "+number(float64(peak)/1024)+" MiB")
		return nil
	}
	b.report.add(row{ID: "huge_result_peak_mib", Value: float64(peak) / 1024, Unit: "MiB", N: 1, goal: "100", note: "the largest: " + who})
	return nil
}

package config

import (
	"time"

	"sallyport.dev/control"
)

// limits resolves the bounds of a connection's dispatches, with what stands where nothing is said.
func (r *resolver) limits(p string, l Limits, out *control.ConnectionLimits) {
	*out = control.ConnectionLimits{Timeout: 120 * time.Second, Silence: 120 * time.Second, Connect: 5 * time.Second, Concurrent: 16, Result: 1 << 20}
	for _, d := range []struct {
		name string
		said Duration
		into *time.Duration
		most time.Duration
	}{
		{".timeout", l.Timeout, &out.Timeout, 30 * time.Minute},
		{".connect", l.Connect, &out.Connect, 30 * time.Second},
		{".silence", l.Silence, &out.Silence, 30 * time.Minute},
	} {
		if d.said.Set {
			*d.into = r.duration(p+d.name, d.said, time.Second, d.most)
		}
	}
	if l.Concurrent < 0 || l.Concurrent > 1024 {
		r.problem(p+".concurrent", "must be 1 to 1024")
	} else if l.Concurrent > 0 {
		out.Concurrent = l.Concurrent
	}
	if l.Result.Set {
		if out.Result = l.Result.Bytes; out.Result < 1<<10 || out.Result > 1<<20 {
			r.problem(p+".result", "must be 1KiB to 1MiB; a longer answer comes as files of the sandbox")
		}
	}
	if l.Rate != nil {
		out.Rate = control.Rate{Calls: l.Rate.Calls, Per: r.duration(p+".rate.per", l.Rate.Per, time.Second, 24*time.Hour)}
		if l.Rate.Calls < 1 || l.Rate.Calls > 100_000 {
			r.problem(p+".rate.calls", "must be 1 to 100000")
		}
	}
	if l.Breaker != nil {
		out.Breaker = control.Breaker{Failures: l.Breaker.Failures, Pause: 30 * time.Second}
		if l.Breaker.Pause.Set {
			out.Breaker.Pause = r.duration(p+".breaker.pause", l.Breaker.Pause, time.Second, time.Hour)
		}
		if l.Breaker.Failures < 1 || l.Breaker.Failures > 1000 {
			r.problem(p+".breaker.failures", "must be 1 to 1000")
		}
	}
}

package relay

import "time"

// Allowance bounds how often something is told: some at once, then one for each time that passed. What is not told is counted, for the next that is.
// Not safe for concurrent use.
type Allowance struct {
	burst  int
	each   time.Duration
	left   int
	since  time.Time // of the last that was given back
	missed int64
}

// NewAllowance allows burst at once, and one more for each.
func NewAllowance(burst int, each time.Duration) *Allowance {
	return &Allowance{burst: burst, each: each, left: burst}
}

// Take reports whether one may be told at now, and how many were not since the last that was. n is how many it stands for, itself left out.
func (a *Allowance) Take(now time.Time, n int64) (missed int64, ok bool) {
	back := now.Sub(a.since) / a.each
	switch {
	case a.left == a.burst:
		a.since = now
	case back >= time.Duration(a.burst-a.left):
		a.left, a.since = a.burst, now
	case back > 0:
		a.left += int(back)
		a.since = a.since.Add(back * a.each)
	}
	if a.left == 0 {
		a.missed += 1 + n
		return 0, false
	}
	a.left--
	missed, a.missed = a.missed+n, 0
	return missed, true
}

package call

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
)

func TestHealthOf(t *testing.T) {
	for _, c := range []struct {
		transport journal.Transport
		failure   journal.Failure
		status    int
		want      health
	}{
		{journal.TransportAnswered, "", 200, healthGood},
		{journal.TransportAnswered, journal.FailStatus, 400, healthGood},
		{journal.TransportAnswered, journal.FailStatus, 401, healthGood},
		{journal.TransportAnswered, journal.FailStatus, 408, healthBad},
		{journal.TransportAnswered, journal.FailStatus, 429, healthBad},
		{journal.TransportAnswered, journal.FailStatus, 500, healthBad},
		{journal.TransportAnswered, journal.FailStatus, 503, healthBad},
		{journal.TransportNotSent, journal.FailResolve, 0, healthBad},
		{journal.TransportNotSent, journal.FailConnect, 0, healthBad},
		{journal.TransportNotSent, journal.FailTLS, 0, healthBad},
		{journal.TransportSent, journal.FailTimeout, 0, healthBad},
		{journal.TransportSent, journal.FailReset, 0, healthBad},
		{journal.TransportNotSent, journal.FailAddress, 0, healthUnknown},
		{journal.TransportNotSent, journal.FailCredential, 0, healthUnknown},
		{journal.TransportNotSent, journal.FailBusy, 0, healthUnknown},
		{journal.TransportSent, journal.FailCancelled, 0, healthUnknown},
		{journal.TransportSent, journal.FailRunGone, 0, healthUnknown},
		{journal.TransportSent, journal.FailMalformed, 0, healthUnknown},
		{journal.TransportSent, "", 0, healthUnknown},
	} {
		if got := healthOf(&Outcome{Transport: c.transport, Failure: c.failure, Status: c.status}); got != c.want {
			t.Errorf("%s %s %d: %q, not %q", c.transport, c.failure, c.status, got, c.want)
		}
	}
}

// TestCircuit plays dispatches, one letter each: g good, b bad, u unknown, . the pause passes. What is dispatched follows.
func TestCircuit(t *testing.T) {
	rule := control.Breaker{Failures: 3, Pause: time.Minute}
	for _, c := range []struct{ play, want string }{
		{"bbgbb", "closed"},     // a good one in between
		{"bbubu", "open"},       // unknown ones neither count nor forgive
		{"bbb", "open"},         //
		{"bbb.", "trial"},       // one goes ahead
		{"bbb.b", "open"},       // and fails
		{"bbb.g", "closed"},     //
		{"bbb.u", "trial"},      // it said nothing: the next one goes
		{"bbb.gbb", "closed"},   // it begins anew
		{"bbb.b.g", "closed"},   //
		{"bbb.b.b.b.b", "open"}, //
	} {
		now, circ := time.Unix(1e9, 0), circuit{}
		for _, step := range c.play {
			if step == '.' {
				now = now.Add(rule.Pause)
				continue
			}
			says := map[rune]health{'g': healthGood, 'b': healthBad, 'u': healthUnknown}[step]
			word := circ.asks(rule, now)
			circ.trial = circ.trial || word == circuitTrial
			circ = circ.after(rule, word == circuitTrial, says, now)
		}
		if got := circ.asks(rule, now); string(got) != c.want {
			t.Errorf("%s: %s, not %s", c.play, got, c.want)
		}
	}
}

// TestCircuitForgetsOldDispatches: what began before it opened says nothing afterwards, and only one dispatch goes ahead.
func TestCircuitForgetsOldDispatches(t *testing.T) {
	rule, now := control.Breaker{Failures: 1, Pause: time.Minute}, time.Unix(1e9, 0)
	c := circuit{}.after(rule, false, healthBad, now)
	for _, late := range []health{healthGood, healthBad, healthUnknown} {
		if got := c.after(rule, false, late, now.Add(time.Second)); got != c {
			t.Errorf("a late %q made %+v of %+v", late, got, c)
		}
	}
	now = now.Add(time.Minute)
	c.trial = true
	if got := c.asks(rule, now); got != circuitTried {
		t.Errorf("beside the one that went ahead: %s", got)
	}
	if got := c.asks(control.Breaker{}, now); got != circuitClosed {
		t.Errorf("without a breaker: %s", got)
	}
}

// TestPace: whatever comes when, in no window of Per more than twice Calls are let through, never more than Calls at once, and who waited as long as
// was said gets through.
func TestPace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule := control.Rate{Calls: rapid.IntRange(1, 50).Draw(t, "calls"), Per: time.Duration(rapid.IntRange(1, 3600).Draw(t, "per")) * time.Second}
		now, p, at := time.Unix(1e9, 0), pace{}, []time.Time{}
		for range 200 {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(rule.Per)/int64(rule.Calls)).Draw(t, "gap")))
			next, wait := p.take(rule, now)
			if wait > 0 {
				if next != p {
					t.Fatal("a refusal took something")
				}
				if _, again := p.take(rule, now.Add(wait)); again > 0 {
					t.Fatalf("after waiting %s: %s more", wait, again)
				}
				continue
			}
			p, at = next, append(at, now)
		}
		for i := range at {
			n := 0
			for _, other := range at[i:] {
				if other.Sub(at[i]) < rule.Per {
					n++
				}
			}
			if n > 2*rule.Calls {
				t.Fatalf("%d in %s, the rate is %d", n, rule.Per, rule.Calls)
			}
		}
		p = pace{}
		for n := range rule.Calls + 1 {
			next, wait := p.take(rule, now)
			if (wait > 0) != (n == rule.Calls) {
				t.Fatalf("%d at once of %d: wait %s", n+1, rule.Calls, wait)
			}
			p = next
		}
	})
	far := pace{time.Unix(1e9, 0).Add(24 * time.Hour)}
	if _, wait := far.take(control.Rate{Calls: 10, Per: time.Second}, time.Unix(1e9, 0)); wait > time.Second {
		t.Errorf("a former rule makes the next one wait %s", wait)
	}
	if _, wait := far.take(control.Rate{}, time.Unix(1e9, 0)); wait != 0 {
		t.Error("without a rate there is no wait")
	}
}

package call

import (
	"net/http"
	"sync"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// traffic is what this process remembers of the dispatches to each connection: how often, and how they ended. It refuses before the barrier, so what it
// refuses was provably not sent: no intent was made of it. It begins empty in each process; several nodes each count their own. Safe for concurrent use.
type traffic struct {
	mu  sync.Mutex
	all map[string]*flow
}

// flow is one connection's.
type flow struct {
	circuit circuit
	pace    pace
}

// pass is the leave to dispatch once. It is given back when the dispatch was judged, or was not made.
type pass struct {
	connection string
	trial      bool
}

// take asks for a pass. Errors: [errs.Busy] when its rate is used up, for as long as wait; [errs.Unavailable] while its breaker is open.
func (t *traffic) take(c *control.Connection, now time.Time) (got *pass, wait time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[string]*flow{}
	}
	f := t.all[c.Name]
	if f == nil {
		f = &flow{}
		t.all[c.Name] = f
	}
	switch f.circuit.asks(c.Limits.Breaker, now) {
	case circuitOpen:
		return nil, 0, errs.Newf(errs.Unavailable, "the last %d calls of %s failed; it is left alone for %s", f.circuit.failures, c.Name, words(f.circuit.until.Sub(now)))
	case circuitTried:
		return nil, 0, errs.Newf(errs.Unavailable, "the last %d calls of %s failed; one call is out to see whether it is back", f.circuit.failures, c.Name)
	case circuitTrial:
		got = &pass{connection: c.Name, trial: true}
	default:
		got = &pass{connection: c.Name}
	}
	next, wait := f.pace.take(c.Limits.Rate, now)
	if wait > 0 {
		return nil, wait, errs.Newf(errs.Busy, "%s takes %d calls in %s, and they are used up for now", c.Name, c.Limits.Rate.Calls, words(c.Limits.Rate.Per))
	}
	f.pace = next
	f.circuit.trial = f.circuit.trial || got.trial
	return got, 0, nil
}

// end gives a pass back with what its dispatch says of the server. changed: the breaker opened, or closed again.
func (t *traffic) end(p *pass, rule control.Breaker, says health, now time.Time) (open, changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.all[p.connection]
	was := !f.circuit.until.IsZero()
	f.circuit = f.circuit.after(rule, p.trial, says, now)
	open = !f.circuit.until.IsZero()
	return open, open != was
}

// health is what a dispatch that ended says of the server.
type health string

// Healths.
const (
	healthUnknown health = ""     // nothing: it failed on our side, or on what this call asked for
	healthGood    health = "good" // it answers
	healthBad     health = "bad"  // it is down, or asks to be left alone
)

// healthOf judges an outcome. What a server says of one call (400, a JSON-RPC error, isError) is an answer of a server that is well.
func healthOf(o *Outcome) health {
	switch o.Failure {
	case "":
		if o.Transport == journal.TransportAnswered {
			return healthGood
		}
	case journal.FailStatus:
		if o.Status >= 500 || o.Status == http.StatusRequestTimeout || o.Status == http.StatusTooManyRequests {
			return healthBad
		}
		return healthGood
	case journal.FailResolve, journal.FailConnect, journal.FailTLS, journal.FailInitialize, journal.FailWrite, journal.FailReset, journal.FailCut,
		journal.FailStream, journal.FailTimeout, journal.FailSilence, journal.FailHTTP:
		return healthBad
	default:
	}
	return healthUnknown
}

// circuit is a circuit breaker's memory. Its methods are pure.
type circuit struct {
	failures int       // in a row
	until    time.Time // nothing is dispatched before; zero: it is closed
	trial    bool      // one dispatch is out to see whether the server is back
}

// circuitState is a circuit's word on a dispatch.
type circuitState string

// Words of a circuit.
const (
	circuitClosed circuitState = "closed" // go on
	circuitOpen   circuitState = "open"   // no
	circuitTrial  circuitState = "trial"  // this one goes ahead of the others
	circuitTried  circuitState = "tried"  // no: the one that went ahead is not back
)

func (c circuit) asks(rule control.Breaker, now time.Time) circuitState {
	switch {
	case rule.Failures == 0 || c.until.IsZero():
		return circuitClosed
	case now.Before(c.until):
		return circuitOpen
	case c.trial:
		return circuitTried
	}
	return circuitTrial
}

// after is the circuit once a dispatch ended. One that began before the circuit opened does not close it, nor make it last longer.
func (c circuit) after(rule control.Breaker, trial bool, says health, now time.Time) circuit {
	if trial {
		c.trial = false
	}
	open := !c.until.IsZero()
	switch {
	case rule.Failures == 0:
		return circuit{}
	case says == healthUnknown || open && !trial:
		return c
	case says == healthGood:
		return circuit{}
	}
	if c.failures++; c.failures >= rule.Failures {
		c.until = now.Add(rule.Pause)
	}
	return c
}

// pace is the memory of a rate: a token bucket written as the time at which it would be full again (generic cell rate algorithm). Its method is pure.
type pace struct{ full time.Time }

// take returns the pace after one more call, or how long to wait for it.
func (p pace) take(rule control.Rate, now time.Time) (next pace, wait time.Duration) {
	if rule.Calls == 0 {
		return p, 0
	}
	each := rule.Per / time.Duration(rule.Calls)
	full := p.full
	if full.Before(now) {
		full = now
	}
	if most := now.Add(rule.Per); full.After(most) { // it was taken under another rule
		full = most
	}
	full = full.Add(each)
	if wait := full.Sub(now) - each*time.Duration(rule.Calls); wait > 0 {
		return p, wait
	}
	return pace{full}, 0
}

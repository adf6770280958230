package call

import (
	"context"
	"log/slog"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
)

// driver takes one call through its states. One goroutine owns it; everybody else writes to its mailbox. row is the row as this driver last wrote
// or read it: a compare-and-set that fails means that somebody else moved the call, and the row is read again.
type driver struct {
	p     *Pipeline
	l     *live
	s     *sessionState
	row   *control.Call
	bound *control.BoundTool

	waiters []*waiter
	ends    [2]*handover // the call's end as it is handed over: as it is, and as a recorded answer
	name    string       // of the tool, as the record says it
	joined  string       // the call that the record waits for instead
	stopped bool         // ctx ended, or the lease is another's
	adopted bool         // the row was found, not made

	wantCancel bool
	whyCancel  string
	recheck    bool          // the policy or the session changed
	reread     bool          // the row may have changed
	expires    time.Duration // how long its approval could be given
	drifted    bool          // the tool was not as reviewed when it was asked about
	hint       string        // for the model: what to do instead
	switchedAt time.Time

	out  attempt
	with CredentialRef // what the last intent authenticates with; zero without one, and where the dispatch was adopted
	slot string        // the connection of which it holds a slot
	pass *pass         // the leave to dispatch to it once

	came     time.Time // its record; zero once its time was told
	answered time.Time // its outcome came
}

// Part is a part of a call's time in this process that no person and no other process is waited for.
type Part string

// Parts of a call's time.
const (
	PartAdmit  Part = "admit"  // from its record's coming until its intent left for a worker
	PartSettle Part = "settle" // from its outcome's coming until its result left for its host
)

// timed tells how long a part took that began then, once; nothing for one that did not begin here.
func (d *driver) timed(part Part, began *time.Time) {
	if d.p.cfg.Timed != nil && !began.IsZero() {
		d.p.cfg.Timed(part, time.Since(*began))
	}
	*began = time.Time{}
}

// takeSlot takes a slot of a connection, in line behind others; the driver goes on reading its mailbox. It returns false when it is not to run now:
// it is cancelled, over, or the rules must look again.
func (d *driver) takeSlot(ctx context.Context, c *control.Connection) bool {
	if d.slot == c.Name {
		return true
	}
	d.freeSlot()
	limit := limitsOf(c).Concurrent
	if d.p.slots.try(c.Name, limit, d.l) {
		d.slot = c.Name
		return true
	}
	ticket := d.p.slots.line(c.Name, limit, d.l)
	for {
		m := d.wait(ctx, d.untilExpiry())
		if got, ok := m.(toldSlot); ok && got.ticket == ticket {
			d.slot = c.Name
			return true
		}
		if d.stopped || d.wantCancel || d.recheck || d.expired() {
			if !d.p.slots.leave(c.Name, d.l, ticket) {
				d.slot = c.Name
			}
			return false
		}
		if d.reread {
			d.reload(ctx)
		}
	}
}

// takePass takes the leave to dispatch to a connection once. Errors: those of [traffic.take], with how long to wait.
func (d *driver) takePass(c *control.Connection) (wait time.Duration, err error) {
	if d.pass != nil && d.pass.connection == c.Name {
		return 0, nil
	}
	d.endPass(healthUnknown)
	d.pass, wait, err = d.p.traffic.take(c, time.Now())
	return wait, err
}

// endPass gives the leave back, with what the dispatch says of the server.
func (d *driver) endPass(says health) {
	if d.pass == nil {
		return
	}
	var rule control.Breaker
	if policy := d.p.policy.Load(); policy != nil && policy.Connections[d.pass.connection] != nil {
		rule = policy.Connections[d.pass.connection].Limits.Breaker
	}
	open, changed := d.p.traffic.end(d.pass, rule, says, time.Now())
	if changed && open {
		d.p.cfg.Log.Warn("a connection is left alone for a while: its last calls failed", "connection", d.pass.connection, "failures", rule.Failures, "pause", rule.Pause)
	} else if changed {
		d.p.cfg.Log.Info("a connection answers again", "connection", d.pass.connection)
	}
	d.pass = nil
}

func (d *driver) freeSlot() {
	d.endPass(healthUnknown)
	if d.slot != "" {
		d.p.slots.release(d.slot, d.l.session)
		d.slot = ""
	}
}

// attempt is the dispatch that is out.
type attempt struct {
	intent   string
	run      string
	worker   string
	job      Job
	finishBy time.Time // the worker stops waiting for the answer
}

// run drives the call to its end.
func (d *driver) run(ctx context.Context) {
	defer d.close()
	if d.adopted {
		d.adopt()
	}
	for !d.stopped {
		switch d.row.State {
		case journal.Admitted, journal.Approved, journal.Retrying:
			d.dispatch(ctx)
		case journal.Asking, journal.InputWanted:
			d.awaitPerson(ctx)
		case journal.Dispatching:
			d.awaitOutcome(ctx)
		case journal.Working:
			d.poll(ctx)
		default:
			d.finish(ctx)
			d.timed(PartSettle, &d.answered)
			d.line()
			return
		}
	}
}

// line is the one line of the log that every call ends with: a write's always, a read's where somebody looks closely. It has no bodies.
func (d *driver) line() {
	level := slog.LevelDebug
	if d.row.Effect == control.Write {
		level = slog.LevelInfo
	}
	c := d.row
	d.p.cfg.Log.Log(d.p.life, level, "call", "call", c.ID, "session", c.Session, "tool", c.Connection+"/"+c.Tool, "effect", c.Effect, "state", c.State,
		"code", c.Code, "attempt", c.Attempt, "authority", c.Authority.String(), "transport", c.Transport, "protocol", c.Protocol, "result", c.ToolResult,
		"status", c.HTTPStatus, "failure", c.Failure)
}

// close ends the driver. Who wrote to it too late goes by the row.
func (d *driver) close() {
	rest := d.l.box.close()
	d.freeSlot()
	d.p.reg.drop(d.l)
	d.p.reg.forget(d.out.intent)
	for _, m := range rest {
		switch m := m.(type) {
		case toldAttach:
			d.p.spawn(func() { d.p.join(d.p.life, or(d.joined, d.l.id), m.w) })
		case toldOutcome:
			d.p.spawn(func() { d.p.late(d.p.life, m.run, m.Outcome) })
		case toldCancel:
			if l := d.p.reg.find(d.joined); l != nil && d.joined != "" {
				l.box.put(m)
			}
		case askWaiters:
			m.answer <- true
		}
	}
}

// wait returns the next message that the state's handler must see, or nil when until has passed, when the row or the policy must be looked at, or
// when the driver stops. What every state treats alike is done here.
func (d *driver) wait(ctx context.Context, until time.Time) any {
	for {
		if m, ok := d.l.box.take(); ok {
			if m, look := d.common(ctx, m); m != nil || look {
				return m
			}
			continue
		}
		next := d.held()
		if next.IsZero() || !until.IsZero() && until.Before(next) {
			next = until
		}
		var timer *time.Timer
		var fired <-chan time.Time
		if !next.IsZero() {
			left := time.Until(next)
			if left <= 0 && next.Equal(until) {
				return nil
			}
			timer = time.NewTimer(left)
			fired = timer.C
		}
		select {
		case <-d.l.box.ping:
		case <-fired:
		case <-ctx.Done():
			d.stopped = true
		}
		if timer != nil {
			timer.Stop()
		}
		if d.stopped || !until.IsZero() && !time.Now().Before(until) && d.empty() {
			return nil
		}
	}
}

func (d *driver) empty() bool {
	d.l.box.mu.Lock()
	defer d.l.box.mu.Unlock()
	return len(d.l.box.items) == 0
}

// common treats what every state treats alike. look: the handler must look at what it wants next.
func (d *driver) common(ctx context.Context, m any) (rest any, look bool) {
	switch m := m.(type) {
	case toldAttach:
		d.p.cfg.Hosts.Journaled(m.w.addr, m.w.digest)
		d.add(m.w)
		if d.row.Gone {
			gone := false
			d.row.Gone = false
			d.note(ctx, Note{Call: d.row.ID, Event: "attached", Actor: m.w.addr.Host, Set: Set{Gone: &gone}})
		}
	case toldCancel:
		return nil, d.cancelled(ctx, m)
	case toldWake:
		d.reread = true
		return nil, true
	case toldPolicy:
		d.recheck = true
		return nil, true
	case toldProgress:
		if m.intent == d.out.intent {
			d.progressed(m.Progress)
		}
	case askWaiters:
		m.answer <- d.awaited(m.session, m.shim)
	default:
		return m, false
	}
	return nil, false
}

// reload reads the row again. A row that another run drives, or that cannot be read while the pipeline stops, ends the driver.
func (d *driver) reload(ctx context.Context) {
	d.reread = false
	for pause := storeRetry; ; pause = min(2*pause, storeRetryTop) {
		row, err := d.p.cfg.Store.Call(ctx, d.row.ID)
		if err == nil {
			if row.Lease != d.p.cfg.Run {
				d.p.cfg.Log.Warn("another control run drives this call", "call", row.ID)
				d.stopped = true
				return
			}
			d.row = row
			d.s.moved(row)
			return
		}
		if !d.pause(ctx, pause) {
			return
		}
		d.p.cfg.Log.Warn("a call's row cannot be read; trying again", "call", d.row.ID, "err", err)
	}
}

// pause sleeps without reading the mailbox. It returns false when the driver stops.
func (d *driver) pause(ctx context.Context, t time.Duration) bool {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		d.stopped = true
		return false
	}
}

// step takes one transition, by the table, and keeps the driver's row in step. Without an answer from the store it tries until there is one: an
// outcome must not be lost while this process lives. It returns false when the row is not as the driver believed; the row was read again then.
func (d *driver) step(ctx context.Context, event journal.Event, why control.Step, set Set, question *control.Question) bool {
	to, err := journal.Next(d.row.State, event, d.situation())
	if err != nil {
		d.p.cfg.Log.Error("a step is not in the table", "call", d.row.ID, "state", d.row.State, "event", event)
		d.reload(ctx)
		return false
	}
	why.From, why.Event, why.To, why.Attempt = d.row.State, event, to, d.row.Attempt
	if why.Actor == "" {
		why.Actor = d.p.cfg.Run
	}
	a := &Advance{
		Call: d.row.ID, From: d.row.State, Attempt: d.row.Attempt, Lease: d.row.Lease, Step: why, Set: set, Question: question, Durable: d.row.Effect == control.Write,
	}
	if question != nil && question.Kind == control.AskApproval {
		a.MaxOpen = MaxOpenQuestions
	}
	if d.row.Lease != d.p.cfg.Run {
		a.NewLease = d.p.cfg.Run // an uncertain call is nobody's to drive, until it is driven again
	}
	for pause := storeRetry; ; pause = min(2*pause, storeRetryTop) {
		got, err := d.p.cfg.Store.Advance(ctx, a)
		switch {
		case err == nil && got == Done:
			d.moved(a)
			return true
		case err == nil && got == Busy:
			return false
		case err == nil:
			d.reload(ctx)
			// A lost answer of the store: the step was taken by us.
			return !d.stopped && d.row.State == to && d.row.Attempt == why.Attempt
		}
		d.p.cfg.Log.Warn("a step was not written; trying again", "call", d.row.ID, "event", event, "err", err)
		if !d.pause(ctx, pause) {
			return false
		}
	}
}

func (d *driver) situation() journal.Situation {
	return journal.Situation{Write: d.row.Effect == control.Write, Attempt: d.row.Attempt, MaxAttempts: maxAttempts, Rounds: d.row.Rounds}
}

// moved brings the driver's row in step with a transition that was committed.
func (d *driver) moved(a *Advance) {
	next := *d.row
	next.State = a.Step.To
	applySet(&next, &a.Set)
	if a.NewLease != "" {
		next.Lease = a.NewLease
	}
	if next.State.Final() || next.State == journal.Uncertain {
		next.SettledAt = d.p.cfg.Store.Now()
	}
	d.row = &next
	d.s.moved(d.row)
	d.p.observe(d.row, a.Step)
}

// end ends the call by an event that needs no outcome: refused, cancelled, expired, voided, failed before anything was sent.
func (d *driver) end(ctx context.Context, event journal.Event, code errs.Code, reason string) bool {
	return d.step(ctx, event, control.Step{Code: code, Reason: reason}, Set{Code: &code, Reason: &reason}, nil)
}

// untilExpiry is when the call's approval, or its question, is over, on this process's clock; zero for never.
func (d *driver) untilExpiry() time.Time {
	if d.row.ExpiresAt.IsZero() {
		return time.Time{}
	}
	return time.Now().Add(d.row.ExpiresAt.Sub(d.p.cfg.Store.Now()))
}

func (d *driver) expired() bool {
	return !d.row.ExpiresAt.IsZero() && !d.p.cfg.Store.Now().Before(d.row.ExpiresAt)
}

// jobOf signs an intent for a run and puts what travels beside it together.
func (p *Pipeline) jobOf(run Run, in *intent.Intent, beside intent.Beside, sealed control.Sealed, goes bool) (Job, error) {
	encoded, signature, keyID, err := p.cfg.Signer.Sign(run.ID, in)
	if err != nil {
		return Job{}, err
	}
	return Job{Intent: in.ID, Encoded: encoded, Signature: signature, KeyID: keyID, Beside: beside, Sealed: sealed, Go: goes}, nil
}

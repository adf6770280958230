package call

import (
	"context"
	"errors"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// dispatch takes a call that may run through Prepare, the barrier and Go. A write is prepared before its barrier, so that whatever fails first is
// safe; an allowed read commits first.
func (d *driver) dispatch(ctx context.Context) {
	defer func() {
		if d.row.State != journal.Dispatching {
			d.freeSlot()
		}
	}()
	if d.row.State == journal.Retrying && len(d.row.Answer) == 0 {
		d.idle(ctx, retryPause)
	}
	begun := time.Now()
	var paced time.Time
	for prepares := 0; !d.stopped; {
		switch {
		case d.wantCancel:
			d.end(ctx, journal.OnCancel, errs.Cancelled, d.whyCancel)
			return
		case d.expired():
			d.end(ctx, journal.OnExpire, errs.ApprovalExpired, "it was approved and could not run in time")
			return
		case d.p.draining.Load():
			d.wait(ctx, d.untilExpiry())
			continue
		}
		dec, ok := d.ruleAgain(ctx)
		if !ok {
			return
		}
		if !d.takeSlot(ctx, dec.connection) {
			continue
		}
		if wait, err := d.takePass(dec.connection); err != nil {
			if paced.IsZero() {
				paced = time.Now()
			}
			if errs.Is(err, errs.Busy) && time.Since(paced)+wait < paceTime {
				d.idle(ctx, wait)
				continue
			}
			d.notPrepared(ctx, err)
			return
		}
		again, err := d.attempt(ctx, dec)
		if err != nil {
			if errs.Is(err, errs.Busy) && time.Since(begun) < busyTime {
				d.idle(ctx, retryPause)
				continue
			}
			if prepares++; prepares < maxAttempts && transient(err) {
				d.triedInVain(ctx, err)
				d.idle(ctx, retryPause)
				continue
			}
			d.notPrepared(ctx, err)
			return
		}
		if !again {
			return
		}
	}
}

// idle lets a moment pass, reading the mailbox, unless the call is cancelled meanwhile.
func (d *driver) idle(ctx context.Context, t time.Duration) {
	for until := time.Now().Add(t); time.Now().Before(until) && !d.stopped && !d.wantCancel; {
		d.wait(ctx, until)
	}
}

// ruleAgain puts the call to the rules at the barrier. It returns false when the call does not run now: it ended, or a person is asked.
func (d *driver) ruleAgain(ctx context.Context) (*decision, bool) {
	policy, err := d.p.current(ctx)
	if err == nil && d.recheck {
		err = d.p.reloadSession(ctx, d.s)
	}
	if err != nil {
		return nil, d.storeDown(ctx, err)
	}
	if d.s.session().State == control.SessionClosed {
		d.refused(ctx, &decision{code: errs.Voided, reason: "its session was closed"})
		return nil, false
	}
	m, err := d.matter(ctx, policy)
	if err != nil {
		return nil, d.storeDown(ctx, err)
	}
	m.decided = d.row.State != journal.Admitted
	if d.row.State == journal.Retrying && d.row.Authority.Kind == control.ByGrant {
		m.given = d.row.Authority.ID
	}
	if !m.decided && d.row.Effect == control.Write {
		if m.suspended, err = d.p.cfg.Store.Suspended(ctx, d.row.Owner, d.row.Connection, d.row.Tool); err != nil {
			return nil, d.storeDown(ctx, err)
		}
	}
	dec := d.p.rules.decide(ctx, m)
	d.recheck = false
	switch {
	case dec.ruling == RulingRefuse:
		d.refused(ctx, dec)
		return nil, false
	case dec.ruling == RulingAsk && !m.decided:
		d.ask(ctx, dec, policy)
		return nil, false
	}
	now := *d.row
	d.bind(&now, dec)
	if now.Binding != d.row.Binding {
		d.void(ctx, errs.Voided, boundTo(&now, d.row))
		return nil, false
	}
	return dec, true
}

// boundTo names the member of the binding that changed.
func boundTo(now, then *control.Call) string {
	switch {
	case now.Account != then.Account:
		return "the account changed"
	case now.Subject != then.Subject:
		return "whose credential is used changed"
	case now.Effect != then.Effect:
		return "a reviewer says now that it writes"
	}
	return "what was decided about changed"
}

// storeDown waits a moment: nothing is known, so nothing happens.
func (d *driver) storeDown(ctx context.Context, err error) bool {
	if ctx.Err() == nil {
		d.p.cfg.Log.Warn("the store does not answer; a call waits", "call", d.row.ID, "err", err)
	}
	d.wait(ctx, time.Now().Add(storeRetryTop))
	return false
}

// refused ends a call that the rules refuse now.
func (d *driver) refused(ctx context.Context, dec *decision) {
	d.hint, d.switchedAt = dec.hint, dec.at
	if d.row.State == journal.Admitted {
		d.end(ctx, journal.OnRefuse, dec.code, dec.reason)
		return
	}
	d.void(ctx, dec.code, dec.reason)
}

func (d *driver) void(ctx context.Context, code errs.Code, reason string) {
	d.end(ctx, journal.OnVoid, code, reason)
}

// attempt makes one dispatch of the call. again: what it rested on moved before anything was sent, so the rules must look again. An error means that
// Prepare failed. The state tells everything else.
func (d *driver) attempt(ctx context.Context, dec *decision) (again bool, err error) {
	by := d.row.Authority
	if d.row.State == journal.Admitted {
		by = control.Authority{Kind: control.ByRule}
		if dec.grant != "" {
			by = control.Authority{Kind: control.ByGrant, ID: dec.grant}
		} else if d.row.Effect == control.Write {
			return false, errs.New(errs.Internal, "a write has no authority")
		}
	}
	now := d.p.cfg.Store.Now()
	run, err := d.p.cfg.Workers.Pick(dec.connection.Pool, dec.withdrawn(now))
	if err != nil {
		return false, err
	}
	write := d.row.Effect == control.Write
	job, err := d.job(d.row, dec, by, run, now, !write)
	if errs.Is(err, errs.NotConnected) {
		return true, nil // another version of the credential stands: look again
	}
	if err != nil {
		return false, err
	}
	d.p.reg.expect(job.Intent, attemptOf{l: d.l, run: run.ID, worker: run.Worker})
	d.p.reg.forget(d.out.intent)
	d.out = attempt{intent: job.Intent, run: run.ID, worker: run.Worker, job: job}
	if write {
		if again, err = d.prepare(ctx, run, job); again || err != nil || d.stopped {
			d.p.reg.forget(job.Intent)
			return again, err
		}
	}
	return d.commit(ctx, dec, by, run, job)
}

// prepare sends a write's intent and waits until the worker stands with an open connection. No byte of the call leaves.
func (d *driver) prepare(ctx context.Context, run Run, job Job) (again bool, err error) {
	if err := d.p.cfg.Workers.Submit(run.ID, job); err != nil {
		return false, err
	}
	if d.row.State == journal.Admitted { // nobody was asked
		d.timed(PartAdmit, &d.came)
	}
	until := time.Now().Add(startWindow - 2*time.Second)
	for {
		m := d.wait(ctx, until)
		if d.stopped {
			d.p.cfg.Workers.Close(run.ID, job.Intent, "control stops")
			return false, nil
		}
		switch m := m.(type) {
		case toldReady:
			if m.Intent == job.Intent {
				d.keepUpstream(ctx, m.Upstream)
				return false, nil
			}
		case toldOutcome:
			if m.Intent != job.Intent {
				continue
			}
			d.p.cfg.Workers.Acknowledge(run.ID, job.Intent)
			d.keepUpstream(ctx, m.Upstream)
			d.credentialRefused(m.Outcome)
			d.endPass(healthOf(&m.Outcome))
			return false, prepareError(m.Outcome)
		case toldRunDown:
			return false, errs.New(errs.Unreachable, "the worker's link was lost")
		case nil:
			if d.wantCancel || d.recheck {
				d.p.cfg.Workers.Close(run.ID, job.Intent, "not wanted any more")
				return true, nil
			}
			if d.reread {
				d.reload(ctx)
				continue
			}
			if !time.Now().Before(until) {
				d.p.cfg.Workers.Close(run.ID, job.Intent, "too late")
				return false, errs.New(errs.Unreachable, "the worker did not get ready in time")
			}
		}
	}
}

// commit is the barrier and, after it, Go. What the store refuses changed nothing; what it does not answer is read again, and never sent on.
func (d *driver) commit(ctx context.Context, dec *decision, by control.Authority, run Run, job Job) (again bool, err error) {
	write := d.row.Effect == control.Write
	b := &Barrier{
		Call: d.row.ID, From: d.row.State, Attempt: d.row.Attempt, Lease: d.row.Lease, Binding: d.row.Binding, Authority: by,
		Subject: dec.subject, Account: dec.account, Intent: job.Intent, Worker: run.Worker, Run: run.ID, Durable: write,
		Guard: Guard{
			Generation: dec.policy.Generation, Session: d.row.Session, Credential: dec.credential, Owner: d.row.Owner, Connection: d.row.Connection, Tool: d.row.Tool,
		},
		Step: control.Step{From: d.row.State, Event: journal.OnCommit, To: journal.Dispatching, Attempt: d.row.Attempt + 1, Actor: d.p.cfg.Run, Digest: control.Sum(job.Encoded)},
	}
	if d.row.Attempt == 0 {
		b.Guard.Takes, b.Guard.Suspending = dec.takes, dec.suspending
	}
	got, err := d.p.cfg.Store.Commit(ctx, b)
	if err != nil {
		// Committed or not, this attempt is over before it began: it is closed at the worker, and the row says which it was.
		d.p.cfg.Workers.Close(run.ID, job.Intent, "the barrier is not known")
		d.p.cfg.Log.Warn("the barrier was not answered", "call", d.row.ID, "err", err)
		d.reload(ctx)
		return d.row.State != journal.Dispatching && !d.stopped, nil
	}
	if got != Done {
		if write {
			d.p.cfg.Workers.Close(run.ID, job.Intent, "the barrier refused it: "+string(got))
		}
		d.p.reg.forget(job.Intent)
		return d.barred(ctx, got, dec)
	}
	next := *d.row
	next.State, next.Attempt, next.StartedAt = journal.Dispatching, d.row.Attempt+1, d.p.cfg.Store.Now()
	next.Intent, next.Worker, next.Run, next.Authority = job.Intent, run.Worker, run.ID, by
	next.Facts = control.Facts{}
	d.row = &next
	d.s.moved(d.row)
	d.p.observe(d.row, b.Step)
	d.out.finishBy = d.finishBy()
	if !write {
		d.send(run, job)
		return false, nil
	}
	if err := d.p.cfg.Workers.Go(run.ID, job.Intent); err != nil {
		// The frame was not queued, but only the run itself can prove that nothing left.
		d.p.cfg.Log.Warn("go was not queued; the run is asked", "call", d.row.ID, "err", err)
		d.l.box.put(toldRunDown{run.ID})
	}
	return false, nil
}

// barred says what follows from a barrier that refused.
func (d *driver) barred(ctx context.Context, got Result, dec *decision) (again bool, err error) {
	switch got {
	case Stale, Changed, Suspends:
		return true, nil
	case Limited:
		if d.row.State == journal.Admitted && dec.grant != "" {
			return true, nil // the rules find the grant used up, and ask or refuse
		}
		d.refused(ctx, &decision{code: errs.LimitReached, reason: limitReason(dec.takes)})
	case Closed:
		d.refused(ctx, &decision{code: errs.Voided, reason: "its session was closed"})
	case Fenced:
		d.reload(ctx)
	case Unusable:
		d.reload(ctx)
		switch {
		case d.stopped || !d.row.State.Unfinished():
		case d.expired():
			d.end(ctx, journal.OnExpire, errs.ApprovalExpired, "it was approved and could not run in time")
		default:
			d.refused(ctx, &decision{code: errs.Voided, reason: "what allowed it does not stand any more"})
		}
	default:
		return false, errors.New("unknown result of a barrier: " + string(got))
	}
	return false, nil
}

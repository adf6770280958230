package call

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

// begin takes a record up: it becomes a call, or waits for one, or is refused.
func (d *driver) begin(ctx context.Context, sub Submission, rec *relay.Call, w *waiter) {
	d.name = rec.Tool
	if d.admit(ctx, sub, rec, w) {
		d.run(ctx)
		return
	}
	d.close()
}

// admit returns true when this driver has a row to drive (or to hand over the end of).
func (d *driver) admit(ctx context.Context, sub Submission, rec *relay.Call, w *waiter) bool {
	p := d.p
	if rec.Session != sub.Session || rec.Epoch != sub.Epoch {
		d.turnAway(w, rec.Tool, errs.NotAllowed, "the record is of another session or epoch")
		return false
	}
	s, err := p.session(ctx, rec.Session, rec.Epoch)
	if err != nil {
		d.turnAway(w, rec.Tool, errs.Unavailable, "its session cannot be read")
		return false
	}
	d.s, w.s = s, s
	row := s.session()
	if row.Host != sub.Host {
		d.turnAway(w, rec.Tool, errs.NotAllowed, "the session belongs to another host")
		return false
	}
	if len(sub.Record) > largeRecord {
		select {
		case s.large <- struct{}{}:
			defer func() { <-s.large }()
		case <-ctx.Done():
			return false
		}
	}
	if rec.Tool == AwaitTool {
		return d.awaitCall(ctx, rec, w)
	}
	args := control.Sum(rec.Arguments)
	for {
		earlier, mismatch := s.claim(d.l.id, rec, args)
		if earlier == "" {
			if mismatch != "" {
				d.note(ctx, Note{Call: mismatch, Event: "same_id_mismatch", Actor: sub.Host, Reason: "the harness used its call id again for another call", Digest: w.digest})
			}
			break
		}
		if d.joinAs(ctx, byResend, earlier, w) != notJoined {
			return false
		}
		if p.reg.find(earlier) != nil && d.pause(ctx, retryPause/10) {
			continue // it is on its way into the journal
		}
		s.forget(earlier) // it never came to stand there
	}
	err = s.enter()
	w.counted = err == nil
	d.row = d.newRow(sub, rec, args)
	if err != nil {
		return d.insert(ctx, w, &decision{ruling: RulingRefuse, code: errs.Busy, reason: errs.Message(err), effect: d.row.Effect})
	}
	if late := time.Duration(rec.TimeoutMS) * time.Millisecond; rec.TimeoutMS > 0 && sub.Waited >= late {
		return d.insert(ctx, w, &decision{ruling: RulingRefuse, code: errs.DeadlineExceeded, reason: "it waited too long before it was taken up", effect: d.row.Effect})
	}
	return d.insert(ctx, w, nil)
}

// newRow is the row as the record makes it, before anything is decided.
func (d *driver) newRow(sub Submission, rec *relay.Call, args control.Digest) *control.Call {
	s := d.s.session()
	c := &control.Call{
		Org: s.Org, ID: d.l.id, Session: s.ID, Record: rec.ID, RecordDigest: d.l.digest, Epoch: rec.Epoch, Host: sub.Host, Shim: rec.Shim,
		HarnessCall: rec.HarnessCall, Trace: rec.Trace, Progress: rec.Progress, TimeoutMS: rec.TimeoutMS, Owner: s.Owner, Profile: s.Profile.Name,
		ProfileVersion: s.Profile.Version, Name: rec.Tool, Effect: control.Write, Arguments: rec.Arguments, ArgsDigest: args, Lease: d.p.cfg.Run,
		Delivery: journal.DeliveryNone,
	}
	if d.bound = d.s.tool(rec.Tool); d.bound != nil {
		c.Connection, c.Revision, c.Catalog = d.bound.Connection, d.bound.Revision, d.bound.Catalog
		c.Tool, c.Effect, c.Repeat, c.Client = d.bound.Tool.Name, d.bound.Tool.Effect, d.bound.Tool.Repeat, d.bound.Tool.Client
	}
	return c
}

// turnAway answers a record that makes no row: there is no session that could hold one.
func (d *driver) turnAway(w *waiter, tool string, code errs.Code, reason string) {
	t := text{tool: tool, id: d.l.id, code: code, reason: reason}
	d.p.cfg.Hosts.Journaled(w.addr, w.digest)
	d.p.hand(d.s, w, d.l.id, journal.Refused, said(t), false)
}

// insert puts the call to the rules and inserts its row, until one ruling stands. fixed is a ruling that no rule can change.
func (d *driver) insert(ctx context.Context, w *waiter, fixed *decision) bool {
	p := d.p
	base := *d.row
	for range maxRulings {
		dec, policy, mark, joined, err := d.rule(ctx, fixed, w)
		if joined {
			return false
		}
		if err != nil {
			return d.notAdmitted(w, errs.Unavailable, "its store does not answer")
		}
		row := base
		a, job, run := d.admission(&row, dec, policy, mark)
		got, err := d.admitStubbornly(ctx, a)
		switch {
		case err != nil:
			code := errs.CodeOf(err)
			if code != errs.StoreFull && code != errs.Quarantined {
				code = errs.Unavailable
			}
			return d.notAdmitted(w, code, "its record cannot be written")
		case got.Result == Done:
		case got.Result == Attaches:
			d.row = got.Earlier
			return d.standing(ctx, w)
		case got.Result == Conflicts:
			return d.conflicting(w)
		case got.Result == NotOpen, got.Result == Closed:
			return d.notAdmitted(w, errs.NotAllowed, "the session is not open")
		case got.Result == Busy:
			fixed = &decision{ruling: RulingRefuse, code: errs.Busy, reason: fmt.Sprintf("%d questions of this session are open", MaxOpenQuestions), effect: dec.effect}
			continue
		case got.Result == Limited && dec.ruling != RulingGrant:
			fixed = &decision{ruling: RulingRefuse, code: errs.LimitReached, reason: limitReason(dec.takes), effect: dec.effect}
			continue
		default: // Stale, Changed, Suspends, Twinned, Limited under a given grant: what it rested on moved
			if _, err := p.reloadPolicy(ctx); err != nil {
				return d.notAdmitted(w, errs.Unavailable, "its store does not answer")
			}
			continue
		}
		if row.State != journal.Dispatching {
			d.freeSlot()
		}
		d.row = &row
		d.row.AdmittedAt = p.cfg.Store.Now()
		d.s.moved(d.row)
		p.cfg.Hosts.Journaled(w.addr, w.digest)
		d.add(w)
		for _, s := range a.Steps {
			p.observe(d.row, s)
		}
		if a.Question != nil {
			d.expires = a.Question.ExpiresAt.Sub(d.row.AdmittedAt)
			d.drifted = policy.Drift[row.Connection][row.Tool]
		}
		if job != nil {
			d.send(run, *job)
			d.timed(PartAdmit, &d.came)
		}
		return true
	}
	return d.notAdmitted(w, errs.Unavailable, "its rules changed all the time")
}

// admitStubbornly inserts, and when the store's answer is lost, asks again: the row that stands is then this very one.
func (d *driver) admitStubbornly(ctx context.Context, a *Admission) (Admitted, error) {
	var got Admitted
	var err error
	for try := range 4 {
		if try > 0 && !d.pause(ctx, storeRetry<<try) {
			break
		}
		got, err = d.p.cfg.Store.Admit(ctx, a)
		if err != nil {
			if c := errs.CodeOf(err); c == errs.StoreFull || errors.Is(err, context.Canceled) {
				break
			}
			continue
		}
		if e := got.Earlier; try > 0 && got.Result == Attaches && e.Lease == a.Call.Lease && e.State == a.Call.State && e.Intent == a.Call.Intent {
			return Admitted{Result: Done}, nil
		}
		return got, nil
	}
	return got, err
}

func (p *Pipeline) reloadPolicy(ctx context.Context) (*control.Policy, error) { return p.current(ctx) }

// notAdmitted answers a call that has no row.
func (d *driver) notAdmitted(w *waiter, code errs.Code, reason string) bool {
	d.s.forget(d.l.id)
	d.turnAway(w, d.row.Name, code, reason)
	return false
}

// conflicting answers a record whose id is taken by other bytes. The attempt stands in the journal already.
func (d *driver) conflicting(w *waiter) bool {
	d.p.cfg.Hosts.Journaled(w.addr, w.digest)
	t := text{tool: d.row.Name, id: d.l.id, code: errs.Conflict, reason: "another call of the same id was made before"}
	d.p.hand(d.s, w, d.l.id, journal.Refused, said(t), false)
	return false
}

// standing goes on with a row that stood already: the record came again after its driver, or the process, ended.
func (d *driver) standing(ctx context.Context, w *waiter) bool {
	d.p.cfg.Hosts.Journaled(w.addr, w.digest)
	if d.row.ID != d.l.id {
		// The record stands for another call.
		w.uncount()
		d.joined = d.row.ID
		d.p.join(ctx, d.row.ID, w)
		return false
	}
	d.s.moved(d.row)
	if d.row.State.Unfinished() && d.row.Lease != d.p.cfg.Run {
		t := d.text()
		d.p.hand(d.s, w, d.row.ID, d.row.State, said(t), false)
		return false
	}
	d.add(w)
	d.adopted = true
	d.expectAdopted()
	return true
}

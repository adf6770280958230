package call

import (
	"context"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// awaitPerson waits while a person thinks, however long: the question survives everything but what changes what was asked.
func (d *driver) awaitPerson(ctx context.Context) {
	from := d.row.State
	for !d.stopped && d.row.State == from {
		switch {
		case d.wantCancel:
			// A decision that was faster leaves it wanted: then it ends before its dispatch.
			d.giveUp(ctx, journal.OnCancel, errs.Cancelled, d.whyCancel)
			continue
		case d.expired():
			d.giveUp(ctx, journal.OnExpire, errs.ApprovalExpired, "nobody decided in time")
			continue
		case d.recheck:
			d.recheck = false
			if !d.stillAsked(ctx) {
				continue
			}
		case d.reread:
			d.reload(ctx)
			continue
		}
		again := time.Now().Add(lookAgain)
		until := again
		if end := d.untilExpiry(); !end.IsZero() && end.Before(until) {
			until = end
		}
		d.wait(ctx, until)
		if !d.stopped && !time.Now().Before(again) {
			d.reread = true // whoever decided may have forgotten to say so
		}
	}
}

// giveUp ends a call that waits for a person. Of one that the server asked about, something was sent: it is abandoned, whatever the reason.
func (d *driver) giveUp(ctx context.Context, event journal.Event, code errs.Code, reason string) {
	if d.row.State == journal.InputWanted {
		event, code = journal.OnAbandon, errs.Abandoned
	}
	d.end(ctx, event, code, reason)
}

// stillAsked looks whether the question would be asked as it stands: the session is not closed, no switch, no tightening, nothing that it is bound to
// changed. It returns false when the call's state or its row must be looked at again.
func (d *driver) stillAsked(ctx context.Context) bool {
	policy, err := d.p.current(ctx)
	if err == nil {
		err = d.p.reloadSession(ctx, d.s)
	}
	if err != nil {
		d.recheck = true
		return d.storeDown(ctx, err)
	}
	if d.s.session().State == control.SessionClosed {
		d.giveUp(ctx, journal.OnVoid, errs.Voided, "its session was closed")
		return false
	}
	m, err := d.matter(ctx, policy)
	if err != nil {
		d.recheck = true
		return d.storeDown(ctx, err)
	}
	m.decided = true
	dec := d.p.rules.decide(ctx, m)
	if dec.ruling == RulingRefuse {
		d.hint, d.switchedAt = dec.hint, dec.at
		d.giveUp(ctx, journal.OnVoid, dec.code, dec.reason)
		return false
	}
	if d.row.State == journal.InputWanted {
		return true // the answer binds the coming attempt
	}
	now := *d.row
	d.bind(&now, dec)
	if now.Binding != d.row.Binding {
		d.void(ctx, errs.Voided, boundTo(&now, d.row))
		return false
	}
	if !d.drifted && policy.Drift[d.row.Connection][d.row.Tool] {
		d.void(ctx, errs.Voided, "the server changed this tool since it was reviewed")
		return false
	}
	return true
}

// ask opens a question about a call that was admitted under a grant which does not cover it any more.
func (d *driver) ask(ctx context.Context, dec *decision, policy *control.Policy) {
	now := d.p.cfg.Store.Now()
	next := *d.row
	d.bind(&next, dec)
	q := d.question(&next, policy, dec.reason, now)
	set := Set{ExpiresAt: &q.ExpiresAt, Binding: &next.Binding, Subject: &next.Subject, Account: &next.Account, Authority: &control.Authority{}}
	if d.step(ctx, journal.OnAsk, control.Step{Digest: next.Binding}, set, q) {
		d.expires = q.ExpiresAt.Sub(now)
		d.drifted = policy.Drift[d.row.Connection][d.row.Tool]
		return
	}
	if !d.stopped && d.row.State == journal.Admitted {
		d.end(ctx, journal.OnRefuse, errs.Busy, "too many questions of this session are open")
	}
}

// inputWanted keeps what the server asked for and puts it to a person, where one can answer and the server asks for something that may be asked.
func (d *driver) inputWanted(ctx context.Context, why control.Step, set Set) {
	now := d.p.cfg.Store.Now()
	next := *d.row
	applySet(&next, &set)
	next.Answer = nil
	form, err := inbox.Form(next.InputRequests)
	s := d.s.session()
	answerable := err == nil && s.Attended && next.Rounds < journal.MaxRounds
	var q *control.Question
	if answerable {
		q = d.question(&next, d.p.policy.Load(), form.Text, now)
		q.Kind, q.Form, q.Second = control.AskInput, form.Schema, false
		q.Binding = control.BindingOf(&next).Digest()
		set.ExpiresAt = &q.ExpiresAt
	}
	if !d.step(ctx, journal.OnInput, why, set, q) || answerable {
		return
	}
	reason := "nobody attends this session"
	if err != nil {
		reason = errs.Message(err)
	} else if s.Attended {
		reason = "it asked too often"
	}
	code := errs.Abandoned
	d.step(ctx, journal.OnAbandon, control.Step{Code: code, Reason: reason}, Set{Code: &code, Reason: &reason}, nil)
}

// outputSchema is what a client tool's answer must be, as its reviewed bytes say; nil where they do not.
func outputSchema(tool []byte) []byte {
	s, _ := strictjson.Lookup(tool, "outputSchema")
	return s
}

package call

import (
	"context"
	"unicode/utf8"

	"sallyport.dev/control"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// Resolve ends an uncertain call by a person's word. Done needs only eyes. Not done, and retry, are refused until the run that had the call attested,
// or is proven dead: while it lives, it may still be sending. A person who knows better says so (Override). It returns the new call of a retry, or "".
//
// Errors: [errs.NotFound]; [errs.Invalid]; [errs.NotAllowed]; [errs.Conflict] when the call is not uncertain (any more); [errs.Uncertain] when the
// run may still have it.
func (p *Pipeline) Resolve(ctx context.Context, r ResolveRequest) (retry string, err error) {
	if r.Note == "" || len(r.Note) > inbox.MaxReason || !utf8.ValidString(r.Note) {
		return "", errs.Newf(errs.Invalid, "say in at most %d bytes what was found: it stays in the journal", inbox.MaxReason)
	}
	events := map[control.Verdict]journal.Event{
		control.Done: journal.OnResolveDone, control.NotDone: journal.OnResolveNotDone, control.RunAgain: journal.OnResolveRetry,
	}
	event, ok := events[r.Verdict]
	if !ok {
		return "", errs.New(errs.Invalid, "resolve a call as done, not-done or retry")
	}
	row, err := p.cfg.Store.Call(ctx, r.Call)
	if err != nil {
		return "", err
	}
	if row.State != journal.Uncertain {
		return "", errs.Newf(errs.Conflict, "only an uncertain call is resolved; this one is %s", row.State)
	}
	s, err := p.session(ctx, row.Session, 0)
	if err != nil {
		return "", err
	}
	policy, err := p.current(ctx)
	if err != nil {
		return "", err
	}
	d := &driver{p: p, l: &live{id: row.ID, session: row.Session}, s: s, row: row, bound: s.tool(row.Name)}
	if q := d.question(row, policy, "", p.cfg.Store.Now()); !inbox.MayDecide(*q, r.Actor) {
		return "", inbox.NotYours(q)
	}
	override := ""
	if event != journal.OnResolveDone && !p.settledRun(row) {
		if !r.Override {
			return "", errs.New(errs.Uncertain, "the worker that had this call has not said what became of it and may still be sending; wait for it, or say that you know it is gone (--override)")
		}
		override = "the run is neither attested nor proven dead"
	}
	in := &Resolution{
		Call: row.ID, Attempt: row.Attempt, By: r.Actor.Person, Note: r.Note, Override: override,
		Step: control.Step{From: journal.Uncertain, Event: event, Attempt: row.Attempt, Actor: string(r.Actor.Person), Reason: r.Note},
	}
	in.Step.To, err = journal.Next(journal.Uncertain, event, journal.Situation{Write: true, Attempt: row.Attempt})
	if err != nil {
		return "", err
	}
	if event == journal.OnResolveRetry {
		return p.retryOf(ctx, d, in, r.Note)
	}
	got, err := p.cfg.Store.Resolve(ctx, in)
	if err != nil {
		return "", err
	}
	if got != Done {
		return "", errs.New(errs.Conflict, "the call was resolved or answered in the meantime; look at it again")
	}
	p.resolved(row, in)
	return "", nil
}

// settledRun reports whether the run that had the call can do nothing about it any more: it reported an outcome, or it is dead. Without a run the
// call is uncertain because of a restored store: nobody here knows which run may have it.
func (p *Pipeline) settledRun(row *control.Call) bool {
	if row.Run == "" {
		return false
	}
	switch row.Failure {
	case journal.FailRunGone, "":
		return p.cfg.Workers.Dead(row.Worker, row.Run)
	}
	return true // the run's own word ended it
}

func (p *Pipeline) resolved(row *control.Call, in *Resolution) {
	next := *row
	next.State, next.ResolvedBy, next.Note = in.Step.To, in.By, in.Note
	if s := p.knownSession(row.Session); s != nil {
		s.moved(&next)
	}
	p.observe(&next, in.Step)
	p.tellPolicy() // given grants that were suspended by it count again
}

// retryOf makes the new call that takes an uncertain one's place: the same bytes, a new decision, a barrier of its own. A person asked for it, and a
// person decides: no given grant covers it.
func (p *Pipeline) retryOf(ctx context.Context, d *driver, in *Resolution, note string) (string, error) {
	old := d.row
	for range maxRulings {
		policy, err := p.reloadPolicy(ctx)
		if err != nil {
			return "", err
		}
		now := p.cfg.Store.Now()
		row := &control.Call{
			Org: old.Org, ID: control.NewID(), Session: old.Session, Epoch: old.Epoch, Host: old.Host, Shim: old.Shim, Owner: old.Owner, Profile: old.Profile,
			ProfileVersion: old.ProfileVersion, Name: old.Name, Connection: old.Connection, Revision: old.Revision, Catalog: old.Catalog, Tool: old.Tool,
			Effect: old.Effect, Arguments: old.Arguments, ArgsDigest: old.ArgsDigest, RetryOf: old.ID, Lease: p.cfg.Run, Delivery: journal.DeliveryNone,
			Gone: true, AdmittedAt: now,
		}
		n := &driver{p: p, s: d.s, row: row, bound: d.bound, l: &live{id: row.ID, session: row.Session, box: newMailbox()}}
		m, err := n.matter(ctx, policy)
		if err != nil {
			return "", err
		}
		m.doubted = "call " + old.ID + " is uncertain"
		dec := p.rules.decide(ctx, m)
		if dec.ruling != RulingAsk {
			return "", errs.Newf(errs.NotAllowed, "it cannot run again: %s", or(dec.reason, "nobody could be asked"))
		}
		n.bind(row, dec)
		_, mark, err := p.cfg.Store.Twins(ctx, row.Twin)
		if err != nil {
			return "", err
		}
		q := n.question(row, policy, "a person asked for it again after call "+old.ID+" was uncertain: "+note, now)
		row.State, row.ExpiresAt = journal.Asking, q.ExpiresAt
		in.Retry = &Admission{
			Call: row, Question: q, MaxOpen: MaxOpenQuestions, TwinMark: mark, Durable: true,
			Guard: Guard{Generation: policy.Generation, Session: row.Session, Credential: dec.credential, Owner: row.Owner, Connection: row.Connection, Tool: row.Tool},
			Steps: []control.Step{
				{Event: journal.OnRecord, To: journal.Admitted, Actor: string(in.By), Digest: row.ArgsDigest},
				{From: journal.Admitted, Event: journal.OnAsk, To: journal.Asking, Actor: p.cfg.Run, Digest: row.Binding},
			},
		}
		got, err := p.cfg.Store.Resolve(ctx, in)
		switch {
		case err != nil:
			return "", err
		case got == Done:
			p.resolved(old, in)
			p.resume(ctx, row)
			return row.ID, nil
		case got == Stale, got == Changed, got == Twinned:
			continue
		case got == Busy:
			return "", errs.Newf(errs.Busy, "%d questions of this session are open", MaxOpenQuestions)
		case got == Closed:
			return "", errs.New(errs.Conflict, "the session is closed; a new session must make the call")
		}
		return "", errs.New(errs.Conflict, "the call was resolved or answered in the meantime; look at it again")
	}
	return "", errs.New(errs.Unavailable, "the rules changed all the time; try again")
}

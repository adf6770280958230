package call

import (
	"context"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// late takes evidence that no driver expects: the same attempt's own outcome, after it was given up as uncertain. It counts while nobody resolved
// the call. Whatever comes of it, the worker may then forget.
func (p *Pipeline) late(ctx context.Context, run string, o Outcome) {
	row, err := p.cfg.Store.ByIntent(ctx, o.Intent)
	if errs.Is(err, errs.NotFound) {
		p.cfg.Workers.Acknowledge(run, o.Intent) // an attempt that was never committed, or is not the call's last
		return
	}
	if err != nil {
		return // it comes again when the run comes up again
	}
	switch {
	case row.Run != run:
		p.cfg.Log.Error("a run reports an intent of another", "intent", o.Intent, "run", run)
		return
	case row.State == journal.Dispatching:
		// Its driver is on the way: an adoption that has not begun, or one that just ended.
		if !p.tell(run, o.Intent, toldOutcome{run, o}) {
			p.cfg.Log.Warn("an outcome found no driver; it will come again", "call", row.ID)
		}
		return
	case row.State == journal.Uncertain:
		if !p.settleLate(ctx, row, o) {
			return
		}
	}
	p.cfg.Workers.Acknowledge(run, o.Intent)
}

// settleLate writes late evidence. It returns false when the store did not answer.
func (p *Pipeline) settleLate(ctx context.Context, row *control.Call, o Outcome) bool {
	event, set := p.judge(row, o)
	switch event {
	case journal.OnLost:
		return true // no news: uncertain it is
	case journal.OnTask:
		return p.lateTask(ctx, row, set, o)
	case journal.OnInput:
		return p.lateInput(ctx, row, set, o)
	}
	to, err := journal.Next(row.State, event, journal.Situation{Write: true, Attempt: row.Attempt})
	if err != nil {
		return true
	}
	step := control.Step{From: row.State, Event: event, To: to, Attempt: row.Attempt, Actor: row.Worker, Reason: lateEvidence(set)}
	if set.Reason == nil {
		set.Reason = new(string) // why it was uncertain is in the line of that step
	}
	if len(o.Body) > 0 {
		step.Digest = control.Sum(o.Body)
	}
	got, err := p.cfg.Store.Advance(ctx, &Advance{Call: row.ID, From: row.State, Attempt: row.Attempt, Lease: row.Lease, Step: step, Set: set, Durable: true})
	if err != nil {
		p.cfg.Log.Warn("late evidence was not written; it will come again", "call", row.ID, "err", err)
		return false
	}
	if got == Done {
		p.redacted(ctx, row.ID, row.Worker, &o)
		next := *row
		next.State = to
		applySet(&next, &set)
		p.observe(&next, step)
		if s := p.knownSession(row.Session); s != nil {
			s.moved(&next)
		}
	}
	return true
}

// lateEvidence is the line of a step that rests on it.
func lateEvidence(set Set) string {
	if set.Reason == nil {
		return "late evidence"
	}
	return "late evidence: " + *set.Reason
}

// lateInput goes on with a call whose server, as it turns out, asked for more.
func (p *Pipeline) lateInput(ctx context.Context, row *control.Call, set Set, o Outcome) bool {
	return p.lateDriver(ctx, row, func(d *driver) {
		d.inputWanted(ctx, control.Step{Actor: row.Worker, Reason: "late evidence", Digest: control.Sum(o.Body)}, set)
	})
}

// lateDriver drives an uncertain call again, if step takes it out of its state. It returns false when the store did not answer.
func (p *Pipeline) lateDriver(ctx context.Context, row *control.Call, step func(d *driver)) bool {
	s, err := p.session(ctx, row.Session, 0)
	if err != nil {
		return false
	}
	l, mine := p.reg.claim(&live{id: row.ID, session: row.Session, digest: row.RecordDigest, box: newMailbox()})
	if !mine {
		return true
	}
	d := &driver{p: p, l: l, s: s, row: row, bound: s.tool(row.Name)}
	step(d)
	if d.stopped || d.row.State == journal.Uncertain {
		d.close()
		return !d.stopped
	}
	p.spawn(func() { d.run(p.life) })
	return true
}

func (p *Pipeline) knownSession(id string) *sessionState {
	p.sessionsMu.Lock()
	defer p.sessionsMu.Unlock()
	return p.sessions[id]
}

package memstore

import (
	"context"
	"slices"

	"sallyport.dev/control"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

var _ inbox.Store = (*DB)(nil)

// Question returns one question.
func (d *DB) Question(_ context.Context, id string) (*control.Question, error) {
	var out control.Question
	err := d.transact("Question", false, func() error {
		q := d.questions.get(id)
		if q == nil {
			return errs.New(errs.NotFound, "there is no such question")
		}
		out = *q
		return nil
	})
	return &out, err
}

// Questions returns questions, oldest first.
func (d *DB) Questions(_ context.Context, f inbox.Filter) ([]*control.Question, error) {
	var out []*control.Question
	err := d.transact("Questions", false, func() error {
		for _, q := range d.questions.rows {
			states := f.States
			if len(states) == 0 {
				states = []control.QuestionState{control.QuestionOpen}
			}
			if slices.Contains(states, q.State) && (len(f.Kinds) == 0 || slices.Contains(f.Kinds, q.Kind)) && (f.Session == "" || f.Session == q.Session) &&
				(f.Owner == "" || f.Owner == q.Owner) && (f.Call == "" || f.Call == q.Call) {
				next := *q
				out = append(out, &next)
			}
		}
		slices.SortFunc(out, func(a, b *control.Question) int { return a.OpenedAt.Compare(b.OpenedAt) })
		if f.Limit > 0 && len(out) > f.Limit {
			out = out[:f.Limit]
		}
		return nil
	})
	return out, err
}

// QuestionSubject returns what a question is about.
func (d *DB) QuestionSubject(_ context.Context, id string) (*inbox.Subject, error) {
	var out inbox.Subject
	err := d.transact("QuestionSubject", false, func() error {
		q := d.questions.get(id)
		if q == nil {
			return errs.New(errs.NotFound, "there is no such question")
		}
		question := *q
		c := d.calls.get(q.Call)
		out = inbox.Subject{Question: &question, Call: clone(c)}
		all := d.ordered()
		slices.Reverse(all)
		add := func(to *[]*control.Call, other *control.Call) {
			if len(*to) < 20 {
				*to = append(*to, bare(other))
			}
		}
		for _, o := range all {
			if o.ID == c.ID {
				continue
			}
			same := o.Connection == c.Connection && o.Tool == c.Tool
			if out.Last == nil && o.Session == c.Session && same && o.State.Final() {
				out.Last = clone(o)
			}
			if o.Session == c.Session && o.Authority.Kind == control.ByApproval {
				add(&out.Before, o)
			}
			if !c.Twin.IsZero() && o.Twin == c.Twin {
				add(&out.Twins, o)
			}
			if o.State == journal.Uncertain && o.Owner == c.Owner && same {
				add(&out.Uncertain, o)
			}
		}
		return nil
	})
	return &out, err
}

// Decide adds one decision.
func (d *DB) Decide(_ context.Context, in *inbox.Decide) (inbox.Decided, error) {
	var out inbox.Decided
	err := d.transact("Decide", true, func() error {
		at := now()
		q := d.questions.get(in.Question)
		if q == nil {
			return errs.New(errs.NotFound, "there is no such question")
		}
		outcome, next, event := inbox.Tally(*q, in.Decision, in.Actor, at)
		out = inbox.Decided{Outcome: outcome, Question: &next, Call: q.Call}
		if outcome != inbox.Counted && outcome != inbox.Closes {
			return nil
		}
		if outcome == inbox.Counted {
			d.questions.put(q.ID, &next)
			return nil
		}
		c := d.calls.get(q.Call)
		to, err := journal.Next(c.State, event, journal.Situation{Write: c.Effect == control.Write, Attempt: c.Attempt, Rounds: c.Rounds})
		if err != nil {
			out.Outcome = inbox.Too
			return nil //nolint:nilerr // the table says no: somebody was first
		}
		d.questions.put(q.ID, &next)
		row := clone(c)
		row.State, row.DecidedAt = to, at
		switch event {
		case journal.OnApprove:
			row.Authority = control.Authority{Kind: control.ByApproval, ID: q.ID}
			if end := at.Add(in.Grace); row.ExpiresAt.Before(end) {
				row.ExpiresAt = end
			}
		case journal.OnDeny, journal.OnAbandon:
			row.Reason, row.SettledAt = in.Decision.Reason, at
			row.Code = errs.ApprovalDenied
			if event == journal.OnAbandon {
				row.Code = errs.Abandoned
			}
		case journal.OnPersonAnswer:
			if to == journal.Answered {
				row.Body, row.SettledAt = in.Answer, at
			} else {
				row.Answer, row.Rounds, row.Binding = in.Answer, row.Rounds+1, in.Bind
				row.Authority = control.Authority{Kind: control.ByApproval, ID: q.ID}
			}
		}
		d.calls.put(c.ID, row)
		d.step(c.ID, at, control.Step{From: c.State, Event: event, To: to, Attempt: c.Attempt, Actor: string(in.Decision.By), Reason: in.Decision.Reason, Digest: in.Decision.Binding})
		if in.Grant != nil {
			g := *in.Grant
			d.given.put(g.ID, &g)
			d.bump()
		}
		return nil
	})
	return out, err
}

package memstore

import (
	"context"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// Admit inserts the one row of (session, record).
func (d *DB) Admit(_ context.Context, a *call.Admission) (call.Admitted, error) {
	var out call.Admitted
	err := d.transact("Admit", a.Durable, func() error {
		var err error
		out, err = d.admit(a)
		return err
	})
	return out, err
}

func (d *DB) admit(a *call.Admission) (call.Admitted, error) {
	at := now()
	if err := legal(journal.None, a.Call.State, a.Steps); err != nil {
		return call.Admitted{}, err
	}
	if r, earlier := d.journaled(a.Call.ID, a.Call.RecordDigest, a.Call.Host, at); earlier != nil {
		return call.Admitted{Result: r, Earlier: earlier}, nil
	}
	w := d.world(&a.Guard, a.Call.ID, at)
	if a.Call.State.Final() {
		w.Generation, w.Quarantine = a.Guard.Generation, false
		refusal := call.Guard{Generation: a.Guard.Generation, Session: a.Guard.Session, Epoch: a.Guard.Epoch}
		if r := refusal.Check(w); r != call.Done {
			return call.Admitted{Result: r}, nil
		}
	} else if r := a.Guard.Check(w); r != call.Done {
		return call.Admitted{Result: r}, nil
	}
	if !a.Call.Twin.IsZero() && !a.Call.State.Final() && d.mark(a.Call.Twin) > a.TwinMark {
		return call.Admitted{Result: call.Twinned}, nil
	}
	if a.Question != nil && a.MaxOpen > 0 && d.open(a.Question.Session) >= a.MaxOpen {
		return call.Admitted{Result: call.Busy}, nil
	}
	next := clone(a.Call)
	next.AdmittedAt = at
	if next.Delivery == "" {
		next.Delivery = journal.DeliveryNone
	}
	if next.State == journal.Dispatching {
		next.StartedAt = at
		d.take(a.Guard.Takes, at)
	}
	if next.State.Final() {
		next.SettledAt = at
	}
	d.next++
	seq := d.next
	d.seq.put(next.ID, &seq)
	d.calls.put(next.ID, next)
	d.step(next.ID, at, a.Steps...)
	if a.Question != nil {
		d.ask(a.Question, at)
	}
	return call.Admitted{Result: call.Done}, nil
}

// journaled returns the call that a record made, or stands for, already.
func (d *DB) journaled(id string, digest control.Digest, host string, at time.Time) (call.Result, *control.Call) {
	earlier := d.calls.get(id)
	same := earlier != nil && earlier.RecordDigest == digest
	if alias := d.aliases.get(id); alias != nil {
		earlier, same = d.calls.get(alias.Call), alias.RecordDigest == digest
	}
	if earlier == nil {
		return call.Done, nil
	}
	if same {
		return call.Attaches, clone(earlier)
	}
	d.step(earlier.ID, at, control.Step{From: earlier.State, To: earlier.State, Event: "conflict", Attempt: earlier.Attempt, Actor: host, Digest: digest})
	return call.Conflicts, clone(earlier)
}

// Attach journals a record that makes no call of its own.
func (d *DB) Attach(_ context.Context, a *control.Alias, epoch int64) (call.Result, *control.Call, error) {
	out, row := call.Done, (*control.Call)(nil)
	err := d.transact("Attach", false, func() error {
		at := now()
		if out, row = d.journaled(a.ID, a.RecordDigest, "", at); row != nil {
			return nil
		}
		guard := call.Guard{Generation: d.generation, Session: a.Session, Epoch: epoch}
		w := d.world(&guard, "", at)
		w.Quarantine = false
		if out = guard.Check(w); out != call.Done {
			return nil
		}
		c := d.calls.get(a.Call)
		if c == nil {
			return errs.New(errs.NotFound, "there is no such call")
		}
		next := *a
		d.aliases.put(a.ID, &next)
		row = clone(c)
		return nil
	})
	return out, row, err
}

// Alias returns what a record stands for.
func (d *DB) Alias(_ context.Context, id string) (*control.Alias, error) {
	var out control.Alias
	err := d.transact("Alias", false, func() error {
		a := d.aliases.get(id)
		if a == nil {
			return errs.New(errs.NotFound, "this record stands for no other call")
		}
		out = *a
		return nil
	})
	return &out, err
}

func (d *DB) ask(q *control.Question, at time.Time) {
	next := *q
	next.OpenedAt, next.State = at, control.QuestionOpen
	d.questions.put(q.ID, &next)
}

func (d *DB) open(session string) int {
	n := 0
	for _, q := range d.questions.rows {
		if q.Session == session && q.State == control.QuestionOpen && q.Kind != control.AskUncertain {
			n++
		}
	}
	return n
}

func (d *DB) mark(twin control.Digest) int64 {
	var m int64
	for id, c := range d.calls.rows {
		if c.Twin == twin {
			m = max(m, *d.seq.get(id))
		}
	}
	return m
}

// legal checks that steps lead from from to to by the table.
func legal(from, to journal.State, steps []control.Step) error {
	for _, s := range steps {
		if s.From != from || !journal.Legal(s.From, s.Event, s.To) {
			return errs.Newf(errs.Internal, "no row of the state table leads from %q by %s to %q", s.From, s.Event, s.To)
		}
		from = s.To
	}
	if from != to {
		return errs.Newf(errs.Internal, "the steps end in %q, the row in %q", from, to)
	}
	return nil
}

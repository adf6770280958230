package sqlstore

import (
	"context"
	"slices"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// Commit is the barrier. Switches, grants, credentials, sessions and counters change only in the writer's transactions, one after another: what
// committed before this one is seen by it, so the order of commits is the order of dispatches (I9). A write's dispatching row is on stable
// storage when Commit returns (I4).
func (s *Store) Commit(ctx context.Context, b *call.Barrier) (call.Result, error) {
	if err := legal(b.From, journal.Dispatching, []control.Step{b.Step}); err != nil {
		return "", err
	}
	var out call.Result
	err := s.do(ctx, classOf(b.Durable)|dispatch, func(t *tx) error {
		var err error
		out, err = t.barrier(b)
		return err
	})
	return out, err
}

func (t *tx) barrier(b *call.Barrier) (call.Result, error) {
	c, err := t.fenced(b.Call, b.From, b.Attempt, b.Lease)
	if err != nil || c == nil {
		return call.Fenced, err
	}
	w, err := t.world(&b.Guard, c.ID)
	if err != nil {
		return "", err
	}
	if r := b.Guard.Check(w); r != call.Done {
		return r, nil
	}
	if b.Binding != c.Binding || !c.ExpiresAt.IsZero() && !t.now.Before(c.ExpiresAt) {
		return call.Unusable, nil
	}
	if usable, err := t.usable(b); err != nil || !usable {
		return call.Unusable, err
	}
	c.State, c.Attempt, c.StartedAt = journal.Dispatching, c.Attempt+1, t.now
	c.Intent, c.Worker, c.Run = b.Intent, b.Worker, b.Run
	c.Authority, c.Subject, c.Account = b.Authority, b.Subject, b.Account
	c.Facts = control.Facts{}
	t.step(c, &b.Step)
	if err := t.updateCall(c); err != nil {
		return "", err
	}
	if err := t.take(b.Guard.Takes); err != nil {
		return "", err
	}
	return call.Done, t.leave(c.ID, b.From, journal.OnCommit)
}

// fenced returns the call when it stands as named, and nil when it does not (I14).
func (t *tx) fenced(id string, from journal.State, attempt int, lease string) (*callRow, error) {
	c, err := t.call(id)
	if err != nil || c == nil || c.State != from || c.Attempt != attempt || c.Lease != lease {
		return nil, err
	}
	return c, nil
}

// usable reports whether the authority of a barrier stands.
func (t *tx) usable(b *call.Barrier) (bool, error) {
	switch b.Authority.Kind {
	case control.ByRule:
		return true, nil
	case control.ByApproval:
		var kind control.QuestionKind
		var state control.QuestionState
		var binding control.Digest
		found, err := t.row("SELECT kind, state, binding FROM questions WHERE id = ? AND call = ?", []any{b.Authority.ID, b.Call}, &kind, &state, &binding)
		switch {
		case err != nil || !found:
			return false, err
		case kind == control.AskInput:
			return b.Attempt > 0 && state == control.QuestionAnswered, nil
		case kind != control.AskApproval:
			return false, nil
		case b.Attempt == 0:
			return state == control.QuestionApproved && binding == b.Binding, nil
		}
		return state == control.QuestionUsed, nil
	case control.ByGrant:
		return t.row("SELECT 1 FROM given WHERE id = ? AND revoked = 0 AND suspended = '' AND until > ?", []any{b.Authority.ID, t.now}, new(int))
	}
	return false, nil
}

// Advance is every other step.
func (s *Store) Advance(ctx context.Context, a *call.Advance) (call.Result, error) {
	if err := legal(a.From, a.Step.To, []control.Step{a.Step}); err != nil {
		return "", err
	}
	bodies, err := s.seal(ctx, a.Call, map[bodyKind][]byte{
		bodyAnswer: a.Set.Body, bodyRequestState: a.Set.RequestState, bodyInputRequests: a.Set.InputRequests, bodyPersonAnswer: a.Set.Answer,
		bodyTaskHandle: a.Set.TaskHandle,
	})
	if err != nil {
		return "", err
	}
	var out call.Result
	err = s.do(ctx, classOf(a.Durable), func(t *tx) error {
		var err error
		out, err = t.advance(a, bodies)
		return err
	})
	if err != nil || out != call.Done {
		s.discard(bodies)
	}
	return out, err
}

func (t *tx) advance(a *call.Advance, bodies []sealedBody) (call.Result, error) {
	c, err := t.fenced(a.Call, a.From, a.Attempt, a.Lease)
	if err != nil || c == nil {
		return call.Fenced, err
	}
	if r, err := t.mayAsk(a.Question, a.MaxOpen); err != nil || r != call.Done {
		return r, err
	}
	c.State = a.Step.To
	if a.NewLease != "" {
		c.Lease = a.NewLease
	}
	apply(&c.Call, &a.Set)
	if c.State.Final() || c.State == journal.Uncertain {
		c.SettledAt = t.now
	}
	t.step(c, &a.Step)
	if err := t.updateCall(c); err != nil {
		return "", err
	}
	if err := t.putBodies(c.seq, bodies); err != nil {
		return "", err
	}
	if err := t.leave(c.ID, a.From, a.Step.Event); err != nil {
		return "", err
	}
	if a.Question != nil {
		if err := t.ask(a.Question); err != nil {
			return "", err
		}
	}
	return call.Done, nil
}

// apply writes the members of a set that are given; bodies are rows of their own.
func apply(c *control.Call, s *call.Set) {
	set(&c.Facts, s.Facts)
	set(&c.Code, s.Code)
	set(&c.Reason, s.Reason)
	set(&c.ExpiresAt, s.ExpiresAt)
	set(&c.Binding, s.Binding)
	set(&c.Authority, s.Authority)
	set(&c.Subject, s.Subject)
	set(&c.Account, s.Account)
	set(&c.Rounds, s.Rounds)
	set(&c.Gone, s.Gone)
	set(&c.Cancel, s.Cancel)
	if rank(s.Delivery) > rank(c.Delivery) {
		c.Delivery = s.Delivery
	}
}

func set[T any](to *T, v *T) {
	if v != nil {
		*to = *v
	}
}

// rank orders deliveries: one never falls.
func rank(d journal.Delivery) int {
	switch d {
	case journal.DeliveryPublished:
		return 1
	case journal.DeliveryAcknowledged:
		return 2
	}
	return 0
}

// Resolve ends an uncertain call by a person's word.
func (s *Store) Resolve(ctx context.Context, r *call.Resolution) (call.Result, error) {
	if err := legal(journal.Uncertain, r.Step.To, []control.Step{r.Step}); err != nil {
		return "", err
	}
	var bodies []sealedBody
	if r.Retry != nil {
		if err := legal(journal.None, r.Retry.Call.State, r.Retry.Steps); err != nil {
			return "", err
		}
		var err error
		if bodies, err = s.seal(ctx, r.Retry.Call.ID, bodiesOf(r.Retry.Call)); err != nil {
			return "", err
		}
	}
	var out call.Result
	err := s.do(ctx, durable, func(t *tx) error {
		var err error
		out, err = t.resolve(r, bodies)
		return err
	})
	if err != nil || out != call.Done {
		s.discard(bodies)
	}
	return out, err
}

func (t *tx) resolve(r *call.Resolution, bodies []sealedBody) (call.Result, error) {
	c, err := t.call(r.Call)
	if err != nil || c == nil || c.State != journal.Uncertain || c.Attempt != r.Attempt {
		return call.Fenced, err
	}
	if r.Retry != nil {
		got, _, err := t.admit(r.Retry, bodies)
		if err != nil || got.Result != call.Done {
			return got.Result, err
		}
		c.RetriedBy = r.Retry.Call.ID
	}
	c.State, c.ResolvedBy, c.Note = r.Step.To, r.By, r.Note
	if r.Override != "" {
		c.Note = r.Note + " (override: " + r.Override + ")"
	}
	t.step(c, &r.Step)
	if err := t.updateCall(c); err != nil {
		return "", err
	}
	return call.Done, t.leave(c.ID, journal.Uncertain, r.Step.Event)
}

// Note appends a line to a call's journal.
func (s *Store) Note(ctx context.Context, n call.Note) error {
	return s.do(ctx, 0, func(t *tx) error {
		c, err := t.call(n.Call)
		if err != nil {
			return err
		}
		if c == nil {
			return noSuchCall()
		}
		set(&c.Gone, n.Set.Gone)
		set(&c.Cancel, n.Set.Cancel)
		return t.note(c, &control.Step{Event: journal.Event(n.Event), Actor: n.Actor, Reason: n.Reason, Digest: n.Digest})
	})
}

// note adds a line that changes no state.
func (t *tx) note(c *callRow, st *control.Step) error {
	st.From, st.To, st.Attempt = c.State, c.State, c.Attempt
	t.step(c, st)
	return t.updateCall(c)
}

// Of calls that ended.
const (
	sqlPublished    = `UPDATE calls SET delivery = 'published' WHERE id = ? AND delivery = 'none'`
	sqlAcknowledged = `UPDATE calls SET delivery = 'acknowledged', unread = NULL WHERE id = ? AND delivery <> 'acknowledged'`
)

// Deliver raises deliveries with the next commit.
func (s *Store) Deliver(all ...call.Delivered) {
	for _, one := range all {
		if rank(one.Delivery) > 0 {
			s.queue.ride(func(t *tx) error { return t.deliver(one) })
		}
	}
}

func (t *tx) deliver(d call.Delivered) error {
	c := t.inMemory(d.Call)
	if c == nil { // it ended: the row alone holds it
		sql := sqlPublished
		if d.Delivery == journal.DeliveryAcknowledged {
			sql = sqlAcknowledged
		}
		_, err := t.exec(sql, d.Call)
		return err
	}
	if rank(d.Delivery) <= rank(c.Delivery) {
		return nil
	}
	c.Delivery = d.Delivery
	return t.updateCall(c)
}

const sqlLeave = "UPDATE questions SET state = ?, closed_at = ? WHERE call = ? AND state IN ('open', 'approved')"

// leave closes the question that a call waited for.
func (t *tx) leave(id string, from journal.State, event journal.Event) error {
	if !from.Waits() && from != journal.Approved {
		return nil
	}
	_, err := t.exec(sqlLeave, string(call.QuestionEnd(event)), t.now, id)
	return err
}

// Renew makes or extends a lease.
func (s *Store) Renew(ctx context.Context, run string, ttl time.Duration) error {
	return s.do(ctx, 0, func(t *tx) error {
		n, err := t.exec(`INSERT INTO leases (run, org, until, dead) VALUES (?, ?, ?, 0)
ON CONFLICT (run) DO UPDATE SET until = excluded.until WHERE dead = 0`, run, control.Org, t.now.Add(ttl))
		if err != nil {
			return err
		}
		if n == 0 {
			return errs.New(errs.Fenced, "another control run took over; this one must end")
		}
		return nil
	})
}

// Adopt takes the calls of dead runs. One process holds this store, so every run but the caller's is dead.
func (s *Store) Adopt(ctx context.Context, run string, limit int) ([]*control.Call, error) {
	var taken []whole
	err := s.do(ctx, durable, func(t *tx) error {
		if _, err := t.exec("UPDATE leases SET dead = 1 WHERE run <> ? AND dead = 0", run); err != nil {
			return err
		}
		rows := slices.DeleteFunc(t.unfinished(), func(c *callRow) bool { return c.Lease == run })
		rows = rows[:min(len(rows), limit)]
		for _, c := range rows {
			c.Lease = run
			if err := t.updateCall(c); err != nil {
				return err
			}
		}
		var err error
		taken, err = t.withBodies(rows)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.opened(taken)
}

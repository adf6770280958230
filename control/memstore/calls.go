package memstore

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

var _ call.Store = (*DB)(nil)

// Renew makes or extends a lease.
func (d *DB) Renew(_ context.Context, run string, ttl time.Duration) error {
	return d.transact("Renew", false, func() error {
		if end := d.leases.get(run); end != nil && end.IsZero() {
			return errs.New(errs.Fenced, "another control run took over")
		}
		end := now().Add(ttl)
		d.leases.put(run, &end)
		return nil
	})
}

// Adopt takes the calls of dead runs: this process holds the database alone, so every other run is dead.
func (d *DB) Adopt(_ context.Context, run string, limit int) ([]*control.Call, error) {
	var out []*control.Call
	err := d.transact("Adopt", true, func() error {
		for other := range d.leases.rows {
			if other != run {
				gone := time.Time{}
				d.leases.put(other, &gone)
			}
		}
		for _, c := range d.ordered() {
			if len(out) == limit {
				break
			}
			if c.State.Unfinished() && c.Lease != run {
				next := *c
				next.Lease = run
				d.calls.put(c.ID, &next)
				out = append(out, clone(&next))
			}
		}
		return nil
	})
	return out, err
}

// ordered returns the calls, oldest first.
func (d *DB) ordered() []*control.Call {
	out := make([]*control.Call, 0, len(d.calls.rows))
	for _, c := range d.calls.rows {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b *control.Call) int { return cmp.Compare(*d.seq.get(a.ID), *d.seq.get(b.ID)) })
	return out
}

func clone(c *control.Call) *control.Call {
	next := *c
	return &next
}

func bare(c *control.Call) *control.Call {
	next := *c
	next.Arguments, next.Body, next.RequestState, next.InputRequests, next.Answer, next.TaskHandle = nil, nil, nil, nil, nil, nil
	return &next
}

// world reads what a guard rests on. id is the call itself.
func (d *DB) world(g *call.Guard, id string, at time.Time) call.World {
	w := call.World{Generation: d.generation, Quarantine: d.history.Quarantine != ""}
	if s := d.sessions.get(g.Session); s != nil {
		w.Session, w.Epoch = s.State, s.Epoch
	}
	if g.Credential.Connection != "" {
		if c := d.credentials.get(g.Credential.Connection + "/" + g.Credential.Subject); c != nil {
			w.CredentialFound, w.Version, w.Credential = true, c.Version, c.State
		}
	}
	if g.Suspending {
		w.Uncertain = d.uncertain(g.Owner, g.Connection, g.Tool, id)
	}
	for _, t := range g.Takes {
		w.Usage = append(w.Usage, d.usage(t, at))
	}
	return w
}

func (d *DB) uncertain(owner control.Person, connection, tool, but string) bool {
	for _, c := range d.calls.rows {
		if c.State == journal.Uncertain && c.Effect == control.Write && c.Owner == owner && c.Connection == connection && c.Tool == tool && c.ID != but {
			return true
		}
	}
	return false
}

func counterKey(t call.Take, at time.Time) string {
	return t.Key + "\x00" + strconv.FormatInt(t.Window(at), 10)
}

func (d *DB) usage(t call.Take, at time.Time) call.Usage {
	if u := d.counters.get(counterKey(t, at)); u != nil {
		return *u
	}
	return call.Usage{}
}

func (d *DB) take(takes []call.Take, at time.Time) {
	for _, t := range takes {
		u := d.usage(t, at)
		u.Calls++
		u.Bytes += t.AddBytes
		d.counters.put(counterKey(t, at), &u)
	}
}

// Commit is the barrier.
func (d *DB) Commit(_ context.Context, b *call.Barrier) (call.Result, error) {
	out := call.Fenced
	err := d.transact("Commit", b.Durable, func() error {
		at := now()
		c := d.calls.get(b.Call)
		if c == nil || c.State != b.From || c.Attempt != b.Attempt || c.Lease != b.Lease {
			return nil
		}
		if err := legal(b.From, journal.Dispatching, []control.Step{b.Step}); err != nil {
			return err
		}
		if out = b.Guard.Check(d.world(&b.Guard, c.ID, at)); out != call.Done {
			return nil
		}
		if b.Binding != c.Binding || !c.ExpiresAt.IsZero() && !at.Before(c.ExpiresAt) || !d.usable(b, at) {
			out = call.Unusable
			return nil
		}
		next := clone(c)
		next.State, next.Attempt, next.StartedAt = journal.Dispatching, c.Attempt+1, at
		next.Intent, next.Worker, next.Run = b.Intent, b.Worker, b.Run
		next.Authority, next.Subject, next.Account = b.Authority, b.Subject, b.Account
		next.Facts = control.Facts{}
		d.calls.put(c.ID, next)
		d.take(b.Guard.Takes, at)
		d.leave(c.ID, b.From, journal.OnCommit, at)
		d.step(c.ID, at, b.Step)
		return nil
	})
	return out, err
}

// usable reports whether the authority of a barrier stands.
func (d *DB) usable(b *call.Barrier, at time.Time) bool {
	switch b.Authority.Kind {
	case control.ByRule:
		return true
	case control.ByApproval:
		q := d.questions.get(b.Authority.ID)
		switch {
		case q == nil || q.Call != b.Call:
			return false
		case q.Kind == control.AskInput:
			return b.Attempt > 0 && q.State == control.QuestionAnswered
		case q.Kind != control.AskApproval || q.Binding != b.Binding && b.Attempt == 0:
			return false
		case b.Attempt == 0:
			return q.State == control.QuestionApproved
		}
		return q.State == control.QuestionUsed
	case control.ByGrant:
		g := d.given.get(b.Authority.ID)
		return g != nil && !g.Revoked && g.Suspended == "" && at.Before(g.Until)
	}
	return false
}

// Advance is every other step.
func (d *DB) Advance(_ context.Context, s *call.Advance) (call.Result, error) {
	out := call.Fenced
	err := d.transact("Advance", s.Durable, func() error {
		at := now()
		c := d.calls.get(s.Call)
		if c == nil || c.State != s.From || c.Attempt != s.Attempt || c.Lease != s.Lease {
			return nil
		}
		if err := legal(s.From, s.Step.To, []control.Step{s.Step}); err != nil {
			return err
		}
		if s.Question != nil && s.MaxOpen > 0 && d.open(s.Question.Session) >= s.MaxOpen {
			out = call.Busy
			return nil
		}
		out = call.Done
		next := clone(c)
		next.State = s.Step.To
		if s.NewLease != "" {
			next.Lease = s.NewLease
		}
		apply(next, &s.Set)
		if next.State.Final() || next.State == journal.Uncertain {
			next.SettledAt = at
		}
		d.calls.put(c.ID, next)
		d.leave(c.ID, s.From, s.Step.Event, at)
		d.step(c.ID, at, s.Step)
		if s.Question != nil {
			d.ask(s.Question, at)
		}
		return nil
	})
	return out, err
}

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
	bytes := func(to *[]byte, v []byte) {
		if v != nil {
			*to = v
		}
	}
	bytes(&c.Body, s.Body)
	bytes(&c.RequestState, s.RequestState)
	bytes(&c.InputRequests, s.InputRequests)
	bytes(&c.Answer, s.Answer)
	bytes(&c.TaskHandle, s.TaskHandle)
	raise(c, s.Delivery)
}

func set[T any](to *T, v *T) {
	if v != nil {
		*to = *v
	}
}

func raise(c *control.Call, to journal.Delivery) {
	if to == journal.DeliveryAcknowledged || to == journal.DeliveryPublished && c.Delivery != journal.DeliveryAcknowledged {
		c.Delivery = to
	}
}

// Resolve ends an uncertain call.
func (d *DB) Resolve(_ context.Context, r *call.Resolution) (call.Result, error) {
	out := call.Fenced
	err := d.transact("Resolve", true, func() error {
		at := now()
		c := d.calls.get(r.Call)
		if c == nil || c.State != journal.Uncertain || c.Attempt != r.Attempt {
			return nil
		}
		if err := legal(journal.Uncertain, r.Step.To, []control.Step{r.Step}); err != nil {
			return err
		}
		next := clone(c)
		if r.Retry != nil {
			got, err := d.admit(r.Retry)
			if err != nil || got.Result != call.Done {
				out = got.Result
				return err
			}
			next.RetriedBy = r.Retry.Call.ID
		}
		out = call.Done
		next.State, next.ResolvedBy, next.Note = r.Step.To, r.By, r.Note
		if r.Override != "" {
			next.Note = r.Note + " (override: " + r.Override + ")"
		}
		d.calls.put(c.ID, next)
		d.leave(c.ID, journal.Uncertain, r.Step.Event, at)
		d.step(c.ID, at, r.Step)
		return nil
	})
	return out, err
}

// Note appends a line.
func (d *DB) Note(_ context.Context, n call.Note) error {
	return d.transact("Note", false, func() error {
		c := d.calls.get(n.Call)
		if c == nil {
			return errs.New(errs.NotFound, "there is no such call")
		}
		if n.Set.Gone != nil || n.Set.Cancel != nil {
			next := clone(c)
			set(&next.Gone, n.Set.Gone)
			set(&next.Cancel, n.Set.Cancel)
			d.calls.put(c.ID, next)
		}
		d.step(c.ID, now(), control.Step{From: c.State, To: c.State, Event: journal.Event(n.Event), Attempt: c.Attempt, Actor: n.Actor, Reason: n.Reason, Digest: n.Digest})
		return nil
	})
}

// Deliver raises deliveries.
func (d *DB) Deliver(all ...call.Delivered) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range all {
		if c := d.calls.get(one.Call); c != nil {
			next := clone(c)
			raise(next, one.Delivery)
			d.calls.put(c.ID, next)
		}
	}
}

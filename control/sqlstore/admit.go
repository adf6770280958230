package sqlstore

import (
	"context"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

var _ call.Store = (*Store)(nil)

const (
	sqlRecordOf  = "SELECT id, record_digest FROM calls WHERE id = ?"
	sqlAliasOf   = "SELECT call, record_digest FROM aliases WHERE id = ?"
	sqlCounter   = "SELECT start, calls, bytes FROM counters WHERE key = ?"
	sqlTwinMark  = "SELECT coalesce(max(seq), 0) FROM calls WHERE twin = ?"
	sqlAsked     = "SELECT count(*) FROM questions WHERE session = ? AND state = 'open' AND kind <> 'uncertain'"
	sqlUncertain = "SELECT 1 FROM calls WHERE state = 'uncertain' AND effect = 'write' AND owner = ? AND connection = ? AND tool = ? AND id <> ? LIMIT 1"
)

// Admit inserts the one row of (session, record).
func (s *Store) Admit(ctx context.Context, a *call.Admission) (call.Admitted, error) {
	if err := legal(journal.None, a.Call.State, a.Steps); err != nil {
		return call.Admitted{}, err
	}
	bodies, err := s.seal(ctx, a.Call.ID, bodiesOf(a.Call))
	if err != nil {
		return call.Admitted{}, err
	}
	var out call.Admitted
	var earlier []whole
	err = s.do(ctx, classOf(a.Durable)|grows, func(t *tx) error {
		var err error
		out, earlier, err = t.admit(a, bodies)
		return err
	})
	if err != nil || out.Result != call.Done {
		s.discard(bodies)
	}
	if err == nil && len(earlier) > 0 {
		var opened []*control.Call
		if opened, err = s.opened(earlier); err == nil {
			out.Earlier = opened[0]
		}
	}
	return out, err
}

func classOf(isDurable bool) class {
	if isDurable {
		return durable
	}
	return 0
}

func bodiesOf(c *control.Call) map[bodyKind][]byte {
	out := map[bodyKind][]byte{}
	for kind := range bodyKinds {
		if b := *kind.field(c); b != nil {
			out[kind] = b
		}
	}
	return out
}

// admit is Admit inside a transaction: Resolve uses it for the call that takes another's place.
func (t *tx) admit(a *call.Admission, bodies []sealedBody) (call.Admitted, []whole, error) {
	result, earlier, err := t.journaled(a.Call.ID, a.Call.RecordDigest, a.Call.Host)
	if err != nil || result != "" {
		return call.Admitted{Result: result}, earlier, err
	}
	if result, err := t.admissible(a); err != nil || result != call.Done {
		return call.Admitted{Result: result}, nil, err
	}
	c := &callRow{Call: withoutBodies(*a.Call)}
	c.AdmittedAt = t.now
	if c.Delivery == "" {
		c.Delivery = journal.DeliveryNone
	}
	if c.State == journal.Dispatching {
		c.StartedAt = t.now
		if err := t.take(a.Guard.Takes); err != nil {
			return call.Admitted{}, nil, err
		}
	}
	if c.State.Final() {
		c.SettledAt = t.now
	}
	t.head.calls++
	c.seq = t.head.calls
	for i := range a.Steps {
		t.step(c, &a.Steps[i])
	}
	if err := t.insertCall(c); err != nil {
		return call.Admitted{}, nil, err
	}
	if err := t.putBodies(c.seq, bodies); err != nil {
		return call.Admitted{}, nil, err
	}
	if a.Question != nil {
		if err := t.ask(a.Question); err != nil {
			return call.Admitted{}, nil, err
		}
	}
	return call.Admitted{Result: call.Done}, nil, nil
}

// journaled looks for the call that a record made, or stands for, already: nil for a new record. A repeat attaches whatever has become of session
// and policy.
func (t *tx) journaled(id string, digest control.Digest, host string) (call.Result, []whole, error) {
	var target string
	var earlier control.Digest
	found, err := t.row(sqlRecordOf, []any{id}, &target, &earlier)
	if err == nil && !found {
		found, err = t.row(sqlAliasOf, []any{id}, &target, &earlier)
	}
	if err != nil || !found {
		return "", nil, err
	}
	old, err := t.call(target)
	if err != nil {
		return "", nil, err
	}
	if old == nil {
		return "", nil, errs.Newf(errs.Internal, "the record stands for a call that is not in the journal any more")
	}
	rows, err := t.withBodies([]*callRow{old})
	if err != nil {
		return "", nil, err
	}
	if earlier == digest {
		return call.Attaches, rows, nil
	}
	return call.Conflicts, rows, t.note(old, &control.Step{Event: "conflict", Actor: host, Digest: digest})
}

// Attach journals a record that makes no call of its own.
func (s *Store) Attach(ctx context.Context, a *control.Alias, epoch int64) (call.Result, *control.Call, error) {
	var out call.Result
	var rows []whole
	err := s.do(ctx, grows, func(t *tx) error {
		var err error
		out, rows, err = t.attach(a, epoch)
		return err
	})
	if err != nil || len(rows) == 0 {
		return out, nil, err
	}
	opened, err := s.opened(rows)
	if err != nil {
		return out, nil, err
	}
	return out, opened[0], nil
}

func (t *tx) attach(a *control.Alias, epoch int64) (call.Result, []whole, error) {
	out, rows, err := t.journaled(a.ID, a.RecordDigest, "")
	if err != nil || out != "" {
		return out, rows, err
	}
	if r, err := t.sessionOpen(a.Session, epoch); err != nil || r != call.Done {
		return r, nil, err
	}
	c, err := t.call(a.Call)
	if err != nil {
		return "", nil, err
	}
	if c == nil {
		return "", nil, noSuchCall()
	}
	if _, err := t.exec("INSERT INTO aliases (id, org, session, record, record_digest, kind, call, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
		a.ID, control.Org, a.Session, a.Record, a.RecordDigest, a.Kind, a.Call, t.now); err != nil {
		return "", nil, err
	}
	rows, err = t.withBodies([]*callRow{c})
	return call.Done, rows, err
}

// sessionOpen checks session and epoch alone.
func (t *tx) sessionOpen(session string, epoch int64) (call.Result, error) {
	guard := call.Guard{Generation: t.head.generation, Session: session, Epoch: epoch}
	w, err := t.world(&guard, "")
	if err != nil {
		return "", err
	}
	w.Quarantine = false
	return guard.Check(w), nil
}

// Alias returns what a record stands for.
func (s *Store) Alias(ctx context.Context, id string) (*control.Alias, error) {
	a := &control.Alias{}
	err := s.read(ctx, func(c *conn) error {
		found, err := c.row("SELECT id, session, record, record_digest, kind, call FROM aliases WHERE id = ?", []any{id},
			&a.ID, &a.Session, &a.Record, &a.RecordDigest, &a.Kind, &a.Call)
		if err == nil && !found {
			err = errs.New(errs.NotFound, "this record stands for no other call")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// admissible checks what an admission rests on.
func (t *tx) admissible(a *call.Admission) (call.Result, error) {
	if a.Call.State.Final() { // it ends here: only the session is looked at
		if r, err := t.sessionOpen(a.Guard.Session, a.Guard.Epoch); err != nil || r != call.Done {
			return r, err
		}
		return t.mayAsk(a.Question, a.MaxOpen)
	}
	w, err := t.world(&a.Guard, a.Call.ID)
	if err != nil {
		return "", err
	}
	if r := a.Guard.Check(w); r != call.Done {
		return r, nil
	}
	if !a.Call.Twin.IsZero() {
		mark, err := t.twinMark(a.Call.Twin)
		if err != nil {
			return "", err
		}
		if mark > a.TwinMark {
			return call.Twinned, nil
		}
	}
	return t.mayAsk(a.Question, a.MaxOpen)
}

// mayAsk refuses one more question than the session may have.
func (t *tx) mayAsk(q *control.Question, most int) (call.Result, error) {
	if q == nil || most <= 0 {
		return call.Done, nil
	}
	var open int
	if _, err := t.row(sqlAsked, []any{q.Session}, &open); err != nil {
		return "", err
	}
	if open >= most {
		return call.Busy, nil
	}
	return call.Done, nil
}

// world reads what a guard rests on: in the writer's transaction, so that a change of any of it is either before or after. id is the call itself.
func (t *tx) world(g *call.Guard, id string) (call.World, error) {
	w := call.World{Generation: t.head.generation, Quarantine: t.head.quarantine != ""}
	in, err := t.sessionFact(g.Session)
	if err != nil {
		return w, err
	}
	w.Session, w.Epoch = in.state, in.epoch
	if g.Credential.Connection != "" {
		c, err := t.credentialFact(g.Credential.Connection, g.Credential.Subject)
		if err != nil {
			return w, err
		}
		w.CredentialFound, w.Version, w.Credential = c.version > 0, c.version, c.state
	}
	if g.Suspending {
		var err error
		w.Uncertain, err = t.row(sqlUncertain, []any{string(g.Owner), g.Connection, g.Tool, id}, new(int))
		if err != nil {
			return w, err
		}
	}
	for _, take := range g.Takes {
		u, err := t.usage(take, t.now.UnixMilli())
		if err != nil {
			return w, err
		}
		w.Usage = append(w.Usage, u)
	}
	return w, nil
}

// usage reads a counter in its current window.
func (c *conn) usage(take call.Take, now int64) (call.Usage, error) {
	var u call.Usage
	var start int64
	found, err := c.row(sqlCounter, []any{take.Key}, &start, &u.Calls, &u.Bytes)
	if err != nil || !found || start != take.Window(fromMillis(now)) {
		return call.Usage{}, err
	}
	return u, nil
}

const sqlTake = `INSERT INTO counters (key, org, start, calls, bytes) VALUES (?, ?, ?, 1, ?)
ON CONFLICT (key) DO UPDATE SET
  calls = CASE WHEN start = excluded.start THEN calls + 1 ELSE 1 END,
  bytes = CASE WHEN start = excluded.start THEN bytes + excluded.bytes ELSE excluded.bytes END,
  start = excluded.start`

func (t *tx) take(takes []call.Take) error {
	for _, one := range takes {
		if _, err := t.exec(sqlTake, one.Key, control.Org, one.Window(t.now), one.AddBytes); err != nil {
			return err
		}
	}
	return nil
}

// twinMark is the place of the newest call of a twin.
func (c *conn) twinMark(twin control.Digest) (int64, error) {
	var mark int64
	_, err := c.row(sqlTwinMark, []any{twin}, &mark)
	return mark, err
}

// legal checks that steps lead from from to to by the state table: the store's last word on what it is told to write.
func legal(from, to journal.State, steps []control.Step) error {
	for i := range steps {
		if steps[i].From != from || !journal.Legal(from, steps[i].Event, steps[i].To) {
			return errs.Newf(errs.Internal, "no row of the state table leads from %q by %s to %q", steps[i].From, steps[i].Event, steps[i].To)
		}
		from = steps[i].To
	}
	if from != to {
		return errs.Newf(errs.Internal, "the steps end in %q, the row in %q", from, to)
	}
	return nil
}

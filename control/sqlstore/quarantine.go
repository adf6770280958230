package sqlstore

import (
	"context"
	"fmt"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/revocation"
	"sallyport.dev/errs"
)

// History returns which history the store is in, as far as it is on stable storage: what hosts and workers are told to remember must never be more
// than what survives a power failure.
func (s *Store) History(context.Context) (revocation.History, error) {
	h := s.Health()
	return revocation.History{Incarnation: h.Incarnation, Counter: h.Counter, Quarantine: h.Quarantine}, nil
}

// Remember takes what somebody else remembers of the store (the highwater file, a host, a worker) and enters quarantine when that is more than
// the store knows: a backup was put back, or a failover lost commits. It reports whether the store is in quarantine now. who is safe text.
func (s *Store) Remember(ctx context.Context, who string, m revocation.History) (bool, error) {
	v := s.view.Load()
	if m.Incarnation == "" || m.Incarnation == v.incarnation && m.Counter <= v.counter {
		return v.quarantine != "", nil
	}
	known := false
	if err := s.read(ctx, func(c *conn) error {
		var err error
		known, err = c.row("SELECT 1 FROM incarnations WHERE id = ? AND (accepted = 1 OR counter >= ?)", []any{m.Incarnation, m.Counter}, new(int))
		return err
	}); err != nil || known {
		return v.quarantine != "", err
	}
	if err := s.do(ctx, durable, func(t *tx) error {
		_, err := t.exec(`INSERT INTO incarnations (id, org, counter, at, accepted, note) VALUES (?, ?, ?, ?, 0, ?)
ON CONFLICT (id) DO UPDATE SET counter = max(counter, excluded.counter)`, m.Incarnation, control.Org, m.Counter, t.now, who)
		return err
	}); err != nil {
		return false, err
	}
	if v.quarantine != "" {
		return true, nil
	}
	why := fmt.Sprintf("%s remembers %d commits of this store, which knows %d", who, m.Counter, v.counter)
	if m.Incarnation != v.incarnation {
		why = who + " remembers a history that this store does not know"
	}
	_, err := s.Quarantine(ctx, why)
	return true, err
}

// restored is why given grants do not count while the store is in quarantine.
const restored = "the store was restored"

// Quarantine marks the store as older than what others remember. What was decided or sent in the lost history is not known here: nothing
// unfinished may run on, and only a person knows what became of a write (I6).
func (s *Store) Quarantine(ctx context.Context, why string) (revocation.Impact, error) {
	var out revocation.Impact
	err := s.do(ctx, durable, func(t *tx) error {
		out = revocation.Impact{}
		if t.head.quarantine != "" {
			return nil // what there is to stop was stopped, for the first reason
		}
		t.record(audit.KindStore, t.head.incarnation, "", "quarantine", "quarantine", "control:"+s.opts.Node, why)
		t.head.quarantine = why
		t.bump()
		if err := t.quarantineCalls(why, &out); err != nil {
			return err
		}
		for _, one := range []struct {
			n   *int
			sql string
		}{
			{&out.Grants, "UPDATE given SET suspended = '" + restored + "' WHERE revoked = 0"},
			{&out.Sessions, "UPDATE sessions SET state = 'closed', closed_at = ? WHERE state <> 'closed'"},
			{&out.Credentials, `UPDATE credentials SET state = 'check', modified_at = ? WHERE state <> 'revoked' AND version = (SELECT max(version) FROM credentials o
WHERE o.connection = credentials.connection AND o.subject = credentials.subject)`},
		} {
			args := []any{t.now}
			if one.n == &out.Grants {
				args = nil
			}
			n, err := t.exec(one.sql, args...)
			if err != nil {
				return err
			}
			*one.n = int(n)
		}
		return nil
	})
	return out, err
}

func (t *tx) quarantineCalls(why string, out *revocation.Impact) error {
	for _, c := range t.unfinished() {
		to, err := journal.Next(c.State, journal.OnQuarantine, journal.Situation{Write: c.Effect == control.Write})
		if err != nil {
			return err
		}
		out.Calls++
		from := c.State
		closed, err := t.exec("UPDATE questions SET state = 'closed', closed_at = ? WHERE call = ? AND state IN ('open', 'approved')", t.now, c.ID)
		if err != nil {
			return err
		}
		out.Questions += int(closed)
		c.State, c.SettledAt, c.Code = to, t.now, errs.Voided
		if to == journal.Uncertain {
			c.Code = errs.OutcomeUncertain
			if err := t.ask(revocation.QuestionOfQuarantine(&c.Call)); err != nil {
				return err
			}
		}
		t.step(c, &control.Step{From: from, Event: journal.OnQuarantine, To: to, Attempt: c.Attempt, Actor: "control:" + t.s.opts.Node, Reason: why})
		if err := t.updateCall(c); err != nil {
			return err
		}
	}
	return nil
}

// AcceptRestore leaves quarantine under a new incarnation. What others remember of the histories before it counts no more.
func (s *Store) AcceptRestore(ctx context.Context, by control.Person, note string) (revocation.History, error) {
	var out revocation.History
	err := s.do(ctx, durable, func(t *tx) error {
		old := t.head.incarnation
		if _, err := t.exec("UPDATE incarnations SET accepted = 1"); err != nil {
			return err
		}
		if _, err := t.exec(`INSERT INTO incarnations (id, org, counter, at, accepted, note) VALUES (?, ?, ?, ?, 1, ?)
ON CONFLICT (id) DO UPDATE SET accepted = 1`, old, control.Org, t.head.counter, t.now, note); err != nil {
			return err
		}
		if _, err := t.exec("UPDATE given SET suspended = '' WHERE suspended = '" + restored + "'"); err != nil {
			return err
		}
		t.head.incarnation, t.head.quarantine = control.NewID(), ""
		t.record(audit.KindStore, t.head.incarnation, "quarantine", "accept_restore", "", string(by), "after incarnation "+old+": "+note)
		t.bump()
		// The counter of this commit is given after this function: durable commits count one each.
		out = revocation.History{Incarnation: t.head.incarnation, Counter: t.head.counter + 1}
		return nil
	})
	return out, err
}

package sqlstore

import (
	"context"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/revocation"
	"sallyport.dev/errs"
)

var _ revocation.Store = (*Store)(nil)

// Throw inserts a switch: barriers that commit after it see it (I9).
func (s *Store) Throw(ctx context.Context, w *control.Switch) error {
	return s.do(ctx, durable, func(t *tx) error {
		there, err := t.row("SELECT 1 FROM switches WHERE id = ?", []any{w.ID}, new(int))
		if err != nil {
			return err
		}
		if there {
			return errs.New(errs.Conflict, "there is a switch of this id already")
		}
		if _, err := t.exec(`INSERT INTO switches (`+switchColumns+`, restored_at, restored_by) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, '')`,
			w.ID, control.Org, string(w.Kind), w.Name, string(w.By), w.Reason, t.now, w.Until); err != nil {
			return err
		}
		t.record(audit.KindSwitch, w.ID, "", "throw", "in force", string(w.By), string(w.Kind)+" "+w.Name+": "+w.Reason)
		t.bump()
		return nil
	})
}

// Restore ends the switches of (kind, name) that are in force.
func (s *Store) Restore(ctx context.Context, kind control.SwitchKind, name string, by control.Person) (int, error) {
	var n int64
	err := s.do(ctx, durable, func(t *tx) error {
		var err error
		n, err = t.exec("UPDATE switches SET restored_at = ?, restored_by = ? WHERE kind = ? AND name = ? AND restored_at = 0 AND (until = 0 OR until > ?)",
			t.now, string(by), string(kind), name, t.now)
		if err != nil {
			return err
		}
		t.record(audit.KindSwitch, string(kind)+" "+name, "in force", "restore", "over", string(by), "")
		t.bump()
		return nil
	})
	return int(n), err
}

// Switches returns those in force; with ended also those that are over, whose Until is when they ended.
func (s *Store) Switches(ctx context.Context, ended bool) ([]control.Switch, error) {
	var out []control.Switch
	now := s.Now()
	err := s.read(ctx, func(c *conn) error {
		return c.rows(`SELECT id, org, kind, name, by, reason, at, CASE WHEN restored_at > 0 THEN restored_at ELSE until END FROM switches
WHERE ? OR restored_at = 0 AND (until = 0 OR until > ?) ORDER BY seq`, []any{ended, now}, func(r row) error {
			w, err := scanSwitch(r)
			out = append(out, *w)
			return err
		})
	})
	return out, err
}

// Impact counts what a switch would hit now.
func (s *Store) Impact(ctx context.Context, kind control.SwitchKind, name string) (revocation.Impact, error) {
	var out revocation.Impact
	unfinished := s.index.unfinished()
	hits := func(target revocation.Target) bool { return revocation.Matches(kind, name, target) }
	err := s.read(ctx, func(c *conn) error {
		out = revocation.Impact{}
		if err := c.rows(`SELECT `+sessionColumns+` FROM sessions s WHERE s.state <> 'closed'`, nil, func(r row) error {
			in, err := scanSession(r)
			if err == nil && hits(revocation.Target{Session: in.ID, Host: in.Host, Owner: in.Owner}) {
				out.Sessions++
			}
			return err
		}); err != nil {
			return err
		}
		for _, one := range unfinished {
			if !hits(revocation.TargetOf(&one.Call)) {
				continue
			}
			out.Calls++
			if one.State == journal.Dispatching || one.State == journal.Working {
				out.InFlight++
			}
			asked, err := c.row("SELECT 1 FROM questions WHERE call = ? AND state IN ('open', 'approved') LIMIT 1", []any{one.ID}, new(int))
			if err != nil {
				return err
			}
			if asked {
				out.Questions++
			}
		}
		if err := c.rows("SELECT "+givenColumns+" FROM given WHERE revoked = 0", nil, func(r row) error {
			g, err := scanGiven(r)
			if err == nil && hits(revocation.Target{Grant: g.ID, Session: g.Session, Owner: g.Owner}) {
				out.Grants++
			}
			return err
		}); err != nil {
			return err
		}
		return c.rows("SELECT DISTINCT connection, subject FROM credentials", nil, func(r row) error {
			var target revocation.Target
			err := r.scan(&target.Connection, &target.Subject)
			if err == nil && hits(target) {
				out.Credentials++
			}
			return err
		})
	})
	return out, err
}

// OpenIntents returns the attempts that are out and would be hit, oldest first.
func (s *Store) OpenIntents(_ context.Context, kind control.SwitchKind, name string) ([]revocation.OpenIntent, error) {
	var out []revocation.OpenIntent
	for _, c := range s.index.unfinished() {
		isOut := c.State == journal.Dispatching || c.State == journal.Working
		if isOut && revocation.Matches(kind, name, revocation.TargetOf(&c.Call)) {
			out = append(out, revocation.OpenIntent{Call: c.ID, Intent: c.Intent, Run: c.Run})
		}
	}
	return out, nil
}

package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/control/session"
	"sallyport.dev/errs"
)

var _ session.Store = (*Store)(nil)

// frozen is a session's binding as it is stored: sessions of one profile version share it.
type frozen struct {
	Profile control.Profile
	Tools   []control.BoundTool
}

func fenced() error {
	return errs.New(errs.Fenced, "this is not the session's current epoch or state; open or resume it again")
}

func noSuchSession() error { return errs.New(errs.NotFound, "there is no such session") }

// PutTicket stores a ticket.
func (s *Store) PutTicket(ctx context.Context, k session.Ticket) error {
	return s.do(ctx, durable|grows, func(t *tx) error {
		_, err := t.exec("INSERT INTO tickets (digest, org, owner, profile, attended, local, until, used_at) VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
			k.Digest, control.Org, string(k.Owner), k.Profile, k.Attended, k.Local, k.Until)
		return err
	})
}

// OpenSession takes the ticket, once, and inserts the session.
func (s *Store) OpenSession(ctx context.Context, ticket control.Digest, in *control.Session, generation int64) error {
	data, err := json.Marshal(frozen{in.Profile, in.Tools})
	if err != nil {
		return errs.Wrap(errs.Internal, "the session's binding cannot be stored", err)
	}
	digest := control.SumParts("binding row v1", data)
	return s.do(ctx, durable|grows, func(t *tx) error { return t.openSession(ticket, in, generation, digest, data) })
}

func (t *tx) openSession(ticket control.Digest, in *control.Session, generation int64, digest control.Digest, data []byte) error {
	var k session.Ticket
	var used int64
	found, err := t.row("SELECT owner, profile, attended, until, used_at FROM tickets WHERE digest = ?", []any{ticket}, &k.Owner, &k.Profile, &k.Attended, &k.Until, &used)
	if err != nil {
		return err
	}
	if !found || used != 0 || !t.now.Before(k.Until) || k.Owner != in.Owner || k.Profile != in.Profile.Name || k.Attended != in.Attended {
		return errs.New(errs.NotAllowed, "the owner ticket is unknown, used, or over; ask for a new one")
	}
	if generation != t.head.generation || t.head.quarantine != "" {
		return errs.New(errs.Conflict, "the configuration changed while the session was opened; open it again")
	}
	if there, err := t.row("SELECT 1 FROM sessions WHERE id = ?", []any{in.ID}, new(int)); err != nil || there {
		if err == nil {
			err = errs.New(errs.Conflict, "there is a session of this id already")
		}
		return err
	}
	if _, err := t.exec("UPDATE tickets SET used_at = ? WHERE digest = ?", t.now, ticket); err != nil {
		return err
	}
	if _, err := t.exec("INSERT INTO bindings (digest, org, data) VALUES (?, ?, ?) ON CONFLICT (digest) DO NOTHING", digest, control.Org, data); err != nil {
		return err
	}
	_, err = t.exec(`INSERT INTO sessions (id, org, epoch, state, owner, profile, binding, attended, harness, host, driver, closed, same_uid, parent,
policy_digest, created_at, seen_at, closed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)`, in.ID, control.Org, in.Epoch, string(in.State),
		string(in.Owner), in.Profile.Name, digest, in.Attended, in.Harness, in.Host, in.Driver, in.Closed, in.SameUID, in.Parent, in.PolicyDigest, t.now, t.now)
	if err != nil {
		return err
	}
	t.record(audit.KindSession, in.ID, "", "open", string(in.State), in.Host,
		fmt.Sprintf("owner %s profile %s version %d policy %s", in.Owner, in.Profile.Name, in.Profile.Version, in.PolicyDigest))
	return nil
}

const sessionColumns = `s.id, s.org, s.epoch, s.state, s.owner, s.profile, s.attended, s.harness, s.host, s.driver, s.closed, s.same_uid, s.parent,
s.policy_digest, s.created_at, s.seen_at`

func scanSession(r row, more ...any) (*control.Session, error) {
	in := &control.Session{}
	return in, r.scan(append([]any{
		&in.ID, &in.Org, &in.Epoch, &in.State, &in.Owner, &in.Profile.Name, &in.Attended, &in.Harness, &in.Host, &in.Driver, &in.Closed, &in.SameUID,
		&in.Parent, &in.PolicyDigest, &in.CreatedAt, &in.SeenAt,
	}, more...)...)
}

// change is a compare-and-set on a session: f looks at it and says what it becomes. epoch 0 takes whatever stands.
func (s *Store) change(ctx context.Context, c class, id string, epoch int64, event, actor, why string, f func(*tx, *control.Session) error) error {
	return s.do(ctx, c, func(t *tx) error {
		var in *control.Session
		if err := t.rows(`SELECT `+sessionColumns+` FROM sessions s WHERE s.id = ?`, []any{id}, func(r row) error {
			var err error
			in, err = scanSession(r)
			return err
		}); err != nil {
			return err
		}
		if in == nil {
			return noSuchSession()
		}
		if epoch > 0 && in.Epoch != epoch {
			return fenced()
		}
		before := *in
		if err := f(t, in); err != nil {
			return err
		}
		var closed any = 0
		if in.State == control.SessionClosed {
			closed = t.now
		}
		if _, err := t.exec(`UPDATE sessions SET epoch = ?, state = ?, host = ?, driver = ?, closed = ?, same_uid = ?, parent = ?, seen_at = ?,
closed_at = CASE WHEN closed_at = 0 THEN ? ELSE closed_at END WHERE id = ?`, in.Epoch, string(in.State), in.Host, in.Driver, in.Closed, in.SameUID, in.Parent, in.SeenAt, closed, id); err != nil {
			return err
		}
		if before.State != in.State || before.Epoch != in.Epoch {
			t.record(audit.KindSession, id, string(before.State), event, string(in.State), actor, fmt.Sprintf("epoch %d %s", in.Epoch, why))
		}
		return nil
	})
}

// ConfirmGate opens the gate.
func (s *Store) ConfirmGate(ctx context.Context, c session.Confirmation) error {
	return s.change(ctx, durable, c.Session, c.Epoch, "confirm", c.Host, "parent "+c.Parent, func(t *tx, in *control.Session) error {
		again := in.State == control.SessionOpen && in.Parent == c.Parent
		if in.State != control.SessionOpening && !again || in.Host != c.Host || in.PolicyDigest != c.PolicyDigest || c.Parent == "" || c.Epoch <= 0 {
			return fenced()
		}
		in.State, in.Parent, in.SeenAt = control.SessionOpen, c.Parent, t.now
		return nil
	})
}

// ResumeSession makes the next epoch.
func (s *Store) ResumeSession(ctx context.Context, id string, last int64, host string, f session.Facts) (int64, error) {
	var epoch int64
	err := s.change(ctx, durable, id, last, "resume", host, "driver "+f.Driver, func(t *tx, in *control.Session) error {
		if in.State == control.SessionClosed || last <= 0 {
			return fenced()
		}
		in.Epoch++
		in.State, in.Parent, in.Host, in.SeenAt = control.SessionOpening, "", host, t.now
		in.Driver, in.Closed, in.SameUID = f.Driver, f.Closed, f.SameUID
		epoch = in.Epoch
		return nil
	})
	return epoch, err
}

// ParkSession marks a session parked.
func (s *Store) ParkSession(ctx context.Context, id string, epoch int64) error {
	return s.change(ctx, 0, id, epoch, "park", "control:"+s.opts.Node, "", func(_ *tx, in *control.Session) error {
		if in.State != control.SessionOpen || epoch <= 0 {
			return fenced()
		}
		in.State = control.SessionParked
		return nil
	})
}

// CloseSession ends a session for good.
func (s *Store) CloseSession(ctx context.Context, id string, epoch int64, by, reason string) error {
	return s.change(ctx, durable, id, epoch, "close", by, reason, func(t *tx, in *control.Session) error {
		in.State = control.SessionClosed
		_, err := t.exec("DELETE FROM upstreams WHERE session = ?", id)
		return err
	})
}

const sqlSessionSeen = "UPDATE sessions SET seen_at = ? WHERE id = ?"

// SessionSeen records that a host still serves a session, to within a minute.
func (s *Store) SessionSeen(id string) {
	if !s.seen.worth("session "+id, "", s.Now()) {
		return
	}
	s.queue.ride(func(t *tx) error {
		_, err := t.exec(sqlSessionSeen, t.now, id)
		return err
	})
}

// Session returns one session whole.
func (s *Store) Session(ctx context.Context, id string) (*control.Session, error) {
	var in *control.Session
	var data []byte
	err := s.read(ctx, func(c *conn) error {
		return c.rows(`SELECT `+sessionColumns+`, b.data FROM sessions s JOIN bindings b ON b.digest = s.binding WHERE s.id = ?`, []any{id}, func(r row) error {
			var err error
			in, err = scanSession(r, &data)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	if in == nil {
		return nil, noSuchSession()
	}
	var b frozen
	if err := json.Unmarshal(data, &b); err != nil {
		return nil, errs.Wrap(errs.Internal, "the session's binding cannot be read", err)
	}
	in.Profile, in.Tools = b.Profile, b.Tools
	return in, nil
}

const (
	sqlSessionsBy   = ` AND (? = '' OR s.owner = ?) AND (? = '' OR s.host = ?) AND (? = 0 OR s.seen_at < ?) ORDER BY s.created_at DESC, s.seq DESC LIMIT ?`
	sqlLiveSessions = `SELECT ` + sessionColumns + ` FROM sessions s WHERE s.state <> 'closed'` + sqlSessionsBy
	sqlSessionsIn   = `SELECT ` + sessionColumns + ` FROM sessions s WHERE instr(?, ' ' || s.state || ' ') > 0` + sqlSessionsBy
)

// Sessions returns sessions without their bindings (of the profile, the name), newest first.
func (s *Store) Sessions(ctx context.Context, f session.Filter) ([]*control.Session, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = -1
	}
	args := []any{string(f.Owner), string(f.Owner), f.Host, f.Host, f.IdleBy, f.IdleBy, limit}
	sql := sqlLiveSessions
	if len(f.States) > 0 {
		sql, args = sqlSessionsIn, append([]any{stateList(f.States)}, args...)
	}
	var out []*control.Session
	err := s.read(ctx, func(c *conn) error {
		return c.rows(sql, args, func(r row) error {
			in, err := scanSession(r)
			out = append(out, in)
			return err
		})
	})
	return out, err
}

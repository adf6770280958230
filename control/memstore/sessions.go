package memstore

import (
	"context"
	"slices"

	"sallyport.dev/control"
	"sallyport.dev/control/session"
	"sallyport.dev/errs"
)

var _ session.Store = (*DB)(nil)

func fenced() error {
	return errs.New(errs.Fenced, "this is not the session's current epoch or state; open or resume it again")
}

// PutTicket stores a ticket.
func (d *DB) PutTicket(_ context.Context, t session.Ticket) error {
	return d.transact("PutTicket", true, func() error {
		d.tickets.put(t.Digest.String(), &t)
		return nil
	})
}

// OpenSession takes the ticket and inserts the session.
func (d *DB) OpenSession(_ context.Context, ticket control.Digest, s *control.Session, generation int64) error {
	return d.transact("OpenSession", true, func() error {
		t := d.tickets.get(ticket.String())
		if t == nil || !now().Before(t.Until) || t.Owner != s.Owner || t.Profile != s.Profile.Name || t.Attended != s.Attended {
			return errs.New(errs.NotAllowed, "the owner ticket is unknown, used, or over; ask for a new one")
		}
		if generation != d.generation || d.history.Quarantine != "" {
			return errs.New(errs.Conflict, "the configuration changed while the session was opened; open it again")
		}
		if d.sessions.get(s.ID) != nil {
			return errs.New(errs.Conflict, "there is a session of this id already")
		}
		next := *s
		next.CreatedAt, next.SeenAt = now(), now()
		d.tickets.put(ticket.String(), nil)
		d.sessions.put(s.ID, &next)
		return nil
	})
}

func (d *DB) change(op, id string, epoch int64, durable bool, f func(*control.Session) error) error {
	return d.transact(op, durable, func() error {
		s := d.sessions.get(id)
		if s == nil {
			return errs.New(errs.NotFound, "there is no such session")
		}
		if epoch > 0 && s.Epoch != epoch {
			return fenced()
		}
		next := *s
		if err := f(&next); err != nil {
			return err
		}
		d.sessions.put(id, &next)
		return nil
	})
}

// ConfirmGate opens the gate.
func (d *DB) ConfirmGate(_ context.Context, c session.Confirmation) error {
	return d.change("ConfirmGate", c.Session, c.Epoch, true, func(s *control.Session) error {
		again := s.State == control.SessionOpen && s.Parent == c.Parent
		if s.State != control.SessionOpening && !again || s.Host != c.Host || s.PolicyDigest != c.PolicyDigest || c.Parent == "" {
			return fenced()
		}
		s.State, s.Parent, s.SeenAt = control.SessionOpen, c.Parent, now()
		return nil
	})
}

// ResumeSession makes the next epoch.
func (d *DB) ResumeSession(_ context.Context, id string, last int64, host string, f session.Facts) (int64, error) {
	var epoch int64
	err := d.change("ResumeSession", id, last, true, func(s *control.Session) error {
		if s.State == control.SessionClosed || last <= 0 {
			return fenced()
		}
		s.Epoch++
		s.State, s.Parent, s.Host, s.SeenAt = control.SessionOpening, "", host, now()
		s.Driver, s.Closed, s.SameUID = f.Driver, f.Closed, f.SameUID
		epoch = s.Epoch
		return nil
	})
	return epoch, err
}

// ParkSession marks a session parked.
func (d *DB) ParkSession(_ context.Context, id string, epoch int64) error {
	return d.change("ParkSession", id, epoch, false, func(s *control.Session) error {
		if s.State != control.SessionOpen || epoch <= 0 {
			return fenced()
		}
		s.State = control.SessionParked
		return nil
	})
}

// CloseSession ends a session.
func (d *DB) CloseSession(_ context.Context, id string, epoch int64, _, _ string) error {
	return d.change("CloseSession", id, epoch, true, func(s *control.Session) error {
		s.State = control.SessionClosed
		return nil
	})
}

// SessionSeen records that a session is served.
func (d *DB) SessionSeen(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.sessions.get(id); s != nil {
		next := *s
		next.SeenAt = now()
		d.sessions.put(id, &next)
	}
}

// Session returns one session.
func (d *DB) Session(_ context.Context, id string) (*control.Session, error) {
	var out control.Session
	err := d.transact("Session", false, func() error {
		s := d.sessions.get(id)
		if s == nil {
			return errs.New(errs.NotFound, "there is no such session")
		}
		out = *s
		return nil
	})
	return &out, err
}

// Sessions returns sessions, newest first.
func (d *DB) Sessions(_ context.Context, f session.Filter) ([]*control.Session, error) {
	var out []*control.Session
	err := d.transact("Sessions", false, func() error {
		for _, s := range d.sessions.rows {
			wanted := len(f.States) == 0 && s.State != control.SessionClosed || slices.Contains(f.States, s.State)
			if !wanted || f.Owner != "" && f.Owner != s.Owner || f.Host != "" && f.Host != s.Host || !f.IdleBy.IsZero() && !s.SeenAt.Before(f.IdleBy) {
				continue
			}
			next := *s
			next.Tools = nil
			out = append(out, &next)
		}
		slices.SortFunc(out, func(a, b *control.Session) int { return b.CreatedAt.Compare(a.CreatedAt) })
		if f.Limit > 0 && len(out) > f.Limit {
			out = out[:f.Limit]
		}
		return nil
	})
	return out, err
}

// Change rewrites a session: for tests to prepare.
func (d *DB) Change(id string, f func(*control.Session)) error {
	return d.change("Change", id, 0, true, func(s *control.Session) error {
		f(s)
		return nil
	})
}

package memstore

import (
	"context"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/revocation"
	"sallyport.dev/errs"
)

var _ revocation.Store = (*DB)(nil)

// Throw inserts a switch.
func (d *DB) Throw(_ context.Context, s *control.Switch) error {
	return d.transact("Throw", true, func() error {
		if d.switches.get(s.ID) != nil {
			return errs.New(errs.Conflict, "there is a switch of this id already")
		}
		next := *s
		next.At = now()
		d.switches.put(s.ID, &next)
		d.bump()
		return nil
	})
}

// Restore ends switches.
func (d *DB) Restore(_ context.Context, kind control.SwitchKind, name string, _ control.Person) (int, error) {
	n := 0
	err := d.transact("Restore", true, func() error {
		at := now()
		for id, s := range d.switches.rows {
			if s.Kind == kind && s.Name == name && revocation.InForce(s, at) {
				next := *s
				next.Until = at
				d.switches.put(id, &next)
				n++
			}
		}
		d.bump()
		return nil
	})
	return n, err
}

// Switches returns switches.
func (d *DB) Switches(_ context.Context, ended bool) ([]control.Switch, error) {
	var out []control.Switch
	err := d.transact("Switches", false, func() error {
		at := now()
		for _, id := range d.switches.ids() {
			if s := d.switches.get(id); ended || revocation.InForce(s, at) {
				out = append(out, *s)
			}
		}
		return nil
	})
	return out, err
}

// Impact counts what a switch would hit.
func (d *DB) Impact(_ context.Context, kind control.SwitchKind, name string) (revocation.Impact, error) {
	var out revocation.Impact
	err := d.transact("Impact", false, func() error {
		for _, s := range d.sessions.rows {
			if s.State != control.SessionClosed && revocation.Matches(kind, name, revocation.Target{Session: s.ID, Host: s.Host, Owner: s.Owner}) {
				out.Sessions++
			}
		}
		for _, c := range d.calls.rows {
			if !c.State.Unfinished() || !revocation.Matches(kind, name, revocation.TargetOf(c)) {
				continue
			}
			out.Calls++
			if c.State == journal.Dispatching || c.State == journal.Working {
				out.InFlight++
			}
			if d.questionOf(c.ID) != nil {
				out.Questions++
			}
		}
		for _, g := range d.given.rows {
			if !g.Revoked && revocation.Matches(kind, name, revocation.Target{Grant: g.ID, Session: g.Session, Owner: g.Owner}) {
				out.Grants++
			}
		}
		for _, c := range d.credentials.rows {
			if revocation.Matches(kind, name, revocation.Target{Connection: c.Connection, Subject: c.Subject}) {
				out.Credentials++
			}
		}
		return nil
	})
	return out, err
}

// OpenIntents returns the attempts that are out.
func (d *DB) OpenIntents(_ context.Context, kind control.SwitchKind, name string) ([]revocation.OpenIntent, error) {
	var out []revocation.OpenIntent
	err := d.transact("OpenIntents", false, func() error {
		for _, c := range d.ordered() {
			if (c.State == journal.Dispatching || c.State == journal.Working) && revocation.Matches(kind, name, revocation.TargetOf(c)) {
				out = append(out, revocation.OpenIntent{Call: c.ID, Intent: c.Intent, Run: c.Run})
			}
		}
		return nil
	})
	return out, err
}

// History returns which history this is.
func (d *DB) History(context.Context) (revocation.History, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.history, nil
}

// Quarantine marks the store as older than what others remember.
func (d *DB) Quarantine(_ context.Context, why string) (revocation.Impact, error) {
	var out revocation.Impact
	err := d.transact("Quarantine", true, func() error {
		at := now()
		d.history.Quarantine = why
		for _, c := range d.ordered() {
			if !c.State.Unfinished() {
				continue
			}
			to, err := journal.Next(c.State, journal.OnQuarantine, journal.Situation{Write: c.Effect == control.Write})
			if err != nil {
				return err
			}
			out.Calls++
			next := clone(c)
			next.State, next.SettledAt, next.Code = to, at, errs.Voided
			if d.questionOf(c.ID) != nil {
				out.Questions++
			}
			d.leave(c.ID, journal.Asking, journal.OnQuarantine, at)
			if to == journal.Uncertain {
				next.Code = errs.OutcomeUncertain
				d.ask(revocation.QuestionOfQuarantine(c), at)
			}
			d.calls.put(c.ID, next)
			d.step(c.ID, at, control.Step{From: c.State, Event: journal.OnQuarantine, To: to, Attempt: c.Attempt, Actor: "store", Reason: why})
		}
		for id, g := range d.given.rows {
			if !g.Revoked {
				next := *g
				next.Suspended = "the store was restored"
				d.given.put(id, &next)
				out.Grants++
			}
		}
		for id, s := range d.sessions.rows {
			if s.State != control.SessionClosed {
				next := *s
				next.State = control.SessionClosed
				d.sessions.put(id, &next)
				out.Sessions++
			}
		}
		for id, c := range d.credentials.rows {
			if c.State != control.CredentialRevoked {
				next := *c
				next.State = control.CredentialCheck
				d.credentials.put(id, &next)
				out.Credentials++
			}
		}
		d.bump()
		return nil
	})
	return out, err
}

// Remember compares what somebody else remembers.
func (d *DB) Remember(ctx context.Context, who string, seen revocation.History) (bool, error) {
	h, err := d.History(ctx)
	if err != nil {
		return false, err
	}
	news := false
	if err := d.transact("Remember", true, func() error {
		known := d.past.get(seen.Incarnation)
		same := seen.Incarnation == h.Incarnation
		news = seen.Incarnation != "" && (same && seen.Counter > h.Counter || !same && known == nil)
		if news {
			accepted := false
			d.past.put(seen.Incarnation, &accepted)
		}
		return nil
	}); err != nil {
		return false, err
	}
	if news && h.Quarantine == "" {
		_, err = d.Quarantine(ctx, who+" remembers more than this store")
		return true, err
	}
	return news || h.Quarantine != "", err
}

// AcceptRestore leaves quarantine.
func (d *DB) AcceptRestore(_ context.Context, _ control.Person, _ string) (revocation.History, error) {
	var out revocation.History
	err := d.transact("AcceptRestore", true, func() error {
		accepted := true
		for id := range d.past.rows {
			d.past.put(id, &accepted)
		}
		d.past.put(d.history.Incarnation, &accepted)
		d.history = revocation.History{Incarnation: control.NewID(), Counter: d.history.Counter}
		for id, g := range d.given.rows {
			if g.Suspended != "" {
				next := *g
				next.Suspended = ""
				d.given.put(id, &next)
			}
		}
		d.bump()
		out = d.history
		return nil
	})
	return out, err
}

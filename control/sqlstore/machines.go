package sqlstore

import (
	"context"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/control/machine"
	"sallyport.dev/errs"
)

var _ machine.Store = (*Store)(nil)

// PutToken stores an enrolment token.
func (s *Store) PutToken(ctx context.Context, k machine.Token) error {
	return s.do(ctx, durable|grows, func(t *tx) error {
		if _, err := t.exec("INSERT INTO tokens (digest, org, id, role, name, pool, by, until, used_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
			k.Digest, control.Org, k.ID, k.Role, k.Name, k.Pool, string(k.By), k.Until); err != nil {
			return err
		}
		t.record(audit.KindMachine, k.ID, "", "token", "expected", string(k.By), "")
		return nil
	})
}

// TakeToken uses a token, once, and inserts its machine. A machine that was removed is back: an administrator made the token.
func (s *Store) TakeToken(ctx context.Context, digest control.Digest) (machine.Token, error) {
	var out machine.Token
	err := s.do(ctx, durable|grows, func(t *tx) error {
		k := machine.Token{Digest: digest}
		var used int64
		found, err := t.row("SELECT org, id, role, name, pool, by, until, used_at FROM tokens WHERE digest = ?", []any{digest},
			&k.Org, &k.ID, &k.Role, &k.Name, &k.Pool, &k.By, &k.Until, &used)
		if err != nil {
			return err
		}
		if !found || used != 0 || !t.now.Before(k.Until) {
			return errs.New(errs.NotAllowed, "the enrolment token is unknown, used, or over; ask for a new one")
		}
		if _, err := t.exec("UPDATE tokens SET used_at = ? WHERE digest = ?", t.now, digest); err != nil {
			return err
		}
		if _, err := t.exec(`INSERT INTO machines (id, org, role, name, pool, removed, since, seen, run, build, confinement, pool_key)
VALUES (?, ?, ?, ?, ?, 0, ?, 0, '', '', '', NULL) ON CONFLICT (id) DO UPDATE SET role = excluded.role, name = excluded.name, pool = excluded.pool, removed = 0,
since = excluded.since`, k.ID, control.Org, k.Role, k.Name, k.Pool, t.now); err != nil {
			return err
		}
		t.record(audit.KindMachine, k.ID, "expected", "join", "joined", string(k.By), "pool "+k.Pool)
		out = k
		return nil
	})
	return out, err
}

const machineColumns = `id, org, role, name, pool, removed, since, seen, run, build, confinement, pool_key`

func scanMachine(r row) (machine.Machine, error) {
	var m machine.Machine
	return m, r.scan(&m.ID, &m.Org, &m.Role, &m.Name, &m.Pool, &m.Removed, &m.Since, &m.Seen, &m.Run, &m.Build, &m.Confinement, &m.PoolKey)
}

// Enrol inserts a machine that needs no token.
func (s *Store) Enrol(ctx context.Context, m machine.Machine) error {
	return s.do(ctx, durable, func(t *tx) error {
		var removed bool
		found, err := t.row("SELECT removed FROM machines WHERE id = ?", []any{m.ID}, &removed)
		switch {
		case err != nil:
			return err
		case removed:
			return errs.Newf(errs.NotAllowed, "%s was removed; enrol it again with a token", m.Name)
		case found:
			return nil
		}
		if _, err := t.exec(`INSERT INTO machines (`+machineColumns+`) VALUES (?, ?, ?, ?, ?, 0, ?, 0, ?, ?, ?, ?)`, m.ID, control.Org, m.Role, m.Name, m.Pool, t.now,
			m.Run, m.Build, m.Confinement, m.PoolKey); err != nil {
			return err
		}
		t.record(audit.KindMachine, m.ID, "", "enrol", "joined", "control:"+s.opts.Node, "pool "+m.Pool)
		return nil
	})
}

// Machine returns one machine.
func (s *Store) Machine(ctx context.Context, id string) (machine.Machine, error) {
	got, err := s.machines(ctx, "SELECT "+machineColumns+" FROM machines WHERE id = ?", id)
	if err == nil && len(got) == 0 {
		err = noSuchMachine(id)
	}
	if err != nil {
		return machine.Machine{}, err
	}
	return got[0], nil
}

func noSuchMachine(id string) error {
	return errs.Newf(errs.NotFound, "%s is not enrolled here", id)
}

// Machines returns the machines of a role ("" for all), removed ones too.
func (s *Store) Machines(ctx context.Context, role string) ([]machine.Machine, error) {
	return s.machines(ctx, "SELECT "+machineColumns+" FROM machines WHERE ? = '' OR role = ? ORDER BY role, name", role, role)
}

func (s *Store) machines(ctx context.Context, sql string, args ...any) ([]machine.Machine, error) {
	var out []machine.Machine
	err := s.read(ctx, func(c *conn) error {
		return c.rows(sql, args, func(r row) error {
			m, err := scanMachine(r)
			out = append(out, m)
			return err
		})
	})
	return out, err
}

// Remove ends an identity for good.
func (s *Store) Remove(ctx context.Context, id string, by control.Person) error {
	return s.do(ctx, durable, func(t *tx) error {
		n, err := t.exec("UPDATE machines SET removed = 1 WHERE id = ?", id)
		if err != nil {
			return err
		}
		if n == 0 {
			return noSuchMachine(id)
		}
		t.record(audit.KindMachine, id, "joined", "remove", "removed", string(by), "")
		return nil
	})
}

// Seen records that a machine is up, to within a minute, and at once what changed about it.
func (s *Store) Seen(id string, g machine.Sight) {
	if !s.seen.worth("machine "+id, g.Run+" "+g.Build+" "+g.Confinement+" "+string(g.PoolKey), s.Now()) {
		return
	}
	s.queue.ride(func(t *tx) error {
		_, err := t.exec(`UPDATE machines SET seen = ?, run = ?, build = ?, confinement = ?, pool_key = coalesce(?, pool_key) WHERE id = ?`,
			t.now, g.Run, g.Build, g.Confinement, g.PoolKey, id)
		return err
	})
}

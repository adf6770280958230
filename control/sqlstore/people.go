package sqlstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/control/person"
	"sallyport.dev/errs"
)

var _ person.Store = (*Store)(nil)

func listText(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

// PutPerson adds or replaces a person.
func (s *Store) PutPerson(ctx context.Context, p person.Person) error {
	var lists [4]string
	for i, v := range []any{p.Roles, p.Limits.Profiles, p.Limits.Connections, p.Limits.Owners} {
		var err error
		if lists[i], err = listText(v); err != nil {
			return err
		}
	}
	return s.do(ctx, durable|grows, func(t *tx) error {
		if _, err := t.exec(`INSERT INTO people (name, org, roles, profiles, connections, owners, by, since) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET roles = excluded.roles, profiles = excluded.profiles, connections = excluded.connections, owners = excluded.owners,
by = excluded.by`, string(p.Name), control.Org, lists[0], lists[1], lists[2], lists[3], string(p.By), t.now); err != nil {
			return err
		}
		t.record(audit.KindPerson, string(p.Name), "", "put", "known", string(p.By), fmt.Sprintf("roles %s, profiles %s, connections %s, owners %s", lists[0], lists[1], lists[2], lists[3]))
		return nil
	})
}

// RemovePerson forgets a person and their passes.
func (s *Store) RemovePerson(ctx context.Context, name, by control.Person) error {
	return s.do(ctx, durable, func(t *tx) error {
		n, err := t.exec("DELETE FROM people WHERE name = ?", string(name))
		if err != nil {
			return err
		}
		if n == 0 {
			return noSuchPerson(name)
		}
		ended, err := t.exec("DELETE FROM passes WHERE person = ?", string(name))
		if err != nil {
			return err
		}
		t.record(audit.KindPerson, string(name), "known", "remove", "removed", string(by), fmt.Sprintf("%d passes ended", ended))
		return nil
	})
}

func noSuchPerson(name control.Person) error {
	return errs.Newf(errs.NotFound, "no person is named %s here", name)
}

const personColumns = "name, org, roles, profiles, connections, owners, by, since"

func (s *Store) people(ctx context.Context, sql string, args ...any) ([]person.Person, error) {
	var out []person.Person
	err := s.read(ctx, func(c *conn) error {
		return c.rows(sql, args, func(r row) error {
			var p person.Person
			var lists [4]string
			if err := r.scan(&p.Name, &p.Org, &lists[0], &lists[1], &lists[2], &lists[3], &p.By, &p.Since); err != nil {
				return err
			}
			for i, to := range []any{&p.Roles, &p.Limits.Profiles, &p.Limits.Connections, &p.Limits.Owners} {
				if err := json.UnmarshalRead(strings.NewReader(lists[i]), to); err != nil {
					return fmt.Errorf("a person's row: %w", err)
				}
			}
			out = append(out, p)
			return nil
		})
	})
	return out, err
}

// Person returns one person.
func (s *Store) Person(ctx context.Context, name control.Person) (person.Person, error) {
	got, err := s.people(ctx, "SELECT "+personColumns+" FROM people WHERE name = ?", string(name))
	if err == nil && len(got) == 0 {
		err = noSuchPerson(name)
	}
	if err != nil {
		return person.Person{}, err
	}
	return got[0], nil
}

// People returns all.
func (s *Store) People(ctx context.Context) ([]person.Person, error) {
	return s.people(ctx, "SELECT "+personColumns+" FROM people ORDER BY name")
}

const passColumns = "digest, id, org, kind, person, name, read_only, local, by, since, until"

func scanPass(r row) (p person.Pass, err error) {
	return p, r.scan(&p.Digest, &p.ID, &p.Org, &p.Kind, &p.Person, &p.Name, &p.ReadOnly, &p.Local, &p.By, &p.Since, &p.Until)
}

func (t *tx) insertPass(p person.Pass) error {
	if _, err := t.exec("DELETE FROM passes WHERE until <= ?", t.now); err != nil {
		return err
	}
	if _, err := t.exec("INSERT INTO passes ("+passColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", p.Digest, p.ID, control.Org, string(p.Kind), string(p.Person),
		p.Name, p.ReadOnly, p.Local, string(p.By), t.now, p.Until); err != nil {
		return err
	}
	t.record(audit.KindPerson, string(p.Person), "", string(p.Kind), "made", string(p.By), strings.TrimSpace(p.ID+" "+p.Name))
	return nil
}

// PutPass stores a pass.
func (s *Store) PutPass(ctx context.Context, p person.Pass) error {
	return s.do(ctx, durable|grows, func(t *tx) error { return t.insertPass(p) })
}

// TakeLink uses a link.
func (s *Store) TakeLink(ctx context.Context, link control.Digest, session person.Pass) (out person.Pass, err error) {
	err = s.do(ctx, durable|grows, func(t *tx) error {
		out = session
		var until int64
		found, err := t.row("SELECT person, local, by, until FROM passes WHERE digest = ? AND kind = 'link'", []any{link}, &out.Person, &out.Local, &out.By, &until)
		if err != nil {
			return err
		}
		if !found || t.now.UnixMilli() >= until {
			return errs.New(errs.NotAllowed, "this link is used, or older than 5 minutes; ask for a new one: sallyport console")
		}
		if _, err := t.exec("DELETE FROM passes WHERE digest = ?", link); err != nil {
			return err
		}
		out.Since = t.now
		return t.insertPass(out)
	})
	return out, err
}

func (s *Store) passes(ctx context.Context, sql string, args ...any) ([]person.Pass, error) {
	var out []person.Pass
	err := s.read(ctx, func(c *conn) error {
		return c.rows(sql, args, func(r row) error {
			p, err := scanPass(r)
			out = append(out, p)
			return err
		})
	})
	return out, err
}

// Pass returns a session or token that is not over.
func (s *Store) Pass(ctx context.Context, digest control.Digest) (person.Pass, error) {
	got, err := s.passes(ctx, "SELECT "+passColumns+" FROM passes WHERE digest = ? AND kind <> 'link' AND until > ?", digest, s.Now())
	if err == nil && len(got) == 0 {
		err = noSuchPass()
	}
	if err != nil {
		return person.Pass{}, err
	}
	return got[0], nil
}

func noSuchPass() error {
	return errs.New(errs.NotFound, "there is no such session or token, or it is over")
}

// Passes returns those that are not over.
func (s *Store) Passes(ctx context.Context, of control.Person) ([]person.Pass, error) {
	return s.passes(ctx, "SELECT "+passColumns+" FROM passes WHERE (? = '' OR person = ?) AND kind <> 'link' AND until > ? ORDER BY since DESC, id",
		string(of), string(of), s.Now())
}

// EndPass ends one.
func (s *Store) EndPass(ctx context.Context, id string, by control.Person) error {
	return s.do(ctx, durable, func(t *tx) error {
		var of, kind string
		found, err := t.row("SELECT person, kind FROM passes WHERE id = ?", []any{id}, &of, &kind)
		if err != nil {
			return err
		}
		if !found {
			return noSuchPass()
		}
		if _, err := t.exec("DELETE FROM passes WHERE id = ?", id); err != nil {
			return err
		}
		t.record(audit.KindPerson, of, "made", "end "+kind, "ended", string(by), id)
		return nil
	})
}

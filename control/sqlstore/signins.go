package sqlstore

import (
	"context"
	"slices"
	"strings"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/errs"
)

// WantScopes notes what a server asked for beyond what the newest version has.
func (s *Store) WantScopes(ctx context.Context, connection, subject string, version int64, scopes []string) error {
	return s.do(ctx, durable|grows, func(t *tx) error {
		var wanted string
		found, err := t.row("SELECT wanted FROM credentials n WHERE connection = ? AND subject = ? AND version = ? AND NOT EXISTS (SELECT 1 FROM credentials o "+
			"WHERE o.connection = n.connection AND o.subject = n.subject AND o.version > n.version)", []any{connection, subject, version}, &wanted)
		if err != nil || !found {
			return err
		}
		all := append(strings.Fields(wanted), scopes...)
		slices.Sort(all)
		next := strings.Join(slices.Compact(all), " ")
		if next == wanted {
			return nil
		}
		if _, err := t.exec("UPDATE credentials SET wanted = ? WHERE connection = ? AND subject = ? AND version = ?", next, connection, subject, version); err != nil {
			return err
		}
		t.record(audit.KindCredential, connection+"/"+subject, "", "want", "", "control:"+s.opts.Node, "the server asks for scopes: "+next)
		t.bump()
		return nil
	})
}

// BeginSignIn keeps a sign-in in the place of an earlier one. Those that are over are forgotten.
func (s *Store) BeginSignIn(ctx context.Context, in *control.SignIn) error {
	return s.do(ctx, durable|grows, func(t *tx) error {
		if _, err := t.exec("DELETE FROM sign_ins WHERE expires_at <= ? OR (connection = ? AND subject = ?)", t.now, in.Connection, in.Subject); err != nil {
			return err
		}
		if _, err := t.exec(`INSERT INTO sign_ins (connection, subject, org, state, revision, person, account, sealed, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`, in.Connection, in.Subject, control.Org, in.State, in.Revision, string(in.Person), in.Account, []byte(in.Sealed), in.ExpiresAt); err != nil {
			return err
		}
		t.record(audit.KindCredential, in.Connection+"/"+in.Subject, "", "sign_in", "begun", string(in.Person), "")
		return nil
	})
}

// TakeSignIn returns a sign-in, once.
func (s *Store) TakeSignIn(ctx context.Context, state control.Digest) (*control.SignIn, error) {
	out := &control.SignIn{State: state}
	err := s.do(ctx, durable, func(t *tx) error {
		var sealed []byte
		found, err := t.row("SELECT connection, subject, revision, person, account, sealed, expires_at FROM sign_ins WHERE state = ?", []any{state},
			&out.Connection, &out.Subject, &out.Revision, &out.Person, &out.Account, &sealed, &out.ExpiresAt)
		if err != nil {
			return err
		}
		out.Sealed = sealed
		if !found || !t.now.Before(out.ExpiresAt) {
			return errs.New(errs.NotFound, "this sign-in is over: it was ended already, another one took its place, or it took over 10 minutes; begin again")
		}
		_, err = t.exec("DELETE FROM sign_ins WHERE state = ?", state)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

const renewalColumns = "connection, subject, version, intent, run, until"

func scanRenewal(r row) (c control.Renewal, err error) {
	return c, r.scan(&c.Connection, &c.Subject, &c.Version, &c.Intent, &c.Run, &c.Until)
}

// BeginRenewal takes the lease of a renewal.
func (s *Store) BeginRenewal(ctx context.Context, r *control.Renewal) (other *control.Renewal, err error) {
	err = s.do(ctx, durable|grows, func(t *tx) error {
		last, _, err := t.newest(r.Connection, r.Subject)
		if err != nil {
			return err
		}
		if last != r.Version {
			return errs.New(errs.Conflict, "the credential was renewed or replaced meanwhile")
		}
		if err := t.rows("SELECT "+renewalColumns+" FROM renewals WHERE connection = ? AND subject = ? AND version = ? AND until > ?",
			[]any{r.Connection, r.Subject, r.Version, t.now}, func(row row) error {
				held, err := scanRenewal(row)
				other = &held
				return err
			}); err != nil || other != nil {
			return err
		}
		_, err = t.exec("INSERT INTO renewals ("+renewalColumns+", org) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (connection, subject) DO UPDATE SET "+
			"version = excluded.version, intent = excluded.intent, run = excluded.run, until = excluded.until",
			r.Connection, r.Subject, r.Version, r.Intent, r.Run, r.Until, control.Org)
		return err
	})
	return other, err
}

// EndRenewal gives a lease up.
func (s *Store) EndRenewal(ctx context.Context, intent string) error {
	return s.do(ctx, durable, func(t *tx) error {
		_, err := t.exec("DELETE FROM renewals WHERE intent = ?", intent)
		return err
	})
}

// Renewals are those under way.
func (s *Store) Renewals(ctx context.Context) ([]control.Renewal, error) {
	var out []control.Renewal
	err := s.read(ctx, func(c *conn) error {
		return c.rows("SELECT "+renewalColumns+" FROM renewals ORDER BY connection, subject", nil, func(r row) error {
			one, err := scanRenewal(r)
			out = append(out, one)
			return err
		})
	})
	return out, err
}

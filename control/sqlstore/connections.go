package sqlstore

import (
	"context"
	"fmt"
	"strings"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/control/connection"
	"sallyport.dev/errs"
)

var _ connection.Store = (*Store)(nil)

func noSuchConnection(name string) error {
	return errs.Newf(errs.NotFound, "there is no connection %q; see sallyport connections list", name)
}

// setConnection changes state and protocol of a current connection and makes the next generation.
func (s *Store) setConnection(ctx context.Context, name, event string, by control.Person, f func(*control.Connection) error) error {
	return s.do(ctx, durable, func(t *tx) error {
		c, err := t.connection(name)
		if err != nil {
			return err
		}
		if c == nil {
			return noSuchConnection(name)
		}
		from := c.State
		if err := f(c); err != nil {
			return err
		}
		if err := t.putConnection(c); err != nil {
			return err
		}
		t.record(audit.KindConnection, name, string(from), event, string(c.State), string(by), fmt.Sprintf("revision %d protocol %s", c.Revision, c.Protocol))
		t.bump()
		return nil
	})
}

// Tested puts a connection in service after a real test of this revision.
func (s *Store) Tested(ctx context.Context, name string, revision int64, protocol string, by control.Person) error {
	return s.setConnection(ctx, name, "test", by, func(c *control.Connection) error {
		if c.Revision != revision {
			return errs.Newf(errs.Conflict, "connection %q changed while it was tested; test it again", name)
		}
		c.State, c.Protocol = control.ConnectionEnabled, protocol
		return nil
	})
}

// SetState takes a connection out of service, or back to untested.
func (s *Store) SetState(ctx context.Context, name string, state control.ConnectionState, by control.Person) error {
	return s.setConnection(ctx, name, "set_state", by, func(c *control.Connection) error {
		c.State = state
		return nil
	})
}

const credentialColumns = `org, connection, subject, version, state, account, expires_at, modified_at, fingerprint, kind, name, issuer, scopes, wanted, renewable,
issued_at, account_at`

func scanCredential(r row, more ...any) (*control.Credential, error) {
	c := &control.Credential{}
	var scopes, wanted string
	err := r.scan(append([]any{
		&c.Org, &c.Connection, &c.Subject, &c.Version, &c.State, &c.Account, &c.ExpiresAt, &c.ModifiedAt, &c.KeyFingerprint, &c.Kind, &c.Name, &c.Issuer,
		&scopes, &wanted, &c.Renewable, &c.IssuedAt, &c.AccountAt,
	}, more...)...)
	c.Scopes, c.Wanted = strings.Fields(scopes), strings.Fields(wanted)
	return c, err
}

// Credential returns the newest version, sealed bytes included.
func (s *Store) Credential(ctx context.Context, connection, subject string) (*control.Credential, error) {
	var out *control.Credential
	err := s.read(ctx, func(c *conn) error {
		return c.rows(`SELECT `+credentialColumns+`, sealed, associated FROM credentials WHERE connection = ? AND subject = ? ORDER BY version DESC LIMIT 1`,
			[]any{connection, subject}, func(r row) error {
				var sealed, associated []byte
				var err error
				out, err = scanCredential(r, &sealed, &associated)
				out.Sealed, out.AssociatedData = sealed, associated
				return err
			})
	})
	if err != nil {
		return nil, err
	}
	if out == nil {
		return nil, errs.Newf(errs.NotFound, "no credential is stored for connection %q; connect it first", connection)
	}
	return out, nil
}

// Credentials returns the newest version of each, without the sealed bytes.
func (s *Store) Credentials(ctx context.Context) ([]control.Credential, error) {
	var out []control.Credential
	err := s.read(ctx, func(c *conn) error {
		return c.rows(`SELECT `+credentialColumns+` FROM credentials n WHERE version = (SELECT max(version) FROM credentials o
WHERE o.connection = n.connection AND o.subject = n.subject) ORDER BY connection, subject`, nil, func(r row) error {
			one, err := scanCredential(r)
			out = append(out, *one)
			return err
		})
	})
	return out, err
}

// newest returns the number and state of the newest version of a credential, 0 for none.
func (t *tx) newest(connection, subject string) (version int64, state control.CredentialState, err error) {
	_, err = t.row(sqlCredentialFact, []any{connection, subject}, &version, &state)
	return version, state, err
}

// PutCredential inserts the next version. The bytes of the versions before it are forgotten: a worker never opens them again.
func (s *Store) PutCredential(ctx context.Context, c *control.Credential, by control.Person) error {
	return s.do(ctx, durable|grows, func(t *tx) error {
		last, state, err := t.newest(c.Connection, c.Subject)
		if err != nil {
			return err
		}
		if c.Version != last+1 {
			return errs.Newf(errs.Conflict, "the credential of %q is at version %d, so the next is %d; seal it again for that version", c.Connection, last, last+1)
		}
		next := *c
		next.IssuedAt = t.now
		if last > 0 {
			var account string
			if _, err := t.row("SELECT account, account_at FROM credentials WHERE connection = ? AND subject = ? AND version = ?",
				[]any{c.Connection, c.Subject, last}, &account, &next.AccountAt); err != nil {
				return err
			}
			if account != c.Account {
				next.AccountAt = next.IssuedAt
			}
		}
		if _, err := t.exec("UPDATE credentials SET sealed = NULL WHERE connection = ? AND subject = ?", c.Connection, c.Subject); err != nil {
			return err
		}
		if err := t.insertCredential(&next); err != nil {
			return err
		}
		if _, err := t.exec("DELETE FROM renewals WHERE connection = ? AND subject = ?", c.Connection, c.Subject); err != nil {
			return err
		}
		t.record(audit.KindCredential, c.Connection+"/"+c.Subject, string(state), "put", string(c.State), string(by), fmt.Sprintf("version %d key %s", c.Version, c.KeyFingerprint))
		t.bump()
		return nil
	})
}

func (t *tx) insertCredential(c *control.Credential) error {
	_, err := t.exec(`INSERT INTO credentials (`+credentialColumns+`, sealed, associated) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, control.Org,
		c.Connection, c.Subject, c.Version, string(c.State), c.Account, c.ExpiresAt, t.now, c.KeyFingerprint, string(c.Kind), c.Name, c.Issuer,
		strings.Join(c.Scopes, " "), strings.Join(c.Wanted, " "), c.Renewable, c.IssuedAt, c.AccountAt, []byte(c.Sealed), c.AssociatedData)
	return err
}

// MarkCredential changes the state of the newest version.
func (s *Store) MarkCredential(ctx context.Context, connection, subject string, version int64, state control.CredentialState) error {
	return s.do(ctx, durable, func(t *tx) error {
		last, from, err := t.newest(connection, subject)
		if err != nil {
			return err
		}
		if last == 0 || last != version {
			return errs.New(errs.Conflict, "the credential changed meanwhile; look at it again")
		}
		if _, err := t.exec("UPDATE credentials SET state = ?, modified_at = ? WHERE connection = ? AND subject = ? AND version = ?", string(state), t.now, connection, subject, version); err != nil {
			return err
		}
		t.record(audit.KindCredential, connection+"/"+subject, string(from), "mark", string(state), "control:"+s.opts.Node, fmt.Sprintf("version %d", version))
		t.bump()
		return nil
	})
}

// RemoveCredential forgets every version's sealed bytes and marks the newest one revoked.
func (s *Store) RemoveCredential(ctx context.Context, connection, subject string, by control.Person) error {
	return s.do(ctx, durable, func(t *tx) error {
		last, from, err := t.newest(connection, subject)
		if err != nil {
			return err
		}
		if last == 0 {
			return errs.Newf(errs.NotFound, "no credential is stored for connection %q", connection)
		}
		if _, err := t.exec("UPDATE credentials SET sealed = NULL WHERE connection = ? AND subject = ?", connection, subject); err != nil {
			return err
		}
		if _, err := t.exec("UPDATE credentials SET state = 'revoked', modified_at = ? WHERE connection = ? AND subject = ? AND version = ?", t.now, connection, subject, last); err != nil {
			return err
		}
		t.record(audit.KindCredential, connection+"/"+subject, string(from), "remove", string(control.CredentialRevoked), string(by), fmt.Sprintf("version %d", last))
		t.bump()
		return nil
	})
}

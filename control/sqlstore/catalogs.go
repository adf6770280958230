package sqlstore

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/errs"
)

// MarkDrift records which tools of a server no longer are as reviewed, and whether each is out of service until it was looked at (nil: all are as
// reviewed). What changes makes the next generation.
func (s *Store) MarkDrift(ctx context.Context, connection string, tools map[string]bool) error {
	return s.do(ctx, durable|grows, func(t *tx) error {
		if err := t.mustHave(connection); err != nil {
			return err
		}
		was := map[string]bool{}
		if err := t.rows("SELECT tool, stops FROM drift WHERE connection = ?", []any{connection}, func(r row) error {
			var tool string
			var stops bool
			err := r.scan(&tool, &stops)
			was[tool] = stops
			return err
		}); err != nil {
			return err
		}
		if maps.Equal(was, tools) {
			return nil
		}
		if _, err := t.exec("DELETE FROM drift WHERE connection = ?", connection); err != nil {
			return err
		}
		names := slices.Sorted(maps.Keys(tools))
		for _, tool := range names {
			if _, err := t.exec("INSERT INTO drift (connection, tool, org, at, stops) VALUES (?, ?, ?, ?, ?)", connection, tool, control.Org, t.now, tools[tool]); err != nil {
				return err
			}
		}
		t.record(audit.KindCatalog, connection, "", "drift", fmt.Sprintf("%d tools drifted", len(names)), "control:"+s.opts.Node, fmt.Sprint(names))
		t.bump()
		return nil
	})
}

func (t *tx) mustHave(connection string) error {
	c, err := t.connection(connection)
	if err == nil && c == nil {
		err = noSuchConnection(connection)
	}
	return err
}

// PutDraft keeps a list of a server that was not reviewed. One that is known stays as it was decided; any other draft of the connection is over.
func (s *Store) PutDraft(ctx context.Context, connection string, digest control.Digest, listed []byte) error {
	return s.do(ctx, durable|grows, func(t *tx) error {
		if err := t.mustHave(connection); err != nil {
			return err
		}
		if err := t.supersedeDrafts(connection, digest); err != nil {
			return err
		}
		n, err := t.exec(`INSERT INTO catalog_lists (connection, digest, org, state, listed, seen_at, decided_by, decided_at) VALUES (?, ?, ?, 'draft', ?, ?, '', 0)
ON CONFLICT (connection, digest) DO UPDATE SET state = 'draft', seen_at = excluded.seen_at WHERE state = 'superseded'`, connection, digest, control.Org, listed, t.now)
		if err == nil && n > 0 {
			t.record(audit.KindCatalog, connection, "", "draft", "draft", "control:"+s.opts.Node, "digest "+digest.String())
		}
		return err
	})
}

// NoDraft ends the drafts of a connection: its server lists what was reviewed again.
func (s *Store) NoDraft(ctx context.Context, connection string) error {
	return s.do(ctx, durable, func(t *tx) error { return t.supersedeDrafts(connection, control.Digest{}) })
}

func (t *tx) supersedeDrafts(connection string, but control.Digest) error {
	_, err := t.exec("UPDATE catalog_lists SET state = 'superseded' WHERE connection = ? AND state = 'draft' AND digest <> ?", connection, but[:])
	return err
}

// Lists returns the lists of a connection in a state, newest first; "" for all connections.
func (s *Store) Lists(ctx context.Context, connection string, states ...control.CatalogState) ([]control.ListedCatalog, error) {
	var out []control.ListedCatalog
	err := s.read(ctx, func(c *conn) error {
		return c.rows(`SELECT connection, digest, state, listed, seen_at, decided_by, decided_at FROM catalog_lists WHERE ? IN ('', connection)
ORDER BY seen_at DESC, connection`, []any{connection}, func(r row) error {
			var one control.ListedCatalog
			if err := r.scan(&one.Connection, &one.Digest, &one.State, &one.Listed, &one.SeenAt, &one.DecidedBy, &one.DecidedAt); err != nil {
				return err
			}
			if slices.Contains(states, one.State) {
				out = append(out, one)
			}
			return nil
		})
	})
	return out, err
}

// RejectDraft rejects the draft that a reviewer saw. Errors: [errs.Conflict] when it is none any more.
func (s *Store) RejectDraft(ctx context.Context, connection string, digest control.Digest, by control.Person) error {
	return s.do(ctx, durable, func(t *tx) error {
		n, err := t.exec("UPDATE catalog_lists SET state = 'rejected', decided_by = ?, decided_at = ? WHERE connection = ? AND digest = ? AND state = 'draft'",
			string(by), t.now, connection, digest)
		if err == nil && n == 0 {
			err = errs.New(errs.Conflict, "this is no draft any more; look at it again")
		}
		if err == nil {
			t.record(audit.KindCatalog, connection, "draft", "reject", "rejected", string(by), "digest "+digest.String())
		}
		return err
	})
}

// approveList notes the whole list that an approved catalog was reviewed from.
func (t *tx) approveList(c *control.Catalog, by string) error {
	if _, err := t.exec("UPDATE catalog_lists SET state = 'superseded' WHERE connection = ? AND state IN ('approved', 'draft')", c.Connection); err != nil || len(c.Listed) == 0 {
		return err
	}
	_, err := t.exec(`INSERT INTO catalog_lists (connection, digest, org, state, listed, seen_at, decided_by, decided_at) VALUES (?, ?, ?, 'approved', ?, ?, ?, ?)
ON CONFLICT (connection, digest) DO UPDATE SET state = 'approved', decided_by = excluded.decided_by, decided_at = excluded.decided_at`,
		c.Connection, c.Digest, control.Org, c.Listed, t.now, by, t.now)
	return err
}

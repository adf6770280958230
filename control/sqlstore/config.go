package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/control/call"
	"sallyport.dev/control/grant"
	"sallyport.dev/errs"
)

var _ grant.Store = (*Store)(nil)

// Apply writes one change of the configuration: all of it or nothing.
func (s *Store) Apply(ctx context.Context, a *control.Apply) (int64, error) {
	var out int64
	err := s.do(ctx, durable|grows, func(t *tx) error {
		if a.Expect != t.head.generation {
			return conflict()
		}
		for _, write := range []func(*control.Apply) error{
			t.applyConnections, t.applyCatalogs, t.applyProfiles, t.applyStanding, t.applyRemovals, t.applyGroups,
		} {
			if err := write(a); err != nil {
				return err
			}
		}
		t.bump()
		out = t.head.generation
		return nil
	})
	return out, err
}

func (t *tx) applyConnections(a *control.Apply) error {
	for i := range a.Connections {
		c := a.Connections[i]
		before, err := t.connection(c.Name)
		if err != nil {
			return err
		}
		from := ""
		if before != nil {
			from = fmt.Sprintf("%s revision %d", before.State, before.Revision)
			c.Revision = max(c.Revision, before.Revision)
			if c.Catalog.IsZero() {
				c.Catalog = before.Catalog
			}
		} else { // a connection that comes again must not meet what was approved for its former self
			var last int64
			if _, err := t.row("SELECT coalesce(max(revision), 0) FROM connections WHERE name = ?", []any{c.Name}, &last); err != nil {
				return err
			}
			c.Revision = max(c.Revision, last+1)
		}
		if err := t.putConnection(&c); err != nil {
			return err
		}
		t.record(audit.KindConnection, c.Name, from, "apply", fmt.Sprintf("%s revision %d", c.State, c.Revision), string(a.By), c.Origin+c.Path)
	}
	return nil
}

func (t *tx) connection(name string) (*control.Connection, error) {
	var out *control.Connection
	err := t.rows("SELECT data, state, protocol, catalog, modified_at FROM connections WHERE name = ? AND current = 1", []any{name}, func(r row) error {
		var err error
		out, err = scanConnection(r)
		return err
	})
	return out, err
}

// putConnection makes c the current revision of its name.
func (t *tx) putConnection(c *control.Connection) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if _, err := t.exec("UPDATE connections SET current = 0 WHERE name = ? AND current = 1 AND revision <> ?", c.Name, c.Revision); err != nil {
		return err
	}
	_, err = t.exec(`INSERT INTO connections (name, revision, org, state, protocol, catalog, data, current, modified_at) VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?)
ON CONFLICT (name, revision) DO UPDATE SET state = excluded.state, protocol = excluded.protocol, catalog = excluded.catalog, data = excluded.data,
current = 1, modified_at = excluded.modified_at`, c.Name, c.Revision, control.Org, string(c.State), c.Protocol, c.Catalog, string(data), t.now)
	return err
}

func (t *tx) applyCatalogs(a *control.Apply) error {
	for i := range a.Catalogs {
		c := &a.Catalogs[i]
		if err := t.supersede(c.Connection, string(a.By)); err != nil {
			return err
		}
		if _, err := t.exec(`INSERT INTO catalogs (connection, digest, org, state, reviewed_by, reviewed_at) VALUES (?, ?, ?, 'approved', ?, ?)
ON CONFLICT (connection, digest) DO UPDATE SET state = 'approved', reviewed_by = excluded.reviewed_by, reviewed_at = excluded.reviewed_at`,
			c.Connection, c.Digest, control.Org, string(a.By), t.now); err != nil {
			return err
		}
		if _, err := t.exec("DELETE FROM catalog_tools WHERE connection = ? AND digest = ?", c.Connection, c.Digest); err != nil {
			return err
		}
		for _, tool := range c.Tools {
			if _, err := t.exec(`INSERT INTO catalog_tools (connection, digest, name, org, alias, effect, repeat, refuse_extra, client, raw)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, c.Connection, c.Digest, tool.Name, control.Org, tool.As, string(tool.Effect), tool.Repeat, tool.RefuseExtra, tool.Client, tool.Raw); err != nil {
				return err
			}
		}
		// A reviewed catalog is what the server is held to: what drifted from the former one is looked at anew.
		if _, err := t.exec("DELETE FROM drift WHERE connection = ?", c.Connection); err != nil {
			return err
		}
		if _, err := t.exec("UPDATE connections SET catalog = ? WHERE name = ? AND current = 1", c.Digest, c.Connection); err != nil {
			return err
		}
		if err := t.approveList(c, string(a.By)); err != nil {
			return err
		}
		t.record(audit.KindCatalog, c.Connection, "", "approve", "approved", string(a.By), fmt.Sprintf("digest %s, %d tools", c.Digest, len(c.Tools)))
	}
	return nil
}

// supersede ends the approved catalog of a connection.
func (t *tx) supersede(connection, by string) error {
	n, err := t.exec("UPDATE catalogs SET state = 'superseded' WHERE connection = ? AND state = 'approved'", connection)
	if err == nil && n > 0 {
		t.record(audit.KindCatalog, connection, "approved", "supersede", "superseded", by, "")
	}
	return err
}

func (t *tx) applyProfiles(a *control.Apply) error {
	for i := range a.Profiles {
		p := a.Profiles[i]
		var last int64
		if _, err := t.row("SELECT coalesce(max(version), 0) FROM profiles WHERE name = ?", []any{p.Name}, &last); err != nil {
			return err
		}
		p.Version = last + 1
		data, err := json.Marshal(p)
		if err != nil {
			return err
		}
		if _, err := t.exec("UPDATE profiles SET current = 0 WHERE name = ? AND current = 1", p.Name); err != nil {
			return err
		}
		if _, err := t.exec("INSERT INTO profiles (name, version, org, data, current, by, at) VALUES (?, ?, ?, ?, 1, ?, ?)", p.Name, p.Version, control.Org, string(data), string(a.By), t.now); err != nil {
			return err
		}
		t.record(audit.KindProfile, p.Name, version(last), "apply", version(p.Version), string(a.By), "digest "+control.Sum(data).String())
	}
	return nil
}

func version(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("version %d", n)
}

func (t *tx) applyStanding(a *control.Apply) error {
	for i := range a.Standing {
		g := a.Standing[i]
		if _, err := t.exec("DELETE FROM given WHERE id = ?", g.ID); err != nil {
			return err
		}
		if err := t.insertGiven(&g); err != nil {
			return err
		}
		t.record(audit.KindGrant, g.ID, "", "apply", "active", string(a.By), describe(&g))
	}
	return nil
}

func (t *tx) applyRemovals(a *control.Apply) error {
	by := string(a.By)
	for _, name := range a.RemoveConnections {
		if _, err := t.exec("UPDATE connections SET current = 0 WHERE name = ? AND current = 1", name); err != nil {
			return err
		}
		if err := t.supersede(name, by); err != nil {
			return err
		}
		for _, table := range []string{"drift", "catalog_lists"} {
			if _, err := t.exec("DELETE FROM "+table+" WHERE connection = ?", name); err != nil {
				return err
			}
		}
		if _, err := t.exec("UPDATE credentials SET state = 'revoked', sealed = NULL, modified_at = ? WHERE connection = ?", t.now, name); err != nil {
			return err
		}
		if _, err := t.exec("DELETE FROM sign_ins WHERE connection = ?", name); err != nil {
			return err
		}
		if _, err := t.exec("DELETE FROM renewals WHERE connection = ?", name); err != nil {
			return err
		}
		t.record(audit.KindConnection, name, "", "remove", "removed", by, "")
	}
	for _, name := range a.RemoveProfiles {
		if _, err := t.exec("UPDATE profiles SET current = 0 WHERE name = ? AND current = 1", name); err != nil {
			return err
		}
		t.record(audit.KindProfile, name, "", "remove", "removed", by, "")
	}
	for _, id := range a.RemoveStanding {
		if _, err := t.endGrant(id, by, "removed from the configuration"); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) applyGroups(a *control.Apply) error {
	if a.Groups == nil {
		return nil
	}
	if _, err := t.exec("DELETE FROM members"); err != nil {
		return err
	}
	for _, team := range slices.Sorted(maps.Keys(a.Groups)) {
		for _, person := range a.Groups[team] {
			if _, err := t.exec("INSERT INTO members (team, person, org) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", team, string(person), control.Org); err != nil {
				return err
			}
		}
		t.record(audit.KindProfile, "group:"+team, "", "apply", "active", string(a.By), fmt.Sprintf("%d persons", len(a.Groups[team])))
	}
	return nil
}

func (t *tx) insertGiven(g *control.GivenGrant) error {
	tools, err := json.Marshal(g.Tools)
	if err != nil {
		return err
	}
	_, err = t.exec(`INSERT INTO given (`+givenColumns+`, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, g.ID, control.Org, g.Kind, g.Profile,
		g.Session, string(g.Owner), string(tools), g.When, g.Limit.Calls, int64(g.Limit.Per), g.Until, string(g.By), g.Reason, g.Suspended, g.Revoked, g.FromYAML, t.now)
	return err
}

// describe is a given grant in the record: what it allows, in words and digests.
func describe(g *control.GivenGrant) string {
	return fmt.Sprintf("%s grant of %v to profile %s session %q until %s, %d calls, condition %s: %s", g.Kind, g.Tools, g.Profile, g.Session, g.Until.UTC().Format("2006-01-02T15:04:05Z"),
		g.Limit.Calls, control.Sum([]byte(g.When)), g.Reason)
}

// give inserts a grant that somebody gave.
func (t *tx) give(g *control.GivenGrant) error {
	there, err := t.row("SELECT 1 FROM given WHERE id = ?", []any{g.ID}, new(int))
	if err != nil {
		return err
	}
	if there {
		return errs.New(errs.Conflict, "there is a grant of this name already; end it first, or take another name")
	}
	if err := t.insertGiven(g); err != nil {
		return err
	}
	t.record(audit.KindGrant, g.ID, "", "give", "active", string(g.By), describe(g))
	t.bump()
	return nil
}

// GiveGrant inserts a standing or session grant.
func (s *Store) GiveGrant(ctx context.Context, g *control.GivenGrant) error {
	return s.do(ctx, durable|grows, func(t *tx) error { return t.give(g) })
}

func (t *tx) endGrant(id, by, reason string) (found bool, err error) {
	n, err := t.exec("UPDATE given SET revoked = 1 WHERE id = ?", id)
	if err != nil || n == 0 {
		return false, err
	}
	t.record(audit.KindGrant, id, "active", "end", "revoked", by, reason)
	return true, nil
}

// EndGrant revokes a given grant for good.
func (s *Store) EndGrant(ctx context.Context, id string, by control.Person, reason string) error {
	return s.do(ctx, durable, func(t *tx) error {
		found, err := t.endGrant(id, string(by), reason)
		if err != nil {
			return err
		}
		if !found {
			return errs.New(errs.NotFound, "there is no such grant")
		}
		t.bump()
		return nil
	})
}

const sqlGiven = "SELECT " + givenColumns + ` FROM given WHERE (? OR revoked = 0 AND until > ?) AND (? = '' OR kind = ?) AND (? = '' OR profile = ?)
AND (? = '' OR session = ?) ORDER BY id`

// GivenGrants returns given grants with what is used of them now, and why they do not count while a write is uncertain.
func (s *Store) GivenGrants(ctx context.Context, f grant.Filter) ([]control.GivenGrant, error) {
	var out []control.GivenGrant
	now := s.Now()
	err := s.read(ctx, func(c *conn) error {
		uncertain, err := c.manyCalls(selectCalls + "WHERE state = 'uncertain' AND effect = 'write' ORDER BY seq")
		if err != nil {
			return err
		}
		if err := c.rows(sqlGiven, []any{f.Ended, now, f.Kind, f.Kind, f.Profile, f.Profile, f.Session, f.Session}, func(r row) error {
			g, err := scanGiven(r)
			out = append(out, *g)
			return err
		}); err != nil {
			return err
		}
		for i := range out {
			u, err := c.usage(call.Take{Key: grant.CounterOfGiven(out[i].ID), Per: out[i].Limit.Per}, now.UnixMilli())
			if err != nil {
				return err
			}
			out[i].Used = u.Calls
			suspend(&out[i], uncertain)
		}
		return nil
	})
	return out, err
}

// suspend says why a grant does not count: a write of one of its tools is uncertain.
func suspend(g *control.GivenGrant, uncertain []*callRow) {
	for _, c := range uncertain {
		if g.Suspended == "" && grant.Names(g.Tools, c.Connection, c.Tool) && (g.Kind == "standing" && c.Profile == g.Profile || c.Session == g.Session) {
			g.Suspended = "call " + c.ID + " is uncertain"
		}
	}
}

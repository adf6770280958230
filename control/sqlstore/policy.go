package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// bump makes the next generation of the policy: barriers that evaluated this one are stale from this commit on.
func (t *tx) bump() { t.head.generation++ }

// Policy returns the current policy: have itself, or the one in memory, when it is still current.
func (s *Store) Policy(ctx context.Context, have *control.Policy) (*control.Policy, error) {
	if s.current(have) {
		return have, nil
	}
	s.building.Lock()
	defer s.building.Unlock()
	if p := s.policy.Load(); s.current(p) {
		return p, nil
	}
	p := &control.Policy{Org: control.Org}
	if err := s.read(ctx, func(c *conn) error { return c.readPolicy(p, s.Now()) }); err != nil {
		return nil, err
	}
	s.policy.Store(p)
	return p, nil
}

func (s *Store) current(p *control.Policy) bool {
	return p != nil && p.Generation == s.view.Load().generation
}

func (c *conn) readPolicy(p *control.Policy, now time.Time) error {
	if _, err := c.row("SELECT generation, quarantine FROM meta", nil, &p.Generation, &p.Quarantine); err != nil {
		return err
	}
	for _, read := range []func(*control.Policy, time.Time) error{
		c.readProfiles, c.readConnections, c.readCatalogs, c.readDrift, c.readGiven, c.readSwitches, c.readGroups,
	} {
		if err := read(p, now); err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) readProfiles(p *control.Policy, _ time.Time) error {
	p.Profiles = map[string]*control.Profile{}
	return c.rows("SELECT data FROM profiles WHERE current = 1", nil, func(r row) error {
		var data []byte
		one := &control.Profile{}
		if err := r.scan(&data); err != nil {
			return err
		}
		if err := json.Unmarshal(data, one); err != nil {
			return err
		}
		p.Profiles[one.Name] = one
		return nil
	})
}

func (c *conn) readConnections(p *control.Policy, _ time.Time) error {
	p.Connections = map[string]*control.Connection{}
	return c.rows("SELECT data, state, protocol, catalog, modified_at FROM connections WHERE current = 1", nil, func(r row) error {
		one, err := scanConnection(r)
		if err != nil {
			return err
		}
		p.Connections[one.Name] = one
		return nil
	})
}

func scanConnection(r row) (*control.Connection, error) {
	one := &control.Connection{}
	var data []byte
	var state control.ConnectionState
	var protocol string
	if err := r.scan(&data, &state, &protocol, &one.Catalog, &one.ModifiedAt); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, one); err != nil {
		return nil, fmt.Errorf("connection: %w", err)
	}
	one.State, one.Protocol = state, protocol
	return one, nil
}

func (c *conn) readCatalogs(p *control.Policy, _ time.Time) error {
	p.Catalogs = map[string]*control.Catalog{}
	if err := c.rows(`SELECT a.org, a.connection, a.digest, a.state, a.reviewed_by, a.reviewed_at FROM catalogs a JOIN connections n ON n.name = a.connection AND n.current = 1
WHERE a.state = 'approved'`, nil, func(r row) error {
		one := &control.Catalog{}
		if err := r.scan(&one.Org, &one.Connection, &one.Digest, &one.State, &one.ReviewedBy, &one.ReviewedAt); err != nil {
			return err
		}
		p.Catalogs[one.Connection] = one
		return nil
	}); err != nil {
		return err
	}
	for _, one := range p.Catalogs {
		var err error
		if one.Tools, err = c.catalogTools(one.Connection, one.Digest); err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) catalogTools(connection string, digest control.Digest) ([]control.Tool, error) {
	var out []control.Tool
	err := c.rows("SELECT name, alias, effect, repeat, refuse_extra, client, raw FROM catalog_tools WHERE connection = ? AND digest = ? ORDER BY name", []any{connection, digest}, func(r row) error {
		var one control.Tool
		err := r.scan(&one.Name, &one.As, &one.Effect, &one.Repeat, &one.RefuseExtra, &one.Client, &one.Raw)
		out = append(out, one)
		return err
	})
	return out, err
}

func (c *conn) readDrift(p *control.Policy, _ time.Time) error {
	p.Drift, p.Stopped = map[string]map[string]bool{}, map[string]map[string]bool{}
	return c.rows("SELECT connection, tool, stops FROM drift", nil, func(r row) error {
		var connection, tool string
		var stops bool
		if err := r.scan(&connection, &tool, &stops); err != nil {
			return err
		}
		if p.Drift[connection] == nil {
			p.Drift[connection], p.Stopped[connection] = map[string]bool{}, map[string]bool{}
		}
		p.Drift[connection][tool] = true
		if stops {
			p.Stopped[connection][tool] = true
		}
		return nil
	})
}

const givenColumns = `id, org, kind, profile, session, owner, tools, condition, calls, per, until, by, reason, suspended, revoked, from_yaml`

func scanGiven(r row) (*control.GivenGrant, error) {
	g := &control.GivenGrant{}
	var tools []byte
	var per int64
	if err := r.scan(&g.ID, &g.Org, &g.Kind, &g.Profile, &g.Session, &g.Owner, &tools, &g.When, &g.Limit.Calls, &per, &g.Until, &g.By, &g.Reason, &g.Suspended,
		&g.Revoked, &g.FromYAML); err != nil {
		return nil, err
	}
	g.Limit.Per = time.Duration(per)
	return g, json.Unmarshal(tools, &g.Tools)
}

func (c *conn) readGiven(p *control.Policy, now time.Time) error {
	return c.rows("SELECT "+givenColumns+" FROM given WHERE revoked = 0 AND until > ? ORDER BY id", []any{now}, func(r row) error {
		g, err := scanGiven(r)
		p.Given = append(p.Given, g)
		return err
	})
}

const switchColumns = `id, org, kind, name, by, reason, at, until`

func scanSwitch(r row) (*control.Switch, error) {
	w := &control.Switch{}
	return w, r.scan(&w.ID, &w.Org, &w.Kind, &w.Name, &w.By, &w.Reason, &w.At, &w.Until)
}

func (c *conn) readSwitches(p *control.Policy, now time.Time) error {
	return c.rows("SELECT "+switchColumns+" FROM switches WHERE restored_at = 0 AND (until = 0 OR until > ?) ORDER BY seq", []any{now}, func(r row) error {
		w, err := scanSwitch(r)
		p.Switches = append(p.Switches, w)
		return err
	})
}

func (c *conn) readGroups(p *control.Policy, _ time.Time) error {
	p.Groups = map[string][]control.Person{}
	return c.rows("SELECT team, person FROM members ORDER BY team, person", nil, func(r row) error {
		var team string
		var person control.Person
		err := r.scan(&team, &person)
		p.Groups[team] = append(p.Groups[team], person)
		return err
	})
}

func conflict() error {
	return errs.New(errs.Conflict, "the configuration changed since the plan was made; plan again")
}

package memstore

import (
	"context"
	"maps"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/grant"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

var _ grant.Store = (*DB)(nil)

// Apply writes one change of the configuration.
func (d *DB) Apply(_ context.Context, a *control.Apply) (int64, error) {
	var out int64
	err := d.transact("Apply", true, func() error {
		if a.Expect != d.generation {
			return errs.New(errs.Conflict, "the configuration changed since the plan was made; plan again")
		}
		for _, c := range a.Connections {
			c.ModifiedAt = now()
			d.connections.put(c.Name, &c)
		}
		for _, c := range a.Catalogs {
			c.State, c.ReviewedAt, c.ReviewedBy = control.CatalogApproved, now(), a.By
			for id, old := range d.catalogs.rows {
				if old.Connection == c.Connection && old.State == control.CatalogApproved {
					next := *old
					next.State = control.CatalogSuperseded
					d.catalogs.put(id, &next)
				}
			}
			d.catalogs.put(c.Connection+"/"+c.Digest.String(), &c)
		}
		for _, p := range a.Profiles {
			p.Version = 1
			if old := d.profiles.get(p.Name); old != nil {
				p.Version = old.Version + 1
			}
			d.profiles.put(p.Name, &p)
		}
		for _, g := range a.Standing {
			d.given.put(g.ID, &g)
		}
		for _, name := range a.RemoveConnections {
			d.connections.put(name, nil)
			for id, old := range d.catalogs.rows {
				if old.Connection == name && old.State == control.CatalogApproved {
					next := *old
					next.State = control.CatalogSuperseded
					d.catalogs.put(id, &next)
				}
			}
		}
		for _, name := range a.RemoveProfiles {
			d.profiles.put(name, nil)
		}
		for _, name := range a.RemoveStanding {
			if g := d.given.get(name); g != nil {
				next := *g
				next.Revoked = true
				d.given.put(name, &next)
			}
		}
		if a.Groups != nil {
			d.groups = maps.Clone(a.Groups)
		}
		d.bump()
		out = d.generation
		return nil
	})
	return out, err
}

// GiveGrant inserts a given grant.
func (d *DB) GiveGrant(_ context.Context, g *control.GivenGrant) error {
	return d.transact("GiveGrant", true, func() error {
		if d.given.get(g.ID) != nil {
			return errs.New(errs.Conflict, "there is a grant of this name already")
		}
		next := *g
		d.given.put(g.ID, &next)
		d.bump()
		return nil
	})
}

// EndGrant revokes a given grant.
func (d *DB) EndGrant(_ context.Context, id string, _ control.Person, _ string) error {
	return d.transact("EndGrant", true, func() error {
		g := d.given.get(id)
		if g == nil {
			return errs.New(errs.NotFound, "there is no such grant")
		}
		next := *g
		next.Revoked = true
		d.given.put(id, &next)
		d.bump()
		return nil
	})
}

// GivenGrants returns given grants.
func (d *DB) GivenGrants(_ context.Context, f grant.Filter) ([]control.GivenGrant, error) {
	var out []control.GivenGrant
	err := d.transact("GivenGrants", false, func() error {
		at := now()
		for _, id := range d.given.ids() {
			g := *d.given.get(id)
			over := g.Revoked || !at.Before(g.Until)
			if over && !f.Ended || f.Kind != "" && f.Kind != g.Kind || f.Profile != "" && f.Profile != g.Profile || f.Session != "" && f.Session != g.Session {
				continue
			}
			g.Used = d.usage(call.Take{Key: grant.CounterOfGiven(g.ID), Per: g.Limit.Per}, at).Calls
			for _, c := range d.calls.rows {
				if g.Suspended == "" && c.State == journal.Uncertain && c.Effect == control.Write && grant.Names(g.Tools, c.Connection, c.Tool) &&
					(g.Kind == "standing" && c.Profile == g.Profile || c.Session == g.Session) {
					g.Suspended = "call " + c.ID + " is uncertain"
				}
			}
			out = append(out, g)
		}
		return nil
	})
	return out, err
}

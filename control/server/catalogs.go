package server

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/catalog"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
)

// CheckCatalogs compares what servers list with what was reviewed, each connection every period, spread over it, until ctx ends. A server that does not
// answer changes nothing.
func (s *Server) CheckCatalogs(ctx context.Context, period time.Duration) {
	o := &operatorService{s: s}
	due := map[string]time.Time{}
	tick := time.NewTicker(min(period/4, time.Minute))
	defer tick.Stop()
	for {
		if policy, err := s.stores.Calls.Policy(ctx, nil); err == nil {
			for _, name := range sortedKeys(policy.Connections) {
				now := time.Now()
				if due[name].IsZero() {
					due[name] = now.Add(rand.N(period)) //nolint:gosec // spreading load is no secret
				}
				c := policy.Connections[name]
				if now.Before(due[name]) || !checkable(c, policy) {
					continue
				}
				due[name] = now.Add(period)
				if _, err := o.checkCatalog(ctx, policy, *c, ""); err != nil && ctx.Err() == nil {
					s.log.Warn("a server's tools were not compared with what was reviewed; they are looked at again later", "connection", name, "err", err)
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// checkable: it is in service, has a reviewed catalog, and lists tools for a credential that belongs to nobody alone.
func checkable(c *control.Connection, policy *control.Policy) bool {
	return c.State == control.ConnectionEnabled && c.Kind == control.KindMCP && policy.Catalogs[c.Name] != nil && (c.Auth.Per != "person" || c.Auth.Type == intent.AuthNone)
}

// checkCatalog asks a server for its tools. What differs from what was reviewed makes a draft and marks the tools; nil: nothing does. Errors: the list could
// not be had, or not whole, and then nothing changes.
func (o *operatorService) checkCatalog(ctx context.Context, policy *control.Policy, c control.Connection, by control.Person) (*sallyportv1.Draft, error) {
	reviewed := policy.Catalogs[c.Name]
	if reviewed == nil {
		return nil, errs.Newf(errs.NotFound, "%s has no reviewed catalog yet: sallyport catalogs pull %s", c.Name, c.Name)
	}
	entries, _, err := o.list(ctx, c, by)
	if err != nil {
		return nil, err
	}
	digest, store := catalog.Digest(entries), o.s.stores.Connections
	if digest == reviewed.Digest {
		if err := store.NoDraft(ctx, c.Name); err != nil {
			return nil, err
		}
		return nil, o.drifted(ctx, c.Name, nil)
	}
	if err := store.PutDraft(ctx, c.Name, digest, catalog.Marshal(entries)); err != nil {
		return nil, err
	}
	changes, err := o.changes(ctx, reviewed, entries)
	if err != nil {
		return nil, err
	}
	drift := map[string]bool{}
	for _, d := range changes {
		letIn := slices.ContainsFunc(reviewed.Tools, func(t control.Tool) bool { return t.Name == d.Tool })
		if k := d.Consequence(c.OnChange); letIn && k != catalog.Note {
			drift[d.Tool] = k == catalog.Stop
		}
	}
	if err := o.drifted(ctx, c.Name, drift); err != nil {
		return nil, err
	}
	drafts, err := store.Lists(ctx, c.Name, control.CatalogDraft, control.CatalogRejected)
	if err != nil {
		return nil, err
	}
	for _, d := range drafts {
		if d.Digest == digest {
			return draftRow(d, changes, c.OnChange), nil
		}
	}
	return nil, errs.New(errs.Conflict, "the catalog was reviewed meanwhile; look again")
}

// drifted marks tools, and wakes what rests on it.
func (o *operatorService) drifted(ctx context.Context, connection string, tools map[string]bool) error {
	if err := o.s.stores.Connections.MarkDrift(ctx, connection, tools); err != nil {
		return err
	}
	o.s.changed("config", "catalog checked")
	return nil
}

// list asks a server for its tools.
func (o *operatorService) list(ctx context.Context, c control.Connection, by control.Person) ([]catalog.Entry, *sallyportv1.Outcome, error) {
	outcome, err := o.s.jobs.run(ctx, intent.Catalog, c, by)
	if err != nil {
		return nil, nil, err
	}
	if len(outcome.GetOutput()) == 0 {
		return nil, nil, errs.Newf(errs.Unreachable, "%s did not list its tools (%s); sallyport connections test %s says where it stops", c.Name, outcome.GetFailure(), c.Name)
	}
	entries, err := catalog.Parse(outcome.GetOutput())
	return entries, outcome, err
}

// changes compares a list with the whole list that was reviewed; where that is not kept, with the tools that were let in.
func (o *operatorService) changes(ctx context.Context, reviewed *control.Catalog, now []catalog.Entry) ([]catalog.Change, error) {
	lists, err := o.s.stores.Connections.Lists(ctx, reviewed.Connection, control.CatalogApproved)
	if err != nil {
		return nil, err
	}
	for _, l := range lists {
		if l.Digest == reviewed.Digest {
			before, err := catalog.Parse(l.Listed)
			return catalog.Diff(before, now), err
		}
	}
	var before []catalog.Entry
	for _, t := range reviewed.Tools {
		before = append(before, catalog.Entry{Name: t.Name, Raw: t.Raw})
	}
	return catalog.Diff(before, now), nil
}

func draftRow(d control.ListedCatalog, changes []catalog.Change, policy map[string]string) *sallyportv1.Draft {
	out := &sallyportv1.Draft{Connection: d.Connection, Digest: d.Digest.String(), State: string(d.State), SeenMs: ms(d.SeenAt), Catalog: d.Listed}
	for _, c := range changes {
		row := &sallyportv1.DraftChange{Tool: c.Tool, Lines: c.Lines, Effect: string(c.Consequence(policy))}
		for _, class := range c.Classes {
			row.Classes = append(row.Classes, string(class))
		}
		out.Changes = append(out.Changes, row)
	}
	return out
}

// CheckCatalog implements sallyport.v1.Operator.
func (o *operatorService) CheckCatalog(ctx context.Context, r *sallyportv1.CheckCatalogRequest) (*sallyportv1.CheckCatalogResponse, error) {
	c, err := o.connectionOf(ctx, r.GetConnection(), nil)
	if err != nil {
		return nil, err
	}
	if c.Kind != control.KindMCP {
		return nil, errs.Newf(errs.Invalid, "%s is a callback: its tools are written by hand in its catalog file", c.Name)
	}
	policy, err := o.policy(ctx)
	if err != nil {
		return nil, err
	}
	draft, err := o.checkCatalog(ctx, policy, c, whoOf(ctx).Person)
	return &sallyportv1.CheckCatalogResponse{Draft: draft}, err
}

// ListDrafts implements sallyport.v1.Operator.
func (o *operatorService) ListDrafts(ctx context.Context, r *sallyportv1.ListDraftsRequest) (*sallyportv1.ListDraftsResponse, error) {
	policy, err := o.policy(ctx)
	if err != nil {
		return nil, err
	}
	drafts, err := o.s.stores.Connections.Lists(ctx, r.GetConnection(), control.CatalogDraft)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.ListDraftsResponse{}
	for _, d := range drafts {
		c, reviewed := policy.Connections[d.Connection], policy.Catalogs[d.Connection]
		if c == nil || reviewed == nil {
			continue
		}
		now, err := catalog.Parse(d.Listed)
		if err != nil {
			return nil, err
		}
		changes, err := o.changes(ctx, reviewed, now)
		if err != nil {
			return nil, err
		}
		out.Drafts = append(out.Drafts, draftRow(d, changes, c.OnChange))
	}
	return out, nil
}

// ReviewDraft implements sallyport.v1.Operator. What is approved keeps the reviewer's word on every tool that was let in; tools that are new are not let in
// by it.
func (o *operatorService) ReviewDraft(ctx context.Context, r *sallyportv1.ReviewDraftRequest) (*sallyportv1.ReviewDraftResponse, error) {
	by := whoOf(ctx).Person
	policy, err := o.policy(ctx)
	if err != nil {
		return nil, err
	}
	c, reviewed := policy.Connections[r.GetConnection()], policy.Catalogs[r.GetConnection()]
	if c == nil || reviewed == nil {
		return nil, errs.Newf(errs.NotFound, "no reviewed connection is named %s; sallyport connections list shows them", r.GetConnection())
	}
	drafts, err := o.s.stores.Connections.Lists(ctx, c.Name, control.CatalogDraft)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(drafts, func(d control.ListedCatalog) bool { return d.Digest.String() == r.GetDigest() })
	if i < 0 {
		return nil, errs.New(errs.Conflict, "this is no draft any more; look at it again: sallyport catalogs drafts")
	}
	draft := drafts[i]
	if !r.GetApprove() {
		if err := o.s.stores.Connections.RejectDraft(ctx, c.Name, draft.Digest, by); err != nil {
			return nil, err
		}
		o.s.changed("config", "draft rejected")
		return &sallyportv1.ReviewDraftResponse{}, nil
	}
	entries, err := catalog.Parse(draft.Listed)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.ReviewDraftResponse{Catalog: draft.Listed, Former: reviewed.Digest.String()}
	next := control.Catalog{Org: control.Org, Connection: c.Name, Digest: draft.Digest, State: control.CatalogApproved, ReviewedBy: by, Listed: draft.Listed}
	raw := map[string][]byte{}
	for _, e := range entries {
		raw[e.Name] = e.Raw
	}
	for _, t := range reviewed.Tools {
		if raw[t.Name] == nil {
			out.Removed = append(out.Removed, t.Name)
			continue
		}
		t.Raw = raw[t.Name]
		next.Tools = append(next.Tools, t)
	}
	changes, err := o.changes(ctx, reviewed, entries)
	if err != nil {
		return nil, err
	}
	for _, d := range changes {
		if slices.Contains(d.Classes, catalog.Added) {
			out.Added = append(out.Added, d.Tool)
		}
	}
	if _, err := o.s.stores.Grants.Apply(ctx, &control.Apply{
		Org: control.Org, By: by, At: o.s.stores.Grants.Now(), Expect: policy.Generation, Catalogs: []control.Catalog{next},
	}); err != nil {
		return nil, err
	}
	o.s.changed("config", "draft approved")
	return out, nil
}

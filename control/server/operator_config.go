package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/catalog"
	"sallyport.dev/control/config"
	"sallyport.dev/control/grant"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/intent/oauth"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func limitWords(l control.Limit) string {
	if l.Per == 0 {
		return fmt.Sprintf("%d calls", l.Calls)
	}
	return fmt.Sprintf("%d calls per %s", l.Calls, config.Length(l.Per))
}

// planned is one reading of a file against the current policy.
type planned struct {
	policy  *control.Policy
	desired config.Desired
	changes []config.Change
	apply   control.Apply
	digest  control.Digest
}

func (o *operatorService) plan(ctx context.Context, by control.Person, yaml []byte, files []*sallyportv1.ConfigFile, prune bool) (planned, []*sallyportv1.Problem, error) {
	policy, err := o.policy(ctx)
	if err != nil {
		return planned{}, nil, err
	}
	byName := map[string][]byte{}
	for _, f := range files {
		byName[f.GetName()] = f.GetData()
	}
	now := o.s.stores.Grants.Now()
	desired, problems := config.Read(yaml, byName, grant.CheckCondition, now)
	if len(problems) > 0 {
		out := make([]*sallyportv1.Problem, 0, len(problems))
		for _, p := range problems {
			out = append(out, &sallyportv1.Problem{Line: int32(p.Line), Column: int32(p.Column), Path: p.Path, Message: p.Message})
		}
		return planned{}, out, nil
	}
	changes, set := config.Plan(policy, desired, prune, by, now)
	digest := config.Digest(policy.Generation, changes, yaml, byName)
	// What a removal breaks is shown and is no part of the digest: it changes with every call.
	for i, c := range changes {
		if c.Action == config.Remove && c.Kind == "connection" {
			running, err := o.running(ctx, c.Name)
			if err != nil {
				return planned{}, nil, err
			}
			changes[i].Lines = append(slices.Clone(c.Lines), running...)
		}
	}
	return planned{policy, desired, changes, set, digest}, nil, nil
}

func changeRows(changes []config.Change) []*sallyportv1.PlanChange {
	out := make([]*sallyportv1.PlanChange, 0, len(changes))
	for _, c := range changes {
		out = append(out, &sallyportv1.PlanChange{Action: string(c.Action), Kind: c.Kind, Name: c.Name, Lines: c.Lines})
	}
	return out
}

// Plan implements sallyport.v1.Operator.
func (o *operatorService) Plan(ctx context.Context, r *sallyportv1.PlanRequest) (*sallyportv1.PlanResponse, error) {
	p, problems, err := o.plan(ctx, whoOf(ctx).Person, r.GetYaml(), r.GetFiles(), r.GetPrune())
	if err != nil || len(problems) > 0 {
		return &sallyportv1.PlanResponse{Problems: problems}, err
	}
	return &sallyportv1.PlanResponse{Changes: changeRows(p.changes), Digest: p.digest.String()}, nil
}

// Apply implements sallyport.v1.Operator: one transaction, then a real test of every connection that needs one. A connection whose test fails stays
// out of service and says why; everything else of the file is applied.
func (o *operatorService) Apply(ctx context.Context, r *sallyportv1.ApplyRequest) (*sallyportv1.ApplyResponse, error) {
	by := whoOf(ctx).Person
	p, problems, err := o.plan(ctx, by, r.GetYaml(), r.GetFiles(), r.GetPrune())
	if err != nil || len(problems) > 0 {
		return &sallyportv1.ApplyResponse{Problems: problems}, err
	}
	if r.GetPlanDigest() != "" && r.GetPlanDigest() != p.digest.String() {
		return nil, errs.New(errs.Conflict, "the plan changed since it was shown; look at it again")
	}
	out := &sallyportv1.ApplyResponse{Changes: changeRows(p.changes), Revision: p.policy.Generation}
	if len(p.apply.Connections)+len(p.apply.Catalogs)+len(p.apply.Profiles)+len(p.apply.Standing)+
		len(p.apply.RemoveConnections)+len(p.apply.RemoveProfiles)+len(p.apply.RemoveStanding) > 0 {
		var ends []func()
		for _, name := range p.apply.RemoveConnections {
			ends = append(ends, o.ending(ctx, p.policy.Connections[name], ""))
		}
		if out.Revision, err = o.s.stores.Grants.Apply(ctx, &p.apply); err != nil {
			return nil, err
		}
		for _, end := range ends {
			end()
		}
		o.s.changed("config", "applied")
		o.s.hosts.broadcast(&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Origins{Origins: &sallyportv1.Origins{DenyHosts: o.s.denyHosts(ctx)}}})
	}
	policy, err := o.policy(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range p.changes {
		if c.Action != config.Test {
			continue
		}
		if conn := policy.Connections[c.Name]; conn != nil {
			out.Tests = append(out.Tests, o.test(ctx, *conn, by))
		}
	}
	return out, nil
}

// changed wakes what rests on the policy, and watchers.
func (s *Server) changed(kind, what string) {
	s.pipeline.PolicyChanged()
	s.events.publish(Event{Kind: kind, State: what})
}

// probeReport is a worker's report of a probe intent (Outcome.output).
type probeReport struct {
	OK       bool         `json:"ok"`
	Protocol string       `json:"protocol"`
	Needs    bool         `json:"needs_credential"`
	Found    *oauth.Found `json:"found"`
	NotFound string       `json:"not_found"`
	Steps    []struct {
		Name   string `json:"name"`
		OK     bool   `json:"ok"`
		Detail string `json:"detail"`
		TookUS int64  `json:"took_us"`
	} `json:"steps"`
}

// test runs a real test through a worker and puts the connection in service when it passes.
func (o *operatorService) test(ctx context.Context, c control.Connection, by control.Person) *sallyportv1.TestReport {
	report, protocol := o.probe(ctx, c, by)
	if !report.GetOk() {
		return report
	}
	if err := o.s.stores.Connections.Tested(ctx, c.Name, c.Revision, protocol, by); err != nil {
		report.Ok = false
		report.Steps = append(report.Steps, &sallyportv1.TestStep{Name: "enable", Detail: errs.Message(err)})
		return report
	}
	o.s.changed("config", "tested")
	return report
}

func (o *operatorService) probe(ctx context.Context, c control.Connection, by control.Person) (*sallyportv1.TestReport, string) {
	report := &sallyportv1.TestReport{Connection: c.Name}
	started := time.Now()
	outcome, err := o.s.jobs.run(ctx, intent.Probe, c, by)
	if err != nil {
		report.Code = string(errs.CodeOf(err))
		report.Steps = append(report.Steps, &sallyportv1.TestStep{Name: "worker", Detail: errs.Message(err), TookUs: time.Since(started).Microseconds()})
		return report, ""
	}
	var p probeReport
	if len(outcome.GetOutput()) == 0 || json.Unmarshal(outcome.GetOutput(), &p) != nil {
		report.Steps = append(report.Steps, &sallyportv1.TestStep{Name: "worker", Detail: "the worker could not run the test (" + outcome.GetFailure() + ")"})
		return report, ""
	}
	for _, s := range p.Steps {
		report.Steps = append(report.Steps, &sallyportv1.TestStep{Name: s.Name, Ok: s.OK, Detail: s.Detail, TookUs: s.TookUS})
	}
	report.Ok, report.NeedsCredential, report.NotFound = p.OK, p.Needs, p.NotFound
	if p.Found != nil {
		report.Found = &sallyportv1.SignInFound{
			Issuer: p.Found.Issuer, Resource: p.Found.Resource, Scopes: p.Found.Scopes, Registration: p.Found.Registration,
		}
	}
	return report, p.Protocol
}

// connectionOf finds a connection: as it is applied, or as a YAML that is not applied yet defines it.
func (o *operatorService) connectionOf(ctx context.Context, name string, yaml []byte) (control.Connection, error) {
	if len(yaml) > 0 {
		c, problems := config.ReadConnection(yaml, name, o.s.stores.Grants.Now())
		if len(problems) > 0 {
			return c, errs.Newf(errs.Invalid, "%s", problems[0])
		}
		return c, nil
	}
	p, err := o.policy(ctx)
	if err != nil {
		return control.Connection{}, err
	}
	c := p.Connections[name]
	if c == nil {
		return control.Connection{}, errs.Newf(errs.NotFound, "no connection is named %s; sallyport connections list shows them", name)
	}
	return *c, nil
}

// TestConnection implements sallyport.v1.Operator. A test by itself changes nothing.
func (o *operatorService) TestConnection(ctx context.Context, r *sallyportv1.TestConnectionRequest) (*sallyportv1.TestConnectionResponse, error) {
	by := whoOf(ctx).Person
	c, err := o.connectionOf(ctx, r.GetConnection(), r.GetYaml())
	if err != nil {
		return nil, err
	}
	report, _ := o.probe(ctx, c, by)
	return &sallyportv1.TestConnectionResponse{Report: report}, nil
}

// EnableConnection implements sallyport.v1.Operator: in service after a test, or out of it at once.
func (o *operatorService) EnableConnection(ctx context.Context, r *sallyportv1.EnableConnectionRequest) (*sallyportv1.EnableConnectionResponse, error) {
	by := whoOf(ctx).Person
	c, err := o.connectionOf(ctx, r.GetConnection(), nil)
	if err != nil {
		return nil, err
	}
	if !r.GetEnable() {
		if err := o.s.stores.Connections.SetState(ctx, c.Name, control.ConnectionDisabled, by); err != nil {
			return nil, err
		}
		o.s.changed("config", "disabled")
		return &sallyportv1.EnableConnectionResponse{State: string(control.ConnectionDisabled)}, nil
	}
	report := o.test(ctx, c, by)
	state := string(c.State)
	if report.GetOk() {
		state = string(control.ConnectionEnabled)
	}
	return &sallyportv1.EnableConnectionResponse{Report: report, State: state}, nil
}

// PullCatalog implements sallyport.v1.Operator: what the server lists now, as bytes to review. It approves nothing.
func (o *operatorService) PullCatalog(ctx context.Context, r *sallyportv1.PullCatalogRequest) (*sallyportv1.PullCatalogResponse, error) {
	by := whoOf(ctx).Person
	c, err := o.connectionOf(ctx, r.GetConnection(), r.GetYaml())
	if err != nil {
		return nil, err
	}
	if c.Kind != control.KindMCP {
		return nil, errs.Newf(errs.Invalid, "%s is a callback: its tools are written by hand in its catalog file", c.Name)
	}
	entries, outcome, err := o.list(ctx, c, by)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.PullCatalogResponse{Catalog: catalog.Marshal(entries), Digest: catalog.Digest(entries).String(), Protocol: outcome.GetProtocol()}
	for _, p := range catalog.Propose(entries) {
		out.Proposed = append(out.Proposed, &sallyportv1.ProposedTool{Name: p.Name, Effect: string(p.Effect), Hint: p.Hint, Findings: p.Findings})
	}
	return out, nil
}

// ShowCatalog implements sallyport.v1.Operator.
func (o *operatorService) ShowCatalog(ctx context.Context, r *sallyportv1.ShowCatalogRequest) (*sallyportv1.ShowCatalogResponse, error) {
	p, err := o.policy(ctx)
	if err != nil {
		return nil, err
	}
	cat := p.Catalogs[r.GetConnection()]
	switch {
	case p.Connections[r.GetConnection()] == nil:
		return nil, errs.Newf(errs.NotFound, "no connection is named %s; sallyport connections list shows them", r.GetConnection())
	case cat == nil:
		return nil, errs.Newf(errs.NotFound, "%s has no reviewed catalog yet: sallyport catalogs pull %s", r.GetConnection(), r.GetConnection())
	}
	out := &sallyportv1.ShowCatalogResponse{
		Connection: cat.Connection, Digest: cat.Digest.String(), ReviewedBy: string(cat.ReviewedBy), ReviewedMs: ms(cat.ReviewedAt),
	}
	for _, t := range cat.Tools {
		out.Tools = append(out.Tools, &sallyportv1.ReviewedTool{
			Name: t.Name, As: t.As, Effect: string(t.Effect), Repeat: t.Repeat, RefuseExtra: t.RefuseExtra, Raw: t.Raw,
		})
	}
	return out, nil
}

// ListConnections implements sallyport.v1.Operator.
func (o *operatorService) ListConnections(ctx context.Context, _ *sallyportv1.ListConnectionsRequest) (*sallyportv1.ListConnectionsResponse, error) {
	p, err := o.policy(ctx)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.ListConnectionsResponse{}
	for _, name := range sortedKeys(p.Connections) {
		c := p.Connections[name]
		row := &sallyportv1.ConnectionRow{
			Name: name, Kind: string(c.Kind), Origin: c.Origin, Path: c.Path, Pool: c.Pool, State: string(c.State), Revision: c.Revision,
			Auth: c.Auth.Type, Protocol: c.Protocol, Network: networkWords(c.Network),
		}
		if c.Auth.Per == "person" {
			row.Auth += " per person"
		}
		if cat := p.Catalogs[name]; cat != nil {
			row.CatalogDigest, row.Tools = cat.Digest.String(), int32(len(cat.Tools))
		}
		out.Connections = append(out.Connections, row)
	}
	return out, nil
}

func networkWords(n control.Network) string {
	words := "public https"
	if n.HTTP {
		words = "plain http"
	}
	for _, a := range n.Allow {
		words += " " + a
	}
	return words
}

// denyHosts are the hosts of connections: no sandbox reaches them but through a call.
func (s *Server) denyHosts(ctx context.Context) []string {
	p, err := s.stores.Calls.Policy(ctx, nil)
	if err != nil {
		return nil
	}
	var out []string
	for _, name := range sortedKeys(p.Connections) {
		if host := originHost(p.Connections[name].Origin); host != "" && !slices.Contains(out, host) {
			out = append(out, host)
		}
	}
	return out
}

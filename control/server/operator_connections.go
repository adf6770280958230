package server

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/session"
)

// RemoveConnection implements sallyport.v1.Operator.
func (o *operatorService) RemoveConnection(ctx context.Context, r *sallyportv1.RemoveConnectionRequest) (*sallyportv1.RemoveConnectionResponse, error) {
	by := whoOf(ctx).Person
	c, err := o.connectionOf(ctx, r.GetConnection(), nil)
	if err != nil {
		return nil, err
	}
	policy, err := o.policy(ctx)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.RemoveConnectionResponse{}
	running, err := o.running(ctx, c.Name)
	if err != nil {
		return nil, err
	}
	out.Breaks = append(configured(policy, c.Name), running...)
	if !r.GetRemove() {
		return out, nil
	}
	end := o.ending(ctx, &c, "")
	if _, err := o.s.stores.Grants.Apply(ctx, &control.Apply{
		Org: control.Org, By: by, At: o.s.stores.Grants.Now(), Expect: policy.Generation, RemoveConnections: []string{c.Name},
	}); err != nil {
		return nil, err
	}
	end()
	o.s.changed("config", "removed")
	o.s.hosts.broadcast(&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Origins{Origins: &sallyportv1.Origins{DenyHosts: o.s.denyHosts(ctx)}}})
	return out, nil
}

// configured says what of the configuration rests on a connection, a line each.
func configured(policy *control.Policy, name string) []string {
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, p := range sortedKeys(policy.Profiles) {
		if tools := grantsOf(policy.Profiles[p], name); len(tools) > 0 {
			say("profile %s grants %s", p, strings.Join(tools, ", "))
		}
	}
	for _, g := range policy.Given {
		if tools := toolsOf(g.Tools, name); len(tools) > 0 && !g.Revoked {
			say("%s grant %s covers %s", g.Kind, g.ID, strings.Join(tools, ", "))
		}
	}
	return lines
}

// running says which sessions, calls and credentials rest on a connection, a line each.
func (o *operatorService) running(ctx context.Context, name string) ([]string, error) {
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	sessions, err := o.s.stores.Sessions.Sessions(ctx, session.Filter{Org: control.Org, Limit: maxList})
	if err != nil {
		return nil, err
	}
	for _, s := range sessions {
		if s.State == control.SessionClosed {
			continue
		}
		whole, err := o.s.stores.Sessions.Session(ctx, s.ID)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(whole.Tools, func(t control.BoundTool) bool { return t.Connection == name }) {
			say("session %s of %s (profile %s, %s) loses its tools", s.ID, s.Owner, s.Profile.Name, s.State)
		}
	}
	open, more, err := o.s.stores.Calls.ListCalls(ctx, call.Filter{Org: control.Org, Connection: name, States: call.Unfinished, Limit: maxUses})
	if err != nil {
		return nil, err
	}
	for _, c := range open {
		say("call %s of %s is %s", c.ID, c.Tool, c.State)
	}
	if more != "" {
		say("and more calls that are not finished")
	}
	creds, err := o.s.stores.Connections.Credentials(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range creds {
		if c.Connection != name || c.State == control.CredentialRevoked {
			continue
		}
		how := "is forgotten"
		if c.Kind == control.CredentialOAuth {
			how = "is forgotten, and its sign-in ended at its server"
		}
		say("credential of %s %s", c.Subject, how)
	}
	return lines, nil
}

// maxUses is how many calls are named one by one.
const maxUses = 50

// grantsOf are the tools of a connection that a profile grants.
func grantsOf(p *control.Profile, connection string) []string {
	var out []string
	for _, g := range p.Grants {
		if g.Rule != control.Deny {
			out = append(out, toolsOf(g.Tools, connection)...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func toolsOf(tools []string, connection string) []string {
	var out []string
	for _, t := range tools {
		if strings.HasPrefix(t, connection+"/") {
			out = append(out, t)
		}
	}
	return out
}

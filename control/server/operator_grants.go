package server

import (
	"context"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/grant"
	"sallyport.dev/errs"
)

// GiveGrant implements sallyport.v1.Operator: a standing grant, an administrator's.
func (o *operatorService) GiveGrant(ctx context.Context, r *sallyportv1.GiveGrantRequest) (*sallyportv1.GiveGrantResponse, error) {
	by := whoOf(ctx).Person
	p, err := o.policy(ctx)
	if err != nil {
		return nil, err
	}
	g, err := standingFrom(p, r, by, o.s.stores.Grants.Now())
	if err != nil {
		return nil, err
	}
	if err := o.s.stores.Grants.GiveGrant(ctx, g); err != nil {
		return nil, err
	}
	o.s.changed("config", "grant given")
	return &sallyportv1.GiveGrantResponse{Id: g.ID}, nil
}

func standingFrom(p *control.Policy, r *sallyportv1.GiveGrantRequest, by control.Person, now time.Time) (*control.GivenGrant, error) {
	switch {
	case p.Profiles[r.GetProfile()] == nil:
		return nil, errs.Newf(errs.NotFound, "no profile is named %q", r.GetProfile())
	case !toolExists(p, r.GetTool()):
		return nil, errs.Newf(errs.NotFound, "no reviewed tool is named %q; write connection/tool", r.GetTool())
	case r.GetReason() == "":
		return nil, errs.New(errs.Invalid, "say with --reason why a write may run without a question")
	}
	g := &control.GivenGrant{
		Org: control.Org, ID: r.GetName(), Kind: "standing", Profile: r.GetProfile(), Tools: []string{r.GetTool()}, When: r.GetWhen(),
		Limit: control.Limit{Calls: r.GetCalls(), Per: time.Duration(r.GetPerSeconds()) * time.Second}, Until: now.Add(standingLife), By: by, Reason: r.GetReason(),
	}
	if g.ID == "" {
		g.ID = control.NewID()
	}
	if g.Limit.Calls == 0 {
		g.Limit.Calls = standingCalls
	}
	if r.GetUntilMs() > 0 {
		g.Until = time.UnixMilli(r.GetUntilMs()).UTC()
	}
	if !g.Until.After(now) || g.Limit.Calls < 1 || g.Limit.Per < 0 {
		return nil, errs.New(errs.Invalid, "a grant needs an end in the future and at least one call")
	}
	if g.When != "" {
		if err := grant.CheckCondition(g.When, toolsNamed(p, r.GetTool())); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// RemoveGrant implements sallyport.v1.Operator.
func (o *operatorService) RemoveGrant(ctx context.Context, r *sallyportv1.RemoveGrantRequest) (*sallyportv1.RemoveGrantResponse, error) {
	by := whoOf(ctx).Person
	if err := o.s.stores.Grants.EndGrant(ctx, r.GetId(), by, "removed"); err != nil {
		return nil, err
	}
	o.s.changed("config", "grant ended")
	return &sallyportv1.RemoveGrantResponse{}, nil
}

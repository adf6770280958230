package main

import (
	"context"
	"fmt"
	"time"

	"sallyport.dev/api/sallyport/v1"
)

type grantsCmd struct {
	List grantsListCmd `cmd:"" default:"withargs" help:"List standing and session grants."`
	Give grantsGiveCmd `cmd:"" help:"Give a standing grant: calls like this run without a question."`
	Rm   grantsRmCmd   `cmd:"" help:"End a grant."`
}

type grantsListCmd struct {
	Profile string `help:"Of this profile."`
}

// Run prints given grants.
func (c *grantsListCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListGrants(ctx, &sallyportv1.ListGrantsRequest{Profile: c.Profile}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	if len(r.GetGrants()) == 0 {
		g.note("No grants were given. The rules of profiles: sallyport profiles show NAME")
		return nil
	}
	rows := make([][]string, 0, len(r.GetGrants()))
	for _, k := range r.GetGrants() {
		rows = append(rows, []string{k.GetId(), k.GetKind(), k.GetProfile(), k.GetTool(), k.GetWhen(), fmt.Sprintf("%d/%d", k.GetUsed(), k.GetCalls()), ago(k.GetUntilMs()), k.GetState(), k.GetBy()})
	}
	g.table([]string{"GRANT", "KIND", "PROFILE", "TOOL", "WHEN", "USED", "UNTIL", "STATE", "BY"}, rows)
	return nil
}

type grantsGiveCmd struct {
	Profile string        `arg:""`
	Tool    string        `arg:"" help:"connection/tool."`
	Name    string        `help:"A name for it."`
	When    string        `help:"A CEL condition over args."`
	Calls   int64         `help:"At most so many calls." default:"1000"`
	Per     time.Duration `help:"Within each such window. Default: over its whole life."`
	For     time.Duration `help:"Its life." default:"720h"`
	Reason  string        `required:"" help:"Why a write may run without a question."`
}

// Run gives a standing grant.
func (c *grantsGiveCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.GiveGrant(ctx, &sallyportv1.GiveGrantRequest{
		Name: c.Name, Profile: c.Profile, Tool: c.Tool, When: c.When, Calls: c.Calls, PerSeconds: int64(c.Per.Seconds()), UntilMs: time.Now().Add(c.For).UnixMilli(), Reason: c.Reason,
	}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	fmt.Fprintln(g.out, r.GetId())
	return nil
}

type grantsRmCmd struct {
	ID string `arg:""`
}

// Run ends a grant.
func (c *grantsRmCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	_, err = answer(api.RemoveGrant(ctx, &sallyportv1.RemoveGrantRequest{Id: c.ID}))
	return err
}

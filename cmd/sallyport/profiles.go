package main

import (
	"context"
	"fmt"
	"os"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
)

type profilesCmd struct {
	List profilesListCmd `cmd:"" default:"withargs" help:"List profiles and their rules."`
	Show profilesShowCmd `cmd:"" help:"Show one profile whole: every setting, and the tools that a session of it is given."`
	Test profilesTestCmd `cmd:"" help:"Say what would be decided for these arguments, and why; nothing runs."`
}

type profilesListCmd struct{}

// Run prints profiles.
func (profilesListCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListProfiles(ctx, &sallyportv1.ListProfilesRequest{}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	for _, p := range r.GetProfiles() {
		kind := "unattended"
		if p.GetAttended() {
			kind = "attended"
		}
		fmt.Fprintf(g.out, "%s  %s, %s, version %d\n", oneLine(p.GetName()), kind, p.GetDriver(), p.GetVersion())
		for _, l := range p.GetRules() {
			fmt.Fprintf(g.out, "    %s\n", oneLine(l))
		}
	}
	return nil
}

type profilesShowCmd struct {
	Name string `arg:""`
}

// Run prints one profile as sallyport.yaml writes it, defaults too.
func (c *profilesShowCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListProfiles(ctx, &sallyportv1.ListProfilesRequest{}))
	if err != nil {
		return err
	}
	for _, p := range r.GetProfiles() {
		if p.GetName() != c.Name {
			continue
		}
		if g.JSON {
			g.printJSON(p)
			return nil
		}
		fmt.Fprintf(g.out, "%s, version %d\n", oneLine(p.GetName()), p.GetVersion())
		for _, l := range p.GetSettings() {
			fmt.Fprintf(g.out, "    %s\n", oneLine(l))
		}
		fmt.Fprintf(g.out, "a session is given %s\n", count(len(p.GetTools()), "tool", "tools"))
		for _, t := range p.GetTools() {
			fmt.Fprintf(g.out, "    %-30s %s/%s (%s)\n", oneLine(t.GetName()), oneLine(t.GetConnection()), oneLine(t.GetTool()), t.GetEffect())
		}
		return nil
	}
	return errs.Newf(errs.NotFound, "no profile is named %s; sallyport profiles list shows them", c.Name)
}

type profilesTestCmd struct {
	Profile    string `arg:""`
	Tool       string `arg:"" help:"connection/tool, or its name in the sandbox."`
	Args       string `help:"The arguments, as JSON." xor:"args" placeholder:"JSON"`
	ArgsFile   string `help:"A file with the arguments." xor:"args" placeholder:"FILE"`
	Unattended bool   `help:"As if no person were there."`
}

// Run explains a decision without a call.
func (c *profilesTestCmd) Run(ctx context.Context, g *Globals) error {
	args := []byte(c.Args)
	if c.ArgsFile != "" {
		var err error
		if args, err = os.ReadFile(c.ArgsFile); err != nil {
			return errs.Wrap(errs.NotFound, c.ArgsFile+" cannot be read", err)
		}
	}
	if len(args) == 0 {
		args = []byte("{}")
	}
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.Explain(ctx, &sallyportv1.ExplainRequest{Profile: c.Profile, Tool: c.Tool, Arguments: args, Unattended: c.Unattended}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	fmt.Fprintf(g.out, "%s", r.GetVerdict())
	if r.GetCode() != "" {
		fmt.Fprintf(g.out, " (%s)", r.GetCode())
	}
	fmt.Fprintln(g.out)
	for _, s := range r.GetSteps() {
		fmt.Fprintf(g.out, "  %s\n", oneLine(s))
	}
	if r.GetMessage() != "" {
		fmt.Fprintf(g.out, "the agent would read: %s\n", visible(r.GetMessage()))
	}
	if r.GetVerdict() == "refuse" {
		return exitError{code: exitFailed}
	}
	return nil
}

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
)

type revokeCmd struct {
	Kind   string        `arg:"" enum:"session,host,worker,tool,grant,connection,credential,egress,person,everything,list" help:"session, host, worker, tool, grant, connection, credential, egress, person, everything; or list."`
	Name   string        `arg:"" optional:"" help:"What. Tools and credentials are connection/NAME."`
	For    time.Duration `help:"Give it back by itself after so long. Default: never."`
	DryRun bool          `help:"Only say what it would hit."`
	Reason string        `help:"Stays in the record."`
	Yes    bool          `help:"Do not ask."`
}

// Run throws a switch.
func (c *revokeCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	if c.Kind == "list" {
		return g.switches(ctx)
	}
	name, err := g.switchName(ctx, c.Kind, c.Name)
	if err != nil {
		return err
	}
	req := &sallyportv1.RevokeRequest{Kind: c.Kind, Name: name, Seconds: int64(c.For.Seconds()), DryRun: true, Reason: c.Reason}
	preview, err := answer(api.Revoke(ctx, req))
	if err != nil {
		return err
	}
	if !g.JSON {
		g.note("This hits %s.", strings.Join(preview.GetHits(), ", "))
	}
	if c.DryRun {
		if g.JSON {
			g.printJSON(preview)
		}
		return nil
	}
	// In an emergency nobody should have to answer for a single session or tool; everything asks.
	if c.Kind == "everything" {
		if err := g.confirm(ctx, c.Yes, "No call of anybody will run. Withdraw everything?"); err != nil {
			return err
		}
	}
	req.DryRun = false
	r, err := answer(api.Revoke(ctx, req))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	fmt.Fprintf(g.out, "revoked in %.1f ms; nothing that is not sent yet will be sent\n", float64(r.GetTookUs())/1000)
	g.note("Undo: sallyport %s", strings.TrimSpace("restore "+c.Kind+" "+name))
	return nil
}

// switchName is the whole name of what is withdrawn: sessions are named by a unique beginning, as everywhere.
func (g *Globals) switchName(ctx context.Context, kind, name string) (string, error) {
	if kind != "session" {
		return name, nil
	}
	return g.sessionID(ctx, name)
}

func (g *Globals) switches(ctx context.Context) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListSwitches(ctx, &sallyportv1.ListSwitchesRequest{}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	rows := make([][]string, 0, len(r.GetSwitches()))
	for _, s := range r.GetSwitches() {
		until := "until restored"
		if s.GetUntilMs() > 0 {
			until = ago(s.GetUntilMs())
		}
		rows = append(rows, []string{s.GetKind(), s.GetName(), s.GetBy(), ago(s.GetAtMs()), until, s.GetReason()})
	}
	g.table([]string{"KIND", "NAME", "BY", "WHEN", "UNTIL", "REASON"}, rows)
	if len(rows) == 0 {
		g.note("Nothing is revoked.")
	}
	return nil
}

type restoreCmd struct {
	Kind   string `arg:"" enum:"session,host,worker,tool,grant,connection,credential,egress,person,everything"`
	Name   string `arg:"" optional:""`
	DryRun bool   `help:"Only say what it would undo."`
}

// Run undoes a switch.
func (c *restoreCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	name, err := g.switchName(ctx, c.Kind, c.Name)
	if err != nil {
		return err
	}
	r, err := answer(api.Restore(ctx, &sallyportv1.RestoreRequest{Kind: c.Kind, Name: name, DryRun: c.DryRun}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	if c.DryRun {
		fmt.Fprintf(g.out, "would undo: %s\n", strings.Join(r.GetHits(), ", "))
		return nil
	}
	fmt.Fprintf(g.out, "restored in %.1f ms\n", float64(r.GetTookUs())/1000)
	return nil
}

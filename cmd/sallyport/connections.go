package main

import (
	"context"
	"fmt"
	"os"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
)

type connectionsCmd struct {
	List    connectionsListCmd    `cmd:"" default:"withargs" help:"List connections."`
	Show    connectionsShowCmd    `cmd:"" help:"Show one connection."`
	Test    connectionsTestCmd    `cmd:"" help:"Test a connection through a worker; it changes nothing."`
	Enable  connectionsEnableCmd  `cmd:"" help:"Test a connection and put it in service."`
	Disable connectionsDisableCmd `cmd:"" help:"Take a connection out of service."`
	Add     connectionsAddCmd     `cmd:"" help:"Add a connection step by step: look at it, write it down, connect it, list its tools."`
	Rm      connectionsRmCmd      `cmd:"" help:"Remove a connection with its credentials and its catalog, after saying what that breaks."`
}

type connectionsListCmd struct{}

// Run prints connections.
func (connectionsListCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListConnections(ctx, &sallyportv1.ListConnectionsRequest{}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	rows := make([][]string, 0, len(r.GetConnections()))
	for _, c := range r.GetConnections() {
		rows = append(rows, []string{c.GetName(), c.GetKind(), c.GetState(), c.GetOrigin() + c.GetPath(), c.GetAuth(), c.GetProtocol(), fmt.Sprint(c.GetTools()), c.GetPool()})
	}
	g.table([]string{"NAME", "KIND", "STATE", "ADDRESS", "AUTH", "PROTOCOL", "TOOLS", "POOL"}, rows)
	if len(rows) == 0 {
		g.note("No connections yet: write one into sallyport.yaml, then sallyport apply.")
	}
	return nil
}

type connectionsShowCmd struct {
	Name string `arg:""`
}

// Run prints one connection.
func (c *connectionsShowCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListConnections(ctx, &sallyportv1.ListConnectionsRequest{}))
	if err != nil {
		return err
	}
	for _, k := range r.GetConnections() {
		if k.GetName() != c.Name {
			continue
		}
		if g.JSON {
			g.printJSON(k)
			return nil
		}
		g.members([][2]string{
			{"name", k.GetName()},
			{"kind", k.GetKind()},
			{"state", k.GetState()},
			{"revision", fmt.Sprint(k.GetRevision())},
			{"address", k.GetOrigin() + k.GetPath()},
			{"network", k.GetNetwork()},
			{"auth", k.GetAuth()},
			{"pool", k.GetPool()},
			{"protocol", k.GetProtocol()},
			{"catalog", k.GetCatalogDigest()},
			{"tools", fmt.Sprint(k.GetTools())},
		})
		return nil
	}
	return errs.Newf(errs.NotFound, "no connection is named %s; sallyport connections list shows them", c.Name)
}

type yamlFlag struct {
	File string `short:"f" help:"Take the connection from this file instead of what is applied." placeholder:"FILE"`
}

func (f yamlFlag) bytes() ([]byte, error) {
	if f.File == "" {
		return nil, nil
	}
	data, err := os.ReadFile(f.File)
	if err != nil {
		return nil, errs.Wrap(errs.NotFound, f.File+" cannot be read", err)
	}
	return data, nil
}

type connectionsTestCmd struct {
	Name string `arg:""`
	yamlFlag
}

// Run tests a connection.
func (c *connectionsTestCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	yaml, err := c.bytes()
	if err != nil {
		return err
	}
	r, err := answer(api.TestConnection(ctx, &sallyportv1.TestConnectionRequest{Connection: c.Name, Yaml: yaml}))
	if err != nil {
		return err
	}
	return g.tested(r.GetReport(), "passed", "did not pass")
}

func (g *Globals) tested(t *sallyportv1.TestReport, passed, failed string) error {
	if g.JSON {
		g.printJSON(t)
	} else {
		g.report(t, passed, failed)
	}
	if !t.GetOk() {
		return errs.Newf(errs.Unreachable, "%s did not pass its test", t.GetConnection())
	}
	return nil
}

type connectionsEnableCmd struct {
	Name string `arg:""`
}

// Run tests a connection and puts it in service.
func (c *connectionsEnableCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.EnableConnection(ctx, &sallyportv1.EnableConnectionRequest{Connection: c.Name, Enable: true}))
	if err != nil {
		return err
	}
	return g.tested(r.GetReport(), "in service", "not in service")
}

type connectionsDisableCmd struct {
	Name string `arg:""`
}

// Run takes a connection out of service.
func (c *connectionsDisableCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.EnableConnection(ctx, &sallyportv1.EnableConnectionRequest{Connection: c.Name}))
	if err != nil {
		return err
	}
	g.note("%s is %s.", c.Name, r.GetState())
	return nil
}

type connectionsRmCmd struct {
	Name   string `arg:""`
	DryRun bool   `help:"Say what it breaks, and change nothing."`
	Yes    bool   `help:"Do not ask."`
}

// Run removes a connection. What it breaks is said before anything happens.
func (c *connectionsRmCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.RemoveConnection(ctx, &sallyportv1.RemoveConnectionRequest{Connection: c.Name}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
	} else {
		for _, line := range r.GetBreaks() {
			fmt.Fprintln(g.out, oneLine(line))
		}
	}
	if len(r.GetBreaks()) == 0 {
		g.note("Nothing uses %s.", c.Name)
	}
	if c.DryRun {
		return nil
	}
	if err := g.confirm(ctx, c.Yes, "Remove "+c.Name+"?"); err != nil {
		return err
	}
	if _, err := answer(api.RemoveConnection(ctx, &sallyportv1.RemoveConnectionRequest{Connection: c.Name, Remove: true})); err != nil {
		return err
	}
	g.note("Removed. Take %s out of sallyport.yaml too: the next apply would add it again.", c.Name)
	return nil
}

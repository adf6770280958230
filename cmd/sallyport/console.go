package main

import (
	"context"
	"fmt"

	"sallyport.dev/api/sallyport/v1"
)

type consoleCmd struct {
	Person string `help:"For this person instead of oneself." placeholder:"NAME"`
}

// Run prints a one-time link.
func (c *consoleCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.peopleClient()
	if err != nil {
		return err
	}
	r, err := answer(api.MakeLink(ctx, &sallyportv1.MakeLinkRequest{Person: c.Person}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	fmt.Fprintln(g.out, r.GetAddress())
	g.note("It works once, for 5 minutes.")
	return nil
}

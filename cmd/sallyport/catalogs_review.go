package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
)

type catalogsCheckCmd struct {
	Name string `arg:"" help:"The connection."`
}

// Run compares what a server lists now with what was reviewed, as control does by itself every six hours.
func (c *catalogsCheckCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.CheckCatalog(ctx, &sallyportv1.CheckCatalogRequest{Connection: c.Name}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	if r.GetDraft() == nil {
		g.note("%s lists what was reviewed.", c.Name)
		return nil
	}
	g.printDraft(r.GetDraft())
	if r.GetDraft().GetState() == "rejected" {
		g.note("This list was rejected. Agents keep what was reviewed.")
		return nil
	}
	g.note("Agents keep what was reviewed, until: sallyport catalogs approve %s, or reject", c.Name)
	return nil
}

// printDraft reads like a code review: every change, what it is and what follows from it.
func (g *Globals) printDraft(d *sallyportv1.Draft) {
	fmt.Fprintf(g.out, "%s  draft %s  seen %s\n", d.GetConnection(), d.GetDigest(), ago(d.GetSeenMs()))
	for _, c := range d.GetChanges() {
		fmt.Fprintf(g.out, "%s: %s (%s)\n", oneLine(c.GetTool()), strings.Join(c.GetClasses(), ", "), c.GetEffect())
		for _, l := range c.GetLines() {
			fmt.Fprintf(g.out, "    %s\n", oneLine(l))
		}
	}
}

type catalogsDraftsCmd struct {
	Name string `arg:"" optional:"" help:"The connection. Default: all."`
}

// Run prints drafts.
func (c *catalogsDraftsCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListDrafts(ctx, &sallyportv1.ListDraftsRequest{Connection: c.Name}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	for i, d := range r.GetDrafts() {
		if i > 0 {
			fmt.Fprintln(g.out)
		}
		g.printDraft(d)
	}
	if len(r.GetDrafts()) == 0 {
		g.note("No drafts: servers list what was reviewed, as far as they were looked at.")
	}
	return nil
}

type draftOf struct {
	Name   string `arg:"" help:"The connection."`
	Digest string `help:"Only the draft of this digest: that you read." placeholder:"DIGEST"`
	Yes    bool   `help:"Do not ask."`
}

// read shows the draft and asks whether to go on.
func (c *draftOf) read(ctx context.Context, g *Globals, question string) (*sallyportv1.Draft, error) {
	api, err := g.client()
	if err != nil {
		return nil, err
	}
	r, err := answer(api.ListDrafts(ctx, &sallyportv1.ListDraftsRequest{Connection: c.Name}))
	if err != nil {
		return nil, err
	}
	if len(r.GetDrafts()) == 0 {
		return nil, errs.Newf(errs.NotFound, "there is no draft of %s; sallyport catalogs check %s looks for one", c.Name, c.Name)
	}
	d := r.GetDrafts()[0]
	if c.Digest != "" && c.Digest != d.GetDigest() {
		return nil, errs.Newf(errs.Conflict, "the draft of %s is %s by now; read it again: sallyport catalogs drafts %s", c.Name, d.GetDigest(), c.Name)
	}
	if !g.JSON {
		g.printDraft(d)
	}
	return d, g.confirm(ctx, c.Yes, question)
}

type catalogsRejectCmd struct{ draftOf }

// Run rejects a draft.
func (c *catalogsRejectCmd) Run(ctx context.Context, g *Globals) error {
	d, err := c.read(ctx, g, "Reject it? Agents keep what was reviewed.")
	if err != nil {
		return err
	}
	api, err := g.client()
	if err != nil {
		return err
	}
	if _, err := answer(api.ReviewDraft(ctx, &sallyportv1.ReviewDraftRequest{Connection: c.Name, Digest: d.GetDigest()})); err != nil {
		return err
	}
	g.note("Rejected. Agents keep what was reviewed.")
	return nil
}

type catalogsApproveCmd struct {
	draftOf
	File string `short:"f" default:"sallyport.yaml" help:"The file that names the reviewed catalog: its digest is changed there." placeholder:"FILE"`
	Out  string `help:"Where the catalog file is. Default: catalogs/NAME.json beside sallyport.yaml." placeholder:"CATALOG"`
}

// Run approves a draft, and keeps the files that name the reviewed catalog in step.
func (c *catalogsApproveCmd) Run(ctx context.Context, g *Globals) error {
	d, err := c.read(ctx, g, "Let agents use it, with the effects as they were reviewed?")
	if err != nil {
		return err
	}
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ReviewDraft(ctx, &sallyportv1.ReviewDraftRequest{Connection: c.Name, Digest: d.GetDigest(), Approve: true}))
	if err != nil {
		return err
	}
	g.note("Approved.")
	if len(r.GetAdded()) > 0 {
		g.note("Nobody let in what is new: %s. Name it under tools, with its effect, to do so.", oneLine(strings.Join(r.GetAdded(), ", ")))
	}
	if len(r.GetRemoved()) > 0 {
		g.note("The server has no more: %s. Take it out of tools.", oneLine(strings.Join(r.GetRemoved(), ", ")))
	}
	return c.write(g, r, d.GetDigest())
}

// write changes the catalog file, and the digest where the YAML names it.
func (c *catalogsApproveCmd) write(g *Globals, r *sallyportv1.ReviewDraftResponse, digest string) error {
	yaml, err := os.ReadFile(c.File)
	if errors.Is(err, fs.ErrNotExist) {
		g.note("Put it into the file that you apply, or the next apply takes it back: digest: %q", digest)
		return nil
	}
	if err != nil {
		return errs.Wrap(errs.NotAllowed, c.File+" cannot be read", err)
	}
	if bytes.Count(yaml, []byte(r.GetFormer())) != 1 {
		g.note("%s does not name the former digest once; put this one into it, or the next apply takes it back: digest: %q", c.File, digest)
		return nil
	}
	out := c.Out
	if out == "" {
		out = filepath.Join(filepath.Dir(c.File), "catalogs", c.Name+".json")
	}
	if _, err := keepFormer(out, digest); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return errs.Wrap(errs.NotAllowed, "the catalog file "+out+" cannot be written", err)
	}
	if err := os.WriteFile(out, r.GetCatalog(), 0o644); err != nil {
		return errs.Wrap(errs.NotAllowed, "the catalog file "+out+" cannot be written", err)
	}
	if err := os.WriteFile(c.File, bytes.Replace(yaml, []byte(r.GetFormer()), []byte(digest), 1), 0o644); err != nil {
		return errs.Wrap(errs.NotAllowed, c.File+" cannot be written", err)
	}
	g.note("Wrote %s, and its digest into %s.", out, c.File)
	return nil
}

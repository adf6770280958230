package main

import (
	"fmt"
	"os"

	"sallyport.dev/control/catalog"
	"sallyport.dev/errs"
)

func readCatalog(path string) ([]catalog.Entry, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, errs.Wrap(errs.NotFound, path+" cannot be read", err)
	}
	return catalog.Parse(data)
}

type catalogsShowCmd struct {
	File string `arg:"" help:"A catalog file."`
}

// Run prints every tool exactly as a model will read it, with what a reviewer should look at.
func (c *catalogsShowCmd) Run(g *Globals) error {
	entries, err := readCatalog(c.File)
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(map[string]any{"digest": catalog.Digest(entries).String(), "tools": catalog.Propose(entries)})
		return nil
	}
	fmt.Fprintf(g.out, "digest %s\n", catalog.Digest(entries))
	for i, p := range catalog.Propose(entries) {
		fmt.Fprintf(g.out, "\n%s  proposed: %s  server: %s\n", p.Name, p.Effect, oneLine(p.Hint))
		for _, f := range p.Findings {
			fmt.Fprintf(g.out, "  ! %s\n", oneLine(f))
		}
		fmt.Fprintln(g.out, visible(indented(entries[i].Raw)))
	}
	return nil
}

type catalogsDiffCmd struct {
	Before string `arg:"" help:"The reviewed file."`
	After  string `arg:"" help:"The newer file."`
}

// Run compares two catalog files.
func (c *catalogsDiffCmd) Run(g *Globals) error {
	before, err := readCatalog(c.Before)
	if err != nil {
		return err
	}
	after, err := readCatalog(c.After)
	if err != nil {
		return err
	}
	changes := catalog.Diff(before, after)
	if g.JSON {
		g.printJSON(changes)
		return nil
	}
	for _, d := range changes {
		fmt.Fprintf(g.out, "%s: %v\n", d.Tool, d.Classes)
		for _, l := range d.Lines {
			fmt.Fprintf(g.out, "    %s\n", oneLine(l))
		}
	}
	if len(changes) == 0 {
		g.note("No difference.")
	}
	return nil
}

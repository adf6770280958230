package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control/config"
	"sallyport.dev/errs"
)

type fileFlags struct {
	File  string `short:"f" help:"The file." default:"sallyport.yaml" placeholder:"FILE"`
	Prune bool   `help:"Also remove what the file does not name."`
}

// read returns the YAML and the catalogs that it names, from beside it.
func (f *fileFlags) read() ([]byte, []*sallyportv1.ConfigFile, error) {
	yaml, err := os.ReadFile(f.File)
	if err != nil {
		return nil, nil, errs.Wrap(errs.NotFound, f.File+" cannot be read; write one, or name another with -f", err)
	}
	root, err := os.OpenRoot(filepath.Dir(f.File))
	if err != nil {
		return nil, nil, errs.Wrap(errs.NotFound, "the file's directory cannot be read", err)
	}
	defer root.Close()
	var files []*sallyportv1.ConfigFile
	for _, name := range config.CatalogFiles(yaml) {
		data, err := root.ReadFile(name)
		if err != nil {
			continue // the plan says which file is missing, and what to type
		}
		files = append(files, &sallyportv1.ConfigFile{Name: name, Data: data})
	}
	return yaml, files, nil
}

func (g *Globals) problems(file string, problems []*sallyportv1.Problem) error {
	for _, p := range problems {
		at := ""
		if p.GetLine() > 0 {
			at = fmt.Sprintf(":%d:%d", p.GetLine(), p.GetColumn())
		}
		path := ""
		if p.GetPath() != "" {
			path = p.GetPath() + ": "
		}
		fmt.Fprintf(g.err, "%s%s: %s%s\n", file, at, oneLine(path), oneLine(p.GetMessage()))
	}
	return errs.Newf(errs.Invalid, "%d problems; nothing was changed", len(problems))
}

func (g *Globals) changes(changes []*sallyportv1.PlanChange) {
	marks := map[string]string{"add": "+", "change": "~", "remove": "-", "test": "?"}
	for _, c := range changes {
		fmt.Fprintf(g.out, "%s %s %s\n", marks[c.GetAction()], c.GetKind(), oneLine(c.GetName()))
		for _, l := range c.GetLines() {
			fmt.Fprintf(g.out, "    %s\n", oneLine(l))
		}
	}
}

type diffCmd struct{ fileFlags }

// Run prints what the file would change.
func (c *diffCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	yaml, files, err := c.read()
	if err != nil {
		return err
	}
	r, err := answer(api.Plan(ctx, &sallyportv1.PlanRequest{Yaml: yaml, Files: files, Prune: c.Prune}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
	}
	if len(r.GetProblems()) > 0 {
		return g.problems(c.File, r.GetProblems())
	}
	if g.JSON {
		return nil
	}
	g.changes(r.GetChanges())
	if len(r.GetChanges()) == 0 {
		g.note("Nothing to change.")
	}
	return nil
}

type applyCmd struct {
	fileFlags
	Yes bool `help:"Do not ask."`
}

// Run shows the plan, asks, and applies exactly it.
func (c *applyCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	yaml, files, err := c.read()
	if err != nil {
		return err
	}
	plan, err := answer(api.Plan(ctx, &sallyportv1.PlanRequest{Yaml: yaml, Files: files, Prune: c.Prune}))
	if err != nil {
		return err
	}
	if len(plan.GetProblems()) > 0 {
		if g.JSON {
			g.printJSON(plan)
		}
		return g.problems(c.File, plan.GetProblems())
	}
	if !g.JSON {
		g.changes(plan.GetChanges())
	}
	if len(plan.GetChanges()) == 0 {
		g.note("Nothing to change.")
		if g.JSON {
			g.printJSON(&sallyportv1.ApplyResponse{})
		}
		return nil
	}
	if err := g.confirm(c.Yes, "Apply this?"); err != nil {
		return err
	}
	r, err := answer(api.Apply(ctx, &sallyportv1.ApplyRequest{Yaml: yaml, Files: files, Prune: c.Prune, PlanDigest: plan.GetDigest()}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
	}
	failed := 0
	for _, t := range r.GetTests() {
		if !t.GetOk() {
			failed++
		}
		if !g.JSON {
			g.report(t)
		}
	}
	if failed > 0 {
		return errs.Newf(errs.Unreachable, "applied; %d connections did not pass their test and stay out of service: mend them, then sallyport connections enable NAME", failed)
	}
	g.note("Applied.")
	return nil
}

// report prints a test's steps.
func (g *Globals) report(t *sallyportv1.TestReport) {
	verdict := "in service"
	if !t.GetOk() {
		verdict = "not in service"
	}
	fmt.Fprintf(g.out, "%s: %s\n", oneLine(t.GetConnection()), verdict)
	for _, s := range t.GetSteps() {
		mark := "ok  "
		if !s.GetOk() {
			mark = "FAIL"
		}
		fmt.Fprintf(g.out, "  %s  %-12s %6.1f ms  %s\n", mark, oneLine(s.GetName()), float64(s.GetTookUs())/1000, oneLine(s.GetDetail()))
	}
}

type schemaCmd struct{}

// Run prints the JSON Schema of sallyport.yaml.
func (schemaCmd) Run(g *Globals) error {
	s, err := config.Schema()
	if err != nil {
		return err
	}
	fmt.Fprintf(g.out, "%s\n", strings.TrimSpace(string(s)))
	return nil
}

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

// problems prints what is wrong with a file, each with its place, unless the answer has it already, and returns the error.
func (g *Globals) problems(file string, problems []*sallyportv1.Problem) error {
	for _, p := range problems {
		if g.JSON {
			break
		}
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
	return errs.Newf(errs.Invalid, "%s in %s; nothing was changed", count(len(problems), "problem", "problems"), file)
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
	if err := g.confirm(ctx, c.Yes, "Apply this?"); err != nil {
		return err
	}
	r, err := answer(api.Apply(ctx, &sallyportv1.ApplyRequest{Yaml: yaml, Files: files, Prune: c.Prune, PlanDigest: plan.GetDigest()}))
	if err != nil {
		return decided(err)
	}
	if g.JSON {
		g.printJSON(r)
	}
	if len(r.GetProblems()) > 0 {
		return g.problems(c.File, r.GetProblems()) // somebody changed what the file rests on since the plan
	}
	var failed, bare []string
	for _, t := range r.GetTests() {
		switch {
		case t.GetOk():
		case errs.Code(t.GetCode()) == errs.NotConnected:
			bare = append(bare, t.GetConnection())
		default:
			failed = append(failed, t.GetConnection())
		}
		if !g.JSON {
			g.report(t, "in service", "not in service")
		}
	}
	if len(failed) > 0 {
		return errs.Newf(errs.Unreachable, "applied, but not in service: %s. Mend what the test says, then: sallyport connections enable %s",
			strings.Join(failed, ", "), failed[0])
	}
	g.note("Applied.")
	for _, name := range bare { // the next step of a new connection, no failure
		g.note("%s is not in service before it has its credential: sallyport credentials connect %[1]s, then sallyport connections enable %[1]s", name)
	}
	return nil
}

// report prints a test's steps under what they came to.
func (g *Globals) report(t *sallyportv1.TestReport, passed, failed string) {
	verdict := passed
	if !t.GetOk() {
		verdict = failed
	}
	fmt.Fprintf(g.out, "%s: %s\n", oneLine(t.GetConnection()), verdict)
	for _, s := range t.GetSteps() {
		mark := "ok  "
		if !s.GetOk() {
			mark = "FAIL"
		}
		line := fmt.Sprintf("  %s  %-12s %6.1f ms  %s", mark, oneLine(s.GetName()), float64(s.GetTookUs())/1000, oneLine(s.GetDetail()))
		fmt.Fprintln(g.out, strings.TrimRight(line, " "))
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

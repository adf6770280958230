package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control/catalog"
	"sallyport.dev/errs"
)

type catalogsCmd struct {
	Pull    catalogsPullCmd    `cmd:"" help:"Write what a server lists now into its catalog file, to be reviewed."`
	Show    catalogsShowCmd    `cmd:"" help:"Print the tools of a connection, or of a catalog file, as a model reads them."`
	Diff    catalogsDiffCmd    `cmd:"" help:"Compare what was reviewed with what the server lists now, or two catalog files."`
	Check   catalogsCheckCmd   `cmd:"" help:"Compare what a server lists now with what was reviewed; a change makes a draft."`
	Drafts  catalogsDraftsCmd  `cmd:"" help:"Print the drafts that wait for a review, change by change."`
	Approve catalogsApproveCmd `cmd:"" help:"Approve a draft: it takes the place of the reviewed catalog."`
	Reject  catalogsRejectCmd  `cmd:"" help:"Reject a draft: agents keep what was reviewed."`
}

type catalogsPullCmd struct {
	Name string `arg:"" help:"The connection."`
	yamlFlag
	Out string `help:"Where to write. Default: catalogs/NAME.json beside sallyport.yaml." placeholder:"FILE"`
}

// Run pulls a catalog and says what to put into sallyport.yaml.
func (c *catalogsPullCmd) Run(ctx context.Context, g *Globals) error {
	r, err := c.pull(ctx, g)
	if err != nil {
		return err
	}
	beside := filepath.Dir(c.File) // "." without one
	out := c.Out
	if out == "" {
		out = filepath.Join(beside, "catalogs", c.Name+".json")
	}
	former, err := keepFormer(out, r.GetDigest())
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return errs.Wrap(errs.NotAllowed, "the catalog file "+out+" cannot be written", err)
	}
	if err := os.WriteFile(out, r.GetCatalog(), 0o644); err != nil {
		return errs.Wrap(errs.NotAllowed, "the catalog file "+out+" cannot be written", err)
	}
	// The YAML names the file as seen from itself.
	named := out
	if rel, err := filepath.Rel(beside, out); err == nil && filepath.IsLocal(rel) {
		named = rel
	}
	if g.JSON {
		g.printJSON(map[string]any{"file": named, "former": former, "digest": r.GetDigest(), "protocol": r.GetProtocol(), "tools": proposals(r)})
		return nil
	}
	g.note("Wrote %s (%s, MCP %s). Read it; then put into sallyport.yaml, with every effect as you judge it:", out, count(len(r.GetProposed()), "tool", "tools"), r.GetProtocol())
	fmt.Fprintf(g.out, "    catalog: {file: %s, digest: %q}\n    tools:\n", named, r.GetDigest())
	for _, p := range r.GetProposed() {
		fmt.Fprintf(g.out, "      %s: {effect: %s}", oneLine(p.GetName()), p.GetEffect())
		if p.GetHint() != "none" {
			fmt.Fprintf(g.out, "   # the server says %s", oneLine(p.GetHint()))
		}
		fmt.Fprintln(g.out)
		for _, f := range p.GetFindings() {
			fmt.Fprintf(g.out, "      # look closely at %s: %s\n", oneLine(p.GetName()), oneLine(f))
		}
	}
	if former != "" {
		g.note("The server's list changed. The former file is %s; compare: sallyport catalogs diff %s %s", former, former, out)
	}
	return nil
}

func (c *catalogsPullCmd) pull(ctx context.Context, g *Globals) (*sallyportv1.PullCatalogResponse, error) {
	api, err := g.client()
	if err != nil {
		return nil, err
	}
	yaml, err := c.bytes()
	if err != nil {
		return nil, err
	}
	return answer(api.PullCatalog(ctx, &sallyportv1.PullCatalogRequest{Connection: c.Name, Yaml: yaml}))
}

// keepFormer moves a catalog of another digest aside: it is what a reviewer judged, and they want to compare. It returns where it is now, or "".
func keepFormer(path, digest string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", errs.Wrap(errs.NotAllowed, path+" cannot be read", err)
	}
	if entries, err := catalog.Parse(data); err == nil && catalog.Digest(entries).String() == digest {
		return "", nil
	}
	former := path + ".old"
	if err := os.Rename(path, former); err != nil {
		return "", errs.Wrap(errs.NotAllowed, path+" cannot be moved aside", err)
	}
	return former, nil
}

type proposal struct {
	Name     string   `json:"name"`
	Effect   string   `json:"effect"`
	Hint     string   `json:"hint"`
	Findings []string `json:"findings"`
}

func proposals(r *sallyportv1.PullCatalogResponse) []proposal {
	out := []proposal{}
	for _, p := range r.GetProposed() {
		out = append(out, proposal{p.GetName(), p.GetEffect(), p.GetHint(), append([]string{}, p.GetFindings()...)})
	}
	return out
}

func readCatalog(path string) ([]catalog.Entry, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, errs.Wrap(errs.NotFound, path+" cannot be read", err)
	}
	entries, err := catalog.Parse(data)
	if err != nil {
		return nil, errs.Wrap(errs.CodeOf(err), path+": "+errs.Message(err), err)
	}
	return entries, nil
}

// connectionName is what can only be a connection's name, never a path.
var connectionName = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

type catalogsShowCmd struct {
	Of string `arg:"" name:"connection-or-file" help:"A connection: what is reviewed and in force. Or a catalog file."`
}

// Run prints every tool exactly as a model reads it, with what a reviewer should look at.
func (c *catalogsShowCmd) Run(ctx context.Context, g *Globals) error {
	if connectionName.MatchString(c.Of) {
		return g.showReviewed(ctx, c.Of)
	}
	entries, err := readCatalog(c.Of)
	if err != nil {
		return err
	}
	proposed := catalog.Propose(entries)
	if g.JSON {
		tools := []proposal{}
		for _, p := range proposed {
			tools = append(tools, proposal{p.Name, string(p.Effect), p.Hint, append([]string{}, p.Findings...)})
		}
		g.printJSON(map[string]any{"digest": catalog.Digest(entries).String(), "tools": tools})
		return nil
	}
	fmt.Fprintf(g.out, "digest %s\n", catalog.Digest(entries))
	for i, p := range proposed {
		fmt.Fprintf(g.out, "\n%s  proposed: %s  server: %s\n", p.Name, p.Effect, oneLine(p.Hint))
		for _, f := range p.Findings {
			fmt.Fprintf(g.out, "  ! %s\n", oneLine(f))
		}
		fmt.Fprintln(g.out, visible(indented(entries[i].Raw)))
	}
	return nil
}

func (g *Globals) showReviewed(ctx context.Context, connection string) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ShowCatalog(ctx, &sallyportv1.ShowCatalogRequest{Connection: connection}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	fmt.Fprintf(g.out, "digest %s\nreviewed by %s, %s\n", r.GetDigest(), oneLine(r.GetReviewedBy()), ago(r.GetReviewedMs()))
	for _, t := range r.GetTools() {
		more := ""
		if t.GetRepeat() {
			more += ", repeat"
		}
		if t.GetRefuseExtra() {
			more += ", no extra members"
		}
		fmt.Fprintf(g.out, "\n%s  %s%s, in the sandbox %s\n%s\n", oneLine(t.GetName()), t.GetEffect(), more, oneLine(t.GetAs()), visible(indented(t.GetRaw())))
	}
	return nil
}

type catalogsDiffCmd struct {
	Before string `arg:"" name:"connection-or-file" help:"A connection, or the reviewed file."`
	After  string `arg:"" optional:"" name:"file" help:"The newer file. Without one: what the server lists now."`
}

// Run compares.
func (c *catalogsDiffCmd) Run(ctx context.Context, g *Globals) error {
	before, after, err := c.sides(ctx, g)
	if err != nil {
		return err
	}
	changes := catalog.Diff(before, after)
	if g.JSON {
		out := []map[string]any{}
		for _, d := range changes {
			out = append(out, map[string]any{"tool": d.Tool, "classes": d.Classes, "lines": append([]string{}, d.Lines...)})
		}
		g.printJSON(map[string]any{"changes": out})
	} else {
		for _, d := range changes {
			classes := make([]string, len(d.Classes))
			for i, k := range d.Classes {
				classes[i] = string(k)
			}
			fmt.Fprintf(g.out, "%s: %s\n", oneLine(d.Tool), strings.Join(classes, ", "))
			for _, l := range d.Lines {
				fmt.Fprintf(g.out, "    %s\n", oneLine(l))
			}
		}
	}
	if len(changes) == 0 {
		g.note("No difference.")
	}
	return nil
}

// sides are the two lists to compare. What a reviewer did not let in is not known to control: of the server's list, only what was reviewed is compared.
func (c *catalogsDiffCmd) sides(ctx context.Context, g *Globals) (before, after []catalog.Entry, err error) {
	if c.After != "" {
		if before, err = readCatalog(c.Before); err == nil {
			after, err = readCatalog(c.After)
		}
		return before, after, err
	}
	if !connectionName.MatchString(c.Before) {
		return nil, nil, errs.Newf(errs.Invalid, "name two catalog files, or one connection; %q is neither", c.Before)
	}
	api, err := g.client()
	if err != nil {
		return nil, nil, err
	}
	reviewed, err := answer(api.ShowCatalog(ctx, &sallyportv1.ShowCatalogRequest{Connection: c.Before}))
	if err != nil {
		return nil, nil, err
	}
	pulled, err := answer(api.PullCatalog(ctx, &sallyportv1.PullCatalogRequest{Connection: c.Before}))
	if err != nil {
		return nil, nil, err
	}
	if pulled.GetDigest() == reviewed.GetDigest() {
		return nil, nil, nil
	}
	now, err := catalog.Parse(pulled.GetCatalog())
	if err != nil {
		return nil, nil, err
	}
	known := map[string]bool{}
	for _, t := range reviewed.GetTools() {
		e, err := catalog.ParseEntry(t.GetRaw())
		if err != nil {
			return nil, nil, err
		}
		known[e.Name], before = true, append(before, e)
	}
	left := 0
	for _, e := range now {
		if known[e.Name] {
			after = append(after, e)
		} else {
			left++
		}
	}
	if left > 0 {
		g.note("Beside the reviewed tools the server lists %s that nobody let in; sallyport catalogs pull %s writes all.", count(left, "tool", "tools"), c.Before)
	}
	return before, after, nil
}

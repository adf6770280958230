package main

import (
	"fmt"
	"os"
	"path/filepath"

	"sallyport.dev/errs"
	"sallyport.dev/identity/statefile"
)

type initCmd struct {
	Domain string `help:"The trust domain of this installation's identities." default:"${domain}"`
	File   string `short:"f" help:"Where to write a first sallyport.yaml, unless there is one." default:"sallyport.yaml" placeholder:"FILE"`
}

// starter is a first sallyport.yaml: it applies as it is, and says what to do next.
const starter = `# What agents may do. Check it with: sallyport diff    Apply it with: sallyport apply
version: 1

# Remote MCP servers. Their secrets never stand here: sallyport credentials set NAME
#connections:
#  tracker:
#    url: https://mcp.tracker.example.org/mcp
#    auth: {type: bearer}
#    # First without the lines below: sallyport apply, then: sallyport credentials set tracker
#    # Then sallyport catalogs pull tracker prints them, to be read and judged; and again: sallyport apply
#    # catalog: {file: catalogs/tracker.json, digest: "..."}
#    # tools:
#    #   list_issues:  {effect: read}
#    #   create_issue: {effect: write}

# Kinds of sandboxes: sallyport run --profile dev -- claude
profiles:
  dev:
    attended: true
    sandbox: {driver: bwrap}
    model: {provider: anthropic, source: main}   # main is a name in the host's host.yaml
#    grants:
#      - {tools: [tracker/list_issues],  rule: allow}
#      - {tools: [tracker/create_issue], rule: ask}
`

// hostStarter is a first host.yaml: where this host takes model keys from.
const hostStarter = `# Where this host takes model keys from. They stay on the host: no sandbox and no control plane sees them.
# One of env (a variable of sallyport up, or of sallyport host), file, command ([program, argument, ...]).
version: 1
models:
  main:   {provider: anthropic, env: ANTHROPIC_API_KEY}
  openai: {provider: openai, env: OPENAI_API_KEY}
`

// Run makes an installation. What exists already is kept.
func (c *initCmd) Run(g *Globals) error {
	state, err := g.stateDir()
	if err != nil {
		return err
	}
	if err := makeState(state); err != nil {
		return err
	}
	keys, err := openKeys(state, c.Domain)
	if err != nil {
		return err
	}
	defer keys.dir.Close()
	for _, part := range []string{"worker", "host"} {
		d, err := statefile.Open(filepath.Join(state, part))
		if err != nil {
			return err
		}
		d.Close()
	}
	hostFile := filepath.Join(state, "host", "host.yaml")
	if _, err := writeNew(hostFile, hostStarter, 0o600); err != nil {
		return err
	}
	wrote, err := writeNew(c.File, starter, 0o644)
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(map[string]any{"state": state, "domain": keys.ca.Domain(), "host_yaml": hostFile, "wrote": wrote})
		return nil
	}
	fmt.Fprintf(g.out, "state     %s\ndomain    %s\nhost      %s\n", state, keys.ca.Domain(), hostFile)
	if wrote {
		fmt.Fprintf(g.out, "wrote     %s\n", c.File)
	}
	g.note("\nNext: sallyport up, and in another terminal: sallyport apply, then sallyport run --profile dev -- claude\nSomething in the way? sallyport doctor")
	return nil
}

// makeState makes the state directory and its parents.
func makeState(state string) error {
	if info, err := os.Stat(state); err == nil && !info.IsDir() {
		return errs.Newf(errs.Invalid, "%s is not a directory; move it away, or name another with --state", state)
	}
	if err := os.MkdirAll(filepath.Dir(state), 0o755); err != nil {
		return errs.Wrap(errs.NotAllowed, "the state directory cannot be made; name another with --state", err)
	}
	d, err := statefile.Open(state)
	if err != nil {
		return err
	}
	return d.Close()
}

func writeNew(path, text string, mode os.FileMode) (bool, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if os.IsExist(err) {
		return false, nil
	}
	if err != nil {
		return false, errs.Wrap(errs.NotAllowed, path+" cannot be written", err)
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return true, err
}

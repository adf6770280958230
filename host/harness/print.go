package harness

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sallyport.dev/errs"
)

// Printed lists what [Print] knows: the harnesses, and two forms for programs that take a description of the server.
func Printed() []string {
	names := append(Names(), "acp", "json")
	slices.Sort(names)
	return names
}

// Print returns a configuration as text, for a runner that is not ours: the files with their paths, the variables, the arguments. acp is
// an entry of mcpServers for session/new of the Agent Client Protocol (its stdio form has no type), json the form that most clients read.
func Print(name string, o Options) (string, error) {
	switch name {
	case "acp", "json":
		o, err := o.withDefaults()
		if err != nil {
			return "", err
		}
		var v any = map[string]any{"mcpServers": map[string]any{Server: map[string]any{"command": o.Guest[0], "args": o.Guest[1:]}}}
		if name == "acp" {
			v = map[string]any{"name": Server, "command": o.Guest[0], "args": o.Guest[1:], "env": []string{}}
		}
		text, err := json.MarshalIndent(v, "", "  ")
		return string(text) + "\n", err
	}
	c, err := Generate(name, o)
	if errs.Is(err, errs.NotFound) {
		return "", errs.Newf(errs.NotFound, "there is no harness %q; there are %s", name, strings.Join(Printed(), ", "))
	}
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, f := range c.Files {
		what := "write"
		if f.Merge {
			what = "merge into"
		}
		fmt.Fprintf(&b, "# %s ~/%s\n%s\n", what, f.Path, f.Content)
	}
	fmt.Fprintf(&b, "# environment\n%s\n", strings.Join(c.Env, "\n"))
	if len(c.Args) > 0 {
		fmt.Fprintf(&b, "\n# arguments, before your own\n%s\n", strings.Join(c.Args, " "))
	}
	for _, note := range c.Notes {
		fmt.Fprintf(&b, "\n# note: %s\n", note)
	}
	return b.String(), nil
}

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

type completionCmd struct {
	Shell string   `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
	Words []string `arg:"" optional:"" hidden:"" passthrough:""`
}

// The scripts ask the program itself, so that they never grow old.
var completionScripts = map[string]string{
	"bash": `_sallyport() { mapfile -t COMPREPLY < <(compgen -W "$(sallyport completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" -- "${COMP_WORDS[COMP_CWORD]}"); }
complete -o default -F _sallyport sallyport
`,
	"zsh": `#compdef sallyport
_sallyport() { local -a w; w=(${(f)"$(sallyport completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)"}); compadd -a w; }
compdef _sallyport sallyport
`,
	"fish": `complete -c sallyport -f -a '(sallyport completion fish -- (commandline -opc)[2..] "$(commandline -ct)" 2>/dev/null)'
`,
}

// Run prints the script, or with words what may follow them.
func (c *completionCmd) Run(k *kong.Context, g *Globals) error {
	if len(c.Words) == 0 {
		fmt.Fprint(g.out, completionScripts[c.Shell])
		return nil
	}
	for _, w := range candidates(k.Model.Node, c.Words) {
		fmt.Fprintln(g.out, w)
	}
	return nil
}

// candidates lists what may stand at the last of words.
func candidates(root *kong.Node, words []string) []string {
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	last := ""
	if len(words) > 0 {
		last, words = words[len(words)-1], words[:len(words)-1]
	}
	node := root
	for _, w := range words {
		for _, child := range node.Children {
			if child.Name == w {
				node = child
				break
			}
		}
	}
	var out []string
	if strings.HasPrefix(last, "-") {
		for n := node; n != nil; n = n.Parent {
			for _, f := range n.Flags {
				if !f.Hidden {
					out = append(out, "--"+f.Name)
				}
			}
		}
	} else {
		for _, child := range node.Children {
			if !child.Hidden {
				out = append(out, child.Name)
			}
		}
		for _, p := range node.Positional {
			out = append(out, p.EnumSlice()...)
			break
		}
	}
	return slices.DeleteFunc(out, func(s string) bool { return !strings.HasPrefix(s, last) || s == "" })
}

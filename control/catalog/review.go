package catalog

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"sallyport.dev/control"
)

// Proposal is what a reviewer starts from. The server's hint is shown and never trusted: only a reviewer makes a tool a read.
type Proposal struct {
	Name     string
	Effect   control.Effect // write, unless the hint says read: a proposal, not a decision
	Hint     string         // readOnlyHint=true, destructiveHint=false, ...; "none"
	Findings []string
}

// Propose suggests effects and lists findings for every tool.
func Propose(entries []Entry) []Proposal {
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name)
	}
	out := make([]Proposal, 0, len(entries))
	for _, e := range entries {
		p := Proposal{Name: e.Name, Effect: control.Write, Hint: "none", Findings: Lint(e, names)}
		if m, err := Members(e.Raw); err == nil {
			if a, err := Members(m["annotations"]); err == nil {
				var hints []string
				for _, h := range []string{"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"} {
					if v, ok := a[h]; ok {
						hints = append(hints, h+"="+string(v))
					}
				}
				if len(hints) > 0 {
					p.Hint = strings.Join(hints, " ")
				}
				if string(a["readOnlyHint"]) == "true" {
					p.Effect = control.Read
				}
			}
		}
		out = append(out, p)
	}
	return out
}

// Phrases that address the model instead of describing a tool. A finding is a reason to read closely, not a verdict.
var instructions = regexp.MustCompile(`(?i)\b(ignore (all|any|the|previous)|you must|always call|before (using|calling) (any|this|other)|do not (tell|inform|mention)|never (tell|reveal|mention)|system prompt|<(system|important|instructions?)>)`)

// Lint lists what a reviewer should look at: hidden or bidirectional characters, instructions to the model, mentions of other tools, names that
// look like another tool's.
func Lint(e Entry, names []string) []string {
	var out []string
	text := decodedStrings(e.Raw)
	hidden := map[rune]bool{}
	for _, s := range text {
		for _, r := range s {
			if Hidden(r) && !hidden[r] {
				hidden[r] = true
				out = append(out, fmt.Sprintf("hidden character U+%04X", r))
			}
		}
	}
	for _, s := range text {
		if m := instructions.FindString(s); m != "" {
			out = append(out, fmt.Sprintf("speaks to the model: %q", m))
			break
		}
	}
	for _, n := range names {
		if n == e.Name {
			continue
		}
		if skeleton(n) == skeleton(e.Name) {
			out = append(out, fmt.Sprintf("its name looks like %q", n))
		}
		if len(n) < 4 {
			continue
		}
		word := regexp.MustCompile(`(^|[^A-Za-z0-9_.-])` + regexp.QuoteMeta(n) + `($|[^A-Za-z0-9_-])`)
		for _, s := range text {
			if word.MatchString(s) {
				out = append(out, fmt.Sprintf("mentions the tool %q", n))
				break
			}
		}
	}
	return out
}

// Hidden reports whether r is a control, format, private-use, bidirectional or tag character, which a reader does not see as it is.
func Hidden(r rune) bool {
	if r == '\n' || r == '\t' || r == '\r' {
		return false
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zl, unicode.Zp) || 0xE0000 <= r && r <= 0xE0FFF || r == 0x115F || r == 0x1160 || r == 0x3164 || r == 0xFFA0
}

func skeleton(name string) string {
	return strings.NewReplacer("0", "o", "1", "l", "i", "l", "-", "", "_", "", ".", "").Replace(strings.ToLower(name))
}

// decodedStrings returns every string of the value, names included, decoded: an escape must not hide a character from the reviewer.
func decodedStrings(raw []byte) []string {
	var out []string
	dec := jsontext.NewDecoder(bytes.NewReader(raw))
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			return out
		}
		if tok.Kind() == '"' {
			out = append(out, tok.String())
		}
	}
}

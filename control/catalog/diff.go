package catalog

import (
	"bytes"
	"fmt"
	"sort"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// ChangeClass says what kind of change a server made to a tool.
type ChangeClass string

// Classes, from harmless to grave.
const (
	Added          ChangeClass = "added"
	Removed        ChangeClass = "removed"
	Description    ChangeClass = "description" // words that a model reads, those of a schema too
	SchemaWidened  ChangeClass = "widened"     // what was valid still is, and more is
	SchemaNarrowed ChangeClass = "narrowed"    // what was valid may not be any more; also where that cannot be told
	Hints          ChangeClass = "hints"       // the server's word on its effect
	OtherMembers   ChangeClass = "other"       // anything else
	BytesOnly      ChangeClass = "bytes"       // the same values in other bytes
)

// Reviewed are the classes for which a connection can say what follows.
var Reviewed = []ChangeClass{Added, Removed, Description, SchemaWidened, SchemaNarrowed, Hints, OtherMembers}

// Names writes classes as people read them.
func Names(classes []ChangeClass) string {
	words := make([]string, len(classes))
	for i, c := range classes {
		words[i] = string(c)
	}
	return strings.Join(words, ", ")
}

// Consequence says what follows from a change.
type Consequence string

// Consequences, from the mildest.
const (
	Note Consequence = "note" // a draft; agents keep what was reviewed
	Void Consequence = "void" // also: open approvals of the tool are void
	Stop Consequence = "stop" // also: the tool is out of service until it was reviewed
)

// Consequence is the gravest that a connection's policy has for the classes of c. Where the policy says nothing, what only adds is noted and the rest
// makes approvals void.
func (c Change) Consequence(policy map[string]string) Consequence {
	worst := Note
	for _, class := range c.Classes {
		k := Consequence(policy[string(class)])
		if k == "" && class != Added && class != BytesOnly {
			k = Void
		}
		if k == Stop || k == Void && worst == Note {
			worst = k
		}
	}
	return worst
}

// Change is one difference between two revisions.
type Change struct {
	Tool    string
	Classes []ChangeClass
	Lines   []string // member: old -> new, exact bytes
}

// Diff compares two sorted lists. It returns nothing for tools whose bytes are equal.
func Diff(before, after []Entry) []Change {
	olds := map[string]Entry{}
	for _, e := range before {
		olds[e.Name] = e
	}
	var out []Change
	for _, e := range after {
		o, ok := olds[e.Name]
		delete(olds, e.Name)
		switch {
		case !ok:
			out = append(out, Change{Tool: e.Name, Classes: []ChangeClass{Added}, Lines: []string{"+ " + string(e.Raw)}})
		case !bytes.Equal(o.Raw, e.Raw):
			out = append(out, diffTool(o, e))
		}
	}
	for name, o := range olds {
		out = append(out, Change{Tool: name, Classes: []ChangeClass{Removed}, Lines: []string{"- " + string(o.Raw)}})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Tool < out[j].Tool })
	return out
}

func diffTool(o, n Entry) Change {
	c := Change{Tool: n.Name}
	om, err1 := Members(o.Raw)
	nm, err2 := Members(n.Raw)
	if err1 != nil || err2 != nil {
		c.Classes = []ChangeClass{OtherMembers}
		return c
	}
	names := map[string]bool{}
	for k := range om {
		names[k] = true
	}
	for k := range nm {
		names[k] = true
	}
	sorted := make([]string, 0, len(names))
	for k := range names {
		sorted = append(sorted, k)
	}
	sort.Strings(sorted)
	classes := map[ChangeClass]bool{}
	for _, k := range sorted {
		if sameValue(om[k], nm[k]) {
			continue
		}
		switch k {
		case "description", "title":
			classes[Description] = true
		case "inputSchema", "outputSchema":
			for _, class := range schemaChange(om[k], nm[k]) {
				classes[class] = true
			}
		case "annotations":
			classes[Hints] = true
		default:
			classes[OtherMembers] = true
		}
		c.Lines = append(c.Lines, fmt.Sprintf("%s: %s -> %s", k, shown(om[k]), shown(nm[k])))
	}
	if len(classes) == 0 {
		classes[BytesOnly] = true
	}
	for _, cl := range []ChangeClass{Description, SchemaWidened, SchemaNarrowed, Hints, OtherMembers, BytesOnly} {
		if classes[cl] {
			c.Classes = append(c.Classes, cl)
		}
	}
	return c
}

func shown(v jsontext.Value) string {
	if v == nil {
		return "(absent)"
	}
	return string(v)
}

// sameValue compares two values with members in any order and literals as written: 1.0 and 1 differ, as they do in an approval.
func sameValue(a, b jsontext.Value) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return bytes.Equal(ordered(a), ordered(b))
}

func ordered(v jsontext.Value) []byte {
	switch v.Kind() {
	case '{':
		m, err := Members(v)
		if err != nil {
			return v
		}
		names := make([]string, 0, len(m))
		for k := range m {
			names = append(names, k)
		}
		sort.Strings(names)
		out := []byte{'{'}
		for _, k := range names {
			out, _ = jsontext.AppendQuote(out, k)
			out = append(out, ':')
			out = append(append(out, ordered(m[k])...), ',')
		}
		return append(out, '}')
	case '[':
		dec := jsontext.NewDecoder(bytes.NewReader(v))
		if _, err := dec.ReadToken(); err != nil {
			return v
		}
		out := []byte{'['}
		for dec.PeekKind() != ']' {
			e, err := dec.ReadValue()
			if err != nil {
				return v
			}
			out = append(append(out, ordered(bytes.Clone(e))...), ',')
		}
		return append(out, ']')
	default:
		return v
	}
}

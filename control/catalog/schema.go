package catalog

import (
	"bytes"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// words are members of a schema that say nothing about what is valid.
var words = []string{"description", "title", "examples", "default", "$comment", "deprecated"}

// schemaChange classifies the difference of two schemas that are not equal. It says widened only where that is sure: what it does not know to be wider
// counts as narrower.
func schemaChange(before, after jsontext.Value) []ChangeClass {
	found := map[ChangeClass]bool{}
	compareSchemas(before, after, found)
	var out []ChangeClass
	for _, c := range []ChangeClass{Description, SchemaWidened, SchemaNarrowed} {
		if found[c] {
			out = append(out, c)
		}
	}
	return out
}

func compareSchemas(before, after jsontext.Value, found map[ChangeClass]bool) {
	if sameValue(before, after) {
		return
	}
	om, err1 := Members(before)
	nm, err2 := Members(after)
	if err1 != nil || err2 != nil { // absent, or a boolean schema
		found[SchemaNarrowed] = true
		return
	}
	for k := range union(om, nm) {
		o, n := om[k], nm[k]
		switch {
		case sameValue(o, n):
		case slices.Contains(words, k):
			found[Description] = true
		case k == "properties":
			compareProperties(o, n, found)
		case k == "items" && o != nil && n != nil:
			compareSchemas(o, n, found)
		case k == "required":
			compareSets(n, o, found) // a longer list allows less
		case k == "enum" || k == "type":
			switch {
			case o == nil:
				found[SchemaNarrowed] = true
			case n == nil:
				found[SchemaWidened] = true
			default:
				compareSets(o, n, found)
			}
		case n == nil && k != "additionalProperties" && k != "$ref" && k != "$defs" && k != "unevaluatedProperties":
			found[SchemaWidened] = true // a bound less
		default:
			found[SchemaNarrowed] = true
		}
	}
}

// compareProperties: a property more is wider, since nothing that was valid without it stops being so (that it is required says required); one less is
// narrower, since who sent it meant something by it.
func compareProperties(before, after jsontext.Value, found map[ChangeClass]bool) {
	om, _ := Members(before) // absent: no property
	nm, _ := Members(after)
	for k := range union(om, nm) {
		switch {
		case om[k] == nil:
			found[SchemaWidened] = true
		case nm[k] == nil:
			found[SchemaNarrowed] = true
		default:
			compareSchemas(om[k], nm[k], found)
		}
	}
}

// compareSets compares lists as sets: a superset is wider, everything else narrower.
func compareSets(before, after jsontext.Value, found map[ChangeClass]bool) {
	o, n := elements(before), elements(after)
	has := func(all [][]byte, one []byte) bool {
		return slices.ContainsFunc(all, func(other []byte) bool { return bytes.Equal(one, other) })
	}
	more, less := false, false
	for _, v := range n {
		more = more || !has(o, v)
	}
	for _, v := range o {
		less = less || !has(n, v)
	}
	if more {
		found[SchemaWidened] = true
	}
	if less {
		found[SchemaNarrowed] = true
	}
}

// elements are a list's values in one form; of a single value, that one.
func elements(v jsontext.Value) [][]byte {
	if v == nil {
		return nil
	}
	if v.Kind() != '[' {
		return [][]byte{ordered(v)}
	}
	var out [][]byte
	dec := jsontext.NewDecoder(bytes.NewReader(v))
	if _, err := dec.ReadToken(); err != nil {
		return nil
	}
	for dec.PeekKind() != ']' {
		e, err := dec.ReadValue()
		if err != nil {
			return out
		}
		out = append(out, ordered(bytes.Clone(e)))
	}
	return out
}

func union(a, b map[string]jsontext.Value) map[string]bool {
	out := map[string]bool{}
	for k := range a {
		out[k] = true
	}
	for k := range b {
		out[k] = true
	}
	return out
}

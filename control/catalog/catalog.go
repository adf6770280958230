// Package catalog reads, digests, names and reviews the tools of a connection. A catalog is an immutable list of tools, each kept as the exact
// bytes that the server sent; what a person approved is served until a person approves something else (I12). Pure: no store, no network.
package catalog

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// Bounds of a catalog (contracts.md).
const (
	MaxTools = 512
	MaxBytes = 4 << 20
	MaxDepth = 100
	maxName  = 128 // MCP 2026-07-28: 1-128 of [A-Za-z0-9_.-]
)

// Entry is one tool as the server described it.
type Entry struct {
	Name string
	Raw  []byte // the exact bytes
}

// Parse reads a catalog file, {"v":1,"tools":[...]}, strictly, and sorts the tools by name. Errors: [errs.Invalid], [errs.Oversize].
func Parse(data []byte) ([]Entry, error) {
	if len(data) > MaxBytes {
		return nil, errs.Newf(errs.Oversize, "a catalog holds at most %d bytes, this one has %d", MaxBytes, len(data))
	}
	dec := jsontext.NewDecoder(bytes.NewReader(data))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return nil, errs.Wrap(errs.Invalid, `a catalog file is a JSON object {"v":1,"tools":[...]}`, err)
	}
	var entries []Entry
	var seenV, seenTools bool
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, errs.Wrap(errs.Invalid, "the catalog file is not strict JSON", err)
		}
		switch name.String() {
		case "v":
			v, err := dec.ReadValue()
			if err != nil || string(v) != "1" {
				return nil, errs.New(errs.Invalid, "the catalog file's v must be 1; pull it again with this version")
			}
			seenV = true
		case "tools":
			seenTools = true
			if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '[' {
				return nil, errs.Wrap(errs.Invalid, "the catalog file's tools must be an array", err)
			}
			for dec.PeekKind() != ']' {
				raw, err := dec.ReadValue()
				if err != nil {
					return nil, errs.Wrap(errs.Invalid, "the catalog file is not strict JSON", err)
				}
				e, err := ParseEntry(bytes.Clone(raw))
				if err != nil {
					return nil, err
				}
				entries = append(entries, e)
			}
			if _, err := dec.ReadToken(); err != nil {
				return nil, errs.Wrap(errs.Invalid, "the catalog file is not strict JSON", err)
			}
		default:
			return nil, errs.Newf(errs.Invalid, "the catalog file has an unknown member %q", name.String())
		}
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, errs.Wrap(errs.Invalid, "the catalog file is not strict JSON", err)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errs.New(errs.Invalid, "something follows the catalog's object")
	}
	if !seenV || !seenTools {
		return nil, errs.New(errs.Invalid, `the catalog file needs both members, v and tools`)
	}
	return Sort(entries)
}

// Sort orders entries by name and refuses too many, or two of one name. Errors: [errs.Invalid], [errs.Oversize].
func Sort(entries []Entry) ([]Entry, error) {
	if len(entries) > MaxTools {
		return nil, errs.Newf(errs.Oversize, "a catalog holds at most %d tools, this one has %d", MaxTools, len(entries))
	}
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(entries); i++ {
		if entries[i].Name == entries[i-1].Name {
			return nil, errs.Newf(errs.Invalid, "two tools are named %q", entries[i].Name)
		}
	}
	return entries, nil
}

// ParseEntry reads the name of one tool and checks its form. It keeps raw. Errors: [errs.Invalid], [errs.Oversize].
func ParseEntry(raw []byte) (Entry, error) {
	m, err := Members(raw)
	if err != nil {
		return Entry{}, err
	}
	name, ok := stringValue(m["name"])
	if !ok || !ValidName(name) {
		return Entry{}, errs.Newf(errs.Invalid, "a tool's name must be 1 to %d of letters, digits, _ . -", maxName)
	}
	if s, ok := m["inputSchema"]; !ok || s.Kind() != '{' {
		return Entry{}, errs.Newf(errs.Invalid, "tool %q has no inputSchema object", name)
	}
	return Entry{Name: name, Raw: raw}, nil
}

// Members returns the raw members of one JSON object, read strictly (no duplicate names, no bad UTF-8, depth at most [MaxDepth]).
func Members(raw []byte) (map[string]jsontext.Value, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(raw))
	tok, err := dec.ReadToken()
	if err != nil || tok.Kind() != '{' {
		return nil, errs.Wrap(errs.Invalid, "this must be a JSON object", err)
	}
	m := map[string]jsontext.Value{}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, errs.Wrap(errs.Invalid, "not strict JSON", err)
		}
		key := name.String()
		v, err := dec.ReadValue()
		if err != nil {
			return nil, errs.Wrap(errs.Invalid, "not strict JSON", err)
		}
		if depth(v) > MaxDepth {
			return nil, errs.Newf(errs.Oversize, "JSON nested deeper than %d", MaxDepth)
		}
		m[key] = bytes.Clone(v)
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, errs.Wrap(errs.Invalid, "not strict JSON", err)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errs.New(errs.Invalid, "something follows the JSON object")
	}
	return m, nil
}

func depth(v []byte) int {
	deepest, at, inString := 0, 0, false
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			at++
			deepest = max(deepest, at)
		case c == '}' || c == ']':
			at--
		}
	}
	return deepest
}

func stringValue(v jsontext.Value) (string, bool) {
	if v.Kind() != '"' {
		return "", false
	}
	b, err := jsontext.AppendUnquote(nil, v)
	return string(b), err == nil
}

// ValidName reports whether name has the form of MCP 2026-07-28.
func ValidName(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '.', c == '-':
		default:
			return false
		}
	}
	return true
}

// Digest is the catalog digest: domain-separated over name and exact bytes of each tool, sorted by name.
func Digest(entries []Entry) control.Digest {
	parts := make([][]byte, 0, 2*len(entries))
	for _, e := range entries {
		parts = append(parts, []byte(e.Name), e.Raw)
	}
	return control.SumParts("catalog v1", parts...)
}

// Marshal writes the catalog file: one tool a line, so that a code review reads well. The bytes of a tool stay as they are.
func Marshal(entries []Entry) []byte {
	var b bytes.Buffer
	b.WriteString(`{"v":1,"tools":[`)
	for i, e := range entries {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		b.Write(e.Raw)
	}
	b.WriteString("\n]}\n")
	return b.Bytes()
}

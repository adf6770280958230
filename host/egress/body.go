package egress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxBody bounds one request to a model, in bytes.
const MaxBody = 32 << 20

const maxDepth = 100

// object reads the members of one JSON object, strictly. Values are slices of raw.
func object(raw []byte) (map[string]jsontext.Value, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(raw))
	tok, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	if tok.Kind() != '{' {
		return nil, errors.New("not an object")
	}
	m := map[string]jsontext.Value{}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, err
		}
		key := name.String()
		v, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		m[key] = bytes.Clone(v)
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	return m, nil
}

// elements reads the values of one JSON array.
func elements(raw jsontext.Value) ([]jsontext.Value, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(raw))
	tok, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	if tok.Kind() != '[' {
		return nil, errors.New("not an array")
	}
	var out []jsontext.Value
	for dec.PeekKind() != ']' {
		v, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		out = append(out, bytes.Clone(v))
	}
	return out, nil
}

func text(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	b, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return ""
	}
	return string(b)
}

// walk calls visit for every object of a value, outermost first, with its path, until visit refuses.
func walk(raw jsontext.Value, path string, depth int, visit func(path string, m map[string]jsontext.Value) Ruling) Ruling {
	if depth > maxDepth {
		return refuse(RefusedBody, "JSON nested deeper than 100", "")
	}
	switch raw.Kind() {
	case '{':
		m, err := object(raw)
		if err != nil {
			return refuse(RefusedBody, path+" is not strict JSON", "")
		}
		if r := visit(path, m); r.Verdict != Allowed {
			return r
		}
		for k, v := range m {
			if r := walk(v, path+"."+k, depth+1, visit); r.Verdict != Allowed {
				return r
			}
		}
	case '[':
		list, err := elements(raw)
		if err != nil {
			return refuse(RefusedBody, path+" is not strict JSON", "")
		}
		for i, v := range list {
			if r := walk(v, fmt.Sprintf("%s[%d]", path, i), depth+1, visit); r.Verdict != Allowed {
				return r
			}
		}
	}
	return allowed
}

// members refuses top-level members that are not on the list, and those that the profile does not name.
func members(m map[string]jsontext.Value, known []string, allow []string) Ruling {
	for k := range m {
		if !slices.Contains(known, k) && !slices.Contains(allow, k) {
			return refuse(RefusedMember, "the member "+k, k)
		}
	}
	return allowed
}

// inline reports whether an address carries its content itself.
func inline(address string) bool { return strings.HasPrefix(address, "data:") }

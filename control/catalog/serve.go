package catalog

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// Served returns a tool as the sandbox reads it: its reviewed bytes with only name and annotations.readOnlyHint (the reviewer's word) replaced,
// spliced, never encoded again. Errors: [errs.Invalid] when raw is not a tool.
func Served(raw []byte, name string, effect control.Effect) ([]byte, error) {
	hint := []byte("false")
	if effect == control.Read {
		hint = []byte("true")
	}
	quoted, err := jsontext.AppendQuote(nil, name)
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, "the tool's name is not text", err)
	}
	members, err := Members(raw)
	if err != nil {
		return nil, err
	}
	out, err := splice(raw, "name", quoted)
	if err != nil {
		return nil, err
	}
	annotations, ok := members["annotations"]
	if !ok || annotations.Kind() != '{' {
		annotations = jsontext.Value("{}")
	}
	marked, err := splice(annotations, "readOnlyHint", hint)
	if err != nil {
		return nil, err
	}
	return splice(out, "annotations", marked)
}

// splice replaces one member's value of an object, or adds the member at the end. Everything else keeps its bytes.
func splice(object []byte, member string, value []byte) ([]byte, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(object))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return nil, errs.Wrap(errs.Invalid, "this must be a JSON object", err)
	}
	empty := dec.PeekKind() == '}'
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, errs.Wrap(errs.Invalid, "not strict JSON", err)
		}
		found := name.String() == member
		v, err := dec.ReadValue()
		if err != nil {
			return nil, errs.Wrap(errs.Invalid, "not strict JSON", err)
		}
		if found {
			end := dec.InputOffset()
			start := end - int64(len(v))
			return bytes.Join([][]byte{object[:start], value, object[end:]}, nil), nil
		}
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, errs.Wrap(errs.Invalid, "not strict JSON", err)
	}
	at := dec.InputOffset() - 1
	added := append([]byte(`"`+member+`":`), value...)
	if !empty {
		added = append([]byte{','}, added...)
	}
	return bytes.Join([][]byte{object[:at], added, object[at:]}, nil), nil
}

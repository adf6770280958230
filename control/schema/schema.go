// Package schema validates JSON against reviewed JSON Schemas: arguments of tools, answers of people. Nothing is ever loaded by address, numbers
// are compared exactly, and an error says which field and what was expected. Pure; compiled schemas are safe for concurrent use.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// Schema is a compiled JSON Schema (2020-12 unless it says otherwise).
type Schema struct {
	compiled *jsonschema.Schema
	raw      []byte
}

// location is the schema's own name: references inside it resolve, everything else finds no loader.
const location = "tool://reviewed/schema"

// noLoader has no scheme at all: a $ref to anything outside fails to compile.
var noLoader = jsonschema.SchemeURLLoader{}

// Compile reads a schema. Errors: [errs.Invalid], also for a reference that leaves the schema.
func Compile(raw []byte) (*Schema, error) {
	if err := strictjson.Check(raw); err != nil {
		return nil, errs.Wrap(errs.Invalid, "the schema is not strict JSON", err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, "the schema is not JSON", err)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader)
	if err := c.AddResource(location, doc); err != nil {
		return nil, errs.Wrap(errs.Invalid, "the schema cannot be used", err)
	}
	compiled, err := c.Compile(location)
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, "the schema cannot be compiled: it is no JSON Schema, or refers to something outside itself", err)
	}
	return &Schema{compiled: compiled, raw: raw}, nil
}

// Validate checks a JSON text. Errors: [errs.InvalidArguments]; the message names at most three fields and what each must be.
func (s *Schema) Validate(text []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return errs.Wrap(errs.InvalidArguments, "the text is not JSON", err)
	}
	err = s.compiled.Validate(v)
	if err == nil {
		return nil
	}
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return errs.Wrap(errs.InvalidArguments, "the value cannot be validated", err)
	}
	var found []string
	leaves(invalid, func(e *jsonschema.ValidationError) {
		if line := sentence(e); !slices.Contains(found, line) {
			found = append(found, line)
		}
	})
	more := ""
	if len(found) > 3 {
		more, found = fmt.Sprintf("; and %d more", len(found)-3), found[:3]
	}
	return errs.New(errs.InvalidArguments, strings.Join(found, "; ")+more)
}

func leaves(e *jsonschema.ValidationError, visit func(*jsonschema.ValidationError)) {
	if len(e.Causes) == 0 {
		visit(e)
		return
	}
	for _, c := range e.Causes {
		leaves(c, visit)
	}
}

var printers = sync.Pool{New: func() any { return message.NewPrinter(language.English) }}

// sentence says one thing that is wrong: which field, and what was expected. It quotes names and expectations of the schema, never a value.
func sentence(e *jsonschema.ValidationError) string {
	field := "the arguments"
	if len(e.InstanceLocation) > 0 {
		field = strings.Join(e.InstanceLocation, ".")
	}
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		if len(e.InstanceLocation) == 0 {
			return field + " lack " + strings.Join(k.Missing, ", ")
		}
		return field + " lacks " + strings.Join(k.Missing, ", ")
	case *kind.AdditionalProperties:
		return field + " may not have " + strings.Join(k.Properties, ", ")
	case *kind.Type:
		return field + " must be " + strings.Join(k.Want, " or ") + ", not " + k.Got
	case *kind.Enum:
		return field + " must be one of " + values(k.Want)
	case *kind.Const:
		return field + " must be " + values([]any{k.Want})
	case *kind.MinLength:
		return fmt.Sprintf("%s must have at least %d characters", field, k.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("%s must have at most %d characters", field, k.Want)
	case *kind.Pattern:
		return field + " must match " + k.Want
	case *kind.FalseSchema:
		return field + " is not allowed"
	}
	p := printers.Get().(*message.Printer)
	defer printers.Put(p)
	return field + ": " + bound(e.ErrorKind.LocalizedString(p))
}

func values(all []any) string {
	var out []string
	for _, v := range all {
		if len(out) == 10 {
			out = append(out, "…")
			break
		}
		b, err := json.Marshal(v)
		if err != nil {
			continue
		}
		out = append(out, string(b))
	}
	return bound(strings.Join(out, ", "))
}

// bound keeps a message readable: some kinds of errors quote the value.
func bound(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Extra returns the members of object that the schema's properties do not name, with their path, at any depth that properties and items lead to
// alone. Combinators and references are not followed: what only they name counts as extra.
func (s *Schema) Extra(object []byte) []string {
	var out []string
	extra(s.raw, object, "", &out)
	return out
}

func extra(schema, value []byte, path string, out *[]string) {
	if len(value) == 0 || len(schema) == 0 || schema[0] != '{' {
		return
	}
	switch value[0] {
	case '{':
		properties, ok := strictjson.Lookup(schema, "properties")
		if !ok && path != "" {
			return // an open object of the schema's own making
		}
		for name, v := range strictjson.Each(value) {
			key := string(name)
			at := key
			if path != "" {
				at = path + "." + key
			}
			sub, known := strictjson.Lookup(properties, key)
			if !known {
				*out = append(*out, at)
				continue
			}
			extra(sub, v, at, out)
		}
	case '[':
		items, ok := strictjson.Lookup(schema, "items")
		if !ok {
			return
		}
		i := 0
		for v := range strictjson.Elements(value) {
			extra(items, v, fmt.Sprintf("%s.%d", path, i), out)
			i++
		}
	}
}

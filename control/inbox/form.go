package inbox

import (
	"fmt"
	"regexp"
	"strings"

	"sallyport.dev/control/schema"
	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// Elicitation is what an upstream asks a person for: the words, and the JSON Schema of the answer, with one member for each of its requests.
type Elicitation struct {
	Text   string
	Schema []byte
}

// Bounds of an elicitation.
const (
	maxRequests  = 8
	maxFields    = 32
	maxFormBytes = 64 << 10
)

// secretLike matches names and titles of fields that no server may ask a person for here.
var secretLike = regexp.MustCompile(`(?i)pass(word|wd|phrase|code)?\b|secret|token|api.?key|private.?key|credential|\bpin\b|\botp\b|cvv|cvc|card.?number`)

// Form reads the inputRequests of an input_required result (MCP 2026-07-28, SEP-2322). Only questions to a person are taken: elicitation in form
// mode with flat fields, or an address to look at, which is shown and never opened by us. Errors: [errs.Invalid]: it asks for something else, or for
// what looks like a secret.
func Form(requests []byte) (Elicitation, error) {
	var e Elicitation
	if len(requests) == 0 || len(requests) > maxFormBytes || requests[0] != '{' {
		return e, errs.New(errs.Invalid, "the server asked for something that is no form")
	}
	var lines []string
	properties, required := []byte{'{'}, []byte{'['}
	n := 0
	for name, request := range strictjson.Each(requests) {
		if n++; n > maxRequests {
			return e, errs.Newf(errs.Invalid, "the server asked for more than %d things at once", maxRequests)
		}
		key := string(name)
		text, fields, err := one(request)
		if err != nil {
			return e, err
		}
		lines = append(lines, text)
		if n > 1 {
			properties, required = append(properties, ','), append(required, ',')
		}
		properties = append(strictjson.AppendQuote(properties, key), ':')
		properties = append(properties, fields...)
		required = strictjson.AppendQuote(required, key)
	}
	if n == 0 {
		return e, errs.New(errs.Invalid, "the server asked for nothing")
	}
	e.Text = strings.Join(lines, "\n")
	e.Schema = append([]byte(`{"type":"object","properties":`), properties...)
	e.Schema = append(append(e.Schema, `},"required":`...), required...)
	e.Schema = append(e.Schema, `],"additionalProperties":false}`...)
	if _, err := schema.Compile(e.Schema); err != nil {
		return e, errs.Wrap(errs.Invalid, "the server asked with a form that cannot be checked", err)
	}
	return e, nil
}

// one reads one request: what it says, and the schema of its answer.
func one(request []byte) (text string, fields []byte, err error) {
	if word(request, "method") != "elicitation/create" {
		return "", nil, errs.New(errs.Invalid, "the server asked for something else than a person's answer")
	}
	params, _ := strictjson.Lookup(request, "params")
	text = word(params, "message")
	if len(text) > 4<<10 {
		return "", nil, errs.New(errs.Invalid, "the server's question is too long")
	}
	switch mode := word(params, "mode"); mode {
	case "", "form":
		form, ok := strictjson.Lookup(params, "requestedSchema")
		if !ok || form[0] != '{' {
			return "", nil, errs.New(errs.Invalid, "the server asked without saying what the answer looks like")
		}
		return text, form, flat(form)
	case "url":
		address := word(params, "url")
		if !strings.HasPrefix(address, "https://") {
			return "", nil, errs.New(errs.Invalid, "the server asked to open an address that is not https")
		}
		return fmt.Sprintf("%s (open yourself, if you trust it: %s)", text, address), []byte(`{"type":"object","maxProperties":0}`), nil
	default:
		return "", nil, errs.New(errs.Invalid, "the server asked in a way that is not known here")
	}
}

func word(object []byte, name string) string {
	raw, _ := strictjson.Lookup(object, name)
	s, _ := strictjson.Unquote(raw)
	return s
}

// flat checks that a form has simple fields only, and none that looks like a secret.
func flat(form []byte) error {
	properties, _ := strictjson.Lookup(form, "properties")
	n := 0
	for name, field := range strictjson.Each(properties) {
		if n++; n > maxFields {
			return errs.Newf(errs.Invalid, "the server's form has more than %d fields", maxFields)
		}
		switch word(field, "type") {
		case "string", "number", "integer", "boolean", "array":
		default:
			return errs.New(errs.Invalid, "the server's form has a field that is not simple")
		}
		if word(field, "format") == "password" {
			return errs.New(errs.Invalid, "the server asked for a secret")
		}
		for _, said := range []string{string(name), word(field, "title"), word(field, "description")} {
			if secretLike.MatchString(said) {
				return errs.New(errs.Invalid, "the server asked for what looks like a secret")
			}
		}
	}
	return nil
}

// Responses turns a person's answer to a [Form] into the inputResponses of the next attempt: each answer's bytes stay as they were written. Errors:
// [errs.Invalid]: it does not fit the form; the message says where.
func Responses(requests, answer []byte) ([]byte, error) {
	e, err := Form(requests)
	if err != nil {
		return nil, err
	}
	s, err := schema.Compile(e.Schema)
	if err != nil {
		return nil, err
	}
	if err := s.Validate(answer); err != nil {
		return nil, errs.Wrap(errs.Invalid, "the answer does not fit the form: "+errs.Message(err), err)
	}
	out := []byte{'{'}
	for name, content := range strictjson.Each(answer) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(strictjson.AppendQuote(out, string(name)), `:{"action":"accept","content":`...)
		out = append(append(out, content...), '}')
	}
	return append(out, '}'), nil
}

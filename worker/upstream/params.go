package upstream

import (
	"bytes"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"sallyport.dev/relay/strictjson"
)

// paramHeader is one x-mcp-header annotation: the chain of property names that leads to the value, and the header that mirrors it.
type paramHeader struct {
	path []string
	name string // with its Mcp-Param- prefix
	kind string // string, integer or boolean
}

const (
	annotation   = "x-mcp-header"
	maxParams    = 64
	maxParamText = 8 << 10
)

// paramAnnotations reads the annotations of a tool's inputSchema. The error says why the tool is invalid (2026-07-28, "Schema Extension"): its
// annotations may stand on string, integer and boolean properties only, reachable through properties alone, each with its own token.
func paramAnnotations(tool []byte) ([]paramHeader, error) {
	schema, ok := strictjson.Lookup(tool, "inputSchema")
	if !ok {
		return nil, nil
	}
	var out []paramHeader
	seen := map[string]bool{}
	if err := walkSchema(schema, nil, true, func(path []string, owner, value []byte) error {
		name, ok := strictjson.Unquote(value)
		if !ok || !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("%s is not a header name", annotation)
		}
		kind := text(owner, "type")
		if len(path) == 0 || kind != "string" && kind != "integer" && kind != "boolean" {
			return fmt.Errorf("%s stands on something else than a string, integer or boolean property", annotation)
		}
		if key := strings.ToLower(name); seen[key] || len(out) == maxParams {
			return fmt.Errorf("%s names a header twice, or there are more than %d", annotation, maxParams)
		}
		seen[strings.ToLower(name)] = true
		out = append(out, paramHeader{path: path, name: "Mcp-Param-" + name, kind: kind})
		return nil
	}); err != nil {
		return nil, err
	}
	return out, nil
}

// data are keywords whose value is data, not a schema: an annotation's name in it means nothing.
var data = map[string]bool{"const": true, "default": true, "enum": true, "examples": true}

// walkSchema calls found for every annotation of a schema. reachable: only properties led here from the root; an annotation anywhere else is an
// error. Depth is bounded, because the text passed the strict scanner.
func walkSchema(schema []byte, path []string, reachable bool, found func(path []string, owner, value []byte) error) error {
	if len(schema) == 0 {
		return nil
	}
	if schema[0] == '[' {
		for e := range strictjson.Elements(schema) {
			if err := walkSchema(e, path, false, found); err != nil {
				return err
			}
		}
		return nil
	}
	for name, value := range strictjson.Each(schema) {
		var err error
		switch key := string(name); {
		case key == annotation && !reachable:
			err = fmt.Errorf("%s stands where no chain of properties leads", annotation)
		case key == annotation:
			err = found(path, schema, value)
		case key == "properties":
			for property, sub := range strictjson.Each(value) {
				next := append(append(make([]string, 0, len(path)+1), path...), string(property))
				if err = walkSchema(sub, next, reachable, found); err != nil {
					return err
				}
			}
		case key == "patternProperties", key == "$defs", key == "definitions", key == "dependentSchemas":
			for _, sub := range strictjson.Each(value) { // names here are not keywords
				if err = walkSchema(sub, path, false, found); err != nil {
					return err
				}
			}
		case !data[key]:
			err = walkSchema(value, path, false, found)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// paramHeaders are the Mcp-Param-* headers of a call. Errors: *[Error] of FailRequest: the schema was reviewed and the arguments were validated
// against it, so what does not fit here must not be guessed.
func paramHeaders(tool, arguments []byte) ([][2]string, error) {
	if len(tool) == 0 {
		return nil, nil
	}
	if err := strictjson.Check(tool); err != nil {
		return nil, badRequest("the reviewed tool is not strict JSON", err)
	}
	list, err := paramAnnotations(tool)
	if err != nil {
		return nil, badRequest("the reviewed tool has invalid header annotations", err)
	}
	var out [][2]string
	for _, h := range list {
		raw, ok := strictjson.Lookup(arguments, h.path...)
		if !ok || string(raw) == "null" {
			continue
		}
		value, ok := headerOf(raw, h.kind)
		if !ok || len(value) > maxParamText {
			return nil, badRequest("an argument cannot be mirrored into the header that the tool wants", nil)
		}
		out = append(out, [2]string{h.name, headerText(value)})
	}
	return out, nil
}

// safe is 2^53 - 1, the bound of integers in headers.
var safe = big.NewInt(1<<53 - 1)

// headerOf is the text of a primitive value.
func headerOf(raw []byte, kind string) (string, bool) {
	switch kind {
	case "string":
		return strictjson.Unquote(raw)
	case "boolean":
		_, ok := strictjson.Bool(raw)
		return string(raw), ok
	}
	// 42.0 and 1e2 are integers to JSON Schema. Bounded before the arithmetic: an exponent is cheap to write and dear to expand.
	if len(raw) > 64 || raw[0] != '-' && (raw[0] < '0' || raw[0] > '9') {
		return "", false
	}
	if i := bytes.IndexAny(raw, "eE"); i >= 0 {
		if e, err := strconv.Atoi(string(raw[i+1:])); err != nil || e < -99 || e > 99 {
			return "", false
		}
	}
	n, ok := new(big.Rat).SetString(string(raw))
	if !ok || !n.IsInt() || n.Num().CmpAbs(safe) > 0 {
		return "", false
	}
	return n.Num().String(), true
}

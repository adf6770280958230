package config

import (
	"encoding/json"

	"github.com/invopop/jsonschema"
)

// Schema returns the JSON Schema of sallyport.yaml, indented, made from the structs that read it.
func Schema() ([]byte, error) {
	r := jsonschema.Reflector{ExpandedStruct: true, DoNotReference: false, RequiredFromJSONSchemaTags: true}
	s := r.Reflect(&File{})
	s.ID = ""
	s.Title = "sallyport.yaml"
	return json.MarshalIndent(s, "", "  ")
}

// JSONSchema describes the text form.
func (Duration) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: `^([0-9]+d|([0-9.]+(h|m|s|ms))+)$`, Examples: []any{"45s", "10m", "24h", "7d"}}
}

// JSONSchema describes the text form.
func (Size) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: `^[0-9]+ ?(B|KiB|MiB|GiB)?$`, Examples: []any{"512KiB", "1MiB", "4GiB"}}
}

// JSONSchema describes the text form.
func (Date) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: `^[0-9]{4}-[0-9]{2}-[0-9]{2}$`, Examples: []any{"2027-01-31"}}
}

package grant

import (
	"fmt"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"sallyport.dev/relay/strictjson"
)

// argTypes gives CEL the types of a tool's arguments, as its reviewed inputSchema describes them. What the schema does not pin down (unions,
// references, several types) is dyn: the condition then fails when it runs, not when it is applied. Values are plain maps and lists: fields are
// resolved by name, so a type without accessors is enough.
type argTypes struct {
	types.Provider
	structs map[string]map[string]*types.FieldType
}

const maxStructs = 256

// typesOf reads a schema. root is the type of args.
func typesOf(schema []byte) (*argTypes, *cel.Type) {
	p := &argTypes{Provider: types.NewEmptyRegistry(), structs: map[string]map[string]*types.FieldType{}}
	root := p.object(schema, "object args", 0) // no identifier: args.x must never read as the name of a type
	return p, root
}

func (p *argTypes) typeOf(schema []byte, name string, depth int) *cel.Type {
	raw, ok := strictjson.Lookup(schema, "type")
	if !ok || len(raw) == 0 || raw[0] != '"' || depth > 20 {
		return cel.DynType
	}
	for _, combinator := range []string{"$ref", "anyOf", "oneOf", "allOf", "if", "$dynamicRef"} {
		if _, ok := strictjson.Lookup(schema, combinator); ok {
			return cel.DynType
		}
	}
	word, _ := strictjson.Unquote(raw)
	switch word {
	case "string":
		return cel.StringType
	case "boolean":
		return cel.BoolType
	case "integer":
		return cel.IntType
	case "number":
		return cel.DoubleType
	case "array":
		items, ok := strictjson.Lookup(schema, "items")
		if !ok {
			return cel.ListType(cel.DynType)
		}
		return cel.ListType(p.typeOf(items, name+"[]", depth+1))
	case "object":
		return p.object(schema, name, depth)
	}
	return cel.DynType
}

func (p *argTypes) object(schema []byte, name string, depth int) *cel.Type {
	properties, ok := strictjson.Lookup(schema, "properties")
	if !ok || len(properties) == 0 || properties[0] != '{' || len(p.structs) >= maxStructs || depth > 20 {
		return cel.MapType(cel.StringType, cel.DynType)
	}
	fields := map[string]*types.FieldType{}
	p.structs[name] = fields
	for key, sub := range strictjson.Each(properties) {
		fields[string(key)] = &types.FieldType{Type: p.typeOf(sub, name+"."+string(key), depth+1)}
	}
	return cel.ObjectType(name)
}

// FindStructType implements types.Provider.
func (p *argTypes) FindStructType(name string) (*types.Type, bool) {
	if _, ok := p.structs[name]; ok {
		return types.NewTypeTypeWithParam(cel.ObjectType(name)), true
	}
	return p.Provider.FindStructType(name)
}

// FindStructFieldNames implements types.Provider.
func (p *argTypes) FindStructFieldNames(name string) ([]string, bool) {
	fields, ok := p.structs[name]
	if !ok {
		return p.Provider.FindStructFieldNames(name)
	}
	out := make([]string, 0, len(fields))
	for f := range fields {
		out = append(out, f)
	}
	return out, true
}

// FindStructFieldType implements types.Provider.
func (p *argTypes) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	if fields, ok := p.structs[name]; ok {
		f, ok := fields[field]
		return f, ok
	}
	return p.Provider.FindStructFieldType(name, field)
}

// NewValue implements types.Provider: a condition makes no arguments.
func (p *argTypes) NewValue(name string, _ map[string]ref.Val) ref.Val {
	return types.NewErr("a condition cannot make a %s", fmt.Sprint(name))
}

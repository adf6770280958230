package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Problem is one error of a file, with its place. Line and Column count from 1; 0 means the whole file.
type Problem struct {
	Line, Column int
	Path         string // profiles.dev.grants[0].when
	Message      string // lower case; says what was expected
}

// String is the form that a person reads: one line, whatever the file's names are.
func (p Problem) String() string {
	if p.Path == "" {
		return fmt.Sprintf("%d:%d: %s", p.Line, p.Column, visible(p.Message))
	}
	return fmt.Sprintf("%d:%d: %s: %s", p.Line, p.Column, visible(p.Path), visible(p.Message))
}

// visible shows what does not print by its escape: a name in the file may hold what moves a terminal's cursor.
func visible(text string) string {
	if strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
	}
	return b.String()
}

// scalar is a value that reads itself from the text of a YAML scalar.
type scalar interface{ readScalar(text string) error }

// decoder walks a YAML tree into Go structs and collects every problem instead of stopping at the first. It is strict: unknown members, members
// named twice, aliases, merges and values of another kind are problems. Positions are kept by path, for the checks that come later.
type decoder struct {
	problems []Problem
	places   map[string][2]int
}

const maxNesting = 20

func decode(data []byte, into any) *decoder {
	d := &decoder{places: map[string][2]int{}}
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		line, column := 0, 0
		message := strings.TrimSpace(strings.SplitN(err.Error(), "\n", 2)[0])
		if _, e := fmt.Sscanf(message, "[%d:%d]", &line, &column); e == nil {
			message = strings.TrimSpace(message[strings.Index(message, "]")+1:])
		}
		d.problems = append(d.problems, Problem{Line: line, Column: column, Message: "not YAML: " + message})
		return d
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		d.problems = append(d.problems, Problem{Line: 1, Column: 1, Message: "the file must hold one YAML document"})
		return d
	}
	d.value(file.Docs[0].Body, "", reflect.ValueOf(into).Elem(), 0)
	return d
}

func (d *decoder) problem(path, format string, args ...any) {
	at, p := [2]int{}, path
	for {
		if place, ok := d.places[p]; ok {
			at = place
			break
		}
		cut := strings.LastIndexAny(p, ".[")
		if cut < 0 {
			break
		}
		p = p[:cut]
	}
	d.problems = append(d.problems, Problem{Line: at[0], Column: at[1], Path: path, Message: fmt.Sprintf(format, args...)})
}

func (d *decoder) value(n ast.Node, path string, v reflect.Value, depth int) {
	if tok := n.GetToken(); tok != nil && tok.Position != nil {
		if _, ok := d.places[path]; !ok {
			d.places[path] = [2]int{tok.Position.Line, tok.Position.Column}
		}
	}
	if depth > maxNesting {
		d.problem(path, "nested too deeply")
		return
	}
	switch n := n.(type) {
	case *ast.TagNode, *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		d.problem(path, "tags, anchors, aliases and merges are not used here: write the value out")
		return
	case *ast.NullNode:
		d.problem(path, "has no value")
		return
	case *ast.MappingValueNode:
		d.mapping([]*ast.MappingValueNode{n}, path, v, depth)
		return
	case *ast.MappingNode:
		d.mapping(n.Values, path, v, depth)
		return
	case *ast.SequenceNode:
		if v.Kind() == reflect.Pointer {
			v.Set(reflect.New(v.Type().Elem()))
			v = v.Elem()
		}
		if v.Kind() != reflect.Slice {
			d.problem(path, "must be %s, not a list", describe(v))
			return
		}
		out := reflect.MakeSlice(v.Type(), len(n.Values), len(n.Values))
		for i, e := range n.Values {
			d.value(e, fmt.Sprintf("%s[%d]", path, i), out.Index(i), depth+1)
		}
		v.Set(out)
		return
	}
	d.scalar(n, path, v)
}

func (d *decoder) mapping(values []*ast.MappingValueNode, path string, v reflect.Value, depth int) {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if v.CanAddr() {
		if _, ok := v.Addr().Interface().(scalar); ok {
			d.problem(path, "must be %s, not a mapping", describe(v))
			return
		}
	}
	seen := map[string]bool{}
	switch v.Kind() {
	case reflect.Struct:
		fields := map[string]int{}
		for i := range v.NumField() {
			if name := fieldName(v.Type().Field(i)); name != "" {
				fields[name] = i
			}
		}
		for _, m := range values {
			key, child, ok := d.key(m, path, seen)
			if !ok {
				continue
			}
			i, known := fields[key]
			if !known {
				d.problem(child, "is not a member here; known members are %s", members(v.Type()))
				continue
			}
			d.value(m.Value, child, v.Field(i), depth+1)
		}
	case reflect.Map:
		out := reflect.MakeMap(v.Type())
		for _, m := range values {
			key, child, ok := d.key(m, path, seen)
			if !ok {
				continue
			}
			e := reflect.New(v.Type().Elem()).Elem()
			d.value(m.Value, child, e, depth+1)
			out.SetMapIndex(reflect.ValueOf(key), e)
		}
		v.Set(out)
	default:
		d.problem(path, "must be %s, not a mapping", describe(v))
	}
}

func (d *decoder) key(m *ast.MappingValueNode, path string, seen map[string]bool) (key, child string, ok bool) {
	switch k := m.Key.(type) {
	case *ast.StringNode:
		key = k.Value
	default:
		key = strings.Trim(m.Key.String(), `"' `)
	}
	child = key
	if path != "" {
		child = path + "." + key
	}
	if tok := m.Key.GetToken(); tok != nil && tok.Position != nil && !seen[key] {
		d.places[child] = [2]int{tok.Position.Line, tok.Position.Column}
	}
	if _, merge := m.Key.(*ast.MergeKeyNode); merge {
		d.problem(child, "merges are not used here: write the value out")
		return "", "", false
	}
	if seen[key] {
		d.problems = append(d.problems, Problem{
			Line: m.Key.GetToken().Position.Line, Column: m.Key.GetToken().Position.Column,
			Path: child, Message: "stands here twice",
		})
		return "", "", false
	}
	seen[key] = true
	return key, child, true
}

func (d *decoder) scalar(n ast.Node, path string, v reflect.Value) {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	text, quoted := "", false
	switch s := n.(type) {
	case *ast.StringNode:
		text, quoted = s.Value, s.Token != nil && s.Token.Indicator.String() == "QuotedScalarIndicator"
	case *ast.LiteralNode:
		text, quoted = s.Value.Value, true
	case *ast.CommentGroupNode:
		d.problem(path, "has no value")
		return
	default:
		text = n.GetToken().Value
	}
	if s, ok := v.Addr().Interface().(scalar); ok {
		if err := s.readScalar(text); err != nil {
			d.problem(path, "%s", err)
		}
		return
	}
	switch v.Kind() {
	case reflect.String:
		switch n.(type) {
		case *ast.StringNode, *ast.LiteralNode:
			v.SetString(text)
		default:
			d.problem(path, "must be text: write it in quotes")
		}
	case reflect.Bool:
		b, ok := n.(*ast.BoolNode)
		if !ok {
			d.problem(path, "must be true or false")
			return
		}
		v.SetBool(b.Value)
	case reflect.Int, reflect.Int64:
		var i int64
		if _, ok := n.(*ast.IntegerNode); !ok || quoted {
			d.problem(path, "must be a whole number")
			return
		}
		if _, err := fmt.Sscanf(text, "%d", &i); err != nil || fmt.Sprint(i) != text {
			d.problem(path, "must be a plain whole number, such as 20")
			return
		}
		v.SetInt(i)
	case reflect.Float64:
		var f float64
		switch n.(type) {
		case *ast.IntegerNode, *ast.FloatNode:
			if _, err := fmt.Sscanf(text, "%g", &f); err != nil {
				d.problem(path, "must be a number")
				return
			}
		default:
			d.problem(path, "must be a number")
			return
		}
		v.SetFloat(f)
	case reflect.Slice:
		d.problem(path, "must be a list")
	default:
		d.problem(path, "must be %s", describe(v))
	}
}

func fieldName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "-" {
		return ""
	}
	return name
}

func members(t reflect.Type) string {
	var names []string
	for i := range t.NumField() {
		if n := fieldName(t.Field(i)); n != "" {
			names = append(names, n)
		}
	}
	return strings.Join(names, ", ")
}

func describe(v reflect.Value) string {
	if v.CanAddr() {
		if s, ok := v.Addr().Interface().(interface{ expects() string }); ok {
			return s.expects()
		}
	}
	switch v.Kind() {
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "a mapping"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	default:
		return "a number"
	}
}

package grant

import (
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"

	"sallyport.dev/relay/strictjson"
)

// demand is a part of a condition that can be put in words: a text member of args must be one of a list.
type demand struct {
	path []string
	in   []string
}

// demands finds the parts of a condition that all must hold (joined by &&) and have the form args.x in ["a", "b"] or args.x == "a".
func demands(e ast.Expr) []demand {
	if e.Kind() != ast.CallKind {
		return nil
	}
	args := e.AsCall().Args()
	switch e.AsCall().FunctionName() {
	case operators.LogicalAnd:
		var out []demand
		for _, a := range args {
			out = append(out, demands(a)...)
		}
		return out
	case operators.In:
		if path, ok := argPath(args[0]); ok && args[1].Kind() == ast.ListKind {
			var in []string
			for _, x := range args[1].AsList().Elements() {
				s, ok := text(x)
				if !ok {
					return nil
				}
				in = append(in, s)
			}
			return []demand{{path, in}}
		}
	case operators.Equals:
		for i := range 2 {
			path, ok := argPath(args[i])
			s, isText := text(args[1-i])
			if ok && isText {
				return []demand{{path, []string{s}}}
			}
		}
	}
	return nil
}

func argPath(e ast.Expr) ([]string, bool) {
	var path []string
	for e.Kind() == ast.SelectKind && !e.AsSelect().IsTestOnly() {
		path = append(path, e.AsSelect().FieldName())
		e = e.AsSelect().Operand()
	}
	slices.Reverse(path)
	return path, len(path) > 0 && e.Kind() == ast.IdentKind && e.AsIdent() == "args"
}

func text(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	s, ok := e.AsLiteral().(types.String)
	return string(s), ok
}

// Miss says why a condition does not hold, for the model.
type Miss struct {
	Reason string
	Hint   string // what to do instead, a whole sentence, or ""
}

// Why says in words why a condition that is false does not hold: the first demand that the arguments miss, or that the rule does not allow them.
func (c *Condition) Why(args []byte) Miss {
	for _, d := range c.demands {
		raw, _ := strictjson.Lookup(args, d.path...)
		got, ok := strictjson.Unquote(raw)
		if !ok || slices.Contains(d.in, got) {
			continue
		}
		name := strings.Join(d.path, ".")
		allowed := strings.Join(d.in[:min(len(d.in), 10)], ", ")
		return Miss{
			Reason: fmt.Sprintf("%s %q is not allowed by the rule for this tool", name, short(got)),
			Hint:   fmt.Sprintf("Use a %s in %s, or go on without it.", name, allowed),
		}
	}
	return Miss{Reason: "the rule for this tool does not allow these arguments"}
}

func short(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

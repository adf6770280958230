package grant

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"

	"sallyport.dev/control"
	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// Bounds of a condition.
const (
	MaxCondition = 4096    // bytes
	maxNodes     = 500     // of its syntax tree
	costLimit    = 100_000 // of one evaluation; CEL counts about one for each step and each element that is looked at
)

// Condition is a compiled CEL condition for one tool. It is safe for concurrent use.
//
// Variables: args (typed by the tool's reviewed inputSchema), tool (the server's name), connection, owner, profile, attended, now (a timestamp of
// the store), used (how often this grant was used in its window).
type Condition struct {
	text    string
	program cel.Program
	schema  []byte
	paths   [][]string // of args, that it looks at; an empty path is all of them
	used    bool
	demands []demand
}

// Facts are what a condition sees.
type Facts struct {
	Args       []byte // one strict JSON object
	Tool       string
	Connection string
	Owner      control.Person
	Profile    string
	Attended   bool
	Now        time.Time
	Used       int64
}

// Compile checks a condition against a tool's inputSchema. Errors: [errs.Invalid]; the message says where and what.
func Compile(text string, inputSchema []byte) (*Condition, error) {
	if len(text) > MaxCondition {
		return nil, errs.Newf(errs.Invalid, "a condition has at most %d bytes, this has %d", MaxCondition, len(text))
	}
	provider, root := typesOf(inputSchema)
	env, err := cel.NewEnv(
		cel.CustomTypeProvider(provider), cel.CrossTypeNumericComparisons(true), cel.ParserExpressionSizeLimit(MaxCondition),
		cel.ParserRecursionLimit(50), cel.ExpressionNodeLimit(maxNodes), cel.DefaultUTCTimeZone(true),
		cel.Variable("args", root), cel.Variable("tool", cel.StringType), cel.Variable("connection", cel.StringType),
		cel.Variable("owner", cel.StringType), cel.Variable("profile", cel.StringType), cel.Variable("attended", cel.BoolType),
		cel.Variable("now", cel.TimestampType), cel.Variable("used", cel.IntType),
	)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "conditions cannot be compiled", err)
	}
	compiled, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, errs.Newf(errs.Invalid, "the condition is wrong: %s", oneLine(issues.Err()))
	}
	if compiled.OutputType() != cel.BoolType {
		return nil, errs.Newf(errs.Invalid, "a condition is true or false, this is %s", compiled.OutputType())
	}
	program, err := env.Program(compiled, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(costLimit), cel.InterruptCheckFrequency(100))
	if err != nil {
		return nil, errs.Newf(errs.Invalid, "the condition cannot be used: %s", oneLine(err))
	}
	c := &Condition{text: text, program: program, schema: inputSchema}
	c.paths, c.used = looksAt(compiled.NativeRep())
	c.demands = demands(compiled.NativeRep().Expr())
	return c, nil
}

func oneLine(err error) string {
	line, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "ERROR: <input>:"), "\n")
	return line
}

// Used reports whether the condition looks at used.
func (c *Condition) Used() bool { return c.used }

// looksAt finds the members of args that an expression can touch, each as the longest chain of plain selections from args. Everything else that
// touches args touches all of it.
func looksAt(tree *ast.AST) (paths [][]string, used bool) {
	add := func(p []string) {
		if !slices.ContainsFunc(paths, func(o []string) bool { return slices.Equal(o, p) }) {
			paths = append(paths, p)
		}
	}
	for _, e := range ast.MatchDescendants(ast.NavigateAST(tree), ast.KindMatcher(ast.IdentKind)) {
		switch e.AsIdent() {
		case "used":
			used = true
		case "args":
			path := []string{}
			for at := e; ; {
				parent, ok := at.Parent()
				if !ok || parent.Kind() != ast.SelectKind || parent.AsSelect().Operand().ID() != at.ID() {
					break
				}
				path = append(path, parent.AsSelect().FieldName())
				if parent.AsSelect().IsTestOnly() {
					path = nil // has() looks at presence only
					break
				}
				at = parent
			}
			if path != nil {
				add(path)
			}
		}
	}
	return paths, used
}

// Eval says whether the condition holds. Every error means that the grant must not be used, and that a rule of a profile denies: an absent
// member, a number that cannot be held exactly, a type that does not fit, a cost over the limit. Errors: [errs.RuleDenied], safe to show.
func (c *Condition) Eval(ctx context.Context, f Facts) (bool, error) {
	args, err := c.arguments(f.Args)
	if err != nil {
		return false, err
	}
	out, _, err := c.program.ContextEval(ctx, map[string]any{
		"args": args, "tool": f.Tool, "connection": f.Connection, "owner": string(f.Owner), "profile": f.Profile, "attended": f.Attended,
		"now": f.Now, "used": f.Used,
	})
	if err != nil {
		return false, errs.Wrap(errs.RuleDenied, "the condition of a rule cannot be decided for these arguments: "+reason(err), err)
	}
	holds, ok := out.(types.Bool)
	if !ok {
		return false, errs.New(errs.RuleDenied, "the condition of a rule is neither true nor false for these arguments")
	}
	return bool(holds), nil
}

// reason is the safe part of an evaluation error: CEL's messages may quote values.
func reason(err error) string {
	text := err.Error()
	if _, key, ok := strings.Cut(text, "no such key: "); ok {
		return "there is no member " + strings.Fields(key + " ")[0]
	}
	switch {
	case strings.Contains(text, "cost limit"):
		return "it takes too long"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "it was interrupted"
	}
	return "a value has another type than the condition expects"
}

// arguments turns the arguments into what CEL reads, and refuses what the condition looks at and CEL could not hold exactly.
func (c *Condition) arguments(raw []byte) (any, error) {
	for _, path := range c.paths {
		sub, ok := raw, true
		if len(path) > 0 {
			sub, ok = strictjson.Lookup(raw, path...)
		}
		if !ok {
			continue
		}
		if !exact(sub, schemaAt(c.schema, path)) {
			name := "the arguments hold"
			if len(path) > 0 {
				name = strings.Join(path, ".") + " holds"
			}
			return nil, errs.Newf(errs.RuleDenied, "the condition of a rule cannot be decided: %s a number that it cannot hold exactly", name)
		}
	}
	return value(raw, c.schema), nil
}

// schemaAt follows properties along path; nil where they end.
func schemaAt(schema []byte, path []string) []byte {
	for _, name := range path {
		schema = property(schema, name)
	}
	return schema
}

func property(schema []byte, name string) []byte {
	properties, ok := strictjson.Lookup(schema, "properties")
	if !ok {
		return nil
	}
	sub, _ := strictjson.Lookup(properties, name)
	return sub
}

func items(schema []byte) []byte {
	sub, _ := strictjson.Lookup(schema, "items")
	return sub
}

// isDouble reports whether the schema's numbers are doubles in CEL, as [argTypes] declared them.
func isDouble(schema []byte) bool {
	word, _ := strictjson.Lookup(schema, "type")
	return string(word) == `"number"`
}

// isInteger reports whether the schema's numbers are integers, however they are written.
func isInteger(schema []byte) bool {
	word, _ := strictjson.Lookup(schema, "type")
	return string(word) == `"integer"`
}

func scalar(raw []byte, schema []byte) (any, bool) {
	v, ok := number(string(raw), isDouble(schema))
	if f, isFloat := v.(float64); isFloat && ok && isInteger(schema) {
		// 5.0 and 5e0 are integers to JSON Schema.
		if n := int64(f); f >= -1<<53 && f <= 1<<53 && float64(n) == f {
			return n, true
		}
		return f, false
	}
	return v, ok
}

func exact(raw, schema []byte) bool {
	if len(raw) == 0 {
		return true
	}
	switch raw[0] {
	case '{':
		for name, v := range strictjson.Each(raw) {
			if !exact(v, property(schema, string(name))) {
				return false
			}
		}
	case '[':
		sub := items(schema)
		for v := range strictjson.Elements(raw) {
			if !exact(v, sub) {
				return false
			}
		}
	case '"', 't', 'f', 'n':
	default:
		_, ok := scalar(raw, schema)
		return ok
	}
	return true
}

func value(raw, schema []byte) any {
	if len(raw) == 0 {
		return nil
	}
	switch raw[0] {
	case '{':
		m := map[string]any{}
		for name, v := range strictjson.Each(raw) {
			m[string(name)] = value(v, property(schema, string(name)))
		}
		return m
	case '[':
		list := []any{}
		sub := items(schema)
		for v := range strictjson.Elements(raw) {
			list = append(list, value(v, sub))
		}
		return list
	case '"':
		s, _ := strictjson.Unquote(raw)
		return s
	case 't':
		return true
	case 'f':
		return false
	case 'n':
		return nil
	}
	v, _ := scalar(raw, schema)
	return v
}

// CheckCondition compiles a condition against every tool that its grant covers: for apply. Errors: [errs.Invalid], naming the tool.
func CheckCondition(when string, tools []control.Tool) error {
	if len(tools) == 0 {
		_, err := Compile(when, nil)
		return err
	}
	for _, t := range tools {
		if _, err := Compile(when, InputSchema(t.Raw)); err != nil {
			return errs.Wrap(errs.CodeOf(err), "for "+t.Name+": "+errs.Message(err), err)
		}
	}
	return nil
}

// InputSchema returns a tool's inputSchema as it stands in its reviewed bytes, or nil.
func InputSchema(tool []byte) []byte {
	s, _ := strictjson.Lookup(tool, "inputSchema")
	return s
}

// Cache keeps compiled conditions: they come from the configuration, so their number is bounded by it. Safe for concurrent use.
type Cache struct {
	mu  sync.Mutex
	all map[cacheKey]cached
}

type cacheKey struct {
	when   string
	schema control.Digest
}

type cached struct {
	condition *Condition
	err       error
}

const maxCached = 4096

// Get compiles once. Errors: as [Compile].
func (c *Cache) Get(when string, inputSchema []byte) (*Condition, error) {
	key := cacheKey{when, control.Sum(inputSchema)}
	c.mu.Lock()
	got, ok := c.all[key]
	c.mu.Unlock()
	if ok {
		return got.condition, got.err
	}
	got.condition, got.err = Compile(when, inputSchema)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil || len(c.all) >= maxCached {
		c.all = map[cacheKey]cached{}
	}
	c.all[key] = got
	return got.condition, got.err
}

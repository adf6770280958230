package grant_test

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"sallyport.dev/control"
	"sallyport.dev/control/grant"
	"sallyport.dev/errs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const schema = `{"type":"object","properties":{
	"project":{"type":"string"},"n":{"type":"integer"},"amount":{"type":"number"},"flag":{"type":"boolean"},
	"labels":{"type":"array","items":{"type":"string"}},"any":{},
	"to":{"type":"object","properties":{"name":{"type":"string"},"ids":{"type":"array","items":{"type":"integer"}}}}}}`

func facts(args string) grant.Facts {
	return grant.Facts{
		Args: []byte(args), Tool: "create_issue", Connection: "tracker", Owner: "local:ada", Profile: "dev", Attended: true,
		Now: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC), Used: 3,
	}
}

func TestCompileRefuses(t *testing.T) {
	for name, c := range map[string]struct{ when, says string }{
		"syntax":            {`args.project ==`, "Syntax error"},
		"no such member":    {`args.projct == "web"`, "projct"},
		"a number as text":  {`args.n == "5"`, "no matching overload"},
		"nested":            {`args.to.nme == "x"`, "nme"},
		"not a truth":       {`args.n + 1`, "true or false"},
		"dyn is no truth":   {`args.any`, "true or false"},
		"unknown variable":  {`person == "ada"`, "person"},
		"list of integers":  {`"x" in args.to.ids`, "no matching overload"},
		"makes arguments":   {`args{project: "x"} == args`, ""},
		"too long":          {strings.Repeat(" ", grant.MaxCondition) + "true", "at most"},
		"a member of a map": {`tool.x == "y"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := grant.Compile(c.when, []byte(schema))
			if errs.CodeOf(err) != errs.Invalid || !strings.Contains(errs.Message(err), c.says) {
				t.Fatalf("got %v", err)
			}
		})
	}
	deep := strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200)
	if _, err := grant.Compile(deep, []byte(schema)); errs.CodeOf(err) != errs.Invalid {
		t.Errorf("deep nesting: %v", err)
	}
}

func TestEval(t *testing.T) {
	for name, c := range map[string]struct {
		when, args string
		want       string // true, false, or a part of the error's message
	}{
		"in":                       {`args.project in ["web", "api"]`, `{"project":"web"}`, "true"},
		"not in":                   {`args.project in ["web", "api"]`, `{"project":"ops"}`, "false"},
		"absent":                   {`args.project in ["web"]`, `{}`, "no member project"},
		"absent in a nested":       {`args.to.name == "x"`, `{"to":{}}`, "no member name"},
		"has":                      {`has(args.project) && args.project == "x"`, `{}`, "false"},
		"integer":                  {`args.n > 5`, `{"n":6}`, "true"},
		"integer written as 6.0":   {`args.n == 6`, `{"n":6.0}`, "true"},
		"largest integer":          {`args.n == 9223372036854775807`, `{"n":9223372036854775807}`, "true"},
		"one beyond":               {`args.n > 5`, `{"n":9223372036854775808}`, "n holds a number that it cannot hold exactly"},
		"beyond, not looked at":    {`args.project == "x"`, `{"project":"x","n":9223372036854775808}`, "true"},
		"beyond, has":              {`has(args.n)`, `{"n":9223372036854775808}`, "true"},
		"beyond, in the whole":     {`size(args.labels) == 0 || args == args`, `{"labels":[],"n":1e400}`, "hold a number that it cannot hold exactly"},
		"0.1 is what was written":  {`args.amount < 0.2`, `{"amount":0.1}`, "true"},
		"1.10 too":                 {`args.amount == 1.1`, `{"amount":1.10}`, "true"},
		"2^53+1 as a number":       {`args.amount > 1.0`, `{"amount":9007199254740993}`, "amount holds a number"},
		"1e400":                    {`args.amount > 1.0`, `{"amount":1e400}`, "amount holds a number"},
		"a tiny number":            {`args.amount > 0.0`, `{"amount":1e-400}`, "amount holds a number"},
		"an endless exponent":      {`args.amount > 0.0`, `{"amount":1e99999999999}`, "amount holds a number"},
		"in a list":                {`5 in args.to.ids`, `{"to":{"ids":[5,12345678901234567890]}}`, "to.ids holds a number"},
		"number with integer":      {`args.amount > 5`, `{"amount":5.5}`, "true"},
		"dyn of another type":      {`args.any > 5`, `{"any":"x"}`, "another type"},
		"wrong type at run time":   {`args.project == "x"`, `{"project":5}`, "false"},
		"labels":                   {`args.labels.all(l, l.startsWith("a"))`, `{"labels":["a","ab"]}`, "true"},
		"other variables":          {`connection == "tracker" && tool == "create_issue" && owner == "local:ada" && profile == "dev" && attended && used == 3`, `{}`, "true"},
		"now":                      {`now < timestamp("2026-12-01T00:00:00Z") && now.getHours() == 12`, `{}`, "true"},
		"cost":                     {`args.to.ids.all(a, args.to.ids.all(b, args.to.ids.all(c, a + b + c > 0)))`, `{"to":{"ids":[` + strings.Repeat("1,", 99) + `1]}}`, "takes too long"},
		"unicode escapes are text": {`args.project == "é"`, `{"project":"\u00e9"}`, "true"},
	} {
		t.Run(name, func(t *testing.T) {
			cond, err := grant.Compile(c.when, []byte(schema))
			if err != nil {
				t.Fatal(err)
			}
			got, err := cond.Eval(t.Context(), facts(c.args))
			switch c.want {
			case "true", "false":
				if err != nil || got != (c.want == "true") {
					t.Fatalf("got %v, %v", got, err)
				}
			default:
				if got || errs.CodeOf(err) != errs.RuleDenied || !strings.Contains(errs.Message(err), c.want) {
					t.Fatalf("got %v, %v", got, err)
				}
			}
		})
	}
}

func TestWhy(t *testing.T) {
	cond, err := grant.Compile(`attended && args.project in ["web", "api"]`, []byte(schema))
	if err != nil {
		t.Fatal(err)
	}
	want := grant.Miss{Reason: `project "ops" is not allowed by the rule for this tool`, Hint: "Use a project in web, api, or go on without it."}
	if got := cond.Why([]byte(`{"project":"ops"}`)); got != want {
		t.Errorf("got %q", got)
	}
	if got := cond.Why([]byte(`{}`)); strings.Contains(got.Reason, "project") || got.Hint != "" {
		t.Errorf("got %q", got)
	}
}

func TestCheckCondition(t *testing.T) {
	tools := []control.Tool{{Name: "a", Raw: []byte(`{"inputSchema":` + schema + `}`)}, {Name: "b", Raw: []byte(`{"inputSchema":{"type":"object","properties":{"x":{}}}}`)}}
	if err := grant.CheckCondition(`args.project == "web"`, tools[:1]); err != nil {
		t.Error(err)
	}
	if err := grant.CheckCondition(`args.project == "web"`, tools); errs.CodeOf(err) != errs.Invalid || !strings.Contains(errs.Message(err), "for b:") {
		t.Errorf("got %v", err)
	}
}

// An integer that survives is the one that was written.
func TestNumbersAreExactOrRefused(t *testing.T) {
	cond, err := grant.Compile(`string(args.n) == owner`, []byte(schema))
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		digits := rapid.StringMatching(`-?[1-9][0-9]{0,24}`).Draw(t, "n")
		f := facts(`{"n":` + digits + `}`)
		f.Owner = control.Person(digits)
		got, err := cond.Eval(t.Context(), f)
		if err == nil && !got {
			t.Fatalf("%s became another number", digits)
		}
	})
}

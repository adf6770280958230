package grant_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/grant"
)

func callOf(effect control.Effect, args string) grant.Call {
	return grant.Call{Facts: facts(args), Effect: effect, Session: "s", InputSchema: []byte(schema)}
}

func profile(grants ...control.Grant) *control.Profile {
	return &control.Profile{Name: "dev", Version: 3, Grants: grants}
}

func rule(r control.Rule, when string, tools ...string) control.Grant {
	return control.Grant{Tools: tools, Rule: r, When: when}
}

func TestRules(t *testing.T) {
	const tool, all, other = "tracker/create_issue", "tracker/*", "tracker/other"
	for name, c := range map[string]struct {
		effect control.Effect
		grants []control.Grant
		want   grant.Verdict
		reason string
	}{
		"nothing":                     {control.Read, nil, grant.Invisible, ""},
		"another tool":                {control.Read, []control.Grant{rule(control.Allow, "", other)}, grant.Invisible, ""},
		"another connection":          {control.Read, []control.Grant{rule(control.Allow, "", "trackers/*")}, grant.Invisible, ""},
		"allowed read":                {control.Read, []control.Grant{rule(control.Allow, "", tool)}, grant.Allowed, ""},
		"by the whole connection":     {control.Read, []control.Grant{rule(control.Allow, "", all)}, grant.Allowed, ""},
		"a write is never allowed":    {control.Write, []control.Grant{rule(control.Allow, "", all)}, grant.Asks, ""},
		"ask before allow":            {control.Read, []control.Grant{rule(control.Allow, "", all), rule(control.Ask, "", tool)}, grant.Asks, ""},
		"deny before everything":      {control.Read, []control.Grant{rule(control.Allow, "", tool), rule(control.Ask, "", tool), rule(control.Deny, "", all)}, grant.Denied, "denies"},
		"a deny that does not match":  {control.Read, []control.Grant{rule(control.Allow, "", tool), rule(control.Deny, "args.n > 5", all)}, grant.Allowed, ""},
		"a deny that errs":            {control.Read, []control.Grant{rule(control.Allow, "", tool), rule(control.Deny, "args.flag", all)}, grant.Denied, "no member flag"},
		"an ask that errs":            {control.Read, []control.Grant{rule(control.Allow, "", tool), rule(control.Ask, "args.flag", all)}, grant.Denied, "no member flag"},
		"an ask that does not match":  {control.Read, []control.Grant{rule(control.Allow, "", tool), rule(control.Ask, "args.n > 5", all)}, grant.Allowed, ""},
		"no condition holds":          {control.Write, []control.Grant{rule(control.Ask, `args.project == "api"`, tool)}, grant.Unmatched, `project "web"`},
		"only a deny names it":        {control.Read, []control.Grant{rule(control.Deny, "args.n > 5", all)}, grant.Invisible, ""},
		"a condition that no one can": {control.Read, []control.Grant{rule(control.Allow, "args.nothing == 1", tool)}, grant.Denied, "does not fit"},
	} {
		t.Run(name, func(t *testing.T) {
			var e grant.Evaluator
			f := e.Rules(t.Context(), profile(c.grants...), callOf(c.effect, `{"project":"web","n":1}`))
			if f.Verdict != c.want || !strings.Contains(f.Reason, c.reason) || len(f.Steps) == 0 {
				t.Fatalf("got %s, %q, %q", f.Verdict, f.Reason, f.Steps)
			}
		})
	}
}

func TestRuleCounters(t *testing.T) {
	g := rule(control.Ask, "used < 2", "tracker/*")
	g.Limit = &control.Limit{Calls: 5, Per: time.Hour}
	e := grant.Evaluator{Cache: &grant.Cache{}, Usage: func(key string, per time.Duration) (int64, int64, error) {
		if per != time.Hour {
			t.Errorf("asked for a window of %s", per)
		}
		return 1, 0, nil
	}}
	f := e.Rules(t.Context(), profile(g), callOf(control.Write, `{}`))
	if f.Verdict != grant.Asks || len(f.Counters) != 1 || f.Counters[0].Limit.Calls != 5 || !f.Counters[0].Looked || f.Counters[0].Used != 1 {
		t.Fatalf("got %+v", f)
	}
	e.Usage = func(string, time.Duration) (int64, int64, error) { return 2, 0, nil }
	if f := e.Rules(t.Context(), profile(g), callOf(control.Write, `{}`)); f.Verdict != grant.Unmatched {
		t.Fatalf("got %+v", f)
	}
	e.Usage = func(string, time.Duration) (int64, int64, error) { return 0, 0, errors.New("away") }
	if f := e.Rules(t.Context(), profile(g), callOf(control.Write, `{}`)); f.Verdict != grant.Denied {
		t.Fatalf("a counter that cannot be read: %+v", f)
	}
	// The counter is of what the grant says, and of the owner.
	other := g
	other.When = "used < 3"
	keys := map[string]bool{}
	for _, k := range []string{
		grant.CounterOfRule("dev", "ada", &g), grant.CounterOfRule("dev", "bea", &g), grant.CounterOfRule("ci", "ada", &g), grant.CounterOfRule("dev", "ada", &other),
	} {
		keys[k] = true
	}
	same := g
	same.Limit = &control.Limit{Calls: 9, Per: time.Hour}
	if len(keys) != 4 || grant.CounterOfRule("dev", "ada", &same) != grant.CounterOfRule("dev", "ada", &g) {
		t.Fatalf("keys %v", keys)
	}
}

func TestGiven(t *testing.T) {
	now := facts("").Now
	g := func(change func(*control.GivenGrant)) *control.GivenGrant {
		g := &control.GivenGrant{ID: "nightly", Kind: "standing", Profile: "dev", Tools: []string{"tracker/*"}, Limit: control.Limit{Calls: 5, Bytes: 100}, Until: now.Add(time.Hour)}
		if change != nil {
			change(g)
		}
		return g
	}
	for name, c := range map[string]struct {
		change func(*control.GivenGrant)
		says   string // "" when it covers
	}{
		"covers":                    {nil, ""},
		"with a condition":          {func(g *control.GivenGrant) { g.When = `args.project == "web"` }, ""},
		"another project":           {func(g *control.GivenGrant) { g.When = `args.project == "api"` }, "not allowed"},
		"a condition that errs":     {func(g *control.GivenGrant) { g.When = `args.flag` }, "no member flag"},
		"over":                      {func(g *control.GivenGrant) { g.Until = now }, "it is over"},
		"revoked":                   {func(g *control.GivenGrant) { g.Revoked = true }, "it is over"},
		"suspended":                 {func(g *control.GivenGrant) { g.Suspended = "restored" }, "suspended: restored"},
		"another profile":           {func(g *control.GivenGrant) { g.Profile = "ci" }, "nothing"},
		"another tool":              {func(g *control.GivenGrant) { g.Tools = []string{"tracker/other"} }, "nothing"},
		"of this session":           {func(g *control.GivenGrant) { g.Kind, g.Session = "session", "s" }, ""},
		"of another session":        {func(g *control.GivenGrant) { g.Kind, g.Session = "session", "t" }, "nothing"},
		"used up":                   {func(g *control.GivenGrant) { g.Limit.Calls = 3 }, "3 calls are used up"},
		"bytes used up":             {func(g *control.GivenGrant) { g.Limit.Bytes = 30 }, "30 bytes are used up"},
		"without a bound of calls":  {func(g *control.GivenGrant) { g.Limit = control.Limit{} }, ""},
		"a session, and unattended": {func(g *control.GivenGrant) { g.Kind, g.Session, g.Owner = "session", "s", "unattended" }, "attended"},
	} {
		t.Run(name, func(t *testing.T) {
			given := g(c.change)
			call := callOf(control.Write, `{"project":"web"}`)
			call.Attended = given.Owner != "unattended"
			e := grant.Evaluator{Usage: func(key string, _ time.Duration) (int64, int64, error) {
				if key != grant.CounterOfGiven("nightly") {
					t.Errorf("counter %s", key)
				}
				return 3, 20, nil
			}}
			got, f := e.Given(t.Context(), []*control.GivenGrant{given}, call)
			switch {
			case c.says == "" && (got != given || len(f.Counters) != 1):
				t.Fatalf("not covered: %+v", f)
			case c.says != "" && got != nil:
				t.Fatal("covered")
			case c.says == "nothing" && len(f.Steps) != 0, c.says != "" && c.says != "nothing" && !strings.Contains(f.Reason, c.says):
				t.Fatalf("got %+v", f)
			}
		})
	}
	// The first that covers counts, whatever the others say.
	e := grant.Evaluator{}
	got, _ := e.Given(t.Context(), []*control.GivenGrant{g(func(g *control.GivenGrant) { g.Until = now }), g(func(g *control.GivenGrant) { g.ID = "second" })}, callOf(control.Write, `{}`))
	if got == nil || got.ID != "second" {
		t.Fatalf("got %v", got)
	}
}

func TestSuggest(t *testing.T) {
	args := `{"project":"web","title":"a \"b\"\u00e9","n":5,"big":12345678901234567890,"f":1.5,"flag":true,"list":[1],"in":"x","a-b":"y","long":"` + strings.Repeat("x", 100) + `"}`
	when := grant.Suggest([]byte(args))
	if want := `args.project == "web" && args.title == "a \"b\"é" && args.n == 5 && args.flag == true`; when != want {
		t.Fatalf("got %s", when)
	}
	// What is suggested holds for the call that it was made from.
	c, err := grant.Compile(when, []byte(`{"type":"object"}`))
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := c.Eval(t.Context(), facts(args)); err != nil || !ok {
		t.Fatalf("the suggestion does not hold: %v", err)
	}
	if got := grant.Suggest([]byte(`{}`)); got != "" {
		t.Fatalf("got %s", got)
	}
}

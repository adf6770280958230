package config_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sallyport.dev/control"
	"sallyport.dev/control/config"
)

// profileYAML makes a file of the lines that a plan shows.
func profileYAML(lines []string) string {
	nested, order := map[string][]string{}, []string{}
	var b strings.Builder
	b.WriteString("version: 1\nprofiles:\n  p:\n")
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ": ")
		outer, inner, isNested := strings.Cut(name, ".")
		text := inner + ": " + value
		if name == "grants" {
			isNested, text = true, "- "+value
		}
		if !isNested {
			fmt.Fprintf(&b, "    %s\n", l)
			continue
		}
		if nested[outer] == nil {
			order = append(order, outer)
		}
		nested[outer] = append(nested[outer], text)
	}
	for _, outer := range order {
		fmt.Fprintf(&b, "    %s:\n", outer)
		for _, text := range nested[outer] {
			fmt.Fprintf(&b, "      %s\n", text)
		}
	}
	return b.String()
}

// What a plan shows is what the file takes: read again, the lines of a profile are the same profile.
func TestLinesAreYAML(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.StringMatching(`[ -~äö√\t]{1,20}`)
		attended := rapid.Bool().Draw(t, "attended")
		p := control.Profile{
			Org: control.Org, Name: "p", Attended: attended, Attached: "deny", OnDisconnect: "cancel", Approvers: rapid.SliceOfN(words, 1, 3).Draw(t, "approvers"),
			Hold:     time.Duration(rapid.Int64Range(0, int64(9*time.Minute)).Draw(t, "hold")),
			Approval: control.Approval{Expires: time.Duration(rapid.Int64Range(int64(time.Second), int64(7*24*time.Hour)).Draw(t, "expires")), Second: rapid.Bool().Draw(t, "second")},
			Sandbox: control.SandboxPolicy{
				Driver: "bwrap", Closed: "proven", Workspace: "read-only", Memory: rapid.Int64Range(64<<20, 1<<40).Draw(t, "memory"),
				PIDs: rapid.Int64Range(16, 1<<20).Draw(t, "pids"), CPU: float64(rapid.IntRange(1, 100).Draw(t, "cpu")) / 8, AllowEnvFiles: rapid.Bool().Draw(t, "env"),
			},
			Network: control.NetworkPolicy{SharedAddress: "refuse"},
			Model:   control.ModelPolicy{Provider: "none", Source: rapid.StringMatching(`[ -~]{0,10}`).Draw(t, "source")},
		}
		if p.Sandbox.CPU < 0.125 {
			p.Sandbox.CPU = 0.125
		}
		got, problems := config.Read([]byte(profileYAML(config.Lines(p))), nil, nil, now)
		if len(problems) > 0 {
			t.Fatalf("%v\n%s", problems, profileYAML(config.Lines(p)))
		}
		if d := cmp.Diff(p, got.Profiles["p"]); d != "" {
			t.Fatalf("%s\n%s", d, profileYAML(config.Lines(p)))
		}
	})
}

// A new connection and its profile, as a person reads them before they apply.
func TestPlanSpeaksAsTheFile(t *testing.T) {
	d, problems := read(t, good(t))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	changes, _ := config.Plan(&control.Policy{}, d, false, "local:ann", now)
	got := map[string][]string{}
	for _, c := range changes {
		if c.Action == config.Add {
			got[c.Kind] = c.Lines
		}
	}
	digest := digestOf(t, trackerTools)
	want := map[string][]string{
		"connection": {
			"+ kind: mcp", "+ url: https://mcp.tracker.example.org/mcp", "+ pool: default", "+ auth.type: bearer", "+ auth.per: shared",
			"+ limits.timeout: 60s", "+ limits.concurrent: 4", "+ limits.result: 512KiB", "+ catalog.digest: " + digest,
		},
		"catalog": {
			"+ digest: " + digest, "+ tools.create_issue: {effect: write, as: new_issue}",
			"+ tools.list_issues: {effect: read, as: tracker_list_issues, repeat: true, extra: refuse}",
		},
		"profile": {
			"+ attended: true", "+ attached: deny", "+ on_disconnect: keep", "+ approvers: [owner]", "+ hold: 0s", "+ approval.expires: 1h",
			"+ sandbox.driver: bwrap", "+ sandbox.closed: proven", "+ sandbox.workspace: read-write", "+ sandbox.memory: 4GiB", "+ sandbox.pids: 512",
			"+ sandbox.cpu: 2", "+ network.shared_address: refuse", "+ model.provider: none", "+ grants: {tools: [tracker/list_issues], rule: allow}",
			`+ grants: {tools: [tracker/create_issue], rule: ask, when: 'args.project == "web"', limit: {calls: 20, per: 1h}}`,
		},
		"standing": {
			"+ profile: dev", "+ tools: [tracker/create_issue]", "+ calls: 50", "+ per: 24h", "+ until: 2027-01-31", "+ reason: triage bot",
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A grant that is put first must not look like a change of those behind it, and a change of the order alone must show.
func TestPlanOfGrants(t *testing.T) {
	a, b := control.Grant{Tools: []string{"t/a"}, Rule: control.Allow}, control.Grant{Tools: []string{"t/b"}, Rule: control.Ask}
	profile := func(grants ...control.Grant) control.Profile {
		return control.Profile{Name: "p", Approvers: []string{"owner"}, Grants: grants}
	}
	plan := func(old, next control.Profile) []string {
		changes, _ := config.Plan(
			&control.Policy{Profiles: map[string]*control.Profile{"p": &old}}, config.Desired{Profiles: map[string]control.Profile{"p": next}}, false, "local:ann", now)
		if len(changes) == 0 {
			return nil
		}
		return changes[0].Lines
	}
	for _, c := range []struct {
		old, next []control.Grant
		want      string
	}{
		{[]control.Grant{b}, []control.Grant{a, b}, "+ grants: {tools: [t/a], rule: allow}"},
		{[]control.Grant{a, b}, []control.Grant{b}, "- grants: {tools: [t/a], rule: allow}"},
		{[]control.Grant{a, b}, []control.Grant{b, a}, "~ grants: in another order"},
		{[]control.Grant{a, a}, []control.Grant{a}, "- grants: {tools: [t/a], rule: allow}"},
		{[]control.Grant{a}, nil, "- grants: {tools: [t/a], rule: allow}"},
		{[]control.Grant{a, b}, []control.Grant{a, b}, ""},
	} {
		if got := strings.Join(plan(profile(c.old...), profile(c.next...)), "|"); got != c.want {
			t.Errorf("%v to %v: %q, want %q", c.old, c.next, got, c.want)
		}
	}
}

// A tool that keeps its reviewer's word and gets another text from its server stands in the plan.
func TestPlanNamesRewordedTools(t *testing.T) {
	tool := func(raw string) control.Tool {
		return control.Tool{Name: "echo", As: "t_echo", Effect: control.Read, Raw: []byte(raw)}
	}
	old := &control.Catalog{Connection: "t", Digest: control.Sum([]byte("1")), Tools: []control.Tool{tool("a")}}
	next := control.Catalog{Connection: "t", Digest: control.Sum([]byte("2")), Tools: []control.Tool{tool("b")}}
	changes, _ := config.Plan(&control.Policy{Catalogs: map[string]*control.Catalog{"t": old}}, config.Desired{Catalogs: map[string]control.Catalog{"t": next}}, false, "local:ann", now)
	if len(changes) != 1 || len(changes[0].Lines) != 2 || changes[0].Lines[1] != "~ tools.echo: the server's own text changed; sallyport catalogs diff shows how" {
		t.Errorf("%+v", changes)
	}
}

func TestLengthsAndSizes(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0s": 0, "45s": 45 * time.Second, "120s": 2 * time.Minute, "10m": 10 * time.Minute, "90m": 90 * time.Minute, "1h": time.Hour, "24h": 24 * time.Hour,
		"30d": 720 * time.Hour, "1.5s": 1500 * time.Millisecond,
	} {
		if got := config.Length(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
	for want, n := range map[string]int64{"0B": 0, "1023B": 1023, "1KiB": 1 << 10, "1536KiB": 1536 << 10, "1MiB": 1 << 20, "4GiB": 4 << 30, "1025B": 1025} {
		if got := config.Bytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

// What YAML would read as something else, or not at all, is quoted.
func TestRuleIsQuoted(t *testing.T) {
	for _, when := range []string{`args.a == "x"`, "true", "a: b", "it's", "- x", "", "[", "#", "a\nb", "null", "1", "*"} {
		text := config.Rule(control.Grant{Tools: []string{"t/*"}, Rule: control.Ask, When: when})
		d, problems := config.Read([]byte("version: 1\nconnections: {t: {url: 'https://x.example.org/'}}\nprofiles:\n  p:\n    grants:\n      - "+text+"\n"), nil, nil, now)
		if len(problems) > 0 {
			t.Errorf("%q: %v: %s", when, problems, text)
			continue
		}
		g := d.Profiles["p"].Grants
		if len(g) != 1 || g[0].When != when || !slices.Equal(g[0].Tools, []string{"t/*"}) {
			t.Errorf("%q: %+v", when, g)
		}
	}
}

package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"sallyport.dev/control"
	"sallyport.dev/control/catalog"
	"sallyport.dev/control/config"
)

var now = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

const trackerTools = `{"v":1,"tools":[{"name":"list_issues","inputSchema":{"type":"object"}},{"name":"create_issue","inputSchema":{"type":"object"}}]}`

func digestOf(t *testing.T, data string) string {
	t.Helper()
	entries, err := catalog.Parse([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	return catalog.Digest(entries).String()
}

func files() map[string][]byte {
	return map[string][]byte{"catalogs/tracker.json": []byte(trackerTools)}
}

func good(t *testing.T) string {
	return fmt.Sprintf(`version: 1
connections:
  tracker:
    url: https://mcp.tracker.example.org/mcp
    auth: {type: bearer}
    limits: {timeout: 60s, concurrent: 4, result: 512KiB}
    catalog: {file: catalogs/tracker.json, digest: %q}
    tools:
      list_issues: {effect: read, repeat: true, extra: refuse}
      create_issue: {effect: write, as: new_issue}
profiles:
  dev:
    attended: true
    hold: 0s
    grants:
      - {tools: [tracker/list_issues], rule: allow}
      - {tools: [tracker/create_issue], rule: ask, when: 'args.project == "web"', limit: {calls: 20, per: 1h}}
standing:
  nightly: {profile: dev, tools: [tracker/create_issue], calls: 50, per: 24h, until: 2027-01-31, reason: "triage bot"}
`, digestOf(t, trackerTools))
}

func read(t *testing.T, yaml string) (config.Desired, []config.Problem) {
	t.Helper()
	return config.Read([]byte(yaml), files(), nil, now)
}

func TestReadGood(t *testing.T) {
	d, problems := read(t, good(t))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	c := d.Connections["tracker"]
	if c.Origin != "https://mcp.tracker.example.org" || c.Path != "/mcp" || c.Limits.Timeout != time.Minute || c.Limits.Result != 512<<10 || c.State != control.ConnectionUntested {
		t.Errorf("connection: %+v", c)
	}
	cat := d.Catalogs["tracker"]
	if len(cat.Tools) != 2 || cat.Tools[0].As != "new_issue" || cat.Tools[0].Effect != control.Write || cat.Tools[1].As != "tracker_list_issues" || !cat.Tools[1].RefuseExtra {
		t.Errorf("catalog: %+v", cat)
	}
	p := d.Profiles["dev"]
	if p.Hold != 0 || p.Approval.Expires != time.Hour || p.Grants[1].Limit.Calls != 20 || p.Approvers[0] != "owner" || p.Sandbox.PIDs != 512 {
		t.Errorf("profile: %+v", p)
	}
	if g := d.Standing["nightly"]; g.Limit.Calls != 50 || g.Limit.Per != 24*time.Hour || g.Until.Year() != 2027 {
		t.Errorf("standing: %+v", g)
	}
}

func TestReadLimits(t *testing.T) {
	d, problems := read(t, strings.Replace(good(t), "timeout: 60s", "timeout: 60s, connect: 20s, silence: 4m, rate: {calls: 60, per: 1m}, breaker: {failures: 5}", 1))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want := control.ConnectionLimits{
		Timeout: time.Minute, Connect: 20 * time.Second, Silence: 4 * time.Minute, Concurrent: 4, Result: 512 << 10,
		Rate: control.Rate{Calls: 60, Per: time.Minute}, Breaker: control.Breaker{Failures: 5, Pause: 30 * time.Second},
	}
	if got := d.Connections["tracker"].Limits; got != want {
		t.Errorf("limits: %+v, want %+v", got, want)
	}
}

// Each row breaks the good file in one way; want is a part of the message, at a line that holds at.
func TestReadBad(t *testing.T) {
	base := good(t)
	for name, c := range map[string]struct{ old, new, at, want string }{
		"unknown member":         {"    attended: true", "    atended: true", "atended", "known members are attended"},
		"member twice":           {"    hold: 0s", "    hold: 0s\n    hold: 1s", "hold: 1s", "stands here twice"},
		"version":                {"version: 1", "version: 2", "version", "must be 1"},
		"text for bool":          {"attended: true", `attended: "yes"`, "attended", "must be true or false"},
		"number for text":        {"reason: \"triage bot\"", "reason: 7", "reason", "must be text"},
		"plain http":             {"https://mcp", "http://mcp", "url", "network: {http: true}"},
		"password in url":        {"https://mcp", "https://u:p@mcp", "url", "must not carry a name or password"},
		"metadata range":         {"    auth:", "    network: {allow: [169.254.0.0/16]}\n    auth:", "169.254", "link-local, metadata"},
		"everything":             {"    auth:", "    network: {allow: [0.0.0.0/0]}\n    auth:", "0.0.0.0/0", "which no connection may reach"},
		"public range":           {"    auth:", "    network: {allow: [8.8.8.0/24]}\n    auth:", "8.8.8", "is not private"},
		"allow on a write":       {"rule: ask, when", "rule: allow, when", "create_issue], rule", "standing grant"},
		"allow on all":           {"tools: [tracker/list_issues], rule", "tools: [tracker/*], rule", "tracker/*", "allows a write (create_issue)"},
		"unknown tool":           {"tracker/list_issues", "tracker/list", "tracker/list", "no reviewed tool list"},
		"unknown connection":     {"[tracker/list_issues]", "[other/list_issues]", "other/", "no connection is named other"},
		"pattern":                {"[tracker/list_issues]", "['*/list']", "list']", "must be connection/tool"},
		"wrong digest":           {`digest: "`, `digest: "0`, "digest", "is not the digest of"},
		"file above":             {"file: catalogs/", "file: ../catalogs/", "file", "beside or below"},
		"file missing":           {"file: catalogs/tracker", "file: catalogs/gone", "file", "catalogs pull tracker"},
		"tool not in catalog":    {"      list_issues: {", "      list_issue: {", "list_issue:", "is not in the catalog"},
		"no effect":              {"effect: read, repeat: true, ", "", "list_issues:", "needs an effect"},
		"repeat on a write":      {"effect: write, as", "effect: write, repeat: true, as", "repeat", "a write is never repeated"},
		"reserved name":          {"as: new_issue", "as: await_call", "await_call", "Sallyport's own"},
		"bad name":               {"as: new_issue", "as: New-Issue", "New-Issue", "of a-z, 0-9 and _"},
		"collision":              {"as: new_issue", "as: tracker_list_issues", "dev", "same name in the sandbox"},
		"hold too long":          {"hold: 0s", "hold: 11m", "hold", "must be 0s to 9m"},
		"standing without until": {"until: 2027-01-31, ", "", "nightly", "is missing: a standing grant ends"},
		"standing in the past":   {"until: 2027-01-31", "until: 2026-01-31", "until", "has passed"},
		"standing for ever":      {"until: 2027-01-31", "until: 2099-01-31", "until", "400 days"},
		"standing no reason":     {`, reason: "triage bot"`, "", "nightly", "say why"},
		"secret":                 {"    auth: {type: bearer}", "    auth: {type: bearer} # ghp_abcdefghijklmnopqrstuvwxyz0123", "ghp_", "looks like a secret"},
		"anchor":                 {"attended: true", "attended: &a true", "attended", "anchors"},
		"header without name":    {"type: bearer", "type: header", "auth", "stands with type header"},
		"timeout":                {"timeout: 60s", "timeout: 31m", "timeout", "must be 1s to 30m"},
		"connect":                {"timeout: 60s", "connect: 31s", "connect", "must be 1s to 30s"},
		"silence":                {"timeout: 60s", "silence: 31m", "silence", "must be 1s to 30m"},
		"rate without calls":     {"timeout: 60s", "rate: {calls: 0, per: 1m}", "rate", "must be 1 to 100000"},
		"rate without per":       {"timeout: 60s", "rate: {calls: 1}", "rate", "must be 1s to 24h"},
		"breaker":                {"timeout: 60s", "breaker: {failures: 0}", "breaker", "must be 1 to 1000"},
		"breaker pause":          {"timeout: 60s", "breaker: {failures: 1, pause: 2h}", "breaker", "must be 1s to 1h"},
		"moved status":           {"    auth:", "    uncertain_statuses: [500]\n    auth:", "500", "only a status that counts as a rejection"},
	} {
		t.Run(name, func(t *testing.T) {
			yaml := strings.Replace(base, c.old, c.new, 1)
			if yaml == base {
				t.Fatal("the row changes nothing")
			}
			_, problems := read(t, yaml)
			for _, p := range problems {
				lines := strings.Split(yaml, "\n")
				if strings.Contains(p.String(), c.want) && p.Line > 0 && strings.Contains(lines[p.Line-1], c.at) {
					return
				}
			}
			t.Fatalf("want %q at a line with %q, got %v", c.want, c.at, problems)
		})
	}
}

func TestReadReportsAllAtOnce(t *testing.T) {
	yaml := strings.NewReplacer("attended: true", "attended: 7", "timeout: 60s", "timeout: soon", "effect: read", "effect: maybe").Replace(good(t))
	_, problems := read(t, yaml)
	if len(problems) < 3 {
		t.Fatalf("three errors, %d reported: %v", len(problems), problems)
	}
	for i := 1; i < len(problems); i++ {
		if problems[i].Line < problems[i-1].Line {
			t.Fatalf("not in the file's order: %v", problems)
		}
	}
}

func TestReadNotYAML(t *testing.T) {
	for _, in := range []string{"", "{", "a: [", "\x00", "- 1", "--- 1\n--- 2", strings.Repeat("[", 10000)} {
		if _, problems := read(t, in); len(problems) == 0 {
			t.Errorf("%.20q was taken", in)
		}
	}
}

func TestConditionIsChecked(t *testing.T) {
	var seen []string
	check := func(when string, tools []control.Tool) error {
		seen = append(seen, fmt.Sprint(when, " ", len(tools)))
		return errors.New("args.project is not in the schema")
	}
	_, problems := config.Read([]byte(good(t)), files(), check, now)
	if len(seen) != 1 || !strings.HasPrefix(seen[0], `args.project == "web" 1`) {
		t.Errorf("checked %v", seen)
	}
	if len(problems) != 1 || problems[0].Path != "profiles.dev.grants[1].when" || problems[0].Line != 17 {
		t.Errorf("got %+v", problems)
	}
}

func TestPlan(t *testing.T) {
	d, problems := read(t, good(t))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	plan := func(current *control.Policy, d config.Desired, prune bool) ([]config.Change, control.Apply) {
		return config.Plan(current, d, prune, "local:ann", now)
	}
	changes, set := plan(&control.Policy{Generation: 7}, d, false)
	var got []string
	for _, c := range changes {
		got = append(got, fmt.Sprintf("%s %s %s", c.Action, c.Kind, c.Name))
	}
	if s := strings.Join(got, ", "); s != "add connection tracker, test connection tracker, add catalog tracker, add profile dev, add standing nightly" {
		t.Error(s)
	}
	if set.Expect != 7 || len(set.Connections) != 1 || set.Connections[0].Revision != 1 || set.Catalogs[0].ReviewedBy != "local:ann" {
		t.Errorf("changes: %+v", set)
	}
	// What the store would hold after the apply and a test.
	tested, cat, profile, standing := d.Connections["tracker"], d.Catalogs["tracker"], d.Profiles["dev"], set.Standing[0]
	tested.State, tested.Protocol, tested.Revision = control.ConnectionEnabled, "2026-07-28", 3
	profile.Version = 5
	current := &control.Policy{
		Generation: 8, Connections: map[string]*control.Connection{"tracker": &tested}, Catalogs: map[string]*control.Catalog{"tracker": &cat},
		Profiles: map[string]*control.Profile{"dev": &profile}, Given: []*control.GivenGrant{&standing, {ID: "by-hand", Kind: "standing"}},
	}
	if changes, set = plan(current, d, true); len(changes) != 0 || len(set.Connections)+len(set.Profiles)+len(set.Standing)+len(set.Catalogs) != 0 {
		t.Errorf("an unchanged file plans %+v", changes)
	}
	moved, problems := read(t, strings.Replace(good(t), "/mcp\n", "/v2/mcp\n", 1))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	changes, set = plan(current, moved, false)
	if len(changes) != 2 || changes[1].Action != config.Test || set.Connections[0].State != control.ConnectionUntested || set.Connections[0].Revision != 4 || set.Connections[0].Protocol != "" {
		t.Errorf("a moved connection plans %+v", changes)
	}
	narrower, problems := read(t, strings.Replace(good(t), "concurrent: 4", "concurrent: 2", 1))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	changes, set = plan(current, narrower, false)
	if len(changes) != 1 || set.Connections[0].State != control.ConnectionEnabled || set.Connections[0].Revision != 3 {
		t.Errorf("another limit plans %+v: %+v", changes, set.Connections)
	}
	if changes, _ = plan(current, config.Desired{}, false); len(changes) != 0 {
		t.Errorf("removal without prune: %+v", changes)
	}
	if changes, set = plan(current, config.Desired{}, true); len(changes) != 3 || changes[0].Kind != "standing" || len(set.RemoveStanding) != 1 {
		t.Errorf("prune: %+v", changes)
	}
}

func TestSchemaTakesTheGoodFile(t *testing.T) {
	schema, err := config.Schema()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(schema)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mem:///s.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("mem:///s.json")
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal([]byte(`{"version":1,"connections":{"t":{"url":"https://x","limits":{"timeout":"60s"}}}}`), &v); err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(v); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{`{"version":1,"conections":{}}`, `{"version":1,"connections":{"t":{"url":"https://x","limits":{"timeout":"soon"}}}}`, `{"version":1,"profiles":{"p":{"grants":[{"tools":["a/b"],"rule":"maybe"}]}}}`} {
		if err := json.Unmarshal([]byte(bad), &v); err != nil {
			t.Fatal(err)
		}
		if s.Validate(v) == nil {
			t.Errorf("the schema takes %s", bad)
		}
	}
}

// FuzzRead reads any bytes as a file: the same bytes always say the same, each problem is one line of text with a place in the file, and what has no
// problem plans no change against itself.
func FuzzRead(f *testing.F) {
	f.Add("version: 1\nprofiles: {dev: {attended: true}}\n")
	f.Add("a: &b [*b]\n")
	f.Add("version: 1\nconnections:\n  x:\n    url: https://a\n    <<: {}\n")
	f.Add("version: 1\nversion: 1\n")
	f.Add(fuzzedFile)
	f.Fuzz(func(t *testing.T, in string) {
		desired, problems := config.Read([]byte(in), files(), nil, now)
		again, same := config.Read([]byte(in), files(), nil, now)
		if !reflect.DeepEqual(problems, same) || len(problems) == 0 && !reflect.DeepEqual(desired, again) {
			t.Fatalf("%q is read in two ways:\n%v\n%v", in, problems, same)
		}
		lines := strings.Count(in, "\n") + strings.Count(in, "\r") + 1
		for _, p := range problems {
			if p.Message == "" || strings.ContainsAny(p.String(), "\n\r\x00\x1b") || p.Line < 0 || p.Line > lines {
				t.Fatalf("%q: the problem %q stands in line %d of %d", in, p.String(), p.Line, lines)
			}
		}
		if len(problems) > 0 {
			return
		}
		if desired.Connections == nil || desired.Profiles == nil || desired.Standing == nil {
			t.Fatalf("%q has no problem, and is not whole", in)
		}
	})
}

// fuzzedFile has a bit of everything, for the fuzzer to change.
const fuzzedFile = `version: 1
connections:
  tracker:
    url: https://mcp.tracker.example.org/mcp
    network: {allow: [10.0.0.0/8], http: true}
    auth: {type: header, name: X-Api-Key}
    limits: {timeout: 60s, concurrent: 4, result: 2MiB}
profiles:
  dev:
    attended: true
    hold: 0s
    approvers: [owner, "group:leads"]
    approval: {expires: 1h, second: true}
    sandbox: {driver: bwrap, closed: proven, memory: 4GiB, pids: 512}
    grants: [{tools: [tracker/*], rule: deny, when: 'args.a == "b"', limit: {calls: 1, per: 1h}}]
standing:
  n: {profile: dev, tools: [tracker/x], calls: 5, per: 24h, until: 2027-01-31, reason: "r"}
`

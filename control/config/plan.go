package config

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"sallyport.dev/control"
)

// Action is what an apply does to one object.
type Action string

// Actions.
const (
	Add    Action = "add"
	Modify Action = "change"
	Remove Action = "remove"
	Test   Action = "test" // the connection needs a real test before it is in service
)

// Change is one line of a plan.
type Change struct {
	Action Action
	Kind   string // connection | catalog | profile | standing
	Name   string
	Lines  []string // member: old -> new
}

// Current is what the store holds.
type Current struct {
	Revision int64 // of the whole configuration: an apply is a compare-and-set on it
	Desired
}

// Changeset is what one apply writes, in one transaction. Removed objects are named; what is in neither stays.
type Changeset struct {
	Connections map[string]control.Connection
	Catalogs    map[string]control.Catalog
	Profiles    map[string]control.Profile
	Standing    map[string]control.GivenGrant
	Removed     []Change
}

// Store keeps the configuration. Apply gives connections their next revision when [NeedsTest] says so, and profiles their next version; it is one
// of the store's cross-capability transactions: questions that the newest version would refuse are voided in it.
type Store interface {
	// Current returns the configuration.
	Current(ctx context.Context) (Current, error)
	// Apply writes a changeset on top of revision base. Errors: conflict (somebody applied meanwhile).
	Apply(ctx context.Context, by control.Person, base int64, set Changeset) (revision int64, err error)
}

// NeedsTest reports whether a change from old to next takes the connection out of service until a real test passes.
func NeedsTest(old, next control.Connection) bool {
	return old.Kind != next.Kind || old.Origin != next.Origin || old.Path != next.Path || old.Pool != next.Pool ||
		!reflect.DeepEqual(old.Auth, next.Auth) || !slices.Equal(old.Network.Allow, next.Network.Allow) || old.Network.HTTP != next.Network.HTTP
}

// Plan compares and says what an apply would write. Objects that the file does not name are removed only with prune.
func Plan(current Current, desired Desired, prune bool) ([]Change, Changeset) {
	set := Changeset{
		Connections: map[string]control.Connection{}, Catalogs: map[string]control.Catalog{},
		Profiles: map[string]control.Profile{}, Standing: map[string]control.GivenGrant{},
	}
	var out []Change
	for _, name := range slices.Sorted(maps.Keys(desired.Connections)) {
		next := desired.Connections[name]
		old, exists := current.Connections[name]
		if exists && !NeedsTest(old, next) && next.State != control.ConnectionDisabled && old.State != control.ConnectionDisabled {
			next.State = old.State
		}
		next.Protocol = old.Protocol
		test := !exists || NeedsTest(old, next)
		if test {
			next.Protocol = ""
		}
		lines := diffLines(viewConnection(old), viewConnection(next), !exists)
		if len(lines) > 0 {
			out = append(out, Change{Action: action(exists), Kind: "connection", Name: name, Lines: lines})
			set.Connections[name] = next
		}
		if (test || next.State == control.ConnectionUntested) && next.State != control.ConnectionDisabled {
			out = append(out, Change{Action: Test, Kind: "connection", Name: name, Lines: []string{"needs a real test before it is in service"}})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(desired.Catalogs)) {
		next := desired.Catalogs[name]
		old, exists := current.Catalogs[name]
		if lines := diffLines(viewCatalog(old), viewCatalog(next), !exists); len(lines) > 0 {
			out = append(out, Change{Action: action(exists), Kind: "catalog", Name: name, Lines: lines})
			set.Catalogs[name] = next
		}
	}
	for _, name := range slices.Sorted(maps.Keys(desired.Profiles)) {
		next := desired.Profiles[name]
		old, exists := current.Profiles[name]
		old.Version, next.Version = 0, 0
		if lines := diffLines(view(old), view(next), !exists); len(lines) > 0 {
			out = append(out, Change{Action: action(exists), Kind: "profile", Name: name, Lines: lines})
			set.Profiles[name] = next
		}
	}
	for _, name := range slices.Sorted(maps.Keys(desired.Standing)) {
		next := desired.Standing[name]
		old, exists := current.Standing[name]
		if lines := diffLines(viewStanding(old), viewStanding(next), !exists); len(lines) > 0 {
			out = append(out, Change{Action: action(exists), Kind: "standing", Name: name, Lines: lines})
			set.Standing[name] = next
		}
	}
	if prune {
		set.Removed = removed(current, desired)
		out = append(out, set.Removed...)
	}
	return out, set
}

func removed(current Current, desired Desired) []Change {
	var out []Change
	for _, name := range slices.Sorted(maps.Keys(current.Standing)) {
		if _, keep := desired.Standing[name]; !keep && current.Standing[name].FromYAML {
			out = append(out, Change{Action: Remove, Kind: "standing", Name: name})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(current.Profiles)) {
		if _, keep := desired.Profiles[name]; !keep {
			out = append(out, Change{Action: Remove, Kind: "profile", Name: name})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(current.Connections)) {
		if _, keep := desired.Connections[name]; !keep {
			out = append(out, Change{Action: Remove, Kind: "connection", Name: name, Lines: []string{"its credentials and its catalog go with it"}})
		}
	}
	return out
}

func action(exists bool) Action {
	if exists {
		return Modify
	}
	return Add
}

// Digest names a plan: an apply that carries it runs only if it would do the same.
func Digest(revision int64, changes []Change, yaml []byte, files map[string][]byte) control.Digest {
	parts := [][]byte{fmt.Append(nil, revision), yaml}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		parts = append(parts, []byte(name), files[name])
	}
	for _, c := range changes {
		parts = append(parts, []byte(string(c.Action)+" "+c.Kind+" "+c.Name+"\n"+strings.Join(c.Lines, "\n")))
	}
	return control.SumParts("plan v1", parts...)
}

func viewConnection(c control.Connection) map[string]string {
	m := view(c)
	for _, k := range []string{"org", "name", "revision", "protocol"} {
		delete(m, k)
	}
	if c.State != control.ConnectionDisabled {
		delete(m, "state")
	}
	if !c.Catalog.IsZero() {
		m["catalog"] = c.Catalog.String()
	}
	return m
}

func viewCatalog(c control.Catalog) map[string]string {
	m := map[string]string{}
	if c.Digest.IsZero() {
		return m
	}
	m["digest"] = c.Digest.String()
	for _, t := range c.Tools {
		m["tool "+t.Name] = fmt.Sprintf("%s as %s%s%s", t.Effect, t.As, when(t.Repeat, ", repeat"), when(t.RefuseExtra, ", no extra members"))
	}
	return m
}

func viewStanding(g control.GivenGrant) map[string]string {
	if g.ID == "" {
		return map[string]string{}
	}
	return map[string]string{
		"profile": g.Profile, "tools": strings.Join(g.Tools, " "), "when": g.When, "until": g.Until.Format("2006-01-02"),
		"limit": fmt.Sprintf("%d per %s", g.Limit.Calls, g.Limit.Per), "reason": g.Reason,
	}
}

func when(b bool, s string) string {
	if b {
		return s
	}
	return ""
}

// view flattens an object's first level, so that a diff names members as the file does.
func view(v any) map[string]string {
	data, err := json.Marshal(v)
	if err != nil {
		return map[string]string{}
	}
	var m map[string]json.RawMessage
	if json.Unmarshal(data, &m) != nil {
		return map[string]string{}
	}
	out := map[string]string{}
	for k, raw := range m {
		if s := string(raw); s != "null" && s != `""` && s != "0" && s != "false" && s != "[]" {
			out[k] = s
		}
	}
	delete(out, "org")
	delete(out, "version")
	return out
}

func diffLines(old, next map[string]string, isNew bool) []string {
	if isNew {
		old = map[string]string{}
	}
	keys := map[string]bool{}
	for k := range old {
		keys[k] = true
	}
	for k := range next {
		keys[k] = true
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		switch o, n := old[k], next[k]; {
		case o == n:
		case o == "":
			out = append(out, "+ "+k+": "+n)
		case n == "":
			out = append(out, "- "+k+": "+o)
		default:
			out = append(out, "~ "+k+": "+o+" -> "+n)
		}
	}
	return out
}

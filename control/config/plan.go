package config

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

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
	Lines  []string // + member: value, - member: value, ~ member: old -> new
}

// NeedsTest reports whether a change from old to next takes the connection out of service until a real test passes.
func NeedsTest(old, next control.Connection) bool {
	return old.Kind != next.Kind || old.Origin != next.Origin || old.Path != next.Path || old.Pool != next.Pool ||
		!reflect.DeepEqual(old.Auth, next.Auth) || !slices.Equal(old.Network.Allow, next.Network.Allow) || old.Network.HTTP != next.Network.HTTP || old.TLS != next.TLS
}

// Plan compares with the current policy and says what an apply would write. Objects that the file does not name are removed only with prune; a
// standing grant that was given by hand is never the file's to remove.
func Plan(current *control.Policy, desired Desired, prune bool, by control.Person, now time.Time) ([]Change, control.Apply) {
	set := control.Apply{Org: control.Org, By: by, At: now, Expect: current.Generation}
	var out []Change
	for _, name := range slices.Sorted(maps.Keys(desired.Connections)) {
		changes, next, changed := planConnection(current.Connections[name], desired.Connections[name])
		out = append(out, changes...)
		if changed {
			set.Connections = append(set.Connections, next)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(desired.Catalogs)) {
		next := desired.Catalogs[name]
		next.ReviewedBy, next.ReviewedAt = by, now
		old := current.Catalogs[name]
		var before view
		if old != nil {
			before = viewCatalog(*old)
		}
		if lines := diffViews(before, viewCatalog(next)); len(lines) > 0 {
			out = append(out, Change{Action: action(old != nil), Kind: "catalog", Name: name, Lines: append(lines, reworded(old, next)...)})
			set.Catalogs = append(set.Catalogs, next)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(desired.Profiles)) {
		old, exists := current.Profiles[name]
		var before view
		if exists {
			before = viewProfile(*old)
		}
		if lines := diffViews(before, viewProfile(desired.Profiles[name])); len(lines) > 0 {
			out = append(out, Change{Action: action(exists), Kind: "profile", Name: name, Lines: lines})
			set.Profiles = append(set.Profiles, desired.Profiles[name])
		}
	}
	standing := map[string]*control.GivenGrant{}
	for _, g := range current.Given {
		if g.Kind == "standing" && g.FromYAML {
			standing[g.ID] = g
		}
	}
	for _, name := range slices.Sorted(maps.Keys(desired.Standing)) {
		next := desired.Standing[name]
		next.By = by
		old := standing[name]
		var before view
		if old != nil {
			before = viewStanding(*old)
		}
		if lines := diffViews(before, viewStanding(next)); len(lines) > 0 {
			out = append(out, Change{Action: action(old != nil), Kind: "standing", Name: name, Lines: lines})
			set.Standing = append(set.Standing, next)
		}
	}
	if prune {
		out = append(out, planRemovals(current, standing, desired, &set)...)
	}
	return out, set
}

func planConnection(old *control.Connection, next control.Connection) (changes []Change, out control.Connection, changed bool) {
	exists := old != nil
	test := !exists || NeedsTest(*old, next)
	var before view
	next.Revision = 1
	if exists {
		next.Revision, next.Protocol = old.Revision, old.Protocol
		before = viewConnection(*old)
		if !test && next.State != control.ConnectionDisabled && old.State != control.ConnectionDisabled {
			next.State = old.State
		}
		if test {
			next.Revision++
		}
	}
	if test {
		next.Protocol = ""
	}
	if lines := diffViews(before, viewConnection(next)); len(lines) > 0 {
		changes = append(changes, Change{Action: action(exists), Kind: "connection", Name: next.Name, Lines: lines})
		changed = true
	}
	if next.State == control.ConnectionUntested {
		changes = append(changes, Change{Action: Test, Kind: "connection", Name: next.Name, Lines: []string{"needs a real test before it is in service"}})
	}
	return changes, next, changed
}

func planRemovals(current *control.Policy, standing map[string]*control.GivenGrant, desired Desired, set *control.Apply) []Change {
	var out []Change
	for _, name := range slices.Sorted(maps.Keys(standing)) {
		if _, keep := desired.Standing[name]; !keep {
			out = append(out, Change{Action: Remove, Kind: "standing", Name: name})
			set.RemoveStanding = append(set.RemoveStanding, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(current.Profiles)) {
		if _, keep := desired.Profiles[name]; !keep {
			out = append(out, Change{Action: Remove, Kind: "profile", Name: name})
			set.RemoveProfiles = append(set.RemoveProfiles, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(current.Connections)) {
		if _, keep := desired.Connections[name]; !keep {
			out = append(out, Change{Action: Remove, Kind: "connection", Name: name, Lines: []string{"its credentials and its catalog go with it"}})
			set.RemoveConnections = append(set.RemoveConnections, name)
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

// Digest names a plan on a generation: an apply that carries it runs only if it would do the same.
func Digest(generation int64, changes []Change, yaml []byte, files map[string][]byte) control.Digest {
	parts := [][]byte{fmt.Append(nil, generation), yaml}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		parts = append(parts, []byte(name), files[name])
	}
	for _, c := range changes {
		parts = append(parts, []byte(string(c.Action)+" "+c.Kind+" "+c.Name+"\n"+strings.Join(c.Lines, "\n")))
	}
	return control.SumParts("plan v1", parts...)
}

// reworded names the tools that stay and whose text is another one: what the model reads changes though nobody's word on the tool does.
func reworded(old *control.Catalog, next control.Catalog) []string {
	if old == nil {
		return nil
	}
	var out []string
	for _, t := range next.Tools {
		i := slices.IndexFunc(old.Tools, func(o control.Tool) bool { return o.Name == t.Name })
		if i >= 0 && !bytes.Equal(old.Tools[i].Raw, t.Raw) {
			out = append(out, "~ tools."+scalarText(t.Name)+": the server's own text changed; sallyport catalogs diff shows how")
		}
	}
	return out
}

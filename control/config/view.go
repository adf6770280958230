package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport.dev/control"
)

// view is an object as the file would write it, a line a member, so that a plan and a reader of it speak of the file's own members. Defaults are
// written out: what is in force is what a person must see.
type view struct {
	members []member
}

// member is one line. A list has a line for each of its elements.
type member struct {
	name  string // limits.timeout
	value string // in YAML's flow form
	list  []string
}

func (v *view) set(name, value string) {
	if value != "" {
		v.members = append(v.members, member{name: name, value: value})
	}
}

func (v *view) text(name, value string) {
	if value != "" {
		v.set(name, scalarText(value))
	}
}

func (v *view) texts(name string, values []string) {
	if len(values) > 0 {
		v.set(name, flowList(values))
	}
}

func (v *view) yes(name string, value bool) {
	if value {
		v.set(name, "true")
	}
}

// lines are the members as a reader sees them: name: value.
func (v view) lines() []string {
	var out []string
	for _, m := range v.members {
		if m.list == nil {
			out = append(out, m.name+": "+m.value)
		}
		for _, e := range m.list {
			out = append(out, m.name+": "+e)
		}
	}
	return out
}

// Lines writes a profile as the file would, a line a member.
func Lines(p control.Profile) []string { return viewProfile(p).lines() }

func viewConnection(c control.Connection) view {
	var v view
	v.text("kind", string(c.Kind))
	v.text("url", c.Origin+c.Path)
	v.text("pool", c.Pool)
	v.texts("network.allow", c.Network.Allow)
	v.yes("network.http", c.Network.HTTP)
	v.text("auth.type", c.Auth.Type)
	v.text("auth.name", c.Auth.Name)
	v.text("auth.per", c.Auth.Per)
	if o := c.Auth.OAuth; o != nil {
		v.text("auth.oauth.issuer", o.Issuer)
		v.text("auth.oauth.registration", o.Registration)
		v.text("auth.oauth.client_id", o.ClientID)
		v.text("auth.oauth.client_auth", o.ClientAuth)
		v.text("auth.oauth.grant", o.Grant)
		v.texts("auth.oauth.scopes", o.Scopes)
		v.text("auth.oauth.resource", o.Resource)
	}
	viewTLS(&v, c.TLS)
	viewLimits(&v, c.Limits)
	v.yes("rejections_trusted", c.Trusted)
	if len(c.Uncertain) > 0 {
		v.set("uncertain_statuses", strings.ReplaceAll(fmt.Sprint(c.Uncertain), " ", ", "))
	}
	if !c.Catalog.IsZero() {
		v.set("catalog.digest", c.Catalog.String())
	}
	for _, class := range slices.Sorted(maps.Keys(c.OnChange)) {
		v.set("catalog.on_change."+class, c.OnChange[class])
	}
	v.yes("disabled", c.State == control.ConnectionDisabled)
	return v
}

func viewLimits(v *view, l control.ConnectionLimits) {
	v.set("limits.timeout", Length(l.Timeout))
	if l.Connect != 5*time.Second {
		v.set("limits.connect", Length(l.Connect))
	}
	if l.Silence != 120*time.Second {
		v.set("limits.silence", Length(l.Silence))
	}
	v.set("limits.concurrent", strconv.Itoa(l.Concurrent))
	v.set("limits.result", Bytes(l.Result))
	if l.Rate.Calls > 0 {
		v.set("limits.rate", fmt.Sprintf("{calls: %d, per: %s}", l.Rate.Calls, Length(l.Rate.Per)))
	}
	if l.Breaker.Failures > 0 {
		v.set("limits.breaker", fmt.Sprintf("{failures: %d, pause: %s}", l.Breaker.Failures, Length(l.Breaker.Pause)))
	}
}

func viewCatalog(c control.Catalog) view {
	var v view
	v.set("digest", c.Digest.String())
	for _, t := range c.Tools {
		flow := "{effect: " + string(t.Effect) + ", as: " + scalarText(t.As)
		if t.Repeat {
			flow += ", repeat: true"
		}
		if t.RefuseExtra {
			flow += ", extra: refuse"
		}
		v.set("tools."+scalarText(t.Name), flow+"}")
	}
	return v
}

func viewProfile(p control.Profile) view {
	var v view
	v.set("attended", strconv.FormatBool(p.Attended))
	v.text("attached", p.Attached)
	v.text("on_disconnect", p.OnDisconnect)
	v.texts("approvers", p.Approvers)
	v.set("hold", Length(p.Hold))
	v.set("approval.expires", Length(p.Approval.Expires))
	v.yes("approval.second", p.Approval.Second)
	v.yes("approval.not_owner", p.Approval.NotOwner)
	v.text("sandbox.driver", p.Sandbox.Driver)
	v.text("sandbox.closed", p.Sandbox.Closed)
	v.text("sandbox.workspace", p.Sandbox.Workspace)
	v.set("sandbox.memory", Bytes(p.Sandbox.Memory))
	v.set("sandbox.pids", strconv.FormatInt(p.Sandbox.PIDs, 10))
	v.set("sandbox.cpu", strconv.FormatFloat(p.Sandbox.CPU, 'g', -1, 64))
	v.texts("sandbox.protected", p.Sandbox.Protected)
	v.yes("sandbox.allow_env_files", p.Sandbox.AllowEnvFiles)
	v.texts("network.allow", p.Network.Allow)
	v.text("network.shared_address", p.Network.SharedAddress)
	v.text("model.provider", p.Model.Provider)
	v.text("model.source", p.Model.Source)
	v.texts("model.allow", p.Model.Allow)
	grants := member{name: "grants"}
	for _, g := range p.Grants {
		grants.list = append(grants.list, Rule(g))
	}
	if grants.list != nil {
		v.members = append(v.members, grants)
	}
	return v
}

// Rule writes one grant of a profile as the file would.
func Rule(g control.Grant) string {
	flow := "{tools: " + flowList(g.Tools) + ", rule: " + string(g.Rule)
	if g.When != "" {
		flow += ", when: " + scalarText(g.When)
	}
	if g.Limit != nil {
		flow += fmt.Sprintf(", limit: {calls: %d, per: %s}", g.Limit.Calls, Length(g.Limit.Per))
	}
	return flow + "}"
}

func viewStanding(g control.GivenGrant) view {
	var v view
	v.text("profile", g.Profile)
	v.texts("tools", g.Tools)
	v.text("when", g.When)
	v.set("calls", strconv.FormatInt(g.Limit.Calls, 10))
	if g.Limit.Per > 0 {
		v.set("per", Length(g.Limit.Per))
	}
	v.set("until", g.Until.UTC().Format(time.DateOnly))
	v.text("reason", g.Reason)
	return v
}

// diffViews says what changes from one view to another, in the order of the members: + added, - removed, ~ changed.
func diffViews(before, after view) []string {
	var out []string
	old, gone := map[string]member{}, map[string]bool{}
	for _, m := range before.members {
		old[m.name], gone[m.name] = m, true
	}
	for _, m := range after.members {
		was, existed := old[m.name]
		delete(gone, m.name)
		switch {
		case m.list != nil || was.list != nil:
			out = append(out, diffLists(m.name, was.list, m.list)...)
		case !existed:
			out = append(out, "+ "+m.name+": "+m.value)
		case was.value != m.value:
			out = append(out, "~ "+m.name+": "+was.value+" -> "+m.value)
		}
	}
	for _, m := range before.members {
		switch {
		case !gone[m.name]:
		case m.list != nil:
			out = append(out, diffLists(m.name, m.list, nil)...)
		default:
			out = append(out, "- "+m.name+": "+m.value)
		}
	}
	return out
}

// diffLists compares by elements, so that a new one at the top does not look like a change of all.
func diffLists(name string, before, after []string) []string {
	var out []string
	left := slices.Clone(before)
	for _, e := range after {
		if i := slices.Index(left, e); i >= 0 {
			left = slices.Delete(left, i, i+1)
		} else {
			out = append(out, "+ "+name+": "+e)
		}
	}
	for _, e := range left {
		out = append(out, "- "+name+": "+e)
	}
	if len(out) == 0 && !slices.Equal(before, after) {
		out = append(out, "~ "+name+": in another order")
	}
	return out
}

// Length writes a length of time as the file takes it: 45s, 120s, 10m, 24h, 30d.
func Length(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day && d%day == 0:
		return fmt.Sprintf("%dd", d/day)
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= 5*time.Minute && d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d%time.Second == 0:
		return fmt.Sprintf("%ds", d/time.Second)
	default:
		return d.String()
	}
}

// Bytes writes a size as the file takes it: 512KiB, 1MiB, 4GiB.
func Bytes(n int64) string {
	for _, u := range []struct {
		unit string
		by   int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.by && n%u.by == 0 {
			return strconv.FormatInt(n/u.by, 10) + u.unit
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

func flowList(values []string) string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = scalarText(v)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// plainText is what YAML reads as text without quotes, also inside of a flow list: more is quoted than must be.
var plainText = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9_/.*@+-]*( [A-Za-z0-9_/.*@+-]+)*$|^https?://[A-Za-z0-9_/.@+?=&%~:-]*[A-Za-z0-9_/.@+?=&%~-]$|^[0-9]+(\.[0-9]+){3}/[0-9]+$`)

// wordsOfYAML are text that YAML reads as something else.
var wordsOfYAML = regexp.MustCompile(`^(?i:true|false|null|yes|no|on|off|y|n)$`)

func scalarText(s string) string {
	switch {
	case plainText.MatchString(s) && !wordsOfYAML.MatchString(s):
		return s
	case strings.ContainsFunc(s, func(r rune) bool {
		return r < ' ' || r == 0x7f || r == '\u0085' || r == '\u2028' || r == '\u2029' || r == '\ufeff'
	}):
		return strconv.Quote(s)
	default:
		return "'" + strings.ReplaceAll(s, "'", "''") + "'"
	}
}

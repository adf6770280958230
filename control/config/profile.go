package config

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// Bounds of profiles and grants (contracts.md).
const (
	defaultHold      = 45 * time.Second
	maxHold          = 9 * time.Minute // harnesses are told to wait 10 minutes for a tool at most, and need some of it for the answer
	defaultExpires   = time.Hour
	maxExpires       = 7 * 24 * time.Hour
	defaultStanding  = 1000
	maxStandingAhead = 400 * 24 * time.Hour
)

func (r *resolver) profile(name string, f Profile) {
	p := "profiles." + name
	if !namePattern.MatchString(name) {
		r.problem(p, nameWords)
		return
	}
	out := control.Profile{
		Org: control.Org, Name: name, Attended: f.Attended,
		Attached:     r.oneOf(p+".attached", f.Attached, "deny", "deny", "allow"),
		OnDisconnect: r.oneOf(p+".on_disconnect", f.OnDisconnect, "keep", "keep", "cancel"),
		Approvers:    f.Approvers, Hold: defaultHold,
		Approval: control.Approval{Expires: defaultExpires, Second: f.Approval.Second, NotOwner: f.Approval.NotOwner},
		Sandbox: control.SandboxPolicy{
			Driver:    r.oneOf(p+".sandbox.driver", f.Sandbox.Driver, "bwrap", "bwrap", "process"),
			Closed:    r.oneOf(p+".sandbox.closed", f.Sandbox.Closed, "proven", "proven", "asserted", "no"),
			Workspace: r.oneOf(p+".sandbox.workspace", f.Sandbox.Workspace, "read-write", "read-write", "read-only", "none"),
			Memory:    4 << 30, PIDs: 512, CPU: 2, Protected: f.Sandbox.Protected, AllowEnvFiles: f.Sandbox.EnvFiles,
		},
		Network: control.NetworkPolicy{Allow: f.Network.Allow, SharedAddress: r.oneOf(p+".network.shared_address", f.Network.SharedAddress, "refuse", "refuse", "allow")},
		Model: control.ModelPolicy{
			Provider: r.oneOf(p+".model.provider", f.Model.Provider, "none", "anthropic", "openai", "none"),
			Source:   f.Model.Source, Allow: f.Model.Allow,
		},
	}
	if f.Hold.Set {
		out.Hold = r.duration(p+".hold", f.Hold, 0, maxHold)
	}
	if f.Approval.Expires.Set {
		out.Approval.Expires = r.duration(p+".approval.expires", f.Approval.Expires, time.Second, maxExpires)
	}
	if len(out.Approvers) == 0 {
		out.Approvers = []string{"owner"}
	}
	if out.Approval.NotOwner && slices.Equal(out.Approvers, []string{"owner"}) {
		r.problem(p+".approval.not_owner", "leaves nobody to approve: name other approvers")
	}
	if f.Sandbox.Memory.Set {
		if out.Sandbox.Memory = f.Sandbox.Memory.Bytes; out.Sandbox.Memory < 64<<20 {
			r.problem(p+".sandbox.memory", "must be at least 64MiB")
		}
	}
	if f.Sandbox.PIDs != 0 {
		if out.Sandbox.PIDs = f.Sandbox.PIDs; out.Sandbox.PIDs < 16 || out.Sandbox.PIDs > 1<<20 {
			r.problem(p+".sandbox.pids", "must be 16 to 1048576")
		}
	}
	if f.Sandbox.CPU != 0 {
		if out.Sandbox.CPU = f.Sandbox.CPU; out.Sandbox.CPU < 0.1 || out.Sandbox.CPU > 1024 {
			r.problem(p+".sandbox.cpu", "must be 0.1 to 1024")
		}
	}
	if out.Sandbox.Driver == "process" && out.Sandbox.Closed != "no" {
		r.problem(p+".sandbox.closed", `must be no with the process driver: it closes nothing`)
	}
	for i, path := range f.Sandbox.Protected {
		if path == "" || strings.HasPrefix(path, "/") || slices.Contains(strings.Split(path, "/"), "..") {
			r.problem(fmt.Sprintf("%s.sandbox.protected[%d]", p, i), "must be a path inside the workspace")
		}
	}
	for i, hostport := range f.Network.Allow {
		host, port, err := net.SplitHostPort(hostport)
		n, perr := strconv.Atoi(port)
		if err != nil || host == "" || perr != nil || n < 1 || n > 65535 || strings.ContainsAny(host, "*/ ") {
			r.problem(fmt.Sprintf("%s.network.allow[%d]", p, i), "must be host:port, such as git.example.org:443")
		}
	}
	for i, g := range f.Grants {
		if grant, ok := r.grant(fmt.Sprintf("%s.grants[%d]", p, i), g); ok {
			out.Grants = append(out.Grants, grant)
		}
	}
	r.collisions(p, out)
	r.out.Profiles[name] = out
}

func (r *resolver) grant(p string, g Grant) (control.Grant, bool) {
	rule := r.oneOf(p+".rule", g.Rule, "", "allow", "ask", "deny")
	if rule == "" {
		if g.Rule == "" {
			r.problem(p, "needs a rule: allow, ask or deny")
		}
		return control.Grant{}, false
	}
	tools, ok := r.covered(p, g.Tools)
	if !ok {
		return control.Grant{}, false
	}
	if rule == "allow" {
		var writes []string
		for _, t := range tools {
			if t.Effect == control.Write {
				writes = append(writes, t.Name)
			}
		}
		if len(writes) > 0 {
			r.problem(p, "allows a write (%s): a write is asked for (rule: ask), or an administrator gives a standing grant (standing:)", strings.Join(writes, ", "))
			return control.Grant{}, false
		}
	}
	out := control.Grant{Tools: g.Tools, Rule: control.Rule(rule), When: g.When}
	if g.Limit != nil {
		if g.Limit.Calls < 1 || g.Limit.Per.Duration <= 0 {
			r.problem(p+".limit", "needs calls of at least 1 and per, such as {calls: 20, per: 1h}")
		}
		out.Limit = &control.Limit{Calls: g.Limit.Calls, Per: g.Limit.Per.Duration}
	}
	r.condition(p+".when", g.When, tools)
	return out, true
}

func (r *resolver) condition(p, when string, tools []control.Tool) {
	if when == "" || r.check == nil {
		return
	}
	if err := r.check(when, tools); err != nil {
		words := err.Error()
		if ours := (*errs.Error)(nil); errors.As(err, &ours) {
			words = ours.Message
		}
		r.problem(p, "%s", words)
	}
}

// covered returns the tools that the patterns name. A pattern that names nothing is a problem: a rule that silently covers no tool is a trap.
func (r *resolver) covered(p string, patterns []string) ([]control.Tool, bool) {
	if len(patterns) == 0 {
		r.problem(p+".tools", "must name a tool: connection/tool or connection/*")
		return nil, false
	}
	var out []control.Tool
	ok := true
	for i, pattern := range patterns {
		pp := fmt.Sprintf("%s.tools[%d]", p, i)
		connection, tool, found := strings.Cut(pattern, "/")
		if !found || connection == "" || tool == "" || strings.Contains(connection, "*") || (strings.Contains(tool, "*") && tool != "*") {
			r.problem(pp, "must be connection/tool or connection/*")
			ok = false
			continue
		}
		if _, known := r.out.Connections[connection]; !known {
			r.problem(pp, "no connection is named %s", connection)
			ok = false
			continue
		}
		var matched []control.Tool
		for _, t := range r.out.Catalogs[connection].Tools {
			if tool == "*" || t.Name == tool {
				matched = append(matched, t)
			}
		}
		if len(matched) == 0 && tool != "*" {
			r.problem(pp, "%s has no reviewed tool %s (its tools: section names those that a reviewer let in)", connection, tool)
			ok = false
		}
		out = append(out, matched...)
	}
	return out, ok
}

// collisions refuses two granted tools of one name in the sandbox.
func (r *resolver) collisions(p string, profile control.Profile) {
	owner := map[string]string{}
	for _, g := range profile.Grants {
		if g.Rule == control.Deny {
			continue
		}
		for _, pattern := range g.Tools {
			connection, tool, _ := strings.Cut(pattern, "/")
			for _, t := range r.out.Catalogs[connection].Tools {
				if tool != "*" && t.Name != tool {
					continue
				}
				full := connection + "/" + t.Name
				if other, taken := owner[t.As]; taken && other != full {
					r.problem(p, "%s and %s have the same name in the sandbox, %s: give one another name (as:)", other, full, t.As)
				}
				owner[t.As] = full
			}
		}
	}
}

func (r *resolver) standing(name string, s Standing) {
	p := "standing." + name
	if !namePattern.MatchString(name) {
		r.problem(p, nameWords)
		return
	}
	if _, ok := r.out.Profiles[s.Profile]; !ok {
		r.problem(p+".profile", "no profile is named %q", s.Profile)
	}
	if s.Reason == "" {
		r.problem(p+".reason", "is missing: say why a write may run without a question")
	}
	switch until := s.Until.Time; {
	case until.IsZero():
		r.problem(p+".until", "is missing: a standing grant ends on a day")
	case !until.After(r.now):
		r.problem(p+".until", "has passed")
	case until.After(r.now.Add(maxStandingAhead)):
		r.problem(p+".until", "is more than 400 days away")
	}
	if s.Calls < 0 {
		r.problem(p+".calls", "must be at least 1")
	}
	calls := s.Calls
	if calls == 0 {
		calls = defaultStanding
	}
	tools, ok := r.covered(p, s.Tools)
	if !ok {
		return
	}
	r.condition(p+".when", s.When, tools)
	r.out.Standing[name] = control.GivenGrant{
		Org: control.Org, ID: name, Kind: "standing", Profile: s.Profile, Tools: s.Tools, When: s.When,
		Limit: control.Limit{Calls: calls, Per: s.Per.Duration}, Until: s.Until.Time, Reason: s.Reason, FromYAML: true,
	}
}

package call

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/grant"
	"sallyport.dev/control/revocation"
	"sallyport.dev/errs"
)

// matter is one call as it is put to the rules: at admission, again at the barrier, and by explain. Decide looks at nothing else.
type matter struct {
	session *control.Session
	bound   *control.BoundTool // nil: the session has no such tool
	args    []byte
	policy  *control.Policy
	now     time.Time
	// credential is the newest version for (connection, subject); nil for none. Not looked at where the connection needs none.
	credential *control.Credential
	// suspended: a write of this tool is uncertain for this owner. doubted: a twin is uncertain, or was rejected without proof.
	suspended bool
	doubted   string // which twin, in words; "" for none
	// decided: a person approved it already, so that asking is settled.
	decided bool
	// given: the standing or session grant under which it was dispatched before; "" for none. It counts still, whatever else may have come.
	given string
	usage grant.Usage
}

// decision is what the rules say.
type decision struct {
	ruling     Ruling
	code       errs.Code
	reason     string
	hint       string
	at         time.Time // of the switch that hit
	effect     control.Effect
	connection *control.Connection // nil for a client tool
	subject    string
	account    string
	credential CredentialRef
	grant      string // the given grant that covers it
	suspending bool
	takes      []Take
	steps      []string
	// policy is what all of this rests on. A barrier names its generation: were it to name the newest, it would let pass what a switch thrown
	// since then withdraws (I9).
	policy *control.Policy
}

// withdrawn reports whether a switch hits a worker. Workers are picked by load, after the rules have spoken, so this is asked when one is picked.
func (d *decision) withdrawn(now time.Time) func(worker string) bool {
	return func(worker string) bool {
		return revocation.Hit(d.policy.Switches, revocation.Target{Worker: worker}, now) != nil
	}
}

func (d *decision) refuse(code errs.Code, reason string) *decision {
	d.ruling, d.code, d.reason = RulingRefuse, code, reason
	d.takes, d.grant = nil, ""
	d.steps = append(d.steps, "refused: "+string(code)+": "+reason)
	return d
}

// rules puts matters to the rules. Safe for concurrent use.
type rules struct {
	conditions grant.Cache
	checks     checks
}

// decide evaluates the frozen and the newest version of everything and takes the stricter. It is pure: the same matter, the same decision.
//
// Order: quarantine; is there such a tool; connection, switches; the reviewed catalogs; the arguments; where the sandbox may write; the rules (deny;
// a given grant; ask; allow); the credential.
func (r *rules) decide(ctx context.Context, m *matter) *decision {
	p := m.policy
	d := &decision{effect: control.Write, policy: p}
	if p.Quarantine != "" {
		return d.refuse(errs.Quarantined, "its store is being checked by an administrator")
	}
	if m.bound == nil {
		return d.refuse(errs.UnknownTool, "the session has no such tool")
	}
	tool := &m.bound.Tool
	d.effect = tool.Effect
	newest := p.Profiles[m.session.Profile.Name]
	if newest == nil {
		return d.refuse(errs.Revoked, "the profile was removed")
	}
	if !tool.Client {
		if out := r.target(d, m); out != nil {
			return out
		}
	} else if s := revocation.Hit(p.Switches, revocation.Target{Session: m.session.ID, Host: m.session.Host, Owner: m.session.Owner}, m.now); s != nil {
		d.at = s.At
		return d.refuse(errs.Revoked, "access was withdrawn")
	}
	check := r.checks.get(m.bound.Catalog, tool)
	if err := check.arguments(tool, m.args); err != nil {
		return d.refuse(errs.CodeOf(err), errs.Message(err))
	}
	if tool.Client {
		return r.person(d, m, newest, "only a person can answer it")
	}
	if out := r.newestTool(d, m); out != nil {
		return out
	}
	if d.effect == control.Write && m.session.Closed == "no" && (m.session.Profile.Attached != "allow" || newest.Attached != "allow") {
		return d.refuse(errs.RuleDenied, "the network of this sandbox is not verified, and the profile allows no writes there")
	}
	return r.grants(ctx, d, m, newest, check)
}

// target checks where the call would go: the connection as it was bound, in service, and no switch in the way.
func (r *rules) target(d *decision, m *matter) *decision {
	name := m.bound.Connection
	c := m.policy.Connections[name]
	if c == nil || c.State != control.ConnectionEnabled {
		return d.refuse(errs.Unavailable, name+" is out of service")
	}
	d.connection = c
	if c.Auth.Type != "none" && c.Auth.Type != "" {
		d.subject = control.SubjectShared
		if c.Auth.Per == "person" {
			d.subject = string(m.session.Owner)
		}
	}
	if s := revocation.Hit(m.policy.Switches, revocation.Target{
		Session: m.session.ID, Host: m.session.Host, Connection: name, Tool: m.bound.Tool.Name, Subject: d.subject, Owner: m.session.Owner,
	}, m.now); s != nil {
		d.at = s.At
		return d.refuse(errs.Revoked, fmt.Sprintf("access was withdrawn (%s)", s.Kind))
	}
	if m.policy.Stopped[name][m.bound.Tool.Name] {
		return d.refuse(errs.Unavailable, name+" changed this tool, and a person must review the change first")
	}
	if c.Revision != m.bound.Revision {
		return d.refuse(errs.Voided, name+" was changed since this session was opened; a new session is needed")
	}
	return nil
}

// newestTool takes the stricter of the bound and the newest review of the tool.
func (r *rules) newestTool(d *decision, m *matter) *decision {
	name := m.bound.Connection
	catalog := m.policy.Catalogs[name]
	if catalog == nil {
		return d.refuse(errs.Unavailable, "no reviewed catalog of "+name+" is in force")
	}
	i := slices.IndexFunc(catalog.Tools, func(t control.Tool) bool { return t.Name == m.bound.Tool.Name })
	if i < 0 {
		return d.refuse(errs.Revoked, "the tool was taken out of the reviewed catalog")
	}
	now := &catalog.Tools[i]
	if now.Effect == control.Write {
		d.effect = control.Write
	}
	if catalog.Digest != m.bound.Catalog || now.RefuseExtra && !m.bound.Tool.RefuseExtra {
		if err := r.checks.get(catalog.Digest, now).arguments(now, m.args); err != nil {
			return d.refuse(errs.CodeOf(err), errs.Message(err))
		}
	}
	return nil
}

// grants evaluates both versions of the profile and what was given.
func (r *rules) grants(ctx context.Context, d *decision, m *matter, newest *control.Profile, k *check) *decision {
	e := grant.Evaluator{Cache: &r.conditions, Usage: m.usage}
	c := grant.Call{
		Facts: grant.Facts{
			Args: m.args, Tool: m.bound.Tool.Name, Connection: m.bound.Connection, Owner: m.session.Owner, Profile: m.session.Profile.Name,
			Attended: m.session.Attended && newest.Attended, Now: m.now,
		},
		Effect: d.effect, Session: m.session.ID, InputSchema: k.input,
	}
	found := e.Rules(ctx, &m.session.Profile, c)
	d.steps = append(d.steps, found.Steps...)
	if newest.Version != m.session.Profile.Version {
		other := e.Rules(ctx, newest, c)
		d.steps = append(d.steps, other.Steps...)
		found = stricter(found, other)
	}
	if found.Verdict == grant.Denied {
		d.hint = found.Hint
		return d.refuse(errs.RuleDenied, found.Reason)
	}
	covered := ""
	switch {
	case m.given != "":
		return r.stillGiven(ctx, d, m, c)
	case m.decided:
	case m.doubted != "":
		d.steps = append(d.steps, "given grants do not count: "+m.doubted)
		covered = m.doubted
	case m.suspended:
		d.steps = append(d.steps, "given grants do not count while a write of this tool is uncertain")
		covered = "a write of this tool is uncertain"
	default:
		g, f := e.Given(ctx, m.policy.Given, c)
		d.steps = append(d.steps, f.Steps...)
		covered = f.Reason
		if g != nil {
			if s := revocation.Hit(m.policy.Switches, revocation.Target{Grant: g.ID}, m.now); s != nil {
				d.steps = append(d.steps, "grant "+g.ID+" was withdrawn")
				covered = "grant " + g.ID + " was withdrawn"
				break
			}
			d.ruling, d.grant, d.suspending = RulingGrant, g.ID, d.effect == control.Write
			d.takes = takesOf(f.Counters, m.args)
			return r.credentialed(d, m)
		}
	}
	d.takes = takesOf(found.Counters, m.args)
	switch {
	case found.Verdict == grant.Unmatched:
		d.hint = found.Hint
		return d.refuse(errs.RuleDenied, found.Reason)
	case found.Verdict == grant.Invisible && covered != "": // a given grant alone named it, and it is listed
		return d.refuse(errs.RuleDenied, covered)
	case found.Verdict == grant.Invisible:
		return d.refuse(errs.UnknownTool, "nothing grants it")
	case found.Verdict == grant.Allowed && m.doubted == "":
		d.ruling = RulingAllow
		return r.credentialed(d, m)
	}
	if out := r.credentialed(d, m); out.ruling == RulingRefuse {
		return out
	}
	return r.person(d, m, newest, covered)
}

// stillGiven looks whether the grant of the first attempt covers the next. Its counter was taken, so it is not looked at again.
func (r *rules) stillGiven(ctx context.Context, d *decision, m *matter, c grant.Call) *decision {
	var own []*control.GivenGrant
	for _, g := range m.policy.Given {
		if g.ID == m.given {
			own = append(own, g)
		}
	}
	e := grant.Evaluator{Cache: &r.conditions}
	g, f := e.Given(ctx, own, c)
	d.steps = append(d.steps, f.Steps...)
	if g == nil {
		return d.refuse(errs.RuleDenied, or(f.Reason, "the grant that covered it is over"))
	}
	if s := revocation.Hit(m.policy.Switches, revocation.Target{Grant: g.ID}, m.now); s != nil {
		return d.refuse(errs.RuleDenied, "grant "+g.ID+" was withdrawn")
	}
	d.ruling, d.grant = RulingGrant, g.ID
	return r.credentialed(d, m)
}

// person says that a person must decide, where one can.
func (r *rules) person(d *decision, m *matter, newest *control.Profile, why string) *decision {
	if !m.session.Attended || !newest.Attended {
		reason := "a person would have to decide, and this session is unattended"
		if why != "" {
			reason += " (" + why + ")"
		}
		return d.refuse(errs.RuleDenied, reason)
	}
	d.ruling = RulingAsk
	return d
}

// credentialed checks that there is a credential that can be used.
func (r *rules) credentialed(d *decision, m *matter) *decision {
	if d.subject == "" {
		return d
	}
	c := m.credential
	if code, why := unusable(c, m.session, m.now); code != "" {
		return d.refuse(code, why)
	}
	d.account = c.Account
	d.credential = CredentialRef{Connection: m.bound.Connection, Subject: d.subject, Version: c.Version}
	return d
}

// unusable says why a credential cannot be used now, or "". A session stays with the account that it began with: another one needs another session.
func unusable(c *control.Credential, s *control.Session, now time.Time) (errs.Code, string) {
	switch {
	case c == nil || c.State == control.CredentialRevoked:
		return errs.NotConnected, "there is no credential that can be used"
	case c.State == control.CredentialBroken:
		return errs.NotConnected, "its server ended the sign-in"
	case !c.Usable():
		return errs.NotConnected, "its credential is to be checked first"
	case c.Expired(now) && c.Trouble != "":
		return errs.Unavailable, "its sign-in is over and cannot be renewed now: " + c.Trouble
	case c.Expired(now):
		return errs.NotConnected, "its sign-in is over and cannot be renewed"
	case c.AccountAt.After(s.CreatedAt):
		return errs.Voided, "another account is connected since this session was opened; a new session is needed"
	}
	return "", ""
}

// stricter joins what two versions of a profile say. The counters of both are taken; equal ones once.
func stricter(a, b grant.Finding) grant.Finding {
	out := a
	if b.Verdict > a.Verdict {
		out = b
	}
	out.Counters = slices.Clone(a.Counters)
	for _, c := range b.Counters {
		i := slices.IndexFunc(out.Counters, func(o grant.Counter) bool { return o.Key == c.Key && o.Limit.Per == c.Limit.Per })
		if i < 0 {
			out.Counters = append(out.Counters, c)
			continue
		}
		o := &out.Counters[i]
		o.Limit.Calls, o.Limit.Bytes = tighter(o.Limit.Calls, c.Limit.Calls), tighter(o.Limit.Bytes, c.Limit.Bytes)
		o.Looked = o.Looked || c.Looked
	}
	return out
}

// tighter is the smaller of two bounds, where zero is none.
func tighter(a, b int64) int64 {
	if a == 0 || b == 0 {
		return cmp.Or(a, b)
	}
	return min(a, b)
}

func takesOf(counters []grant.Counter, args []byte) []Take {
	var out []Take
	for _, c := range counters {
		t := Take{Key: c.Key, Per: c.Limit.Per, Calls: c.Limit.Calls, Bytes: c.Limit.Bytes, AddBytes: int64(len(args)), ExpectUsed: -1}
		if c.Looked {
			t.ExpectUsed = c.Used
		}
		out = append(out, t)
	}
	return out
}

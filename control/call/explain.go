package call

import (
	"context"
	"strings"

	"sallyport.dev/control"
	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// Explain says what would be decided and why, by the very code that decides, without running or writing anything. Errors: [errs.NotFound];
// [errs.Invalid].
func (p *Pipeline) Explain(ctx context.Context, r ExplainRequest) (Explanation, error) {
	policy, err := p.current(ctx)
	if err != nil {
		return Explanation{}, err
	}
	m := &matter{policy: policy, now: p.cfg.Store.Now(), usage: p.usage(ctx), args: r.Arguments}
	if r.Call != "" {
		row, err := p.cfg.Store.Call(ctx, r.Call)
		if err != nil {
			return Explanation{}, err
		}
		s, err := p.session(ctx, row.Session, 0)
		if err != nil {
			return Explanation{}, err
		}
		m.session, m.bound, m.args = s.session(), s.tool(row.Name), row.Arguments
	} else if m.session, m.bound, err = supposed(policy, r); err != nil {
		return Explanation{}, err
	}
	if err := strictjson.Check(m.args); err != nil {
		return Explanation{}, errs.Wrap(errs.Invalid, "the arguments are not strict JSON: "+errs.Message(err), err)
	}
	if m.bound != nil {
		if m.credential, err = p.supposedCredential(ctx, policy, m); err != nil {
			return Explanation{}, err
		}
		if m.suspended, err = p.cfg.Store.Suspended(ctx, m.session.Owner, m.bound.Connection, m.bound.Tool.Name); err != nil {
			return Explanation{}, err
		}
	}
	dec := p.rules.decide(ctx, m)
	out := Explanation{Verdict: dec.ruling, Code: dec.code, Steps: dec.steps}
	name := r.Tool
	if m.bound != nil {
		name = m.bound.Name
	}
	switch dec.ruling {
	case RulingAllow:
		out.Message = name + " would run at once: it only reads"
	case RulingGrant:
		out.Message = name + " would run at once: grant " + dec.grant + " covers it"
	case RulingAsk:
		out.Message = name + " would wait for a person"
	default:
		t := text{tool: name, connection: connectionOf(m.bound), code: dec.code, reason: dec.reason, hint: dec.hint, at: dec.at}
		out.Message, _ = t.render()
	}
	return out, nil
}

func connectionOf(b *control.BoundTool) string {
	if b == nil {
		return ""
	}
	return b.Connection
}

func (p *Pipeline) supposedCredential(ctx context.Context, policy *control.Policy, m *matter) (*control.Credential, error) {
	c := policy.Connections[m.bound.Connection]
	if c == nil || c.Auth.Type == "" || c.Auth.Type == "none" {
		return nil, nil
	}
	subject := control.SubjectShared
	if c.Auth.Per == "person" {
		subject = string(m.session.Owner)
	}
	return p.credential(ctx, policy, c.Name, subject, m.now)
}

// supposed is the session that a profile would open now, and the tool of it that is asked about.
func supposed(policy *control.Policy, r ExplainRequest) (*control.Session, *control.BoundTool, error) {
	profile := policy.Profiles[r.Profile]
	if profile == nil {
		return nil, nil, errs.Newf(errs.NotFound, "no profile is named %q", r.Profile)
	}
	s := &control.Session{
		Org: control.Org, Owner: r.Owner, Profile: *profile, Attended: profile.Attended && !r.Unattended, State: control.SessionOpen, Closed: "proven",
	}
	connection, tool, qualified := strings.Cut(r.Tool, "/")
	for name, catalog := range policy.Catalogs {
		if qualified && name != connection {
			continue
		}
		for _, t := range catalog.Tools {
			if qualified && t.Name != tool || !qualified && t.As != r.Tool {
				continue
			}
			b := &control.BoundTool{Name: t.As, Connection: name, Catalog: catalog.Digest, Tool: t}
			if c := policy.Connections[name]; c != nil {
				b.Revision = c.Revision
			}
			return s, b, nil
		}
	}
	if qualified && policy.Connections[connection] == nil {
		return nil, nil, errs.Newf(errs.NotFound, "no connection is named %q", connection)
	}
	return nil, nil, errs.Newf(errs.NotFound, "no reviewed tool is named %q", r.Tool)
}

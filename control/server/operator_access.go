package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/grant"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/revocation"
	"sallyport.dev/control/session"
	"sallyport.dev/errs"
)

var switchKinds = map[string]control.SwitchKind{
	"session": control.SwitchSession, "host": control.SwitchHost, "worker": control.SwitchWorker, "tool": control.SwitchTool,
	"grant": control.SwitchGrant, "connection": control.SwitchConnection, "credential": control.SwitchCredential, "egress": control.SwitchEgress,
	"person": control.SwitchPerson, "everything": control.SwitchEverything,
}

func switchOf(kind, name string) (control.SwitchKind, error) {
	k, ok := switchKinds[kind]
	if !ok {
		return "", errs.Newf(errs.Invalid, "no switch is named %q; there are session, host, worker, tool, grant, connection, credential, egress, person, everything", kind)
	}
	if (k == control.SwitchEverything) != (name == "") {
		return "", errs.New(errs.Invalid, "name what to revoke; only everything has no name")
	}
	return k, nil
}

// Revoke implements sallyport.v1.Operator. The time it took ends with the commit of the switch: what commits after that does not run.
func (o *operatorService) Revoke(ctx context.Context, r *sallyportv1.RevokeRequest) (*sallyportv1.RevokeResponse, error) {
	by, err := administrator(ctx)
	if err != nil {
		return nil, err
	}
	kind, err := switchOf(r.GetKind(), r.GetName())
	if err != nil {
		return nil, err
	}
	name, err := o.canonical(ctx, kind, r.GetName())
	if err != nil {
		return nil, err
	}
	store := o.s.stores.Revocations
	impact, err := store.Impact(ctx, kind, name)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.RevokeResponse{Hits: hitWords(impact), Sessions: int64(impact.Sessions), OpenQuestions: int64(impact.Questions), OpenIntents: int64(impact.InFlight)}
	if r.GetDryRun() {
		return out, nil
	}
	w := &control.Switch{Org: control.Org, ID: control.NewID(), Kind: kind, Name: name, By: by, Reason: r.GetReason(), At: store.Now()}
	if r.GetSeconds() > 0 {
		w.Until = w.At.Add(time.Duration(r.GetSeconds()) * time.Second)
	}
	started := time.Now()
	if err := store.Throw(ctx, w); err != nil {
		return nil, err
	}
	out.TookUs, out.Id = time.Since(started).Microseconds(), w.ID
	o.s.enforce(ctx, kind, name)
	o.s.changed("switch", "thrown")
	return out, nil
}

// enforce tells the outside of a switch that is thrown: intents without a sent byte are closed, Links of withdrawn machines end, hosts close what
// they serve. The switch itself is the row: none of this is needed for a barrier to refuse.
func (s *Server) enforce(ctx context.Context, kind control.SwitchKind, name string) {
	if open, err := s.stores.Revocations.OpenIntents(ctx, kind, name); err == nil {
		for _, i := range open {
			s.workers.Close(i.Run, i.Intent, "revoked")
		}
	}
	switch kind {
	case control.SwitchHost:
		s.hosts.disconnect(name)
	case control.SwitchWorker:
		s.workers.disconnect(name)
	case control.SwitchSession:
		if row, err := s.stores.Sessions.Session(ctx, name); err == nil {
			s.hosts.change(row.Host, &sallyportv1.SessionChange{Session: name, Epoch: row.Epoch, Change: "revoked", Reason: "the session was revoked"})
		}
	case control.SwitchEgress:
		s.hosts.broadcast(&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Egress{Egress: &sallyportv1.EgressPolicy{Revoked: s.revokedEgress(ctx)}}})
	}
}

func (s *Server) revokedEgress(ctx context.Context) []string {
	switches, err := s.stores.Revocations.Switches(ctx, false)
	if err != nil {
		return nil
	}
	var out []string
	for _, w := range switches {
		if w.Kind == control.SwitchEgress {
			out = append(out, w.Name)
		}
	}
	return out
}

// canonical is the name under which a switch is kept: the SPIFFE id of a machine, everything else as it is. What is not there is refused: a typing
// error must not look like a revocation.
func (o *operatorService) canonical(ctx context.Context, kind control.SwitchKind, name string) (string, error) {
	p, err := o.policy(ctx)
	if err != nil {
		return "", err
	}
	known := true
	switch kind {
	case control.SwitchSession:
		_, err := o.s.stores.Sessions.Session(ctx, name)
		return name, err
	case control.SwitchConnection:
		known = p.Connections[name] != nil
	case control.SwitchTool:
		known = toolExists(p, name)
	case control.SwitchCredential:
		known, err = o.credentialExists(ctx, name)
	case control.SwitchHost, control.SwitchWorker:
		for _, m := range o.s.machinesOf(ctx, string(kind)) {
			if m.Name == name || m.ID == name {
				return m.ID, nil
			}
		}
		known = false
	case control.SwitchGrant:
		var given []control.GivenGrant
		given, err = o.s.stores.Grants.GivenGrants(ctx, grant.Filter{Org: control.Org})
		known = slices.ContainsFunc(given, func(g control.GivenGrant) bool { return g.ID == name })
	}
	if err != nil {
		return "", err
	}
	if !known {
		return "", errs.Newf(errs.NotFound, "no %s is named %s", kind, name)
	}
	return name, nil
}

func (o *operatorService) credentialExists(ctx context.Context, name string) (bool, error) {
	creds, err := o.s.stores.Connections.Credentials(ctx)
	return slices.ContainsFunc(creds, func(c control.Credential) bool { return c.Connection+"/"+c.Subject == name }), err
}

func hitWords(i revocation.Impact) []string {
	var out []string
	for _, h := range []struct {
		n         int
		one, more string
	}{
		{i.Sessions, "session", "sessions"},
		{i.Calls, "unfinished call", "unfinished calls"},
		{i.Questions, "open question", "open questions"},
		{i.InFlight, "call already sent (its answer is awaited)", "calls already sent (their answers are awaited)"},
		{i.Grants, "given grant", "given grants"},
		{i.Credentials, "credential", "credentials"},
	} {
		switch {
		case h.n == 1:
			out = append(out, "1 "+h.one)
		case h.n > 1:
			out = append(out, fmt.Sprintf("%d %s", h.n, h.more))
		}
	}
	if len(out) == 0 {
		out = []string{"nothing that is open now"}
	}
	return out
}

// Restore implements sallyport.v1.Operator.
func (o *operatorService) Restore(ctx context.Context, r *sallyportv1.RestoreRequest) (*sallyportv1.RestoreResponse, error) {
	by, err := administrator(ctx)
	if err != nil {
		return nil, err
	}
	kind, err := switchOf(r.GetKind(), r.GetName())
	if err != nil {
		return nil, err
	}
	name := r.GetName()
	if kind == control.SwitchHost || kind == control.SwitchWorker {
		if name, err = o.canonical(ctx, kind, name); err != nil {
			return nil, err
		}
	}
	if r.GetDryRun() {
		switches, err := o.s.stores.Revocations.Switches(ctx, false)
		if err != nil {
			return nil, err
		}
		out := &sallyportv1.RestoreResponse{}
		for _, w := range switches {
			if w.Kind == kind && w.Name == name {
				out.Hits = append(out.Hits, fmt.Sprintf("the switch of %s by %s", w.At.Format(time.DateTime), w.By))
			}
		}
		if len(out.Hits) == 0 {
			return nil, noSwitch(kind, r.GetName())
		}
		return out, nil
	}
	started := time.Now()
	n, err := o.s.stores.Revocations.Restore(ctx, kind, name, by)
	if err != nil {
		return nil, err
	}
	took := time.Since(started).Microseconds()
	if n == 0 {
		return nil, noSwitch(kind, r.GetName())
	}
	o.s.changed("switch", "restored")
	if kind == control.SwitchEgress {
		o.s.hosts.broadcast(&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Egress{Egress: &sallyportv1.EgressPolicy{Revoked: o.s.revokedEgress(ctx)}}})
	}
	return &sallyportv1.RestoreResponse{TookUs: took, Hits: []string{fmt.Sprintf("%d switches", n)}}, nil
}

func noSwitch(kind control.SwitchKind, name string) error {
	return errs.Newf(errs.NotFound, "%s was not withdrawn; sallyport revoke list shows what is", strings.TrimSpace(string(kind)+" "+name))
}

// ListSwitches implements sallyport.v1.Operator.
func (o *operatorService) ListSwitches(ctx context.Context, _ *sallyportv1.ListSwitchesRequest) (*sallyportv1.ListSwitchesResponse, error) {
	switches, err := o.s.stores.Revocations.Switches(ctx, false)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.ListSwitchesResponse{}
	for _, w := range switches {
		out.Switches = append(out.Switches, &sallyportv1.SwitchRow{
			Id: w.ID, Kind: string(w.Kind), Name: w.Name, By: string(w.By), Reason: w.Reason, AtMs: ms(w.At), UntilMs: ms(w.Until),
		})
	}
	return out, nil
}

// ListSessions implements sallyport.v1.Operator.
func (o *operatorService) ListSessions(ctx context.Context, r *sallyportv1.ListSessionsRequest) (*sallyportv1.ListSessionsResponse, error) {
	f := session.Filter{Org: control.Org, Limit: maxList}
	if r.GetAll() {
		f.States = []control.SessionState{control.SessionOpening, control.SessionOpen, control.SessionParked, control.SessionClosed}
	}
	rows, err := o.s.stores.Sessions.Sessions(ctx, f)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.ListSessionsResponse{}
	for _, s := range rows {
		row := &sallyportv1.SessionRow{
			Id: s.ID, Epoch: s.Epoch, Profile: s.Profile.Name, Owner: string(s.Owner), Host: s.Host, State: string(s.State), Harness: s.Harness,
			Driver: s.Driver, Closed: s.Closed, Attended: s.Attended, CreatedMs: ms(s.CreatedAt), PolicyDigest: s.PolicyDigest.String(),
		}
		if s.State != control.SessionClosed {
			open, err := o.s.stores.Calls.OpenCalls(ctx, s.ID)
			if err != nil {
				return nil, err
			}
			row.Calls = int64(len(open))
			for _, c := range open {
				if c.State == journal.Asking {
					row.OpenQuestions++
				}
			}
		}
		out.Sessions = append(out.Sessions, row)
	}
	return out, nil
}

// CloseOwnedSession implements sallyport.v1.Operator: an administrator, or the session's owner.
func (o *operatorService) CloseOwnedSession(ctx context.Context, r *sallyportv1.CloseOwnedSessionRequest) (*sallyportv1.CloseOwnedSessionResponse, error) {
	row, err := o.s.stores.Sessions.Session(ctx, r.GetSession())
	if err != nil {
		return nil, err
	}
	who := whoOf(ctx)
	if !who.Administrator && row.Owner != who.Person {
		return nil, errs.New(errs.NotAllowed, "only its owner or an administrator closes a session")
	}
	reason := r.GetReason()
	if reason == "" {
		reason = "closed by " + string(who.Person)
	}
	if err := o.s.stores.Sessions.CloseSession(ctx, row.ID, 0, string(who.Person), reason); err != nil {
		return nil, err
	}
	o.s.hosts.change(row.Host, &sallyportv1.SessionChange{Session: row.ID, Epoch: row.Epoch, Change: "close", Reason: reason})
	o.s.changed("session", "closed")
	return &sallyportv1.CloseOwnedSessionResponse{}, nil
}

// SessionTicket implements sallyport.v1.Operator: the right to open one session as oneself, for 60 s.
func (o *operatorService) SessionTicket(ctx context.Context, r *sallyportv1.SessionTicketRequest) (*sallyportv1.SessionTicketResponse, error) {
	who := whoOf(ctx)
	ticket, until, err := session.IssueTicket(ctx, o.s.stores.Sessions, session.TicketRequest{
		Owner: who.Person, Profile: r.GetProfile(), Attended: r.GetAttended(), Local: who.Local,
	})
	if err != nil {
		return nil, err
	}
	return &sallyportv1.SessionTicketResponse{Ticket: ticket, ExpiresMs: ms(until)}, nil
}

// GiveGrant implements sallyport.v1.Operator: a standing grant, an administrator's.
func (o *operatorService) GiveGrant(ctx context.Context, r *sallyportv1.GiveGrantRequest) (*sallyportv1.GiveGrantResponse, error) {
	by, err := administrator(ctx)
	if err != nil {
		return nil, err
	}
	p, err := o.policy(ctx)
	if err != nil {
		return nil, err
	}
	g, err := standingFrom(p, r, by, o.s.stores.Grants.Now())
	if err != nil {
		return nil, err
	}
	if err := o.s.stores.Grants.GiveGrant(ctx, g); err != nil {
		return nil, err
	}
	o.s.changed("config", "grant given")
	return &sallyportv1.GiveGrantResponse{Id: g.ID}, nil
}

// Bounds of a standing grant (contracts.md).
const (
	standingLife  = 30 * 24 * time.Hour
	standingCalls = 1000
)

func standingFrom(p *control.Policy, r *sallyportv1.GiveGrantRequest, by control.Person, now time.Time) (*control.GivenGrant, error) {
	switch {
	case p.Profiles[r.GetProfile()] == nil:
		return nil, errs.Newf(errs.NotFound, "no profile is named %q", r.GetProfile())
	case !toolExists(p, r.GetTool()):
		return nil, errs.Newf(errs.NotFound, "no reviewed tool is named %q; write connection/tool", r.GetTool())
	case r.GetReason() == "":
		return nil, errs.New(errs.Invalid, "say with --reason why a write may run without a question")
	}
	g := &control.GivenGrant{
		Org: control.Org, ID: r.GetName(), Kind: "standing", Profile: r.GetProfile(), Tools: []string{r.GetTool()}, When: r.GetWhen(),
		Limit: control.Limit{Calls: r.GetCalls(), Per: time.Duration(r.GetPerSeconds()) * time.Second}, Until: now.Add(standingLife), By: by, Reason: r.GetReason(),
	}
	if g.ID == "" {
		g.ID = control.NewID()
	}
	if g.Limit.Calls == 0 {
		g.Limit.Calls = standingCalls
	}
	if r.GetUntilMs() > 0 {
		g.Until = time.UnixMilli(r.GetUntilMs()).UTC()
	}
	if !g.Until.After(now) || g.Limit.Calls < 1 || g.Limit.Per < 0 {
		return nil, errs.New(errs.Invalid, "a grant needs an end in the future and at least one call")
	}
	if g.When != "" {
		if err := grant.CheckCondition(g.When, toolsNamed(p, r.GetTool())); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// RemoveGrant implements sallyport.v1.Operator.
func (o *operatorService) RemoveGrant(ctx context.Context, r *sallyportv1.RemoveGrantRequest) (*sallyportv1.RemoveGrantResponse, error) {
	by, err := administrator(ctx)
	if err != nil {
		return nil, err
	}
	if err := o.s.stores.Grants.EndGrant(ctx, r.GetId(), by, "removed"); err != nil {
		return nil, err
	}
	o.s.changed("config", "grant ended")
	return &sallyportv1.RemoveGrantResponse{}, nil
}

// AcceptRestore implements sallyport.v1.Operator.
func (o *operatorService) AcceptRestore(ctx context.Context, r *sallyportv1.AcceptRestoreRequest) (*sallyportv1.AcceptRestoreResponse, error) {
	by, err := administrator(ctx)
	if err != nil {
		return nil, err
	}
	if r.GetNote() == "" {
		return nil, errs.New(errs.Invalid, "say with --note what was checked: it stays in the record")
	}
	h, err := o.s.stores.Revocations.AcceptRestore(ctx, by, r.GetNote())
	if err != nil {
		return nil, err
	}
	o.s.changed("config", "restore accepted")
	return &sallyportv1.AcceptRestoreResponse{Incarnation: h.Incarnation}, nil
}

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
	"sallyport.dev/control/revocation"
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
	by := whoOf(ctx).Person
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
	by := whoOf(ctx).Person
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

// Bounds of a standing grant (contracts.md).
const (
	standingLife  = 30 * 24 * time.Hour
	standingCalls = 1000
)

// AcceptRestore implements sallyport.v1.Operator.
func (o *operatorService) AcceptRestore(ctx context.Context, r *sallyportv1.AcceptRestoreRequest) (*sallyportv1.AcceptRestoreResponse, error) {
	by := whoOf(ctx).Person
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

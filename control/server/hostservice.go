package server

import (
	"bytes"
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/catalog"
	"sallyport.dev/control/grant"
	"sallyport.dev/control/session"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/relay"
)

// ServerName is the MCP server's name in every harness: reserved, so that nobody else's server answers to it.
const ServerName = "sallyport"

// awaitCall is Sallyport's own tool: it waits for an earlier call of the session.
const awaitCall = `{"name":"await_call","title":"Wait for an earlier call","description":"Waits for an earlier call of this session that was pending or still running, and returns its result when it has one. Use the call id from that earlier result.","inputSchema":{"type":"object","properties":{"call":{"type":"string","description":"The call id, as the earlier result gave it."}},"required":["call"],"additionalProperties":false},"annotations":{"title":"Wait for an earlier call","readOnlyHint":true}}`

// hostService serves hosts.
type hostService struct {
	sallyportv1.UnimplementedHostServer
	s *Server

	owners sync.Map // session: host's SPIFFE id
}

var grpcCodes = map[errs.Code]codes.Code{
	errs.Invalid: codes.InvalidArgument, errs.NotFound: codes.NotFound, errs.Conflict: codes.Aborted, errs.Fenced: codes.Aborted,
	errs.NotAllowed: codes.PermissionDenied, errs.Quarantined: codes.FailedPrecondition, errs.Unavailable: codes.Unavailable,
	errs.NotDurable: codes.FailedPrecondition, errs.StoreFull: codes.ResourceExhausted, errs.Revoked: codes.PermissionDenied,
}

// refused is an error as a host gets it: code and safe message.
func (s *Server) refused(what string, err error) error {
	if err == nil {
		return nil
	}
	code := errs.CodeOf(err)
	s.log.Info("host request refused", "what", what, "code", string(code), "err", err)
	c, ok := grpcCodes[code]
	if !ok {
		c = codes.Internal
	}
	return status.Error(c, errs.Message(err))
}

// granted says whether a profile, or a standing grant of it, names a tool.
func granted(p *control.Policy) func(profile *control.Profile, connection, tool string) bool {
	return func(profile *control.Profile, connection, tool string) bool {
		named := false
		for _, g := range profile.Grants {
			if !grant.Names(g.Tools, connection, tool) {
				continue
			}
			if g.Rule == control.Deny && g.When == "" {
				return false
			}
			named = named || g.Rule != control.Deny
		}
		for _, g := range p.Given {
			named = named || g.Kind == "standing" && g.Profile == profile.Name && grant.Names(g.Tools, connection, tool)
		}
		return named
	}
}

// OpenSession implements sallyport.v1.Host.
func (h *hostService) OpenSession(ctx context.Context, r *sallyportv1.OpenSessionRequest) (*sallyportv1.OpenSessionResponse, error) {
	who, err := h.s.callerOf(ctx, identity.Host)
	if err != nil {
		return nil, err
	}
	out, err := h.open(ctx, who, r)
	return out, h.s.refused("open session", err)
}

func (h *hostService) open(ctx context.Context, who caller, r *sallyportv1.OpenSessionRequest) (*sallyportv1.OpenSessionResponse, error) {
	store := h.s.stores.Sessions
	t, err := session.ParseTicket(r.GetOwnerTicket())
	if err != nil {
		return nil, err
	}
	if r.GetProfile() != t.Profile || r.GetAttended() != t.Attended {
		return nil, errs.New(errs.NotAllowed, "the owner ticket is for another profile; ask for a new one")
	}
	p, err := store.Policy(ctx, nil)
	if err != nil {
		return nil, err
	}
	f := r.GetFacts()
	in, err := session.Freeze(p, session.Request{
		Owner: t.Owner, Profile: t.Profile, Attended: t.Attended, Harness: r.GetHarness(), Host: who.id.String(),
		Facts: session.Facts{Driver: f.GetDriver(), Closed: f.GetClosed(), Build: f.GetBuild(), Bounds: f.GetBounds(), SameUID: f.GetSameUid()},
	}, granted(p), store.Now())
	if err != nil {
		return nil, err
	}
	if err := store.OpenSession(ctx, session.TicketDigest(r.GetOwnerTicket()), in, p.Generation); err != nil {
		return nil, err
	}
	h.owners.Store(in.ID, in.Host)
	h.s.events.publish(Event{Kind: "session", ID: in.ID, State: string(in.State), Session: in.ID})
	h.s.log.Info("session opened", "session", in.ID, "profile", in.Profile.Name, "owner", string(in.Owner), "host", who.name.Name, "tools", len(in.Tools))
	sessionJSON, toolsJSON, err := h.published(in)
	if err != nil {
		return nil, err
	}
	return &sallyportv1.OpenSessionResponse{
		Session: in.ID, Epoch: in.Epoch, SessionJson: sessionJSON, ToolsJson: toolsJSON, DenyHosts: h.s.denyHosts(ctx), Model: modelPolicy(in.Profile),
		Sandbox: sandboxPolicy(in.Profile), PolicyDigest: in.PolicyDigest.String(), Owner: string(in.Owner), ServerName: ServerName,
	}, nil
}

// published writes what the guest reads: session.json, and tools.json with the reviewed bytes of every tool.
func (h *hostService) published(in *control.Session) (sessionJSON, toolsJSON []byte, err error) {
	sessionJSON, err = relay.AppendSession(nil, &relay.Session{
		V: relay.Version, Session: in.ID, Epoch: in.Epoch, Build: h.s.cfg.Build, Server: ServerName, Await: "await_call",
		HoldMS: in.Profile.Hold.Milliseconds(), TimeoutMS: relayTimeout(in.Profile).Milliseconds(), Limits: relay.DefaultLimits(),
	})
	if err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	b.WriteString(`{"v":1,"tools":[`)
	for _, t := range in.Tools {
		served, err := catalog.Served(t.Tool.Raw, t.Name, t.Tool.Effect)
		if err != nil {
			return nil, nil, err
		}
		b.Write(served)
		b.WriteByte(',')
	}
	b.WriteString(awaitCall + `]}`)
	return sessionJSON, b.Bytes(), nil
}

// ResumeSession implements sallyport.v1.Host.
func (h *hostService) ResumeSession(ctx context.Context, r *sallyportv1.ResumeSessionRequest) (*sallyportv1.ResumeSessionResponse, error) {
	who, err := h.s.callerOf(ctx, identity.Host)
	if err != nil {
		return nil, err
	}
	// A session's state lies on its host's disk, so no other one can go on with it; one that asks wants its answers, or its owner's rights.
	if !h.owns(ctx, who.id.String(), r.GetSession()) {
		return nil, status.Error(codes.NotFound, "this host has no such session")
	}
	f := r.GetFacts()
	store := h.s.stores.Sessions
	epoch, err := store.ResumeSession(ctx, r.GetSession(), r.GetLastEpoch(), who.id.String(), session.Facts{
		Driver: f.GetDriver(), Closed: f.GetClosed(), Build: f.GetBuild(), Bounds: f.GetBounds(), SameUID: f.GetSameUid(),
	})
	if err != nil {
		return nil, h.s.refused("resume session", err)
	}
	in, err := store.Session(ctx, r.GetSession())
	if err != nil {
		return nil, h.s.refused("resume session", err)
	}
	sessionJSON, toolsJSON, err := h.published(in)
	if err != nil {
		return nil, h.s.refused("resume session", err)
	}
	return &sallyportv1.ResumeSessionResponse{
		Epoch: epoch, SessionJson: sessionJSON, ToolsJson: toolsJSON, DenyHosts: h.s.denyHosts(ctx), Model: modelPolicy(in.Profile),
		Sandbox: sandboxPolicy(in.Profile), PolicyDigest: in.PolicyDigest.String(),
	}, nil
}

// CloseSession implements sallyport.v1.Host.
func (h *hostService) CloseSession(ctx context.Context, r *sallyportv1.CloseSessionRequest) (*sallyportv1.CloseSessionResponse, error) {
	who, err := h.s.callerOf(ctx, identity.Host)
	if err != nil {
		return nil, err
	}
	if !h.owns(ctx, who.id.String(), r.GetSession()) {
		return nil, status.Error(codes.NotFound, "this host has no such session")
	}
	if err := h.s.stores.Sessions.CloseSession(ctx, r.GetSession(), r.GetEpoch(), who.id.String(), r.GetReason()); err != nil {
		return nil, h.s.refused("close session", err)
	}
	h.owners.Delete(r.GetSession())
	h.s.events.publish(Event{Kind: "session", ID: r.GetSession(), State: "closed", Session: r.GetSession()})
	h.s.pipeline.PolicyChanged()
	return &sallyportv1.CloseSessionResponse{}, nil
}

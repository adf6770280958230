package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect/v2/connecthttp"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/config"
	"sallyport.dev/control/grant"
	"sallyport.dev/intent"
)

// Operations is what people's requests need of the pipeline beside rows.
type Operations interface {
	// Wake looks at a call's row again: a decision, or a revocation, was written.
	Wake(callID string)
	// PolicyChanged looks at every waiting call again: the configuration, a grant or a switch changed.
	PolicyChanged()
	// Resolve ends an uncertain call by a person's word. It returns the new call of a retry, or "".
	Resolve(ctx context.Context, r call.ResolveRequest) (retry string, err error)
	// Explain says, without running anything, what would be decided.
	Explain(ctx context.Context, r call.ExplainRequest) (call.Explanation, error)
}

// operatorService is the people's API.
type operatorService struct {
	sallyportv1connect.UnimplementedOperatorHandler
	s *Server
}

// ServePeople serves operators on a Unix socket's listener, which it owns, until ctx ends.
func (s *Server) ServePeople(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	connecthttp.Mount(mux, s.peopleAPI(), connecthttp.WithReadMaxBytes(maxRequest))
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	web := &http.Server{
		Handler: localPeople(mux), ConnContext: connContext, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, Protocols: protocols,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	errc := make(chan error, 1)
	go func() { errc <- web.Serve(l) }()
	select {
	case err := <-errc:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime/10)
	defer cancel()
	if err := web.Shutdown(end); err != nil {
		web.Close() // watchers: they stay until somebody ends them
	}
	if err := <-errc; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Status implements sallyport.v1.Operator.
func (o *operatorService) Status(ctx context.Context, _ *sallyportv1.StatusRequest) (*sallyportv1.StatusResponse, error) {
	h, err := o.s.stores.Revocations.History(ctx)
	if err != nil {
		return nil, err
	}
	machines, err := o.machines(ctx, "")
	if err != nil {
		return nil, err
	}
	who := whoOf(ctx)
	return &sallyportv1.StatusResponse{
		Build: o.s.cfg.Build, Wire: Wire, ProtectedVersion: intent.Protected, Node: o.s.cfg.Node, Incarnation: h.Incarnation, Counter: h.Counter,
		Quarantine: h.Quarantine, Store: "sqlite", Durable: o.s.cfg.Durable, FsyncUs: o.s.cfg.Fsync.Microseconds(), Domain: o.s.cfg.CA.Domain(),
		Machines: machines, Person: string(who.Person), Roles: who.Roles(),
	}, nil
}

// policy is the current policy.
func (o *operatorService) policy(ctx context.Context) (*control.Policy, error) {
	return o.s.stores.Calls.Policy(ctx, nil)
}

// ListProfiles implements sallyport.v1.Operator.
func (o *operatorService) ListProfiles(ctx context.Context, _ *sallyportv1.ListProfilesRequest) (*sallyportv1.ListProfilesResponse, error) {
	p, err := o.policy(ctx)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.ListProfilesResponse{}
	for _, name := range sortedKeys(p.Profiles) {
		profile := p.Profiles[name]
		row := &sallyportv1.ProfileRow{
			Name: name, Attended: profile.Attended, Driver: profile.Sandbox.Driver, Version: profile.Version, Settings: config.Lines(*profile),
			Tools: profileTools(p, profile),
		}
		for _, g := range profile.Grants {
			row.Rules = append(row.Rules, ruleLine(g))
		}
		out.Profiles = append(out.Profiles, row)
	}
	return out, nil
}

// profileTools is what a session of the profile would be given now.
func profileTools(p *control.Policy, profile *control.Profile) []*sallyportv1.ProfileTool {
	var out []*sallyportv1.ProfileTool
	given := granted(p)
	for _, connection := range sortedKeys(p.Catalogs) {
		for _, t := range p.Catalogs[connection].Tools {
			if given(profile, connection, t.Name) {
				out = append(out, &sallyportv1.ProfileTool{Name: t.As, Connection: connection, Tool: t.Name, Effect: string(t.Effect)})
			}
		}
	}
	slices.SortFunc(out, func(a, b *sallyportv1.ProfileTool) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out
}

func ruleLine(g control.Grant) string {
	line := string(g.Rule)
	for _, t := range g.Tools {
		line += " " + t
	}
	if g.When != "" {
		line += " when " + g.When
	}
	if g.Limit != nil {
		line += " limit " + limitWords(*g.Limit)
	}
	return line
}

// ListGrants implements sallyport.v1.Operator.
func (o *operatorService) ListGrants(ctx context.Context, r *sallyportv1.ListGrantsRequest) (*sallyportv1.ListGrantsResponse, error) {
	given, err := o.s.stores.Grants.GivenGrants(ctx, grant.Filter{Org: control.Org, Profile: r.GetProfile(), Ended: true})
	if err != nil {
		return nil, err
	}
	now := o.s.stores.Grants.Now()
	out := &sallyportv1.ListGrantsResponse{}
	for _, g := range given {
		out.Grants = append(out.Grants, grantRow(g, now))
	}
	return out, nil
}

func grantRow(g control.GivenGrant, now time.Time) *sallyportv1.GrantRow {
	row := &sallyportv1.GrantRow{
		Id: g.ID, Kind: g.Kind, Profile: g.Profile, Session: g.Session, When: g.When, Calls: g.Limit.Calls, Used: g.Used,
		PerSeconds: int64(g.Limit.Per.Seconds()), UntilMs: ms(g.Until), By: string(g.By), Reason: g.Reason, State: "active",
	}
	for i, t := range g.Tools {
		if i > 0 {
			row.Tool += " "
		}
		row.Tool += t
	}
	switch {
	case g.Revoked:
		row.State = "revoked"
	case !g.Until.IsZero() && !now.Before(g.Until):
		row.State = "expired"
	case g.Limit.Per == 0 && g.Limit.Calls > 0 && g.Used >= g.Limit.Calls:
		row.State = "spent"
	case g.Suspended != "":
		row.State = "suspended"
	}
	return row
}

// ms is a time as the API writes it: Unix milliseconds, 0 for none.
func ms(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

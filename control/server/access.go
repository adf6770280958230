package server

import (
	"context"
	"slices"
	"strings"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectinprocess"
	"connectrpc.com/connect/v2/connectproto"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/control"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/person"
	"sallyport.dev/control/revocation"
	"sallyport.dev/errs"
)

// peopleAPI is what people may ask, behind the one place that decides who may what.
func (s *Server) peopleAPI() *connect.Server {
	server := connect.NewServer(s.safeErrors, s.access)
	sallyportv1connect.RegisterOperatorHandler(server, &operatorService{s: s})
	sallyportv1connect.RegisterPeopleHandler(server, &peopleService{s: s})
	return server
}

// InProcess is the people's API for a client in this process. It has no person of its own: every request carries a session's or a token's secret.
func (s *Server) InProcess() connect.Transport { return connectinprocess.New(s.peopleAPI()) }

// MountPeople serves the people's API over HTTP to who carries a secret in a header. No browser adds one by itself, as it does a cookie, so another site
// or another Host gains nothing here. The caller terminates TLS.
func (s *Server) MountPeople(mux connecthttp.ServeMux) {
	connecthttp.Mount(mux, s.peopleAPI(), connecthttp.WithReadMaxBytes(maxRequest))
}

// access lets requests in by the table of requests, what they are about, and who asks; and narrows what is answered to what the person may see.
func (s *Server) access(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
		row, ok := requests[spec.Procedure]
		if !ok {
			return errs.New(errs.NotAllowed, "this request has no row in the table of who may what")
		}
		who, err := s.authenticate(ctx)
		if err != nil {
			return err
		}
		if err := verdict(person.Judge(row.Access, who.judged(), nil)); err != nil {
			return err
		}
		ctx = context.WithValue(ctx, whoKey{}, who)
		return next(ctx, spec, &guarded{ServerStream: stream, ctx: ctx, s: s, row: row, who: who, lasts: spec.StreamType != connect.StreamTypeUnary})
	}
}

// guarded looks at what comes in and what goes out.
type guarded struct {
	connect.ServerStream
	ctx   context.Context //nolint:containedctx // a stream's own, as long as it
	s     *Server
	row   request
	who   Who
	lasts bool
}

// Receive implements [connect.ServerStream]: the request is judged once it is known what it is about.
func (g *guarded) Receive(msg any) error {
	if err := g.ServerStream.Receive(msg); err != nil || g.row.about == nil {
		return err
	}
	o, err := g.row.about(g.ctx, &operatorService{s: g.s}, msg)
	switch {
	case errs.Is(err, errs.NotFound) && !g.who.Administrator:
		return hidden() // it reads as what is there and not theirs
	case err != nil:
		return err
	}
	return verdict(person.Judge(g.row.Access, g.who.judged(), o))
}

// Send implements [connect.ServerStream]. Who lost their session meanwhile gets nothing more of a stream.
func (g *guarded) Send(msg any) error {
	if g.lasts && !g.who.pass.Digest.IsZero() {
		now, err := g.s.authenticate(context.WithValue(g.ctx, whoKey{}, nil))
		if err != nil {
			return err
		}
		if err := verdict(person.Judge(g.row.Access, now.judged(), nil)); err != nil {
			return err
		}
		g.who = now
	}
	narrow(g.who.judged(), msg)
	return g.ServerStream.Send(msg)
}

func hidden() error {
	return errs.New(errs.NotFound, "there is no such thing, or it is not yours to see")
}

// verdict is a verdict as an error; nil lets in.
func verdict(v person.Verdict) error {
	switch v {
	case person.Let:
		return nil
	case person.Unknown:
		out := connect.NewError(connect.CodeUnauthenticated, "sign in first: sallyport console prints a link")
		if detail, err := connectproto.NewErrorDetail(&sallyportv1.Failure{Code: string(errs.NotAllowed)}); err == nil {
			out = out.WithDetail(detail)
		}
		return out
	case person.Hidden:
		return hidden()
	}
	return errs.New(errs.NotAllowed, "this is not yours to do: it needs another role")
}

// authenticate finds out who asks: the peer of the machine's own socket, or whom the secret that came along stands for. Nobody is the zero value.
func (s *Server) authenticate(ctx context.Context) (Who, error) {
	policy, err := s.stores.Calls.Policy(ctx, nil)
	if err != nil {
		return Who{}, err
	}
	if who, ok := ctx.Value(whoKey{}).(Who); ok { // the socket's: whoever owns this installation is never shut out of it
		who.Groups = groupsOf(policy, who.Person)
		return who, nil
	}
	info, ok := connect.CallInfoForServerContext(ctx)
	if !ok {
		return Who{}, nil
	}
	secret, ok := strings.CutPrefix(info.RequestHeader().Get("Authorization"), "Bearer ")
	if !ok {
		return Who{}, nil
	}
	digest, ok := person.DigestOf(secret)
	if !ok {
		return Who{}, nil
	}
	pass, err := s.stores.People.Pass(ctx, digest)
	switch {
	case errs.Is(err, errs.NotFound):
		return Who{}, nil
	case err != nil:
		return Who{}, err
	}
	now := s.stores.People.Now()
	if slices.ContainsFunc(policy.Switches, func(w *control.Switch) bool {
		return w.Kind == control.SwitchPerson && w.Name == string(pass.Person) && revocation.InForce(w, now)
	}) {
		return Who{}, nil
	}
	who := Who{Actor: inbox.Actor{Person: pass.Person, Groups: groupsOf(policy, pass.Person), Local: pass.Local}, pass: pass}
	if pass.Local && strings.HasPrefix(string(pass.Person), localPrefix) {
		who.roles = []person.Role{person.Administrator} // as on the socket that the link came from
	} else {
		row, err := s.stores.People.Person(ctx, pass.Person)
		switch {
		case errs.Is(err, errs.NotFound):
			return Who{}, nil
		case err != nil:
			return Who{}, err
		}
		who.roles, who.limits = row.Roles, row.Limits
	}
	who.Administrator = slices.Contains(who.roles, person.Administrator)
	return who, nil
}

// localPrefix begins the names of this machine's own accounts.
const localPrefix = "local:"

func groupsOf(p *control.Policy, name control.Person) []string {
	var out []string
	for _, group := range sortedKeys(p.Groups) {
		if slices.Contains(p.Groups[group], name) {
			out = append(out, group)
		}
	}
	return out
}

package server

import (
	"context"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/control"
	"sallyport.dev/control/machine"
	"sallyport.dev/control/session"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/intent/seal"
)

func (s *Server) machinesOf(ctx context.Context, role string) []machine.Machine {
	rows, err := s.stores.Machines.Machines(ctx, role)
	if err != nil {
		s.log.Error("machines cannot be listed", "err", err)
		return nil
	}
	return rows
}

func (o *operatorService) machines(ctx context.Context, role string) ([]*sallyportv1.Machine, error) {
	rows, err := o.s.stores.Machines.Machines(ctx, role)
	if err != nil {
		return nil, err
	}
	live := map[string]bool{}
	for _, l := range o.s.workers.links() {
		live[l.worker] = true
	}
	out := make([]*sallyportv1.Machine, 0, len(rows))
	for _, m := range rows {
		row := &sallyportv1.Machine{
			Role: m.Role, Name: m.Name, Pool: m.Pool, Build: m.Build, Confinement: m.Confinement, SeenMs: ms(m.Seen), Id: m.ID, State: "lost",
			Run: m.Run, SinceMs: ms(m.Since),
		}
		if public, err := seal.ParsePublicKey(m.PoolKey); err == nil {
			row.PoolKey = public.Fingerprint()
		}
		if m.Role == string(identity.Host) {
			sessions, err := o.s.stores.Sessions.Sessions(ctx, session.Filter{Org: control.Org, Host: m.ID})
			if err != nil {
				return nil, err
			}
			row.Sessions = int64(len(sessions))
		}
		switch {
		case m.Removed:
			row.State = "removed"
		case o.s.revoked(ctx, m.ID, identity.Name{Role: identity.Role(m.Role), Name: m.Name}) != "":
			row.State = "revoked"
		case live[m.ID] || o.s.hosts.live(m.ID):
			row.State = "up"
		case m.Seen.IsZero():
			row.State = "never"
		}
		out = append(out, row)
	}
	return out, nil
}

// ListMachines implements sallyport.v1.Operator.
func (o *operatorService) ListMachines(ctx context.Context, r *sallyportv1.ListMachinesRequest) (*sallyportv1.ListMachinesResponse, error) {
	rows, err := o.machines(ctx, r.GetRole())
	if err != nil {
		return nil, err
	}
	return &sallyportv1.ListMachinesResponse{Machines: rows}, nil
}

// RemoveMachine implements sallyport.v1.Operator: the identity ends for good, and its Link with it.
func (o *operatorService) RemoveMachine(ctx context.Context, r *sallyportv1.RemoveMachineRequest) (*sallyportv1.RemoveMachineResponse, error) {
	by := whoOf(ctx).Person
	for _, m := range o.s.machinesOf(ctx, r.GetRole()) {
		if m.Name != r.GetName() || m.Removed {
			continue
		}
		if err := o.s.stores.Machines.Remove(ctx, m.ID, by); err != nil {
			return nil, err
		}
		o.s.hosts.disconnect(m.ID)
		o.s.workers.disconnect(m.ID)
		o.s.events.publish(Event{Kind: "machine", ID: m.ID, State: "removed"})
		return &sallyportv1.RemoveMachineResponse{}, nil
	}
	return nil, errs.Newf(errs.NotFound, "no %s is named %s", r.GetRole(), r.GetName())
}

// Enrol implements sallyport.v1.Operator: a one-time token for one machine.
func (o *operatorService) Enrol(ctx context.Context, r *sallyportv1.EnrolRequest) (*sallyportv1.EnrolResponse, error) {
	by := whoOf(ctx).Person
	if o.s.cfg.Address == "" {
		return nil, errs.New(errs.Invalid, "control listens on this machine only; start it with --listen ADDR, so that others can dial it")
	}
	now := o.s.stores.Machines.Now()
	pool := r.GetPool()
	if pool == "" && r.GetRole() == string(identity.Worker) {
		pool = "default"
	}
	t, err := identity.NewToken(identity.Token{
		Role: identity.Role(r.GetRole()), Name: r.GetName(), Pool: pool, Domain: o.s.cfg.CA.Domain(), Control: o.s.cfg.Source.ID(),
		Address: o.s.cfg.Address, CAKey: o.s.cfg.CA.KeyHash(),
	}, now)
	if err != nil {
		return nil, err
	}
	id, err := t.ID()
	if err != nil {
		return nil, err
	}
	for _, m := range o.s.machinesOf(ctx, r.GetRole()) {
		if m.Name == r.GetName() && m.Pool == pool && !m.Removed {
			return nil, errs.Newf(errs.Conflict, "a %s is named %s already; remove it first, or take another name", r.GetRole(), r.GetName())
		}
	}
	digest, err := control.ParseDigest(identity.TokenDigest(t.Text()))
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "the token's digest is malformed", err)
	}
	if err := o.s.stores.Machines.PutToken(ctx, machine.Token{
		Org: control.Org, Digest: digest, ID: id.String(), Role: r.GetRole(), Name: r.GetName(), Pool: pool, By: by, Until: t.Expires,
	}); err != nil {
		return nil, err
	}
	return &sallyportv1.EnrolResponse{Token: t.Text(), ExpiresMs: ms(t.Expires)}, nil
}

// Watch implements sallyport.v1.Operator. The first event says that the watch stands; a reader lists after it and misses nothing.
func (o *operatorService) Watch(ctx context.Context, r *sallyportv1.WatchRequest, stream sallyportv1connect.OperatorWatchServerStream) error {
	events, done := o.s.events.subscribe()
	defer done()
	if err := stream.Send(&sallyportv1.WatchResponse{Kind: "watching", AtMs: time.Now().UnixMilli()}); err != nil {
		return err
	}
	kinds := map[string]bool{}
	for _, k := range r.GetKinds() {
		kinds[k] = true
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-events:
			if len(kinds) > 0 && !kinds[e.Kind] || r.GetSession() != "" && r.GetSession() != e.Session || r.GetCall() != "" && r.GetCall() != e.Call {
				continue
			}
			if err := stream.Send(&sallyportv1.WatchResponse{Kind: e.Kind, Id: e.ID, State: e.State, Detail: e.Detail, AtMs: e.At.UnixMilli()}); err != nil {
				return err
			}
		}
	}
}

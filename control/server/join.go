package server

import (
	"context"
	"net/http"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/machine"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
)

// joinService enrols machines and renews their identities.
type joinService struct{ s *Server }

type peerKey struct{}

// withPeer hands the certificate's SPIFFE id, when one was shown and verified, to the handlers.
func withPeer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			if id, err := identity.Peer(r.TLS); err == nil {
				r = r.WithContext(context.WithValue(r.Context(), peerKey{}, id))
			}
		}
		next.ServeHTTP(w, r)
	})
}

// Join implements sallyport.v1.Join. The request is checked whole before the token is used, so that a broken one can be tried again.
func (j *joinService) Join(ctx context.Context, r *sallyportv1.JoinRequest) (*sallyportv1.JoinResponse, error) {
	s := j.s
	now := s.stores.Machines.Now()
	if _, err := identity.CheckRequest(r.GetCsr()); err != nil {
		return nil, err
	}
	digest, err := control.ParseDigest(identity.TokenDigest(r.GetToken()))
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "the token's digest is malformed", err)
	}
	t, err := s.stores.Machines.TakeToken(ctx, digest)
	if err != nil {
		return nil, err
	}
	id, err := identity.Name{Role: identity.Role(t.Role), Name: t.Name, Pool: t.Pool, Domain: s.cfg.CA.Domain()}.ID()
	if err != nil {
		return nil, err
	}
	chain, err := s.cfg.CA.Issue(r.GetCsr(), id, now)
	if err != nil {
		return nil, err
	}
	s.log.Info("machine joined", "id", id.String(), "by", string(t.By))
	s.events.publish(Event{Kind: "machine", ID: id.String(), State: "joined"})
	return &sallyportv1.JoinResponse{
		Chain: chain, Ca: s.cfg.CA.Bundle(), IntentRoot: s.cfg.Root.Public(), SpiffeId: id.String(), Domain: s.cfg.CA.Domain(),
	}, nil
}

// Renew implements sallyport.v1.Join: a fresh certificate for who asks with a valid one.
func (j *joinService) Renew(ctx context.Context, r *sallyportv1.RenewRequest) (*sallyportv1.RenewResponse, error) {
	id, ok := ctx.Value(peerKey{}).(spiffeid.ID)
	if !ok {
		return nil, errs.New(errs.NotAllowed, "renewing needs the identity that is to be renewed")
	}
	m, err := j.s.stores.Machines.Machine(ctx, id.String())
	if err != nil {
		return nil, err
	}
	if m.Removed {
		return nil, errs.New(errs.NotAllowed, "this identity was removed; enrol it again")
	}
	chain, err := j.s.cfg.CA.Issue(r.GetCsr(), id, j.s.stores.Machines.Now())
	if err != nil {
		return nil, err
	}
	return &sallyportv1.RenewResponse{Chain: chain, Ca: j.s.cfg.CA.Bundle()}, nil
}

// EnrolLocal makes the row of a process of this machine, which needs no token: it is started by whoever owns the CA's files.
func (s *Server) EnrolLocal(ctx context.Context, name identity.Name) error {
	id, err := name.ID()
	if err != nil {
		return err
	}
	return s.stores.Machines.Enrol(ctx, machine.Machine{
		Org: control.Org, ID: id.String(), Role: string(name.Role), Name: name.Name, Pool: name.Pool, Since: s.stores.Machines.Now(),
	})
}

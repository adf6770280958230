package executor

import (
	"context"
	"time"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	wire "sallyport.dev/intent/oauth"
	"sallyport.dev/worker/keyring"
	"sallyport.dev/worker/oauth"
)

// signIns are the kinds that talk to an authorization server. Each makes its requests once: what it was told stands in its outcome, which is kept until
// control stored it.
var signIns = map[intent.Kind]func(*signIn, context.Context, *sallyportv1.IntentJob) (any, error){
	intent.Authorize: (*signIn).authorize,
	intent.Exchange:  (*signIn).exchange,
	intent.Refresh:   (*signIn).refresh,
	intent.Revoke:    (*signIn).revoke,
}

// signIn is one intent of these kinds.
type signIn struct {
	x     *Executor
	in    *intent.Intent
	oauth *oauth.Client
}

// signIn returns what executes an intent of a sign-in. Its output is sealed wherever it is secret.
func (x *Executor) signIn(in *intent.Intent, job *sallyportv1.IntentJob, client *oauth.Client) func(context.Context, *sallyportv1.Outcome) {
	s := &signIn{x: x, in: in, oauth: client}
	return func(ctx context.Context, o *sallyportv1.Outcome) {
		answer, err := signIns[in.Kind](s, ctx, job)
		if err == nil {
			o.Output, err = wire.Encode(answer)
		}
		if err != nil {
			x.cfg.Log.Info("sign-in stopped", "intent", in.ID, "kind", string(in.Kind), "connection", in.Connection, "err", err)
			// Requests may have been made, so it never reads as proof that nothing was sent.
			o.Transport, o.Failure, o.Detail = sallyportv1.Transport_TRANSPORT_SENT, string(oauth.FailureOf(err)), errs.Message(err)
			return
		}
		o.Transport = sallyportv1.Transport_TRANSPORT_ANSWERED
	}
}

// held opens the client's own secret; nil without one.
func (s *signIn) held(c wire.Client) (*oauth.Held, error) {
	if len(c.Sealed) == 0 {
		return nil, nil
	}
	bound, secret, err := s.x.cfg.Keyring.Client(s.in, c.Sealed, c.Version)
	if err != nil {
		return nil, err
	}
	defer secret.Wipe()
	h := &oauth.Held{Issuer: bound.Issuer, ClientID: bound.ClientID}
	return h, wire.Decode([]byte(secret.Text()), &h.Secret)
}

// sealClient seals a registration that was made now, as the next version; nil without one.
func (s *signIn) sealClient(c wire.Client, made *wire.ClientSecret, issuer, id string) ([]byte, error) {
	if made == nil {
		return nil, nil
	}
	b, err := wire.Encode(made)
	if err != nil {
		return nil, err
	}
	defer clear(b)
	return s.x.cfg.Keyring.Seal(s.in, wire.ClientSubject, c.Version+1, keyring.Server{Issuer: issuer, ClientID: id}, b)
}

func (s *signIn) authorize(ctx context.Context, job *sallyportv1.IntentJob) (any, error) {
	var ask wire.Authorize
	if err := wire.Decode(job.GetMeta(), &ask); err != nil {
		return nil, err
	}
	held, err := s.held(ask.Client)
	if err != nil {
		return nil, err
	}
	b, err := s.oauth.Authorize(ctx, s.in, &ask, held)
	if err != nil {
		return nil, err
	}
	out := &wire.Authorized{Address: b.Address, Issuer: b.State.Issuer, ClientID: b.State.ClientID, How: b.How, Scopes: b.State.Scopes}
	if out.Client, err = s.sealClient(ask.Client, b.Client, b.State.Issuer, b.State.ClientID); err != nil {
		return nil, err
	}
	state, err := wire.Encode(b.State)
	if err != nil {
		return nil, err
	}
	defer clear(state)
	out.State, err = s.x.cfg.Keyring.SealState(s.in, state)
	return out, err
}

func (s *signIn) exchange(ctx context.Context, job *sallyportv1.IntentJob) (any, error) {
	var ask wire.Exchange
	if err := wire.Decode(job.GetMeta(), &ask); err != nil {
		return nil, err
	}
	held, err := s.held(ask.Client)
	if err != nil {
		return nil, err
	}
	if ask.Settings.Grant == wire.ClientCredentials {
		g, made, err := s.oauth.ClientCredentials(ctx, s.in, &ask, held)
		if err != nil {
			return nil, err
		}
		out, err := s.token(g)
		if err == nil {
			out.Client, err = s.sealClient(ask.Client, made, g.Issuer, g.ClientID)
		}
		return out, err
	}
	opened, err := s.x.cfg.Keyring.OpenState(s.in, ask.State)
	if err != nil {
		return nil, err
	}
	defer opened.Wipe()
	var st oauth.State
	if err := wire.Decode([]byte(opened.Text()), &st); err != nil {
		return nil, err
	}
	g, err := s.oauth.Exchange(ctx, s.in, &ask, &st, held)
	if err != nil {
		return nil, err
	}
	return s.token(g)
}

func (s *signIn) refresh(ctx context.Context, job *sallyportv1.IntentJob) (any, error) {
	old, held, err := s.granted(job)
	if err != nil {
		return nil, err
	}
	g, err := s.oauth.Refresh(ctx, s.in, old, held)
	if err != nil {
		return nil, err
	}
	return s.token(g)
}

func (s *signIn) revoke(ctx context.Context, job *sallyportv1.IntentJob) (any, error) {
	old, held, err := s.granted(job)
	if err != nil {
		return nil, err
	}
	return struct{}{}, s.oauth.Revoke(ctx, s.in, old, held)
}

// granted opens the credential that is renewed or ended.
func (s *signIn) granted(job *sallyportv1.IntentJob) (*oauth.Granted, *oauth.Held, error) {
	var ask wire.Refresh
	if err := wire.Decode(job.GetMeta(), &ask); err != nil {
		return nil, nil, err
	}
	held, err := s.held(ask.Client)
	if err != nil {
		return nil, nil, err
	}
	bound, secret, err := s.x.cfg.Keyring.Grant(s.in, job.GetSealedCredential())
	if err != nil {
		return nil, nil, err
	}
	defer secret.Wipe()
	g, err := oauth.ParseGrant(secret.Text())
	if err != nil {
		return nil, nil, err
	}
	return &oauth.Granted{Grant: *g, Issuer: bound.Issuer, Token: bound.TokenEndpoint, ClientID: bound.ClientID, Account: bound.Account}, held, nil
}

// token seals what was granted, as the next version of the credential.
func (s *signIn) token(g *oauth.Granted) (*wire.Token, error) {
	b, err := wire.Encode(g.Grant)
	if err != nil {
		return nil, err
	}
	defer clear(b)
	sealed, err := s.x.cfg.Keyring.Seal(s.in, s.in.Subject, s.in.Version+1,
		keyring.Server{Issuer: g.Issuer, Token: g.Token, ClientID: g.ClientID, Account: g.Account}, b)
	if err != nil {
		return nil, err
	}
	out := &wire.Token{
		Credential: sealed, Issuer: g.Issuer, ClientID: g.ClientID, Account: g.Account, Name: g.Name, Scopes: g.Grant.Scopes,
		Renewable: g.Grant.Refresh != "" || g.Grant.Kind == wire.ClientCredentials,
	}
	if !g.Expires.IsZero() {
		out.ExpiresMS = g.Expires.Truncate(time.Millisecond).UnixMilli()
	}
	return out, nil
}

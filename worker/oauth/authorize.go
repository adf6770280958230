package oauth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/url"
	"slices"
	"strings"

	"sallyport.dev/errs"
	"sallyport.dev/intent"
	wire "sallyport.dev/intent/oauth"
)

// State is everything that the exchange of a sign-in must agree with. It travels sealed.
type State struct {
	V        int      `json:"v"`
	Verifier string   `json:"verifier"`
	Returned string   `json:"returned"` // SHA-256 of the state parameter, base64url
	Nonce    string   `json:"nonce"`
	Redirect string   `json:"redirect_uri"`
	Resource string   `json:"resource"`
	Scopes   []string `json:"scopes"`
	Issuer   string   `json:"issuer"`
	Iss      bool     `json:"iss"` // the server says that its responses name it
	Token    string   `json:"token_endpoint"`
	Revoke   string   `json:"revocation_endpoint"`
	UserInfo string   `json:"userinfo_endpoint"`
	ClientID string   `json:"client_id"`
	Auth     string   `json:"auth"`
	NotAfter int64    `json:"not_after"` // Unix ms
}

// String redacts.
func (State) String() string { return "oauth state" }

// GoString redacts.
func (State) GoString() string { return "oauth state" }

// stateLife is how long a person has to sign in.
const stateLife = 10 * 60 * 1000

// Begun is a sign-in that a person can go on with.
type Begun struct {
	Address string
	State   State
	How     string
	Client  *wire.ClientSecret // a registration that was made now; nil otherwise
}

// Authorize finds the authorization server, comes to a client, and builds the address at which a person signs in. Errors: *[Error].
func (c *Client) Authorize(ctx context.Context, in *intent.Intent, ask *wire.Authorize, held *Held) (*Begun, error) {
	s, err := c.session(in)
	if err != nil {
		return nil, err
	}
	if len(ask.State) < 32 || !visible(ask.State) || !s.redirectable(ask.RedirectURI) {
		return nil, failf(wire.FailRequest, errs.Invalid, "a sign-in needs a state and a redirect address: http://127.0.0.1:PORT/…, or https")
	}
	f, err := s.discover(ctx, &ask.Settings, ask.Challenge)
	if err != nil {
		return nil, err
	}
	if err := f.server.forCode(); err != nil {
		return nil, err
	}
	cl, err := s.register(ctx, &f.server, &ask.Settings, held, ask.RedirectURI)
	if err != nil {
		return nil, err
	}
	st := State{
		V: 1, Verifier: rand.Text() + rand.Text(), Redirect: ask.RedirectURI, Resource: f.resource, Scopes: wanted(f, &ask.Settings, ask.Scopes),
		Issuer: f.server.Issuer, Iss: f.server.Iss, Token: f.server.Token, Revoke: f.server.Revocation, UserInfo: f.server.UserInfo, ClientID: cl.id, Auth: cl.auth,
		NotAfter: c.now().UnixMilli() + stateLife, Returned: digest(ask.State),
	}
	q := url.Values{
		"response_type": {"code"}, "client_id": {cl.id}, "redirect_uri": {ask.RedirectURI}, "state": {ask.State}, "resource": {f.resource},
		"code_challenge": {digest(st.Verifier)}, "code_challenge_method": {"S256"},
	}
	if len(st.Scopes) > 0 {
		q.Set("scope", strings.Join(st.Scopes, " "))
	}
	if slices.Contains(st.Scopes, "openid") {
		st.Nonce = rand.Text()
		q.Set("nonce", st.Nonce)
	}
	u, err := s.address("authorization endpoint", f.server.Authorization)
	if err != nil {
		return nil, err
	}
	u.RawQuery = strings.TrimPrefix(u.RawQuery+"&"+q.Encode(), "&")
	out := &Begun{Address: u.String(), State: st, How: cl.how}
	if cl.made {
		out.Client = &cl.secret
	}
	return out, nil
}

// redirectable: a loopback address with a port, or https.
func (s *session) redirectable(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.RawQuery != "" || !printable(address) {
		return false
	}
	return u.Scheme == "https" || isLoopback(address) && u.Port() != ""
}

// wanted are the scopes to ask for: the settings' and the challenge's; without either, those that the resource names (2026-07-28, "Scope Selection
// Strategy"); offline_access where the server has it, for refresh tokens (OpenID Connect Core, section 11).
func wanted(f *found, set *wire.Settings, more []string) []string {
	scopes := slices.Clone(set.Scopes)
	if len(scopes) == 0 {
		scopes = slices.Clone(f.scopes)
	}
	scopes = append(scopes, more...)
	if slices.Contains(f.server.Scopes, "offline_access") && len(scopes) > 0 {
		scopes = append(scopes, "offline_access")
	}
	slices.Sort(scopes)
	scopes = slices.Compact(scopes)
	return slices.DeleteFunc(scopes, func(s string) bool { return !wire.ValidScope(s) })
}

// digest is S256 (RFC 7636, section 4.2).
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// agrees checks an authorization response against the sealed state: the same state parameter, in time, and the issuer's own name where there must be
// one (RFC 9207).
func (st *State) agrees(ask *wire.Exchange, nowMS int64) error {
	switch {
	case st.V != 1 || subtle.ConstantTimeCompare([]byte(digest(ask.Returned)), []byte(st.Returned)) != 1:
		return failf(wire.FailState, errs.NotAllowed, "the answer belongs to another sign-in; begin again")
	case nowMS > st.NotAfter:
		return failf(wire.FailState, errs.NotAllowed, "the sign-in took over 10 minutes; begin again")
	case ask.Issuer == "" && st.Iss:
		return failf(wire.FailIssuer, errs.NotAllowed, "the answer does not name the server that gave it (RFC 9207), though %s says that it does", quoted(st.Issuer))
	case ask.Issuer != "" && ask.Issuer != st.Issuer:
		return failf(wire.FailIssuer, errs.NotAllowed, "the answer is of the issuer %s, but the sign-in began at %s (RFC 9207)", quoted(ask.Issuer), quoted(st.Issuer))
	case ask.Code == "" || len(ask.Code) > 8<<10 || !visible(ask.Code):
		return failf(wire.FailState, errs.Invalid, "the answer has no code")
	}
	return nil
}

// Look finds how a connection signs in, without beginning. Errors: *[Error].
func (c *Client) Look(ctx context.Context, in *intent.Intent, challenge string) (*wire.Found, error) {
	s, err := c.session(in)
	if err != nil {
		return nil, err
	}
	f, err := s.discover(ctx, &wire.Settings{}, challenge)
	if err != nil {
		return nil, err
	}
	out := &wire.Found{Issuer: f.server.Issuer, Resource: f.resource, Scopes: f.scopes}
	if f.server.Documents {
		out.Registration = append(out.Registration, wire.MetadataDocument)
	}
	if f.server.Registration != "" {
		out.Registration = append(out.Registration, wire.Dynamic)
	}
	return out, f.server.forCode()
}

package oauth

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"sallyport.dev/errs"
	"sallyport.dev/intent"
	wire "sallyport.dev/intent/oauth"
)

// Grant is what a credential of type oauth holds. Issuer, token endpoint, client id and account stand in what it is bound to.
type Grant struct {
	V        int      `json:"v"`
	Access   string   `json:"access_token"`
	Refresh  string   `json:"refresh_token,omitzero"`
	Kind     string   `json:"grant"`
	Auth     string   `json:"auth"`
	Resource string   `json:"resource"`
	Scopes   []string `json:"scopes"`
	Asked    []string `json:"asked,omitzero"` // client credentials: what to ask for again
	Revoke   string   `json:"revocation_endpoint,omitzero"`
}

// String redacts.
func (Grant) String() string { return "grant" }

// GoString redacts.
func (Grant) GoString() string { return "grant" }

// ParseGrant reads an opened credential of type oauth. Errors: [errs.Invalid], which never quotes it.
func ParseGrant(secret string) (*Grant, error) {
	g := &Grant{}
	if err := wire.Decode([]byte(secret), g); err != nil || g.V != 1 || g.Access == "" {
		return nil, errs.New(errs.Invalid, "this is not what a sign-in left; connect again: sallyport credentials connect NAME")
	}
	return g, nil
}

// Granted is a grant with what it is bound to.
type Granted struct {
	Grant    Grant
	Issuer   string
	Token    string // endpoint
	ClientID string
	Account  string
	Name     string
	Expires  time.Time // zero: unknown
}

// maxLife bounds what a server says of a token's life: beyond, the number is a mistake.
const maxLife = 10 * 365 * 24 * time.Hour

// answer is a token response (RFC 6749, section 5.1).
type answer struct {
	Access  string   `json:"access_token"`
	Type    string   `json:"token_type"`
	Expires *float64 `json:"expires_in"` // some servers write 3600.0
	Refresh string   `json:"refresh_token"`
	Scope   *string  `json:"scope"`
	ID      string   `json:"id_token"`
}

// Exchange turns the code of a sign-in into a grant, at the token endpoint that was found when the sign-in began. Errors: *[Error].
func (c *Client) Exchange(ctx context.Context, in *intent.Intent, ask *wire.Exchange, st *State, held *Held) (*Granted, error) {
	s, err := c.session(in)
	if err != nil {
		return nil, err
	}
	if err := st.agrees(ask, c.now().UnixMilli()); err != nil {
		return nil, err
	}
	form := url.Values{
		"grant_type": {wire.AuthorizationCode}, "code": {ask.Code}, "redirect_uri": {st.Redirect}, "code_verifier": {st.Verifier}, "resource": {st.Resource},
	}
	who := endpoint{issuer: st.Issuer, token: st.Token, id: st.ClientID, auth: st.Auth}
	a, err := s.token(ctx, who, held, form)
	if err != nil {
		return nil, err
	}
	g := &Granted{
		Issuer: st.Issuer, Token: st.Token, ClientID: st.ClientID,
		Grant: Grant{V: 1, Kind: wire.AuthorizationCode, Auth: st.Auth, Resource: st.Resource, Revoke: st.Revoke},
	}
	g.take(a, st.Scopes, c.now())
	err = s.identify(ctx, a, st, g)
	if err == nil {
		err = g.check(ask.Settings.Scopes, in.Account)
	}
	if err != nil {
		_ = s.end(ctx, g, held) // nobody wants it; that the server keeps it does no harm to us
		return nil, err
	}
	return g, nil
}

// ClientCredentials asks for a grant of the client's own. Errors: *[Error].
func (c *Client) ClientCredentials(ctx context.Context, in *intent.Intent, ask *wire.Exchange, held *Held) (*Granted, *wire.ClientSecret, error) {
	s, err := c.session(in)
	if err != nil {
		return nil, nil, err
	}
	f, err := s.discover(ctx, &ask.Settings, "")
	if err != nil {
		return nil, nil, err
	}
	cl, err := s.register(ctx, &f.server, &ask.Settings, held, "")
	if err != nil {
		return nil, nil, err
	}
	if cl.auth == wire.AuthNone {
		return nil, nil, failf(wire.FailRegistration, errs.NotConnected, "client credentials need a secret or a private key: sallyport credentials set NAME --client")
	}
	if cl.made {
		held = &Held{Secret: cl.secret, Issuer: f.server.Issuer, ClientID: cl.id}
	}
	g := &Granted{
		Issuer: f.server.Issuer, Token: f.server.Token, ClientID: cl.id, Account: cl.id, Name: cl.id,
		Grant: Grant{V: 1, Kind: wire.ClientCredentials, Auth: cl.auth, Resource: f.resource, Revoke: f.server.Revocation, Asked: wanted(f, &ask.Settings, nil)},
	}
	if err := s.clientCredentials(ctx, g, held); err != nil {
		return nil, nil, err
	}
	if err := g.check(ask.Settings.Scopes, in.Account); err != nil {
		_ = s.end(ctx, g, held)
		return nil, nil, err
	}
	if cl.made {
		return g, &cl.secret, nil
	}
	return g, nil, nil
}

func (s *session) clientCredentials(ctx context.Context, g *Granted, held *Held) error {
	form := url.Values{"grant_type": {wire.ClientCredentials}, "resource": {g.Grant.Resource}}
	if len(g.Grant.Asked) > 0 {
		form.Set("scope", strings.Join(g.Grant.Asked, " "))
	}
	a, err := s.token(ctx, g.endpoint(), held, form)
	if err != nil {
		return err
	}
	g.take(a, g.Grant.Asked, s.now())
	g.Grant.Refresh = ""
	return nil
}

// Refresh renews a grant at the endpoint that it is bound to. The account and the scopes that it had must stay. Errors: *[Error].
func (c *Client) Refresh(ctx context.Context, in *intent.Intent, old *Granted, held *Held) (*Granted, error) {
	s, err := c.session(in)
	if err != nil {
		return nil, err
	}
	next := *old
	if old.Grant.Kind == wire.ClientCredentials {
		return &next, s.clientCredentials(ctx, &next, held)
	}
	if old.Grant.Refresh == "" {
		return nil, failf(wire.FailGrant, errs.NotConnected, "the sign-in cannot be renewed, because the server gave no refresh token; connect again")
	}
	a, err := s.token(ctx, old.endpoint(), held, url.Values{
		"grant_type": {"refresh_token"}, "refresh_token": {old.Grant.Refresh}, "resource": {old.Grant.Resource},
	})
	if err != nil {
		return nil, err
	}
	// Whatever is wrong with the rest of the answer, the refresh token may have been replaced: what came is kept, and never thrown away by a check.
	next.take(a, old.Grant.Scopes, c.now())
	if id, err := claimsOf(a.ID); a.ID != "" && err == nil && old.Account != "" && id.Subject != old.Account {
		return nil, failf(wire.FailAccount, errs.NotAllowed, "the server renewed the sign-in of %s with one of %s", quoted(old.Account), quoted(id.Subject))
	}
	return &next, nil
}

// Revoke ends a grant at its server (RFC 7009). A server without a revocation endpoint is no error. Errors: *[Error].
func (c *Client) Revoke(ctx context.Context, in *intent.Intent, old *Granted, held *Held) error {
	s, err := c.session(in)
	if err != nil {
		return err
	}
	return s.end(ctx, old, held)
}

func (s *session) end(ctx context.Context, g *Granted, held *Held) error {
	if g.Grant.Revoke == "" {
		return nil
	}
	var first error
	for hint, t := range map[string]string{"refresh_token": g.Grant.Refresh, "access_token": g.Grant.Access} {
		if t == "" {
			continue
		}
		form := url.Values{"token": {t}, "token_type_hint": {hint}}
		header, err := s.authenticate(g.endpoint(), held, form)
		if err == nil {
			var status int
			status, _, err = s.post(ctx, "revocation endpoint", g.Grant.Revoke, formType, []byte(form.Encode()), header)
			if err == nil && status != http.StatusOK {
				err = failf(wire.FailRefused, errs.Unreachable, "the authorization server did not end the sign-in (HTTP %d)", status)
			}
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// endpoint is a token endpoint with who we are there.
type endpoint struct{ issuer, token, id, auth string }

func (g *Granted) endpoint() endpoint {
	return endpoint{issuer: g.Issuer, token: g.Token, id: g.ClientID, auth: g.Grant.Auth}
}

const formType = "application/x-www-form-urlencoded"

// token asks a token endpoint.
func (s *session) token(ctx context.Context, at endpoint, held *Held, form url.Values) (*answer, error) {
	header, err := s.authenticate(at, held, form)
	if err != nil {
		return nil, err
	}
	status, body, err := s.post(ctx, "token endpoint", at.token, formType, []byte(form.Encode()), header)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, refusal(at.issuer, status, errorWord(body))
	}
	a := &answer{}
	if err := json.Unmarshal(body, a); err != nil {
		return nil, failf(wire.FailToken, errs.Unreachable, "the token endpoint of %s answered no strict JSON", quoted(at.issuer))
	}
	if !strings.EqualFold(a.Type, "Bearer") || a.Access == "" || !bearable(a.Access) || a.Refresh != "" && !visible(a.Refresh) {
		return nil, failf(wire.FailToken, errs.Unreachable, "the token endpoint of %s answered no bearer token", quoted(at.issuer))
	}
	return a, nil
}

// bearable is the form of a token that can stand in a header (RFC 6750, section 2.1), with room for signed ones.
func bearable(token string) bool {
	return len(token) <= 32<<10 && visible(token) && !strings.Contains(token, " ")
}

// refusal puts an error of the token endpoint into words. Only the registered word of the body is repeated.
func refusal(issuer string, status int, word string) *Error {
	switch {
	case word == "invalid_grant":
		return failf(wire.FailGrant, errs.NotConnected, "the authorization server %s does not take the sign-in any more (invalid_grant)", quoted(issuer))
	case word == "invalid_client", word == "unauthorized_client":
		return failf(wire.FailClient, errs.NotConnected, "the authorization server %s does not know this client (%s)", quoted(issuer), word)
	case status >= 500 || status == http.StatusTooManyRequests || word == "temporarily_unavailable" || word == "server_error":
		return failf(wire.FailConnect, errs.Unreachable, "the authorization server %s does not give tokens now (HTTP %d)", quoted(issuer), status)
	case word == "":
		return failf(wire.FailToken, errs.Unreachable, "the authorization server %s gave no token (HTTP %d)", quoted(issuer), status)
	}
	return failf(wire.FailRefused, errs.Unreachable, "the authorization server %s gave no token (HTTP %d, %s)", quoted(issuer), status, word)
}

// take puts a token response into the grant. What the server leaves out stays as it was (RFC 6749, sections 5.1 and 6).
func (g *Granted) take(a *answer, asked []string, now time.Time) {
	g.Grant.Access = a.Access
	if a.Refresh != "" {
		g.Grant.Refresh = a.Refresh
	}
	g.Grant.Scopes = slices.Clone(asked)
	if a.Scope != nil {
		g.Grant.Scopes = wire.Scopes(*a.Scope)
	}
	if g.Grant.Scopes == nil {
		g.Grant.Scopes = []string{}
	}
	g.Expires = time.Time{}
	if a.Expires != nil && *a.Expires >= 0 && *a.Expires < maxLife.Seconds() {
		g.Expires = now.Add(time.Duration(*a.Expires * float64(time.Second)))
	}
}

// check refuses a grant with less than the connection needs, or of another account.
func (g *Granted) check(needs []string, account string) error {
	var lacks []string
	for _, n := range needs {
		if !slices.Contains(g.Grant.Scopes, n) {
			lacks = append(lacks, n)
		}
	}
	if len(lacks) > 0 {
		return failf(wire.FailScope, errs.NotConnected, "the sign-in does not allow %s, which the connection needs; allow it when you connect again", quoted(strings.Join(lacks, " ")))
	}
	if account != "" && g.Account != account {
		return failf(wire.FailAccount, errs.NotAllowed, "this is the account %s; the connection's is %s", quoted(g.Account), quoted(account))
	}
	return nil
}

package oauth

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"sallyport.dev/errs"
	wire "sallyport.dev/intent/oauth"
)

// Held is the client's opened secret, with what it is bound to.
type Held struct {
	Secret           wire.ClientSecret
	Issuer, ClientID string
}

// client is who we are at one authorization server.
type client struct {
	id     string
	auth   string
	secret wire.ClientSecret
	how    string
	made   bool // registered now
}

// register comes to a client: pre-registered, by a metadata document, registered before, registered now. The settings may force one. A registration is
// used at its issuer alone.
func (s *session) register(ctx context.Context, m *serverMetadata, set *wire.Settings, held *Held, redirect string) (*client, error) {
	switch set.Registration {
	case wire.PreRegistered:
		return preRegistered(m, set, held)
	case wire.MetadataDocument:
		return byDocument(m, set)
	case wire.Dynamic:
		return s.dynamic(ctx, m, set, held, redirect)
	}
	switch {
	case set.ClientID != "" && !isDocument(set.ClientID):
		return preRegistered(m, set, held)
	case set.ClientID != "" && m.Documents:
		return byDocument(m, set)
	}
	return s.dynamic(ctx, m, set, held, redirect)
}

func isDocument(id string) bool { return strings.HasPrefix(id, "https://") }

func preRegistered(m *serverMetadata, set *wire.Settings, held *Held) (*client, error) {
	if set.ClientID == "" {
		return nil, failf(wire.FailRegistration, errs.Invalid, "the connection names no client_id; register a client at %s, then write it into auth.oauth", quoted(m.Issuer))
	}
	c := &client{id: set.ClientID, auth: set.ClientAuth, how: wire.PreRegistered}
	if held != nil && held.ClientID == set.ClientID {
		if held.Issuer != m.Issuer {
			return nil, failf(wire.FailIssuer, errs.NotAllowed, "the client's secret is for the issuer %s, not for %s", quoted(held.Issuer), quoted(m.Issuer))
		}
		c.secret = held.Secret
	}
	if c.auth == "" {
		c.auth = chooseAuth(m, &c.secret)
	}
	switch {
	case c.auth == wire.AuthSigned && c.secret.PrivateKey == "":
		return nil, failf(wire.FailRegistration, errs.NotConnected, "the client's private key is not stored: sallyport credentials set NAME --client")
	case (c.auth == wire.AuthBasic || c.auth == wire.AuthPost) && c.secret.Secret == "":
		return nil, failf(wire.FailRegistration, errs.NotConnected, "the client's secret is not stored: sallyport credentials set NAME --client")
	}
	return c, nil
}

// chooseAuth takes what fits what there is. A server that says nothing takes client_secret_basic (RFC 8414, section 2).
func chooseAuth(m *serverMetadata, held *wire.ClientSecret) string {
	switch {
	case held.PrivateKey != "":
		return wire.AuthSigned
	case held.Secret == "":
		return wire.AuthNone
	case slices.Contains(m.Methods, wire.AuthPost) && !slices.Contains(m.Methods, wire.AuthBasic):
		return wire.AuthPost
	}
	return wire.AuthBasic
}

func byDocument(m *serverMetadata, set *wire.Settings) (*client, error) {
	switch {
	case !isDocument(set.ClientID):
		return nil, failf(wire.FailRegistration, errs.Invalid, "a client id metadata document has an https address as client_id")
	case !m.Documents:
		return nil, failf(wire.FailRegistration, errs.Unreachable, "the authorization server %s does not take client id metadata documents", quoted(m.Issuer))
	}
	return &client{id: set.ClientID, auth: wire.AuthNone, how: wire.MetadataDocument}, nil
}

// dynamic takes the registration that stands, when it is of this issuer and knows the redirect address, and makes one otherwise (RFC 7591).
func (s *session) dynamic(ctx context.Context, m *serverMetadata, set *wire.Settings, held *Held, redirect string) (*client, error) {
	if held != nil && held.Issuer == m.Issuer && held.Secret.Auth != "" && knows(held.Secret.RedirectURIs, redirect) {
		return &client{id: held.ClientID, auth: held.Secret.Auth, secret: held.Secret, how: wire.Dynamic}, nil
	}
	if m.Registration == "" {
		return nil, failf(wire.FailRegistration, errs.NotConnected,
			"the authorization server %s registers no clients by itself: register Sallyport there, with the redirect address %s, then write its client_id and issuer into auth.oauth", quoted(m.Issuer), redirect)
	}
	grants, kind := []string{wire.AuthorizationCode, "refresh_token"}, "web"
	if isLoopback(redirect) {
		kind = "native"
	}
	auth := wire.AuthNone
	if set.Grant == wire.ClientCredentials || len(m.Methods) > 0 && !slices.Contains(m.Methods, wire.AuthNone) {
		auth = wire.AuthBasic
		if len(m.Methods) > 0 && !slices.Contains(m.Methods, wire.AuthBasic) {
			auth = wire.AuthPost
		}
	}
	ask := struct {
		Name      string   `json:"client_name"`
		Redirects []string `json:"redirect_uris,omitzero"`
		Grants    []string `json:"grant_types"`
		Responses []string `json:"response_types,omitzero"`
		Auth      string   `json:"token_endpoint_auth_method"`
		Kind      string   `json:"application_type"`
		Scope     string   `json:"scope,omitzero"`
	}{"Sallyport", []string{redirect}, grants, []string{"code"}, auth, kind, strings.Join(set.Scopes, " ")}
	if set.Grant == wire.ClientCredentials {
		ask.Redirects, ask.Grants, ask.Responses = nil, []string{wire.ClientCredentials}, nil
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, failf(wire.FailRegistration, errs.Internal, "the registration cannot be written")
	}
	status, answer, err := s.post(ctx, "registration endpoint", m.Registration, "application/json", body, nil)
	if err != nil {
		return nil, err
	}
	var got struct {
		ID     string `json:"client_id"`
		Secret string `json:"client_secret"`
		Auth   string `json:"token_endpoint_auth_method"`
	}
	if status != http.StatusCreated && status != http.StatusOK {
		return nil, failf(wire.FailRegistration, errs.Unreachable, "the authorization server %s refused to register a client (HTTP %d%s)", quoted(m.Issuer), status, known(answer))
	}
	if json.Unmarshal(answer, &got) != nil || got.ID == "" || len(got.ID) > 2<<10 || !visible(got.ID) || got.Secret != "" && !visible(got.Secret) {
		return nil, failf(wire.FailRegistration, errs.Unreachable, "the authorization server %s answered the registration with no client", quoted(m.Issuer))
	}
	switch got.Auth {
	case "":
		if got.Auth = auth; got.Secret == "" {
			got.Auth = wire.AuthNone
		}
	case wire.AuthNone, wire.AuthBasic, wire.AuthPost:
	default:
		return nil, failf(wire.FailRegistration, errs.Unreachable, "the authorization server %s registered a client that authenticates in a way that it was not asked for", quoted(m.Issuer))
	}
	if got.Auth != wire.AuthNone && got.Secret == "" {
		return nil, failf(wire.FailRegistration, errs.Unreachable, "the authorization server %s registered a client without its secret", quoted(m.Issuer))
	}
	secret := wire.ClientSecret{V: 1, Secret: got.Secret, Auth: got.Auth, RedirectURIs: ask.Redirects}
	return &client{id: got.ID, auth: got.Auth, secret: secret, how: wire.Dynamic, made: true}, nil
}

func visible(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

// isLoopback reports whether a redirect address is a native program's own (RFC 8252, section 7.3).
func isLoopback(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Scheme == "http" && (u.Hostname() == "127.0.0.1" || u.Hostname() == "::1")
}

// knows reports whether a registration has a redirect address; the port of a loopback address is free.
func knows(registered []string, redirect string) bool {
	if redirect == "" || slices.Contains(registered, redirect) {
		return true
	}
	if !isLoopback(redirect) {
		return false
	}
	want, err := url.Parse(redirect)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(registered, func(r string) bool {
		u, err := url.Parse(r)
		return err == nil && isLoopback(r) && u.Hostname() == want.Hostname() && u.EscapedPath() == want.EscapedPath()
	})
}

// known is the error word of an OAuth error body, in parentheses' form, where it is a registered one: nothing else of an error body is repeated.
func known(body []byte) string {
	if w := errorWord(body); w != "" {
		return ", " + w
	}
	return ""
}

func errorWord(body []byte) string {
	var e struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &e) != nil || !slices.Contains([]string{
		"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope", "invalid_target", "access_denied",
		"unsupported_response_type", "server_error", "temporarily_unavailable", "invalid_redirect_uri", "invalid_client_metadata", "unsupported_token_type",
		"interaction_required", "login_required", "account_selection_required", "consent_required",
	}, e.Error) {
		return ""
	}
	return e.Error
}

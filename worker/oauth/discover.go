package oauth

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"sallyport.dev/errs"
	wire "sallyport.dev/intent/oauth"
)

// resourceMetadata is RFC 9728, as far as it is needed.
type resourceMetadata struct {
	Resource string   `json:"resource"`
	Servers  []string `json:"authorization_servers"`
	Scopes   []string `json:"scopes_supported"`
}

// serverMetadata is RFC 8414 or an OpenID provider's, as far as it is needed.
type serverMetadata struct {
	Issuer        string   `json:"issuer"`
	Authorization string   `json:"authorization_endpoint"`
	Token         string   `json:"token_endpoint"`
	Registration  string   `json:"registration_endpoint"`
	Revocation    string   `json:"revocation_endpoint"`
	UserInfo      string   `json:"userinfo_endpoint"`
	Challenges    []string `json:"code_challenge_methods_supported"`
	Responses     []string `json:"response_types_supported"`
	Grants        []string `json:"grant_types_supported"`
	Methods       []string `json:"token_endpoint_auth_methods_supported"`
	Scopes        []string `json:"scopes_supported"`
	Documents     bool     `json:"client_id_metadata_document_supported"`
	Iss           bool     `json:"authorization_response_iss_parameter_supported"`
}

// found is what discovery came to.
type found struct {
	resource string // the identifier for resource=
	scopes   []string
	server   serverMetadata
}

// discover finds the resource's identifier and its authorization server.
func (s *session) discover(ctx context.Context, set *wire.Settings, challenge string) (*found, error) {
	if challenge == "" {
		challenge = s.ask(ctx)
	}
	said := wire.ParseChallenge(challenge)
	meta, err := s.resourceMetadata(ctx, said.ResourceMetadata)
	if err != nil {
		return nil, err
	}
	out := &found{resource: s.endpoint, scopes: wire.Scopes(said.Scope)}
	issuer := set.Issuer
	if meta != nil {
		out.resource = meta.Resource
		if len(out.scopes) == 0 {
			out.scopes = wire.Scopes(strings.Join(meta.Scopes, " "))
		}
		switch {
		case len(meta.Servers) == 0 && issuer == "":
			return nil, failf(wire.FailDiscovery, errs.Unreachable, "the resource's metadata names no authorization server")
		case issuer == "":
			issuer = meta.Servers[0]
		case len(meta.Servers) > 0 && !slices.Contains(meta.Servers, issuer):
			return nil, failf(wire.FailIssuer, errs.Unreachable, "the connection's issuer is %s, but its server names %s", quoted(issuer), quoted(strings.Join(meta.Servers, " ")))
		}
	} else if issuer == "" {
		issuer = s.origin // servers before 2025-06-18 were their own authorization server
	}
	if set.Resource != "" {
		out.resource = set.Resource
	}
	out.server, err = s.serverMetadata(ctx, issuer)
	if err != nil {
		if meta == nil && FailureOf(err) == wire.FailDiscovery {
			return nil, failf(wire.FailDiscovery, errs.Unreachable, "the server does not say how to sign in: it has no protected-resource metadata (RFC 9728), and %s has no authorization-server metadata", quoted(issuer))
		}
		return nil, err
	}
	return out, nil
}

// ask makes one request without a credential, for its challenge. That there is none is no error: the well-known addresses are asked then.
func (s *session) ask(ctx context.Context) string {
	const question = `{"jsonrpc":"2.0","id":"discover","method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"sallyport","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoint, strings.NewReader(question))
	if err != nil {
		return ""
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("MCP-Protocol-Version", "2026-07-28")
	req.Header.Set("Mcp-Method", "server/discover")
	resp, _, err := s.do(ctx, req) //nolint:bodyclose // do read and closed it
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		return ""
	}
	return strings.Join(resp.Header.Values("WWW-Authenticate"), ", ")
}

// resourceMetadata fetches what the resource says of itself: at the address of its challenge, else at the well-known ones. nil: it says nothing.
func (s *session) resourceMetadata(ctx context.Context, named string) (*resourceMetadata, error) {
	const wellKnown = "/.well-known/oauth-protected-resource"
	path := strings.TrimSuffix(strings.TrimPrefix(s.endpoint, s.origin), "/")
	places := []string{named}
	if named == "" {
		if places = []string{s.origin + wellKnown + path}; path != "" {
			places = append(places, s.origin+wellKnown)
		}
	}
	for _, at := range places {
		var m resourceMetadata
		missing, err := s.get(ctx, "protected-resource metadata", at, &m)
		if err != nil {
			return nil, err
		}
		if missing {
			continue
		}
		if !covers(m.Resource, s.endpoint, s.origin) {
			return nil, failf(wire.FailResource, errs.Unreachable, "the metadata is of the resource %s, not of %s (RFC 9728, section 3.3)", quoted(m.Resource), quoted(s.endpoint))
		}
		return &m, nil
	}
	if named != "" {
		return nil, failf(wire.FailDiscovery, errs.Unreachable, "there is no protected-resource metadata at %s, which the server named", quoted(named))
	}
	return nil, nil
}

// covers reports whether a resource identifier is the endpoint's own, or that of what it is a part of at the same origin: many servers describe the
// whole origin. It never is another origin, nor another path.
func covers(resource, endpoint, origin string) bool {
	if resource == endpoint || strings.TrimSuffix(resource, "/") == strings.TrimSuffix(endpoint, "/") {
		return true
	}
	if resource != origin && !strings.HasPrefix(resource, origin+"/") || strings.ContainsAny(resource, "?#") {
		return false
	}
	return strings.HasPrefix(endpoint, strings.TrimSuffix(resource, "/")+"/")
}

// serverMetadata fetches the metadata of an issuer, in the order of the specification: RFC 8414, then OpenID discovery.
func (s *session) serverMetadata(ctx context.Context, issuer string) (serverMetadata, error) {
	u, err := s.address("issuer", issuer)
	if err != nil {
		return serverMetadata{}, err
	}
	if u.RawQuery != "" {
		return serverMetadata{}, failf(wire.FailDiscovery, errs.Unreachable, "the issuer %s has a query", quoted(issuer))
	}
	for _, at := range metadataPlaces(u) {
		var m serverMetadata
		missing, err := s.get(ctx, "authorization-server metadata", at, &m)
		if err != nil {
			return serverMetadata{}, err
		}
		if missing {
			continue
		}
		if m.Issuer != issuer {
			return serverMetadata{}, failf(wire.FailIssuer, errs.Unreachable, "the metadata is of the issuer %s, not of %s (RFC 8414, section 3.3)", quoted(m.Issuer), quoted(issuer))
		}
		return m, s.check(&m)
	}
	return serverMetadata{}, failf(wire.FailDiscovery, errs.Unreachable, "there is no authorization-server metadata of %s", quoted(issuer))
}

func metadataPlaces(issuer *url.URL) []string {
	base := issuer.Scheme + "://" + issuer.Host
	path := strings.TrimSuffix(issuer.EscapedPath(), "/")
	places := []string{base + "/.well-known/oauth-authorization-server" + path, base + "/.well-known/openid-configuration" + path}
	if path != "" {
		places = append(places, base+path+"/.well-known/openid-configuration")
	}
	return places
}

// check refuses endpoints that are no addresses. The authorization endpoint is opened by a person's browser: https, or what the connection may do.
func (s *session) check(m *serverMetadata) error {
	if m.Token == "" {
		return failf(wire.FailDiscovery, errs.Unreachable, "the authorization server %s names no token endpoint", quoted(m.Issuer))
	}
	for what, at := range map[string]string{
		"authorization endpoint": m.Authorization, "token endpoint": m.Token, "registration endpoint": m.Registration, "revocation endpoint": m.Revocation,
		"userinfo endpoint": m.UserInfo,
	} {
		if at == "" {
			continue
		}
		if _, err := s.address(what, at); err != nil {
			return err
		}
	}
	return nil
}

// forCode refuses a server with which a person cannot sign in safely.
func (m *serverMetadata) forCode() error {
	switch {
	case m.Authorization == "":
		return failf(wire.FailDiscovery, errs.Unreachable, "the authorization server %s names no authorization endpoint", quoted(m.Issuer))
	case !slices.Contains(m.Challenges, "S256"):
		return failf(wire.FailPKCE, errs.Unreachable, "the authorization server %s does not say that it supports PKCE with S256, without which nobody signs in", quoted(m.Issuer))
	case len(m.Responses) > 0 && !slices.Contains(m.Responses, "code"):
		return failf(wire.FailDiscovery, errs.Unreachable, "the authorization server %s does not answer with codes", quoted(m.Issuer))
	}
	return nil
}

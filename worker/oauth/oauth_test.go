package oauth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/errs"
	"sallyport.dev/intent"
	wire "sallyport.dev/intent/oauth"
	"sallyport.dev/test/fixture/mcpserver"
	fixture "sallyport.dev/test/fixture/oauth"
	"sallyport.dev/worker/netguard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is an MCP server that wants tokens of an authorization server, and a client.
type world struct {
	t        *testing.T
	as       *fixture.Server
	resource *fixture.Resource
	mcp      *mcpserver.Server
	client   *Client
	in       *intent.Intent
}

func newWorld(t *testing.T, opts fixture.Options, change ...func(*fixture.Resource)) *world {
	t.Helper()
	w := &world{t: t, as: fixture.Start(t, opts)}
	w.resource = &fixture.Resource{Server: w.as, URL: func() string { return w.mcp.URL() }}
	for _, c := range change {
		c(w.resource)
	}
	w.mcp = mcpserver.Start(t, mcpserver.Options{Auth: mcpserver.Auth{Kind: mcpserver.Checked, Check: w.resource.Check}, Elsewhere: w.resource.Elsewhere})
	w.client = New(&netguard.Guard{})
	w.in = &intent.Intent{
		Org: "default", Connection: "tracker", Origin: strings.TrimSuffix(w.mcp.URL(), "/mcp"), Path: "/mcp?v=1", Allow: []string{"127.0.0.0/8"}, PlainHTTP: true,
		AuthType: intent.AuthOAuth, Subject: "shared",
	}
	return w
}

const redirect = "http://127.0.0.1:7999/callback"

var stateText = strings.Repeat("s", 43)

func (w *world) authorize(set wire.Settings, held *Held) (*Begun, error) {
	return w.client.Authorize(w.t.Context(), w.in, &wire.Authorize{Settings: set, RedirectURI: redirect, State: stateText}, held)
}

// visit is the person: it opens the address and returns what the browser is sent to.
func (w *world) visit(address string) url.Values {
	w.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, address, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	resp.Body.Close()
	back, err := url.Parse(resp.Header.Get("Location"))
	if err != nil || resp.StatusCode != http.StatusFound {
		w.t.Fatalf("the sign-in page answered %d; refused: %q", resp.StatusCode, w.as.Refusals())
	}
	return back.Query()
}

func answerOf(q url.Values, set wire.Settings) *wire.Exchange {
	return &wire.Exchange{Settings: set, Returned: q.Get("state"), Code: q.Get("code"), Issuer: q.Get("iss")}
}

func heldOf(b *Begun) *Held {
	if b.Client == nil {
		return nil
	}
	return &Held{Secret: *b.Client, Issuer: b.State.Issuer, ClientID: b.State.ClientID}
}

// signIn is a whole sign-in.
func (w *world) signIn(set wire.Settings, held *Held) (*Granted, *Held, error) {
	w.t.Helper()
	b, err := w.authorize(set, held)
	if err != nil {
		return nil, nil, err
	}
	if b.Client != nil {
		held = heldOf(b)
	}
	g, err := w.client.Exchange(w.t.Context(), w.in, answerOf(w.visit(b.Address), set), &b.State, held)
	return g, held, err
}

// accepted asks the MCP server whether it takes a token.
func (w *world) accepted(token string) bool {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.mcp.URL(), strings.NewReader("{}"))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Close = true
	resp, err := w.mcp.Client().Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden
}

// Every way to a client, and every place of metadata, ends with a token that the resource takes, and with nothing that the server had to refuse.
func TestSignIn(t *testing.T) {
	pre := fixture.Client{ID: "pre", Redirects: []string{"http://127.0.0.1/callback"}}
	secret := fixture.Client{ID: "conf", Secret: "s3cr:et %&", Redirects: []string{redirect}}
	post := fixture.Client{ID: "post", Secret: "s3cret-of-post", Auth: wire.AuthPost, Redirects: []string{redirect}}
	const document = "https://control.example.org/oauth/client.json"
	docs := func(address string) ([]byte, error) {
		return []byte(`{"client_id":"` + address + `","client_name":"Sallyport","redirect_uris":["http://127.0.0.1/callback"],"token_endpoint_auth_method":"none"}`), nil
	}
	for name, c := range map[string]struct {
		opts   fixture.Options
		change func(*fixture.Resource)
		set    func(*world) wire.Settings
		held   *wire.ClientSecret
		how    string
		who    string
	}{
		"dynamic registration":        {how: wire.Dynamic},
		"an issuer with a path":       {opts: fixture.Options{Path: "/tenant/one"}, how: wire.Dynamic},
		"OpenID discovery":            {opts: fixture.Options{OpenID: true, Scopes: []string{"openid", "issues"}}, set: func(*world) wire.Settings { return wire.Settings{Scopes: []string{"openid", "issues"}} }, how: wire.Dynamic, who: "alice"},
		"OpenID discovery and a path": {opts: fixture.Options{OpenID: true, Path: "/t"}, how: wire.Dynamic},
		"metadata at the root":        {change: func(r *fixture.Resource) { r.Root, r.NoHeader = true, true }, how: wire.Dynamic},
		"no challenge":                {change: func(r *fixture.Resource) { r.NoHeader = true }, how: wire.Dynamic},
		"pre-registered":              {opts: fixture.Options{Clients: []fixture.Client{pre}, NoDynamic: true}, set: func(w *world) wire.Settings { return wire.Settings{ClientID: "pre", Issuer: w.as.Issuer()} }, how: wire.PreRegistered},
		"with a secret":               {opts: fixture.Options{Clients: []fixture.Client{secret}}, set: func(w *world) wire.Settings { return wire.Settings{ClientID: "conf", Issuer: w.as.Issuer()} }, held: &wire.ClientSecret{V: 1, Secret: secret.Secret}, how: wire.PreRegistered},
		"with a secret in the form": {opts: fixture.Options{Clients: []fixture.Client{post}}, set: func(w *world) wire.Settings {
			return wire.Settings{ClientID: "post", Issuer: w.as.Issuer(), ClientAuth: wire.AuthPost}
		}, held: &wire.ClientSecret{V: 1, Secret: post.Secret}, how: wire.PreRegistered},
		"a metadata document":          {opts: fixture.Options{Documents: docs}, set: func(*world) wire.Settings { return wire.Settings{ClientID: document} }, how: wire.MetadataDocument},
		"a document that is not taken": {set: func(*world) wire.Settings { return wire.Settings{ClientID: document} }, how: wire.Dynamic},
		"forced to dynamic":            {opts: fixture.Options{Documents: docs}, set: func(*world) wire.Settings { return wire.Settings{ClientID: document, Registration: wire.Dynamic} }, how: wire.Dynamic},
		"no expiry, no refresh token":  {opts: fixture.Options{NoExpiry: true, NoRefresh: true}, how: wire.Dynamic},
	} {
		t.Run(name, func(t *testing.T) {
			change := func(*fixture.Resource) {}
			if c.change != nil {
				change = c.change
			}
			w := newWorld(t, c.opts, change)
			set := wire.Settings{}
			if c.set != nil {
				set = c.set(w)
			}
			var held *Held
			if c.held != nil {
				held = &Held{Secret: *c.held, Issuer: set.Issuer, ClientID: set.ClientID}
			}
			b, err := w.authorize(set, held)
			if err != nil {
				t.Fatal(err)
			}
			if b.How != c.how || (b.Client != nil) != (c.how == wire.Dynamic) {
				t.Errorf("registered as %s", b.How)
			}
			if b.Client != nil {
				held = heldOf(b)
			}
			g, err := w.client.Exchange(t.Context(), w.in, answerOf(w.visit(b.Address), set), &b.State, held)
			if err != nil {
				t.Fatalf("%v; refused: %q", err, w.as.Refusals())
			}
			if !w.accepted(g.Grant.Access) || g.Account != c.who || g.Issuer != w.as.Issuer() {
				t.Errorf("%s at %s; refused: %q", g.Account, g.Issuer, w.as.Refusals())
			}
			if c.opts.NoRefresh {
				if _, err := w.client.Refresh(t.Context(), w.in, g, held); FailureOf(err) != wire.FailGrant || !g.Expires.IsZero() {
					t.Errorf("without a refresh token: %v", err)
				}
				return
			}
			next, err := w.client.Refresh(t.Context(), w.in, g, held)
			if err != nil || next.Grant.Access == g.Grant.Access || next.Grant.Refresh == g.Grant.Refresh || !w.accepted(next.Grant.Access) {
				t.Fatalf("refresh: %v; refused: %q", err, w.as.Refusals())
			}
			if err := w.client.Revoke(t.Context(), w.in, next, held); err != nil || w.accepted(next.Grant.Access) {
				t.Errorf("revoke: %v", err)
			}
			// A registration that stands is used again, at whichever port the next sign-in listens.
			if again, err := w.client.Authorize(t.Context(), w.in, &wire.Authorize{Settings: set, RedirectURI: strings.Replace(redirect, "7999", "7998", 1), State: stateText}, held); err != nil || again.Client != nil {
				t.Errorf("a second sign-in: %v, registered anew: %v", err, again)
			}
			if r := w.as.Refusals(); len(r) != 0 {
				t.Errorf("the server refused: %q", r)
			}
		})
	}
}

// What a server, or somebody between, does wrong stops the sign-in with a word, and with both values where two differ.
func TestRefuses(t *testing.T) {
	openid := wire.Settings{Scopes: []string{"openid"}}
	for name, c := range map[string]struct {
		opts   fixture.Options
		change func(*fixture.Resource)
		set    wire.Settings
		want   wire.Failure
		says   []string
	}{
		"no S256":            {opts: fixture.Options{Metadata: func(m map[string]any) { m["code_challenge_methods_supported"] = []string{"plain"} }}, want: wire.FailPKCE},
		"nothing about PKCE": {opts: fixture.Options{Metadata: func(m map[string]any) { delete(m, "code_challenge_methods_supported") }}, want: wire.FailPKCE},
		"another issuer":     {opts: fixture.Options{Metadata: func(m map[string]any) { m["issuer"] = "https://evil.example.org" }}, want: wire.FailIssuer, says: []string{"https://evil.example.org", "http://127.0.0.1"}},
		"another resource": {change: func(r *fixture.Resource) {
			r.Metadata = func(m map[string]any) { m["resource"] = "https://other.example.org/mcp" }
		}, want: wire.FailResource, says: []string{"https://other.example.org/mcp", "/mcp"}},
		"another path": {change: func(r *fixture.Resource) {
			r.Metadata = func(m map[string]any) { m["resource"] = m["resource"].(string) + "/other" }
		}, want: wire.FailResource},
		"no server": {change: func(r *fixture.Resource) {
			r.Metadata = func(m map[string]any) { m["authorization_servers"] = []string{} }
		}, want: wire.FailDiscovery},
		"a private server": {change: func(r *fixture.Resource) {
			r.Metadata = func(m map[string]any) { m["authorization_servers"] = []string{"http://10.1.2.3"} }
		}, want: wire.FailAddress},
		"a metadata address": {change: func(r *fixture.Resource) {
			r.Metadata = func(m map[string]any) { m["authorization_servers"] = []string{"http://169.254.169.254"} }
		}, want: wire.FailAddress},
		"not the pinned issuer": {set: wire.Settings{Issuer: "https://as.example.org"}, want: wire.FailIssuer, says: []string{"https://as.example.org", "http://127.0.0.1"}},
		"no registration":       {opts: fixture.Options{NoDynamic: true}, want: wire.FailRegistration, says: []string{redirect}},
		"forced to a document":  {set: wire.Settings{Registration: wire.MetadataDocument, ClientID: "https://x.example.org/c.json"}, want: wire.FailRegistration},
		"forced, no client":     {set: wire.Settings{Registration: wire.PreRegistered}, want: wire.FailRegistration},
		"no iss":                {opts: fixture.Options{Redirect: func(q url.Values) { q.Del("iss") }}, want: wire.FailIssuer},
		"another iss":           {opts: fixture.Options{Redirect: func(q url.Values) { q.Set("iss", "https://evil.example.org") }}, want: wire.FailIssuer, says: []string{"https://evil.example.org", "http://127.0.0.1"}},
		"another state":         {opts: fixture.Options{Redirect: func(q url.Values) { q.Set("state", strings.Repeat("x", 43)) }}, want: wire.FailState},
		"no code":               {opts: fixture.Options{Redirect: func(q url.Values) { q.Del("code") }}, want: wire.FailState},
		"another code":          {opts: fixture.Options{Redirect: func(q url.Values) { q.Set("code", "stolen") }}, want: wire.FailGrant},
		"a missing scope":       {opts: fixture.Options{Withhold: []string{"issues:write"}}, set: wire.Settings{Scopes: []string{"issues:read", "issues:write"}}, want: wire.FailScope, says: []string{"issues:write"}},
		"no bearer token":       {opts: fixture.Options{Answer: func(m map[string]any) { m["token_type"] = "mac" }}, want: wire.FailToken},
		"a token with a space":  {opts: fixture.Options{Answer: func(m map[string]any) { m["access_token"] = "a b" }}, want: wire.FailToken},
		"another's id token":    {opts: fixture.Options{OpenID: true, Answer: func(m map[string]any) { m["id_token"] = "e30.eyJpc3MiOiJodHRwczovL2V2aWwiLCJzdWIiOiJib2IifQ.c2ln" }}, set: openid, want: wire.FailAccount},
		"userinfo without sub":  {opts: fixture.Options{OpenID: true, Answer: func(m map[string]any) { delete(m, "id_token") }, Metadata: func(m map[string]any) { m["userinfo_endpoint"] = m["issuer"].(string) + "/jwks" }}, set: openid, want: wire.FailAccount},
		"not https":             {opts: fixture.Options{Metadata: func(m map[string]any) { m["token_endpoint"] = "ftp://127.0.0.1/token" }}, want: wire.FailDiscovery},
	} {
		t.Run(name, func(t *testing.T) {
			change := func(*fixture.Resource) {}
			if c.change != nil {
				change = c.change
			}
			w := newWorld(t, c.opts, change)
			_, _, err := w.signIn(c.set, nil)
			if FailureOf(err) != c.want || err == nil {
				t.Fatalf("%v; refused: %q", err, w.as.Refusals())
			}
			for _, s := range c.says {
				if !strings.Contains(errs.Message(err), s) {
					t.Errorf("%q does not name %s", errs.Message(err), s)
				}
			}
			if n := w.as.Live(); n > 0 && c.want != wire.FailToken {
				t.Errorf("%d tokens that nobody wants are alive", n)
			}
		})
	}
}

// Wrong accounts are refused, and what they were given is ended at the server.
func TestAccount(t *testing.T) {
	w := newWorld(t, fixture.Options{OpenID: true})
	set := wire.Settings{Scopes: []string{"openid"}}
	w.in.Account = "alice"
	if g, _, err := w.signIn(set, nil); err != nil || g.Name != "alice@example.org" {
		t.Fatalf("%v %v", g, err)
	}
	w.as.SignInAs("mallory")
	if _, _, err := w.signIn(set, nil); FailureOf(err) != wire.FailAccount || !strings.Contains(errs.Message(err), "mallory") || !strings.Contains(errs.Message(err), "alice") {
		t.Errorf("another account: %v", err)
	}
	if n := w.as.Live(); n != 1 {
		t.Errorf("%d tokens are alive, not alice's alone", n)
	}
}

// A redirect at any fetch is not followed, wherever it leads; nor is an error's body repeated.
func TestRedirects(t *testing.T) {
	for _, step := range []fixture.Step{fixture.ResourceMetadata, fixture.ServerMetadata, fixture.Registering, fixture.Token, fixture.Refreshing, fixture.UserInfo} {
		for _, to := range []string{"http://169.254.169.254/latest/meta-data", "http://127.0.0.1:1/x", "https://evil.example.org/"} {
			w := newWorld(t, fixture.Options{OpenID: true, Answer: func(m map[string]any) { delete(m, "id_token") }})
			w.as.Fail(step, fixture.Fault{Status: 302, Location: to, Body: `{"error":"canary-in-a-body"}`})
			set := wire.Settings{Scopes: []string{"openid"}}
			g, held, err := w.signIn(set, nil)
			if step == fixture.Refreshing && err == nil {
				_, err = w.client.Refresh(t.Context(), w.in, g, held)
			}
			if err == nil || w.as.Count(step) != 1 || strings.Contains(err.Error(), "canary") {
				t.Errorf("%s to %s: %v after %d", step, to, err, w.as.Count(step))
			}
		}
	}
}

func TestFaults(t *testing.T) {
	for _, step := range []fixture.Step{fixture.ResourceMetadata, fixture.ServerMetadata, fixture.Registering, fixture.Token} {
		for name, f := range map[string]fixture.Fault{
			"dropped": {Drop: true}, "500": {Status: 500, Body: "canary"}, "no JSON": {Status: 200, Body: "<p>canary"}, "twice": {Status: 200, Body: `{"issuer":"canary","issuer":"canary"}`},
			"huge": {Status: 200, Body: `{"canary":"` + strings.Repeat("x", maxBody) + `"}`},
		} {
			w := newWorld(t, fixture.Options{})
			w.as.Fail(step, f)
			_, _, err := w.signIn(wire.Settings{}, nil)
			if err == nil || strings.Contains(err.Error(), "canary") {
				t.Errorf("%s %s: %v", step, name, err)
			}
			if w.as.Count(step) != 1 {
				t.Errorf("%s %s: asked %d times", step, name, w.as.Count(step))
			}
		}
	}
}

// A client of its own: a secret, or a key that signs.
func TestClientCredentials(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	grants := []string{wire.ClientCredentials}
	w := newWorld(t, fixture.Options{Life: 2 * time.Second, Clients: []fixture.Client{{ID: "bot", Secret: "s3cret-of-bot", Grants: grants}, {ID: "key", PublicKey: &key.PublicKey, Grants: grants}}})
	for id, secret := range map[string]wire.ClientSecret{"bot": {V: 1, Secret: "s3cret-of-bot"}, "key": {V: 1, PrivateKey: text, KeyID: "k1"}} {
		ask := &wire.Exchange{Settings: wire.Settings{Grant: wire.ClientCredentials, ClientID: id, Issuer: w.as.Issuer(), Scopes: []string{"issues"}}}
		held := &Held{Secret: secret, Issuer: w.as.Issuer(), ClientID: id}
		g, made, err := w.client.ClientCredentials(t.Context(), w.in, ask, held)
		if err != nil || made != nil || g.Account != id || !w.accepted(g.Grant.Access) || !slices.Equal(g.Grant.Scopes, []string{"issues"}) {
			t.Fatalf("%s: %v %v; refused: %q", id, g, err, w.as.Refusals())
		}
		next, err := w.client.Refresh(t.Context(), w.in, g, held)
		if err != nil || next.Grant.Access == g.Grant.Access || !w.accepted(next.Grant.Access) {
			t.Errorf("%s renewed: %v; refused: %q", id, err, w.as.Refusals())
		}
		other := &Held{Secret: secret, Issuer: "https://evil.example.org", ClientID: id}
		if _, err := w.client.Refresh(t.Context(), w.in, g, other); FailureOf(err) != wire.FailIssuer {
			t.Errorf("%s with a secret of another issuer: %v", id, err)
		}
		if _, err := w.client.Refresh(t.Context(), w.in, g, nil); FailureOf(err) != wire.FailRegistration {
			t.Errorf("%s without its secret: %v", id, err)
		}
	}
}

// The fixture itself: a refresh token that was used before ends everything of its sign-in.
func TestReuse(t *testing.T) {
	w := newWorld(t, fixture.Options{})
	g, held, err := w.signIn(wire.Settings{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	next, err := w.client.Refresh(t.Context(), w.in, g, held)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.Refresh(t.Context(), w.in, g, held); FailureOf(err) != wire.FailGrant {
		t.Errorf("a used refresh token: %v", err)
	}
	if w.accepted(next.Grant.Access) {
		t.Error("the sign-in lives on after its refresh token was used twice")
	}
}

func TestCovers(t *testing.T) {
	const origin, endpoint = "https://a.example.org", "https://a.example.org/v1/mcp"
	for resource, want := range map[string]bool{
		endpoint: true, endpoint + "/": true, origin: true, origin + "/": true, origin + "/v1": true, origin + "/v1/": true,
		origin + "/v": false, origin + "/v1/mcp/x": false, origin + "/v2": false, "https://a.example.org.evil.org": false, "https://b.example.org": false,
		"http://a.example.org/v1/mcp": false, origin + "/v1?x": false, "": false,
	} {
		if got := covers(resource, endpoint, origin); got != want {
			t.Errorf("%s: %v", resource, got)
		}
	}
}

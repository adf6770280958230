package config

import (
	"fmt"
	"strings"

	"sallyport.dev/control"
	"sallyport.dev/intent/oauth"
)

// oauth resolves what is fixed of a sign-in.
func (r *resolver) oauth(p string, a Auth, out *control.Auth) {
	if a.OAuth == nil {
		return
	}
	p += ".oauth"
	if out.Type != "oauth" {
		r.problem(p, "stands with type oauth, and only there")
		return
	}
	o := a.OAuth
	s := &oauth.Settings{Issuer: o.Issuer, ClientID: o.ClientID, Scopes: o.Scopes, Resource: o.Resource}
	s.Registration = r.oneOf(p+".registration", o.Registration, "", oauth.PreRegistered, oauth.MetadataDocument, oauth.Dynamic)
	s.ClientAuth = r.oneOf(p+".client_auth", o.ClientAuth, "", oauth.AuthNone, oauth.AuthBasic, oauth.AuthPost, oauth.AuthSigned)
	s.Grant = r.oneOf(p+".grant", o.Grant, "", oauth.AuthorizationCode, oauth.ClientCredentials)
	for i, scope := range o.Scopes {
		if !oauth.ValidScope(scope) {
			r.problem(fmt.Sprintf("%s.scopes[%d]", p, i), "is not a scope")
		}
	}
	for name, text := range map[string]string{"issuer": o.Issuer, "resource": o.Resource} {
		if text != "" && !strings.HasPrefix(text, "https://") && !strings.HasPrefix(text, "http://") {
			r.problem(p+"."+name, "must be a whole address, such as https://login.example.org")
		}
	}
	document := strings.HasPrefix(o.ClientID, "https://")
	switch {
	case s.Registration == oauth.MetadataDocument && !document:
		r.problem(p+".client_id", "must be the https address of the client's metadata document")
	case s.Registration == oauth.PreRegistered && (o.ClientID == "" || document):
		r.problem(p+".client_id", "must be the id that the authorization server gave")
	case o.ClientID != "" && !document && o.Issuer == "":
		r.problem(p+".issuer", "must say which authorization server knows this client_id: its secret goes nowhere else")
	case s.Grant == oauth.ClientCredentials && a.Per == "person":
		r.problem(p+".grant", "client_credentials signs in no person: leave per: person out")
	}
	out.OAuth = s
}

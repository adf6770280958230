// Package oauth signs in for a connection: it finds the authorization server (RFC 9728, RFC 8414, OpenID discovery), comes to a client id, builds the
// authorization request (OAuth 2.1 with PKCE S256, RFC 8707 resource indicators), and turns codes, refresh tokens and client credentials into sealed
// credentials. Tokens live here and nowhere else in clear.
//
// Strict where the specification is: the resource and the issuer must be those that were asked for, both values are named where they differ, no
// redirect is followed, bodies are bounded, what an error body says is never repeated. Every request goes through the connection's own address guard.
// The endpoints of a sign-in are pinned: the code goes to the token endpoint that was found when it began, and a refresh token to the one that its
// credential is bound to.
package oauth

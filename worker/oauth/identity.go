package oauth

import (
	"context"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"sallyport.dev/errs"
	wire "sallyport.dev/intent/oauth"
)

// idClaims are the claims of an id token that are looked at.
type idClaims struct {
	Issuer   string `json:"iss"`
	Subject  string `json:"sub"`
	Audience any    `json:"aud"`
	Expires  int64  `json:"exp"`
	Nonce    string `json:"nonce"`
	Email    string `json:"email"`
	Username string `json:"preferred_username"`
	Name     string `json:"name"`
}

// claimsOf reads an id token. It came from the token endpoint over a checked TLS connection, which stands for its signature (OpenID Connect Core,
// section 3.1.3.7, point 6).
func claimsOf(token string) (idClaims, error) {
	var c idClaims
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, errs.New(errs.Invalid, "no token")
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	return c, err
}

func (c *idClaims) isFor(client string) bool {
	switch a := c.Audience.(type) {
	case string:
		return a == client
	case []any:
		return slices.Contains(a, any(client))
	}
	return false
}

// identify finds out who signed in: by the id token, or by asking the userinfo endpoint. A server that has neither leaves the account unknown.
func (s *session) identify(ctx context.Context, a *answer, st *State, g *Granted) error {
	var c idClaims
	switch {
	case a.ID != "":
		var err error
		if c, err = claimsOf(a.ID); err != nil || c.Issuer != st.Issuer || !c.isFor(st.ClientID) || c.Expires <= s.now().Unix() || c.Nonce != st.Nonce {
			return failf(wire.FailAccount, errs.Unreachable, "the id token of %s is not one for this sign-in", quoted(st.Issuer))
		}
	case st.UserInfo != "" && slices.Contains(g.Grant.Scopes, "openid"):
		u, err := s.address("userinfo endpoint", st.UserInfo)
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
		if err != nil {
			return failf(wire.FailAccount, errs.Unreachable, "the userinfo endpoint is not an address")
		}
		req.Header.Set("Authorization", "Bearer "+a.Access)
		resp, body, err := s.do(ctx, req) //nolint:bodyclose // do read and closed it
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK || json.Unmarshal(body, &c) != nil {
			return failf(wire.FailAccount, errs.Unreachable, "%s does not say who signed in (HTTP %d)", quoted(st.Issuer), resp.StatusCode)
		}
	default:
		return nil
	}
	if c.Subject == "" || len(c.Subject) > 255 || !visible(c.Subject) {
		return failf(wire.FailAccount, errs.Unreachable, "%s does not say who signed in", quoted(st.Issuer))
	}
	g.Account = c.Subject
	for _, n := range []string{c.Email, c.Username, c.Name, c.Subject} {
		if n != "" && len(n) <= 255 && visible(n) {
			g.Name = n
			break
		}
	}
	return nil
}

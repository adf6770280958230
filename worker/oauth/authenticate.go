package oauth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"sallyport.dev/errs"
	wire "sallyport.dev/intent/oauth"
)

// authenticate adds what the client authenticates with.
func (s *session) authenticate(at endpoint, held *Held, form url.Values) (http.Header, error) {
	var secret wire.ClientSecret
	if held != nil && held.ClientID == at.id {
		if held.Issuer != at.issuer {
			return nil, failf(wire.FailIssuer, errs.NotAllowed, "the client's secret is for the issuer %s, not for %s", quoted(held.Issuer), quoted(at.issuer))
		}
		secret = held.Secret
	}
	missing := failf(wire.FailRegistration, errs.NotConnected, "the client's secret is not stored: sallyport credentials set NAME --client")
	header := http.Header{}
	switch at.auth {
	case wire.AuthNone:
		form.Set("client_id", at.id)
	case wire.AuthBasic:
		if secret.Secret == "" {
			return nil, missing
		}
		// RFC 6749, section 2.3.1: both are form-encoded first.
		header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(url.QueryEscape(at.id)+":"+url.QueryEscape(secret.Secret))))
	case wire.AuthPost:
		if secret.Secret == "" {
			return nil, missing
		}
		form.Set("client_id", at.id)
		form.Set("client_secret", secret.Secret)
	case wire.AuthSigned:
		if secret.PrivateKey == "" {
			return nil, missing
		}
		assertion, err := assert(at, &secret, s.now())
		if err != nil {
			return nil, err
		}
		form.Set("client_id", at.id)
		form.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		form.Set("client_assertion", assertion)
	default:
		return nil, failf(wire.FailRequest, errs.Invalid, "a client authenticates with none, client_secret_basic, client_secret_post or private_key_jwt")
	}
	return header, nil
}

// assert is a client assertion (RFC 7523, section 2.2). Its audience is the issuer, so that no other server can use it (RFC 7523bis).
func assert(at endpoint, secret *wire.ClientSecret, now time.Time) (string, error) {
	bad := failf(wire.FailRegistration, errs.Invalid, "the client's private key is no PKCS #8 key in PEM of type ECDSA P-256, Ed25519 or RSA with 2048 bits or more")
	block, rest := pem.Decode([]byte(secret.PrivateKey))
	if block == nil || block.Type != "PRIVATE KEY" || strings.TrimSpace(string(rest)) != "" {
		return "", bad
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return "", bad
	}
	head := struct {
		Alg string `json:"alg"`
		Typ string `json:"typ"`
		Kid string `json:"kid,omitzero"`
	}{Typ: "JWT", Kid: secret.KeyID}
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		if k.Curve.Params().BitSize != 256 {
			return "", bad
		}
		head.Alg = "ES256"
	case ed25519.PrivateKey:
		head.Alg = "EdDSA"
	case *rsa.PrivateKey:
		if k.N.BitLen() < 2048 {
			return "", bad
		}
		head.Alg = "RS256"
	default:
		return "", bad
	}
	h, err1 := json.Marshal(head)
	b, err2 := json.Marshal(struct {
		Iss string `json:"iss"`
		Sub string `json:"sub"`
		Aud string `json:"aud"`
		Jti string `json:"jti"`
		Iat int64  `json:"iat"`
		Exp int64  `json:"exp"`
	}{at.id, at.id, at.issuer, rand.Text(), now.Unix(), now.Add(time.Minute).Unix()})
	if err1 != nil || err2 != nil {
		return "", failf(wire.FailRequest, errs.Internal, "the client's assertion cannot be written")
	}
	signed := base64.RawURLEncoding.EncodeToString(h) + "." + base64.RawURLEncoding.EncodeToString(b)
	var sig []byte
	sum := sha256.Sum256([]byte(signed))
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		r, sv, err := ecdsa.Sign(rand.Reader, k, sum[:])
		if err != nil {
			return "", bad
		}
		sig = make([]byte, 64) // RFC 7518, section 3.4
		r.FillBytes(sig[:32])
		sv.FillBytes(sig[32:])
	case ed25519.PrivateKey:
		sig = ed25519.Sign(k, []byte(signed))
	case *rsa.PrivateKey:
		if sig, err = rsa.SignPKCS1v15(rand.Reader, k, crypto.SHA256, sum[:]); err != nil {
			return "", bad
		}
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(sig), nil
}

package person

import (
	"crypto/rand"
	"encoding/base64"
	"strings"

	"sallyport.dev/control"
)

// prefixes are words that a secret scanner can find.
var prefixes = map[Kind]string{Link: "spl1.", Session: "sps1.", Token: "spt1."}

const secretBytes = 32

// NewSecret makes the secret of a pass. Its digest is what is stored.
func NewSecret(k Kind) string {
	b := make([]byte, secretBytes)
	rand.Read(b) //nolint:errcheck // it never fails: the runtime ends the program instead
	return prefixes[k] + base64.RawURLEncoding.EncodeToString(b)
}

// Digest is what a secret is stored and looked up by. What has not the form of this kind of secret has none.
func Digest(k Kind, secret string) (control.Digest, bool) {
	rest, ok := strings.CutPrefix(secret, prefixes[k])
	if !ok || len(rest) != base64.RawURLEncoding.EncodedLen(secretBytes) {
		return control.Digest{}, false
	}
	return control.SumParts("pass v1", []byte(secret)), true
}

// DigestOf is the digest of a session's or a token's secret: what comes with requests.
func DigestOf(secret string) (control.Digest, bool) {
	for _, k := range []Kind{Session, Token} {
		if d, ok := Digest(k, secret); ok {
			return d, true
		}
	}
	return control.Digest{}, false
}

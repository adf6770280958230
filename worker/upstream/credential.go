package upstream

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"

	"golang.org/x/net/http/httpguts"
	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// Credential is what authenticates a request: nothing, one header, or a signing key. It writes itself into a request and shows itself nowhere
// else: every way of printing it says "credential".
type Credential struct{ c *credential }

type credential struct {
	header string // "" for a signing key
	value  string
	key    []byte
}

// None is a connection without authentication.
func None() Credential { return Credential{} }

// Bearer is an access token (RFC 6750). Errors: [errs.Invalid], which never quotes it.
func Bearer(token string) (Credential, error) {
	if token == "" || strings.ContainsAny(token, " \t") {
		return Credential{}, errs.New(errs.Invalid, "a bearer token is not empty and has no space")
	}
	return Header("Authorization", "Bearer "+token)
}

// Header is a value for one header. Headers that this package writes itself are refused. Errors: [errs.Invalid], which never quotes the value.
func Header(name, value string) (Credential, error) {
	if !httpguts.ValidHeaderFieldName(name) || reservedHeader(name) {
		return Credential{}, errs.New(errs.Invalid, "this header cannot carry a credential")
	}
	if value == "" || !plainValue(value) {
		return Credential{}, errs.New(errs.Invalid, "a credential is printable ASCII without spaces around it")
	}
	return Credential{&credential{header: name, value: value}}, nil
}

// SigningKey signs callbacks as Standard Webhooks do: whsec_ and the key in base64, or the key's bytes. Errors: [errs.Invalid].
func SigningKey(secret string) (Credential, error) {
	key := []byte(secret)
	if enc, ok := strings.CutPrefix(secret, "whsec_"); ok {
		var err error
		if key, err = base64.StdEncoding.DecodeString(enc); err != nil {
			return Credential{}, errs.New(errs.Invalid, "a signing key that begins with whsec_ goes on in base64")
		}
	}
	if len(key) < 24 || len(key) > 64 {
		return Credential{}, errs.New(errs.Invalid, "a signing key has 24 to 64 bytes")
	}
	return Credential{&credential{key: key}}, nil
}

// reservedHeader reports whether the head of a request has this name already, or HTTP itself uses it.
func reservedHeader(name string) bool {
	name = strings.ToLower(name)
	if strings.HasPrefix(name, "mcp-") || strings.HasPrefix(name, "webhook-") {
		return true
	}
	switch name {
	case "host", "user-agent", "accept", "accept-encoding", "content-type", "content-length", "content-encoding", "transfer-encoding", "te",
		"trailer", "connection", "keep-alive", "proxy-connection", "upgrade", "expect", "cookie", "idempotency-key", "x-idempotency-key", "traceparent":
		return true
	}
	return false
}

// plainValue reports whether s may stand in a header as it is: visible ASCII with spaces or tabs inside only (RFC 9110, section 5.5).
func plainValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < ' ' || c > '~') && c != '\t' {
			return false
		}
	}
	return s == strings.Trim(s, " \t")
}

// write adds the header to a request's head.
func (c Credential) write(head []byte) []byte {
	if c.c == nil || c.c.header == "" {
		return head
	}
	return appendHeader(head, c.c.header, c.c.value)
}

// signer returns the key of a callback's signature, nil for other credentials.
func (c Credential) signer() []byte {
	if c.c == nil {
		return nil
	}
	return c.c.key
}

// identityKey makes identities useless outside this process.
var identityKey = func() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return b
}()

// identity is equal for equal credentials, and says nothing about them: connections and sessions of one are never used with another.
func (c Credential) identity() string {
	if c.c == nil {
		return ""
	}
	m := hmac.New(sha256.New, identityKey)
	fmt.Fprintf(m, "%q %q %q", c.c.header, c.c.value, c.c.key)
	return hex.EncodeToString(m.Sum(nil)[:16])
}

// String redacts.
func (c Credential) String() string { return "credential" }

// GoString redacts.
func (c Credential) GoString() string { return "credential" }

// Format redacts, whatever the verb.
func (c Credential) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("credential")) }

// MarshalJSON redacts.
func (c Credential) MarshalJSON() ([]byte, error) { return []byte(`"credential"`), nil }

// LogValue redacts.
func (c Credential) LogValue() slog.Value { return slog.StringValue("credential") }

// shortest is the length from which a secret is looked for in answers: below it, ordinary text would match.
const shortest = 8

const removed = "[credential removed]"

// secrets are the texts that must not come back: of "scheme token" the token, where it is long enough to be told from ordinary text.
func (c Credential) secrets() []string {
	if c.c == nil {
		return nil
	}
	var out []string
	add := func(s string) {
		if len(s) >= shortest {
			out = append(out, s)
		}
	}
	if _, token, ok := strings.Cut(c.c.value, " "); ok && len(token) >= shortest {
		add(token)
	} else {
		add(c.c.value)
	}
	add(string(c.c.key))
	return out
}

// scrub replaces the credential in text that goes to a log or into an error.
func (c Credential) scrub(text string) string {
	for _, s := range c.secrets() {
		text = strings.ReplaceAll(text, s, removed)
	}
	return text
}

// scrubJSON replaces the credential in strict JSON, also where escapes hide it, and reports whether it stood there. An answer that echoes the
// credential would carry it into the sandbox and into the journal.
func (c Credential) scrubJSON(doc []byte) ([]byte, bool) {
	found := false
	for _, s := range c.secrets() {
		quoted := strictjson.AppendQuote(nil, s)
		if form := quoted[1 : len(quoted)-1]; bytes.Contains(doc, form) {
			doc, found = bytes.ReplaceAll(doc, form, []byte(removed)), true
		}
		if bytes.Contains(doc, []byte(`\u`)) || bytes.Contains(doc, []byte(`\/`)) {
			var hit bool
			doc, hit = scrubEscaped(doc, s)
			found = found || hit
		}
	}
	return doc, found
}

// scrubEscaped looks into strings with escapes that AppendQuote would not have written.
func scrubEscaped(doc []byte, secret string) ([]byte, bool) {
	var out []byte
	from := 0
	for i := 0; i < len(doc); i++ {
		if doc[i] != '"' {
			continue
		}
		end, escaped := i+1, false
		for end < len(doc) && doc[end] != '"' {
			if doc[end] == '\\' {
				end++
				escaped = escaped || end < len(doc) && (doc[end] == 'u' || doc[end] == '/')
			}
			end++
		}
		end = min(end+1, len(doc))
		if escaped {
			if text, ok := strictjson.Unquote(doc[i:end]); ok && strings.Contains(text, secret) {
				out = append(out, doc[from:i]...)
				out = strictjson.AppendQuote(out, strings.ReplaceAll(text, secret, removed))
				from = end
			}
		}
		i = end - 1
	}
	if from == 0 {
		return doc, false
	}
	return append(out, doc[from:]...), true
}

package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"sallyport.dev/errs"
)

// TokenLife is how long an enrolment token may be used, once.
const TokenLife = 15 * time.Minute

const (
	tokenPrefix = "spj1." // a word that a secret scanner can find
	tokenSecret = 32
	maxToken    = 4 << 10
)

// Token lets one machine join once: it says what the machine will be, where control is, and which CA key to trust. It is a secret until it is
// used, and prints without it.
type Token struct {
	Role     Role
	Name     string
	Pool     string // workers only
	Domain   string
	Control  spiffeid.ID // the control node at Address
	Address  string      // host:port, or unix:PATH
	CAKey    string      // hex SHA-256 of the CA's public key
	Expires  time.Time   // seconds
	secret   []byte
	textForm string
}

type tokenJSON struct {
	Role    Role   `json:"role"`
	Name    string `json:"name"`
	Pool    string `json:"pool"`
	Domain  string `json:"domain"`
	Control string `json:"control"`
	Address string `json:"address"`
	CAKey   string `json:"ca_key"`
	Expires int64  `json:"expires"`
	Secret  string `json:"secret"`
}

// NewToken completes t with a fresh secret and an expiry. Errors: [errs.Invalid] for its names or address.
func NewToken(t Token, now time.Time) (Token, error) {
	t.secret = make([]byte, tokenSecret)
	if _, err := rand.Read(t.secret); err != nil {
		return Token{}, errs.Wrap(errs.Internal, "no randomness for a token", err)
	}
	t.Expires = now.Add(TokenLife).UTC().Truncate(time.Second)
	if err := t.validate(); err != nil {
		return Token{}, err
	}
	b, err := json.Marshal(tokenJSON{
		Role: t.Role, Name: t.Name, Pool: t.Pool, Domain: t.Domain, Control: t.Control.String(), Address: t.Address, CAKey: t.CAKey,
		Expires: t.Expires.Unix(), Secret: base64.RawURLEncoding.EncodeToString(t.secret),
	})
	if err != nil {
		return Token{}, errs.Wrap(errs.Invalid, "the token cannot be written", err)
	}
	t.textForm = tokenPrefix + base64.RawURLEncoding.EncodeToString(b)
	return t, nil
}

// ParseToken reads the text form, white space around it ignored. Errors: [errs.Invalid].
func ParseToken(text string) (Token, error) {
	text = strings.TrimSpace(text)
	body, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok || len(text) > maxToken {
		return Token{}, errs.New(errs.Invalid, "this is not an enrolment token; copy all of what sallyport enrol printed")
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil {
		return Token{}, errs.Wrap(errs.Invalid, "the enrolment token is cut or was changed; copy all of what sallyport enrol printed", err)
	}
	var j tokenJSON
	if err := json.Unmarshal(b, &j, json.RejectUnknownMembers(true)); err != nil {
		return Token{}, errs.Wrap(errs.Invalid, "the enrolment token is cut or was changed; copy all of what sallyport enrol printed", err)
	}
	t := Token{Role: j.Role, Name: j.Name, Pool: j.Pool, Domain: j.Domain, Address: j.Address, CAKey: j.CAKey, Expires: time.Unix(j.Expires, 0).UTC(), textForm: text}
	if t.Control, err = spiffeid.FromString(j.Control); err != nil {
		return Token{}, errs.Wrap(errs.Invalid, "the enrolment token names no control node", err)
	}
	if t.secret, err = base64.RawURLEncoding.DecodeString(j.Secret); err != nil || len(t.secret) != tokenSecret {
		return Token{}, errs.New(errs.Invalid, "the enrolment token has no secret; copy all of what sallyport enrol printed")
	}
	return t, t.validate()
}

func (t Token) validate() error {
	id, err := t.ID()
	if err != nil {
		return err
	}
	if t.Role == Control {
		return errs.New(errs.Invalid, "tokens enrol hosts and workers")
	}
	control, err := ParseID(t.Control)
	switch {
	case err != nil || control.Role != Control || t.Control.TrustDomain() != id.TrustDomain():
		return errs.New(errs.Invalid, "the token names no control node of its domain")
	case t.Address == "":
		return errs.New(errs.Invalid, "the token has no address of control; start control with --listen")
	case len(t.CAKey) != 64:
		return errs.New(errs.Invalid, "the token has no CA key hash")
	}
	return nil
}

// ID returns the identity that the token enrols.
func (t Token) ID() (spiffeid.ID, error) {
	return Name{Domain: t.Domain, Role: t.Role, Pool: t.Pool, Name: t.Name}.ID()
}

// Expired reports whether the token may no longer be used. Control decides by its store's clock, once; a joiner asks to give the better message.
func (t Token) Expired(now time.Time) bool { return now.After(t.Expires) }

// Text returns the form that a person copies. It is the secret.
func (t Token) Text() string { return t.textForm }

// TokenDigest is what control keeps of a token: the hex SHA-256 of its whole text, so that a changed name or role is an unknown token.
func TokenDigest(text string) string {
	d := sha256.Sum256([]byte(strings.TrimSpace(text)))
	return hex.EncodeToString(d[:])
}

// String redacts the secret.
func (t Token) String() string { return "enrolment token of " + string(t.Role) + " " + t.Name }

// GoString redacts the secret.
func (t Token) GoString() string { return t.String() }

// MarshalJSON redacts the secret: a token travels as Text only.
func (t Token) MarshalJSON() ([]byte, error) { return json.Marshal(t.String()) }

// Package oauth is what control and a worker say to each other about signing in: the input of intents of kind authorize, exchange, refresh and revoke,
// which travels as the intent's meta and is bound by its digest, and what the worker answers. Tokens, verifiers and client secrets stand in here only
// sealed to the pool's key: control stores and carries them, and cannot open them. Form: strict JSON.
package oauth

import (
	"github.com/go-json-experiment/json"

	"sallyport.dev/errs"
)

// ClientSubject is the subject under which the client's own registration and secret are kept, beside the credentials of people. Its associated data
// names the issuer and the client id, so that it is never shown to another authorization server.
const ClientSubject = "client"

// Ways in which a client comes to its id.
const (
	PreRegistered    = "pre_registered"    // somebody registered it at the server
	MetadataDocument = "metadata_document" // its id is the address of a document that describes it
	Dynamic          = "dynamic"           // RFC 7591
)

// Grants.
const (
	AuthorizationCode = "authorization_code"
	ClientCredentials = "client_credentials"
)

// How a client authenticates at the token endpoint.
const (
	AuthNone   = "none"
	AuthBasic  = "client_secret_basic"
	AuthPost   = "client_secret_post"
	AuthSigned = "private_key_jwt"
)

// Settings are the reviewed part of a connection. Empty members are found out.
type Settings struct {
	Issuer       string   `json:"issuer,omitzero"` // the one authorization server that is used
	Registration string   `json:"registration,omitzero"`
	ClientID     string   `json:"client_id,omitzero"` // pre-registered, or the address of the metadata document
	ClientAuth   string   `json:"client_auth,omitzero"`
	Grant        string   `json:"grant,omitzero"`
	Scopes       []string `json:"scopes,omitzero"`   // without all of these a sign-in is refused
	Resource     string   `json:"resource,omitzero"` // in place of the connection's own address
}

// Client is the sealed secret of the client that stands in the store.
type Client struct {
	Sealed  []byte `json:"sealed,omitzero"`
	Version int64  `json:"version,omitzero"` // of the newest, 0 for none: a new registration is the next
}

// ClientSecret is what is sealed under [ClientSubject].
type ClientSecret struct {
	V            int      `json:"v"`
	Secret       string   `json:"secret,omitzero"`
	PrivateKey   string   `json:"private_key,omitzero"` // PEM, PKCS #8: private_key_jwt
	KeyID        string   `json:"key_id,omitzero"`
	Auth         string   `json:"auth,omitzero"`          // as registered dynamically
	RedirectURIs []string `json:"redirect_uris,omitzero"` // as registered dynamically
}

// String redacts.
func (ClientSecret) String() string { return "client secret" }

// GoString redacts.
func (ClientSecret) GoString() string { return "client secret" }

// Authorize begins a sign-in.
type Authorize struct {
	Settings    Settings `json:"settings"`
	Client      Client   `json:"client"`
	RedirectURI string   `json:"redirect_uri"`
	State       string   `json:"state"`           // control's, random, single use
	Scopes      []string `json:"scopes,omitzero"` // beyond the settings: what a challenge asked for
	Challenge   string   `json:"challenge,omitzero"`
}

// Authorized is the answer to [Authorize].
type Authorized struct {
	Address  string   `json:"address"` // for the person's browser
	State    []byte   `json:"state"`   // sealed: the verifier, and everything that the exchange must agree with
	Issuer   string   `json:"issuer"`
	ClientID string   `json:"client_id"`
	How      string   `json:"how"` // the registration that was used
	Scopes   []string `json:"scopes"`
	Client   []byte   `json:"client,omitzero"` // sealed: a registration that was made now
}

// Exchange ends a sign-in: with the code of an authorization response, or, for client credentials, with nothing.
type Exchange struct {
	Settings Settings `json:"settings"`
	Client   Client   `json:"client"`
	State    []byte   `json:"state,omitzero"` // sealed
	Returned string   `json:"returned,omitzero"`
	Code     string   `json:"code,omitzero"`
	Issuer   string   `json:"iss,omitzero"` // as the response said it (RFC 9207)
}

// Token is the answer to [Exchange] and [Refresh].
type Token struct {
	Credential []byte   `json:"credential"` // sealed, for the version that the intent names plus one
	Issuer     string   `json:"issuer"`
	ClientID   string   `json:"client_id"`
	Account    string   `json:"account"` // the subject at the issuer; "" where it does not say
	Name       string   `json:"name"`    // for people; proves nothing
	Scopes     []string `json:"scopes"`
	ExpiresMS  int64    `json:"expires_ms"` // 0: unknown
	Renewable  bool     `json:"renewable"`
	Client     []byte   `json:"client,omitzero"` // sealed: a registration that was made now
}

// Refresh renews a credential, or, in an intent of kind revoke, ends it at its server.
type Refresh struct {
	Client Client `json:"client"`
}

// Found is what a look for the authentication of a connection without one came to.
type Found struct {
	Issuer       string   `json:"issuer"`
	Resource     string   `json:"resource"`
	Scopes       []string `json:"scopes,omitzero"`
	Registration []string `json:"registration,omitzero"` // what the server can do
}

// Failure says in one word where a sign-in stopped. The words stand in [Outcome.Failure] of the worker's answer.
type Failure string

// Failures.
const (
	FailRequest      Failure = "request"       // the input has no meaning
	FailDiscovery    Failure = "discovery"     // metadata missing, unreadable, or behind a redirect
	FailAddress      Failure = "address"       // an address that this connection may not reach
	FailConnect      Failure = "connect"       // nobody answers
	FailResource     Failure = "resource"      // the metadata is of another resource
	FailIssuer       Failure = "issuer"        // the metadata, or the response, is of another issuer
	FailPKCE         Failure = "pkce"          // the server does not say that it supports S256
	FailRegistration Failure = "registration"  // there is no client, and none can be registered
	FailState        Failure = "state"         // the sealed state is another sign-in's, or over
	FailToken        Failure = "token"         // the token endpoint's answer is none
	FailGrant        Failure = "invalid_grant" // the code or refresh token is no good any more
	FailClient       Failure = "invalid_client"
	FailScope        Failure = "scope"   // less was granted than the connection needs
	FailAccount      Failure = "account" // another account than expected
	FailRefused      Failure = "refused" // another error of the token endpoint
)

// Encode writes one of this package's types.
func Encode(v any) ([]byte, error) {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "what a sign-in needs cannot be written", err)
	}
	return b, nil
}

// Decode reads one strictly: no unknown members, none twice. The error quotes nothing. Errors: [errs.Invalid].
func Decode(b []byte, into any) error {
	if err := json.Unmarshal(b, into, json.RejectUnknownMembers(true)); err != nil {
		return errs.New(errs.Invalid, "what came for a sign-in is not strict JSON of the known members")
	}
	return nil
}

// Package control holds the domain types of the control plane: what its capabilities (call, inbox, grant, catalog, connection, session,
// revocation, audit) and its store share. It has no adapter and no behaviour beyond what a type needs to be read safely.
//
// Conventions: ids are 26 characters of lower-case base32; digests are [Digest]; times are time.Time in UTC with millisecond precision and
// come from the store where they bound a lease or an expiry; Org is always "default" today and stands in every row.
package control

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/intent/oauth"
)

// Org is the only organization today.
const Org = "default"

// Digest is a SHA-256. Its text form is lower-case hex.
type Digest [sha256.Size]byte

// String returns the hex form.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// IsZero reports whether d was never set.
func (d Digest) IsZero() bool { return d == Digest{} }

// ParseDigest reads the hex form. Errors: [errs.Invalid].
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if len(s) != 2*len(d) {
		return d, errs.Newf(errs.Invalid, "a digest has %d hex characters, this has %d", 2*len(d), len(s))
	}
	if _, err := hex.Decode(d[:], []byte(s)); err != nil {
		return d, errs.Wrap(errs.Invalid, "a digest is lower-case hex", err)
	}
	return d, nil
}

// SumParts is the domain-separated digest of all formats: the domain line ("sallyport catalog v1\n"), then each part prefixed by its length
// as 8 bytes, big-endian. Vectors: docs/digests.md.
func SumParts(domain string, parts ...[]byte) Digest {
	h := sha256.New()
	h.Write([]byte("sallyport " + domain + "\n"))
	var n [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write(p)
	}
	var d Digest
	h.Sum(d[:0])
	return d
}

// Effect is the reviewer's word on a tool, never the server's.
type Effect string

// Effects.
const (
	Read  Effect = "read"
	Write Effect = "write"
)

// Person is who acts: "local:USER" for the control socket, "SUBJECT" of a sign-in provider otherwise.
type Person string

// Network is what a connection may reach beyond public https addresses. Never link-local or metadata ranges.
type Network struct {
	Allow []string `json:"allow,omitempty"` // private CIDRs
	HTTP  bool     `json:"http,omitempty"`  // plain http, for this connection only
}

// Auth says how a connection authenticates. It holds no secret.
type Auth struct {
	Type string `json:"type"`           // none | header | bearer | oauth | signature
	Name string `json:"name,omitempty"` // header name, for type header
	Per  string `json:"per,omitempty"`  // shared | person
	// OAuth is what is reviewed of a sign-in, for type oauth; nil: all is found out.
	OAuth *oauth.Settings `json:"oauth,omitempty"`
}

// ConnectionKind says how the worker speaks to a connection.
type ConnectionKind string

// Kinds of connections.
const (
	KindMCP      ConnectionKind = "mcp"
	KindCallback ConnectionKind = "callback"
)

// ConnectionState is whether a connection is in service.
type ConnectionState string

// States of a connection: only an enabled one is dispatched to.
const (
	ConnectionUntested ConnectionState = "untested"
	ConnectionEnabled  ConnectionState = "enabled"
	ConnectionDisabled ConnectionState = "disabled"
)

// ConnectionLimits bound one dispatch.
type ConnectionLimits struct {
	Timeout    time.Duration `json:"timeout"`    // until a whole answer; default 120 s, at most 30 min
	Silence    time.Duration `json:"silence"`    // between two events of an SSE stream; default 120 s
	Connect    time.Duration `json:"connect"`    // connect, TLS and initialize, each; default 5 s
	Concurrent int           `json:"concurrent"` // dispatches at once; default 16
	Result     int64         `json:"result"`     // bytes of one answer; default 1 MiB
	Rate       Rate          `json:"rate,omitzero"`
	Breaker    Breaker       `json:"breaker,omitzero"`
}

// TLS is what a connection's TLS rests on beside the system's authorities.
type TLS struct {
	Authorities string `json:"authorities,omitempty"` // PEM, certificates only; trusted in place of the system's
	Certificate bool   `json:"certificate,omitempty"` // it shows a certificate of its own, sealed like a credential
}

// Rate bounds how often a connection is dispatched to: Calls at once, and as many again in each Per. The zero value bounds nothing.
type Rate struct {
	Calls int           `json:"calls"`
	Per   time.Duration `json:"per"`
}

// Breaker stops dispatches to a server that is down: after Failures in a row nothing is sent for Pause, then one call goes ahead of the others. The
// zero value never stops anything.
type Breaker struct {
	Failures int           `json:"failures"`
	Pause    time.Duration `json:"pause"`
}

// Connection is a named remote MCP server or HTTP callback. A change of origin, path, auth or network makes a new revision that is untested.
type Connection struct {
	Org     string           `json:"org"`
	Name    string           `json:"name"`
	Kind    ConnectionKind   `json:"kind"`
	Origin  string           `json:"origin"` // scheme://host[:port], lower case, default port left out
	Path    string           `json:"path"`   // with query, as written
	Pool    string           `json:"pool"`
	Network Network          `json:"network"`
	Auth    Auth             `json:"auth"`
	TLS     TLS              `json:"tls,omitzero"`
	Limits  ConnectionLimits `json:"limits"`
	// OnChange says what follows from a class of changes of the server's list, where it is not as usual: note, void or stop.
	OnChange   map[string]string `json:"on_change,omitempty"`
	Trusted    bool              `json:"rejections_trusted,omitempty"` // a complete rejection counts as proof that nothing ran
	Uncertain  []int             `json:"uncertain_statuses,omitempty"` // HTTP statuses moved from rejected to uncertain; never the other way
	Revision   int64             `json:"revision"`
	State      ConnectionState   `json:"state"`
	Protocol   string            `json:"protocol,omitempty"` // MCP revision that the last test settled; "" before
	Catalog    Digest            `json:"-"`                  // approved catalog; zero before
	ModifiedAt time.Time         `json:"-"`
}

// Tool is one reviewed tool of a catalog.
type Tool struct {
	Name        string // the server's
	As          string // the name in the sandbox, folded; unique in a session
	Effect      Effect
	Repeat      bool   // a lost read may be repeated
	RefuseExtra bool   // members beyond the schema are refused even where the schema allows them
	Raw         []byte // the server's exact bytes of this tool
	Client      bool   // answered by a person or the platform, not by a server
}

// CatalogState is the review state of a catalog revision.
type CatalogState string

// States of a catalog revision.
const (
	CatalogDraft      CatalogState = "draft"
	CatalogApproved   CatalogState = "approved"
	CatalogSuperseded CatalogState = "superseded"
	CatalogRejected   CatalogState = "rejected"
)

// Catalog is an immutable revision of a connection's tools, sorted by name. Digest = SumParts("catalog v1", name, raw, name, raw, ...).
type Catalog struct {
	Org        string
	Connection string
	Digest     Digest
	Tools      []Tool
	State      CatalogState
	ReviewedBy Person
	ReviewedAt time.Time
	Listed     []byte // the whole list that it was reviewed from, where it is applied: the catalog file
}

// ListedCatalog is a list of a server that was not reviewed, or the one that was.
type ListedCatalog struct {
	Connection string
	Digest     Digest
	State      CatalogState
	Listed     []byte // the catalog file
	SeenAt     time.Time
	DecidedBy  Person
	DecidedAt  time.Time
}

// Rule is what a grant says.
type Rule string

// Rules. Allow is for reads only: a write needs a person, a standing grant or a session grant.
const (
	Allow Rule = "allow"
	Ask   Rule = "ask"
	Deny  Rule = "deny"
)

// Limit bounds a grant's use. Counters are taken inside the barrier.
type Limit struct {
	Calls int64         `json:"calls"`           // 0: no bound on calls
	Per   time.Duration `json:"per"`             // 0: for the grant's whole life
	Bytes int64         `json:"bytes,omitempty"` // of arguments; 0: no bound
}

// Grant is one intact tuple (connection, tool) of a profile.
type Grant struct {
	Tools []string `json:"tools"` // connection/tool or connection/*
	Rule  Rule     `json:"rule"`
	When  string   `json:"when,omitempty"` // CEL; an error denies
	Limit *Limit   `json:"limit,omitempty"`
}

// GivenGrant is a standing grant (an administrator's) or a session grant (an approver's). They and a person's own decision are the only ways in
// which a write runs.
type GivenGrant struct {
	Org       string
	ID        string // standing: its name
	Kind      string // standing | session
	Profile   string
	Session   string // session grants only
	Owner     Person // session grants: the session's owner
	Tools     []string
	When      string
	Limit     Limit
	Until     time.Time
	By        Person
	Reason    string
	Used      int64
	Suspended string // why, while a write of the tool is uncertain; "" otherwise
	Revoked   bool
	FromYAML  bool
}

// Approval is the approval part of a profile.
type Approval struct {
	Expires  time.Duration `json:"expires"`
	Second   bool          `json:"second"`    // two approvers
	NotOwner bool          `json:"not_owner"` // not the session's owner
}

// SandboxPolicy is the sandbox part of a profile.
type SandboxPolicy struct {
	Driver        string   `json:"driver"`
	Closed        string   `json:"closed"`    // proven | asserted | no
	Workspace     string   `json:"workspace"` // read-write | read-only | none
	Memory        int64    `json:"memory"`
	PIDs          int64    `json:"pids"`
	CPU           float64  `json:"cpu"`
	Protected     []string `json:"protected,omitempty"`
	AllowEnvFiles bool     `json:"allow_env_files,omitempty"`
}

// NetworkPolicy is the egress part of a profile.
type NetworkPolicy struct {
	Allow         []string `json:"allow,omitempty"` // host:port
	SharedAddress string   `json:"shared_address"`  // refuse | allow
}

// ModelPolicy is the model part of a profile.
type ModelPolicy struct {
	Provider string   `json:"provider"`
	Source   string   `json:"source"`
	Allow    []string `json:"allow,omitempty"`
}

// Profile is what one kind of sandbox may do. Version grows with every change.
type Profile struct {
	Org          string        `json:"org"`
	Name         string        `json:"name"`
	Version      int64         `json:"version"`
	Attended     bool          `json:"attended"`
	Attached     string        `json:"attached"`      // deny | allow
	OnDisconnect string        `json:"on_disconnect"` // keep | cancel
	Approvers    []string      `json:"approvers"`
	Hold         time.Duration `json:"hold"`
	Approval     Approval      `json:"approval"`
	Grants       []Grant       `json:"grants"`
	Sandbox      SandboxPolicy `json:"sandbox"`
	Network      NetworkPolicy `json:"network"`
	Model        ModelPolicy   `json:"model"`
}

// BoundTool is one tool of a session's frozen binding: everything that admission needs without a join.
type BoundTool struct {
	Name       string // in the sandbox
	Connection string
	Revision   int64 // of the connection, when bound
	Catalog    Digest
	Tool       Tool
}

// SessionState is the life of a session.
type SessionState string

// States of a session.
const (
	SessionOpening SessionState = "opening" // gate shut
	SessionOpen    SessionState = "open"
	SessionParked  SessionState = "parked"
	SessionClosed  SessionState = "closed"
)

// Session is one sandbox with one frozen binding. Epoch says which incarnation of the sandbox may submit and receive (I14).
type Session struct {
	Org          string
	ID           string
	Epoch        int64
	Owner        Person
	Profile      Profile // frozen, whole
	Attended     bool
	Harness      string
	Host         string // SPIFFE id
	Driver       string
	Closed       string // proven | asserted | no
	SameUID      bool
	Parent       string // the supervisor's proof, once the gate asked
	PolicyDigest Digest
	Tools        []BoundTool // sorted by Name
	State        SessionState
	CreatedAt    time.Time
	SeenAt       time.Time
}

// CredentialState is how a credential is.
type CredentialState string

// States of a credential.
const (
	CredentialGood     CredentialState = "good"
	CredentialExpiring CredentialState = "expiring"
	CredentialBroken   CredentialState = "broken"
	CredentialRevoked  CredentialState = "revoked"
	CredentialCheck    CredentialState = "check"
)

// SubjectShared is the subject of a credential that all sessions use.
const SubjectShared = "shared"

// Credential is sealed to a pool's key; control cannot open it. AssociatedData is what it was sealed under, in full.
type Credential struct {
	Org            string
	Connection     string
	Subject        string // shared, or a person
	Version        int64
	Sealed         Sealed
	AssociatedData []byte
	KeyFingerprint string
	Account        string
	State          CredentialState
	ExpiresAt      time.Time // zero: unknown
	ModifiedAt     time.Time

	// What a sign-in knows beside it.
	Kind      CredentialKind
	Name      string   // of the account, for people; proves nothing
	Issuer    string   // of the authorization server
	Scopes    []string // granted
	Wanted    []string // what the server asked for beyond them
	Renewable bool
	IssuedAt  time.Time
	AccountAt time.Time // since when it is of this account; zero: it was never of another
	// Trouble is why it could not be renewed just now, in safe words. It stands in no row.
	Trouble string
}

// CredentialKind is where a credential comes from.
type CredentialKind string

// Kinds of credentials.
const (
	CredentialTyped  CredentialKind = ""       // somebody sealed it
	CredentialOAuth  CredentialKind = "oauth"  // a sign-in led to it
	CredentialClient CredentialKind = "client" // the client's own secret at an authorization server
	// CredentialCertificate is the certificate and key that a connection shows in TLS.
	CredentialCertificate CredentialKind = "certificate"
)

// Renewal is ahead of the expiry by a fifth of the life, at least a minute, and at most half of the life.
const renewAhead = time.Minute

// RenewAt is from when on a credential is renewed; zero for one that is not.
func (c *Credential) RenewAt() time.Time {
	if !c.Renewable || c.ExpiresAt.IsZero() {
		return time.Time{}
	}
	life := max(0, c.ExpiresAt.Sub(c.IssuedAt))
	return c.ExpiresAt.Add(-min(max(renewAhead, life/5), life/2))
}

// Due reports whether a credential that can be used is to be renewed now.
func (c *Credential) Due(now time.Time) bool {
	at := c.RenewAt()
	return c.Usable() && !at.IsZero() && !now.Before(at)
}

// Expired reports whether its time is over.
func (c *Credential) Expired(now time.Time) bool {
	return !c.ExpiresAt.IsZero() && !now.Before(c.ExpiresAt)
}

// Usable reports whether its state lets it be used.
func (c *Credential) Usable() bool { return c.State == CredentialGood || c.State == CredentialExpiring }

// SignIn is a sign-in that a person has not come back from.
type SignIn struct {
	Connection string
	Subject    string
	State      Digest // SHA-256 of the state parameter
	Revision   int64  // of the connection
	Person     Person // who began it, and alone may end it
	Account    string // expected; "" for any
	Sealed     Sealed // the worker's own: verifier, and everything that the exchange must agree with
	ExpiresAt  time.Time
}

// Renewal is the one renewal of a credential that may be under way.
type Renewal struct {
	Connection string
	Subject    string
	Version    int64 // that is renewed
	Intent     string
	Run        string
	Until      time.Time
}

// Sealed is ciphertext that only a worker of the pool can open. It prints as its size, so that logs stay readable.
type Sealed []byte

// String redacts.
func (s Sealed) String() string { return "sealed" }

// SwitchKind is a level at which access is withdrawn.
type SwitchKind string

// Levels of the switches.
const (
	SwitchSession    SwitchKind = "session"
	SwitchHost       SwitchKind = "host"
	SwitchWorker     SwitchKind = "worker"
	SwitchTool       SwitchKind = "tool" // connection/tool
	SwitchGrant      SwitchKind = "grant"
	SwitchConnection SwitchKind = "connection"
	SwitchCredential SwitchKind = "credential" // connection/subject
	SwitchEgress     SwitchKind = "egress"
	SwitchPerson     SwitchKind = "person"
	SwitchEverything SwitchKind = "everything"
)

// Switch is one revocation in force. A barrier that commits after it refuses (I9).
type Switch struct {
	Org    string
	ID     string
	Kind   SwitchKind
	Name   string
	By     Person
	Reason string
	At     time.Time
	Until  time.Time // zero: until restored
}

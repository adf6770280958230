// Package intent is the signed, single-use statement of exactly what a worker may do. Control writes and signs it, one worker run verifies and
// executes it, once. Its form is strict JSON with fixed members, authenticated over "sallyport intent v1\n" and the bytes; arguments and sealed
// credentials travel beside it and are bound by digest or version. Format and vectors: docs/intent.md.
package intent

// Protected is the number of the protected formats (execute, gate, policy, intent). A protected call states it and is refused on any other.
const Protected = 1

// Kind is what an intent lets a worker do.
type Kind string

// Kinds. Call carries a tool's arguments; all others carry none of the agent's bytes.
const (
	Call      Kind = "call"
	Probe     Kind = "probe"
	Catalog   Kind = "catalog"
	Authorize Kind = "authorize"
	Exchange  Kind = "exchange"
	Refresh   Kind = "refresh"
	Revoke    Kind = "revoke"
	Poll      Kind = "poll"
	Notify    Kind = "notify"
)

// Intent names everything that one dispatch may do. Digests are lower-case hex SHA-256, times Unix milliseconds of control's store.
type Intent struct {
	V            int      `json:"v"` // Protected
	ID           string   `json:"id"`
	Org          string   `json:"org"`
	Kind         Kind     `json:"kind"`
	Call         string   `json:"call"`
	Attempt      int      `json:"attempt"`
	Session      string   `json:"session"` // recorded; the worker keys old-era upstream sessions by it
	Epoch        int64    `json:"epoch"`   // the submitting epoch: recorded, never compared
	Binding      string   `json:"binding"` // binding digest of the approval, or of the grant's evaluation
	Connection   string   `json:"connection"`
	Revision     int64    `json:"revision"`
	Pool         string   `json:"pool"`
	Transport    string   `json:"transport"` // mcp | callback
	Origin       string   `json:"origin"`
	Path         string   `json:"path"`
	Allow        []string `json:"allow"` // private CIDRs of the connection's network
	PlainHTTP    bool     `json:"plain_http"`
	TLS          string   `json:"tls"`       // digest of the [Trust] that travels beside it, or ""
	AuthType     string   `json:"auth_type"` // none | header | bearer | oauth | signature
	AuthHeader   string   `json:"auth_header"`
	Subject      string   `json:"subject"` // credential subject, "" without one
	Version      int64    `json:"version"` // credential version
	Account      string   `json:"account"` // expected account, "" for none
	Scopes       []string `json:"scopes"`
	Protocol     string   `json:"protocol"`  // MCP revision settled by the last test; "" lets Prepare settle it
	Upstream     string   `json:"upstream"`  // digest of the sealed upstream session that travels beside it, or ""
	Tool         string   `json:"tool"`      // the server's name
	Schema       string   `json:"schema"`    // digest of the reviewed tool's bytes that travel beside it for Mcp-Param-*, or ""
	Effect       string   `json:"effect"`    // read | write
	Arguments    string   `json:"arguments"` // digest of the argument bytes; "" for kinds other than call
	Meta         string   `json:"meta"`      // digest of the kind's own input that travels beside it, or ""
	Authority    string   `json:"authority"` // rule | approval:ID | grant:ID | retry:ID
	Owner        string   `json:"owner"`     // for callbacks
	Attended     bool     `json:"attended"`  // a person could answer what the server asks
	Trace        string   `json:"trace"`     // our own traceparent
	ResultBytes  int64    `json:"result_bytes"`
	ConnectMS    int64    `json:"connect_ms"`
	AnswerMS     int64    `json:"answer_ms"`
	SilenceMS    int64    `json:"silence_ms"`
	NotBefore    int64    `json:"not_before"`
	StartBefore  int64    `json:"start_before"`  // a later Go is refused and attested not started
	FinishBefore int64    `json:"finish_before"` // the worker stops waiting for the answer
	Audience     string   `json:"audience"`      // the worker run
}

package shim

import (
	"slices"

	"sallyport.dev/relay/strictjson"
)

// modernVersion is the revision in which every request says what it speaks. The revisions with a handshake are listed newest first.
const modernVersion = "2026-07-28"

var legacyVersions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

const (
	// batchVersion is the one revision with JSON-RPC batches: added in it, removed in the next.
	batchVersion = "2025-03-26"
	// structuredVersion is the first revision that knows structuredContent and outputSchema.
	structuredVersion = "2025-06-18"
	// idOptionalVersion is the first handshake revision whose schema leaves the id of an error out where it could not be read.
	idOptionalVersion = "2025-11-25"
)

// Keys of _meta that MCP reserves for every request and result of the modern era.
const (
	metaVersion      = "io.modelcontextprotocol/protocolVersion"
	metaClient       = "io.modelcontextprotocol/clientInfo"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaServer       = "io.modelcontextprotocol/serverInfo"
	metaSubscription = "io.modelcontextprotocol/subscriptionId"
)

// era is how a request is served.
type era int

const (
	legacy era = iota // handshake revisions
	modern            // 2026-07-28
)

// meta is what the shim reads of a request's _meta. Raw values; nil where absent.
type meta struct {
	version, client, capabilities   []byte
	progress, trace, claude, callID []byte
}

// parseMeta reads params._meta; params may be nil.
func parseMeta(params []byte) (meta, *rpcError) {
	var m meta
	raw, ok := strictjson.Lookup(params, "_meta")
	if !ok {
		return m, nil
	}
	if raw[0] != '{' {
		return m, newError(codeInvalidParams, "_meta is an object")
	}
	for name, value := range strictjson.Each(raw) {
		switch string(name) {
		case metaVersion:
			m.version = value
		case metaClient:
			m.client = value
		case metaCapabilities:
			m.capabilities = value
		case "progressToken":
			m.progress = value
		case "traceparent":
			m.trace = value
		case "claudecode/toolUseId":
			m.claude = value
		case "callId":
			m.callID = value
		}
	}
	return m, nil
}

// decideEra says which era serves a request: the modern one where its _meta says anything that only that era says, or where the method exists
// only there; else the legacy one, once there was a handshake. A request that is neither is malformed (2026-07-28, basic: a missing required
// field is -32602), except the two methods that a legacy client may send first.
func decideEra(method string, m meta, handshake bool) (era, *rpcError) {
	if method == "initialize" {
		return legacy, nil
	}
	stateless := m.version != nil || m.client != nil || m.capabilities != nil || method == "server/discover" || method == "subscriptions/listen"
	if !stateless && (handshake || method == "ping") {
		return legacy, nil
	}
	if m.version == nil {
		return modern, newError(codeInvalidParams, "_meta needs "+metaVersion+" and "+metaCapabilities+", or begin with initialize")
	}
	version, ok := strictjson.Unquote(m.version)
	if !ok {
		return modern, newError(codeInvalidParams, metaVersion+" is a string")
	}
	if version != modernVersion {
		data := append([]byte(`{"supported":["`+modernVersion+`"],"requested":`), strictjson.AppendQuote(nil, cut(version, 64))...)
		return modern, &rpcError{code: codeUnsupportedVersion, message: "unsupported protocol version", data: append(data, '}')}
	}
	if len(m.capabilities) == 0 || m.capabilities[0] != '{' {
		return modern, newError(codeInvalidParams, "_meta needs "+metaCapabilities+", an object")
	}
	if m.client != nil && m.client[0] != '{' {
		return modern, newError(codeInvalidParams, metaClient+" is an object")
	}
	return modern, nil
}

// negotiate returns the revision to speak with a legacy client that asked for wanted: that one, or our newest.
func negotiate(wanted string) string {
	if slices.Contains(legacyVersions, wanted) {
		return wanted
	}
	return legacyVersions[0]
}

// batches reports whether a legacy revision has JSON-RPC batches. Revisions compare as dates.
func batches(version string) bool { return version == batchVersion }

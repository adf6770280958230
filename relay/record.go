package relay

// Version is the relay's format version. Version and Version-1 are served, so a live shim survives an upgrade of its host.
const Version = 1

// Call is one request of an agent, as the shim writes it to new/ID.call.
type Call struct {
	V           int
	Session     string
	Epoch       int64
	Shim        string // random per shim process
	ID          string // 26 characters of lower-case base32, made by the writer
	Tool        string // the name in the sandbox
	Arguments   []byte // the JSON object exactly as the harness sent it
	TimeoutMS   int64
	Progress    bool   // a progress token was given
	Trace       string // traceparent, or ""
	HarnessCall string // the harness's own id of this call, or ""; a hint, never an authority
}

// Result is one answer, as the host publishes it to results/ID.json.
type Result struct {
	V      int
	ID     string
	Call   [32]byte // SHA-256 of the call record that it answers
	State  string   // journal state at the time, for logs; the shim does not act on it
	Result []byte   // a whole CallToolResult, exactly as control wrote it
}

package upstream

import (
	"context"
	"net/netip"
	"time"

	"sallyport.dev/worker/netguard"
)

// Target is where a dispatch goes, and with what.
type Target struct {
	Origin     string   // scheme://host[:port]
	Path       string   // with query, as configured
	Allow      []string // private prefixes that this connection may reach
	PlainHTTP  bool
	Trust      netguard.Trust // what its TLS rests on beside the guard's authorities
	Callback   bool           // a platform's own endpoint; a probe then stops after the handshake, because a callback has no question but a call
	Protocol   string         // MCP revision that a test settled; "" lets Prepare settle it
	Credential Credential
	Limits     Limits
	// Owner is whom an old-era session belongs to: Sallyport session and connection. Sessions of one owner are never used for another.
	Owner string
}

// Limits bound one dispatch. A zero field takes its default.
type Limits struct {
	Connect time.Duration // resolve, connect, TLS and each question before the call; 5 s
	Answer  time.Duration // from the first byte until a whole answer; 120 s
	Silence time.Duration // between two bytes of the answer; 120 s
	Result  int64         // bytes of one answer; 1 MiB
}

func (l Limits) withDefaults() Limits {
	set := func(d *time.Duration, def, most time.Duration) {
		if *d <= 0 {
			*d = def
		}
		*d = min(*d, most)
	}
	set(&l.Connect, 5*time.Second, 30*time.Second)
	set(&l.Answer, 120*time.Second, 30*time.Minute)
	set(&l.Silence, 120*time.Second, 30*time.Minute)
	if l.Result <= 0 {
		l.Result = 1 << 20
	}
	l.Result = min(l.Result, 64<<20)
	return l
}

// Call is one call of a tool.
type Call struct {
	// ID is the JSON-RPC id: letters, digits, dot, dash or underscore, at most 64, and another one for each attempt.
	ID        string
	Tool      string // the server's name
	Arguments []byte // one JSON object, sent byte for byte
	Write     bool   // the connection must never have carried a request
	Trace     string // our own traceparent, or ""
	Progress  bool   // ask for progress
	Elicit    bool   // declare that elicitation can be answered
	Schema    []byte // the reviewed tool's bytes, for Mcp-Param-*; nil: no such header
	Session   []byte // exported old-era session, opened; nil: none
	// Task is the server's handle of a call that it goes on with by itself (SEP-2663): the request asks for it (tasks/get), or with GiveUp asks the
	// server to end it (tasks/cancel), in place of tools/call. Arguments, Schema and what continues a call are unused then. 2026-07-28 only.
	Task   string
	GiveUp bool
	// InputResponses and RequestState are the JSON values of a continuation (SEP-2322); nil: none.
	InputResponses, RequestState []byte
}

// Hooks are told what happens while Send waits. Each may be nil, is called by one goroutine at a time and must return soon; Ask alone may take
// its time, and runs beside the others.
type Hooks struct {
	// Sent: the whole request was written.
	Sent func(bytes int64)
	// Progress: at most ten a second; those between are dropped.
	Progress func(Progress)
	// Ask: an old-era server wants input (elicitation/create) while the call runs. It gets the request's params and returns the result's
	// JSON object, or nil to decline. The context ends with the call, and after two minutes.
	Ask func(ctx context.Context, params []byte) []byte
}

// Progress is a progress notification for the call.
type Progress struct {
	Progress float64
	Total    float64 // 0: unknown
	Message  string  // at most 1 KiB
}

// Transport is how far the bytes came.
type Transport string

// Transports.
const (
	NotSent  Transport = "not_sent" // zero application bytes, with proof
	Sent     Transport = "sent"     // at least one byte may have left, and no complete answer came
	Answered Transport = "answered" // a complete HTTP answer was read
)

// Outcome is what one dispatch came to: facts, no verdict.
type Outcome struct {
	Transport Transport
	// Bytes are application bytes that may have reached the server. Zero means that none did.
	Bytes   int64
	Status  int // HTTP; 0: none was read
	Failure Failure
	// Body is the answer byte for byte: the JSON-RPC message with our id (or an error with a null id), for a callback the JSON document. Empty
	// where no valid one came; also set beside FailStatus when the server explained itself in JSON-RPC.
	Body []byte
	// Redacted says that our credential stood in the answer and was replaced; Original is the SHA-256 of the bytes before.
	Redacted bool
	Original [32]byte
	Detail   string // for the log: no secret, nothing of the body
	// Challenge is the WWW-Authenticate of a 401 or 403, bounded.
	Challenge string
	Session   []byte // exported old-era session, for the caller to seal; nil on 2026-07-28
	Address   netip.AddrPort
	Protocol  string
	// Release gives back the memory that a long Body was counted for; nil: it was not. Call it once Body is not kept any more.
	Release func()
	Reused  bool // the connection had carried requests before (never for a write)
	Timings Timings
}

// Timings are the parts of one dispatch.
type Timings struct {
	Connect time.Duration // the whole of Prepare
	Write   time.Duration
	Wait    time.Duration // until the first byte of the answer
	Read    time.Duration
}

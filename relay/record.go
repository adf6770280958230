// Package relay is the contract between a guest and its host: how a call, its result and what surrounds them travel as files. The format, with
// vectors and rules, is docs/relay.md.
//
// The package is linked into the guest: it uses the standard library alone and no network package. What only the host does (claiming,
// watching, sweeping) is in relay/hostside.
package relay

import (
	"crypto/sha256"

	"sallyport.dev/errs"
)

// Version is the relay's format version. Version and Version-1 are served, so a live shim survives an upgrade of its host.
const Version = 1

// Digest is the SHA-256 of a record's bytes.
type Digest [sha256.Size]byte

// Sum returns the digest of a record.
func Sum(record []byte) Digest { return sha256.Sum256(record) }

// Call is one request of an agent, as the shim writes it to new/ID.call.
type Call struct {
	V           int
	Session     string
	Epoch       int64
	Shim        string // random per shim process, an id
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
	Call   Digest // of the call record that it answers
	State  string // journal state at the time, for logs; the shim does not act on it
	Result []byte // a whole CallToolResult, exactly as control wrote it
}

// StateHost is the state of a result that the host wrote itself: it refused the record, or its time was over while control could not be asked.
// Control does not know of it, so its ack goes no further than the host.
const StateHost = "host"

// Why says who stopped waiting for a call.
type Why string

// Reasons of a cancel. Only the first two are written by a guest; the host's own clock makes the third.
const (
	WhyHarness  Why = "harness"  // notifications/cancelled: cancels the call if nothing was sent
	WhyClosed   Why = "closed"   // pipe closed or SIGTERM: detaches, the call lives on
	WhyDeadline Why = "deadline" // asks for what is known now
)

// Cancel says that nobody waits for a call any more, as the shim writes it to new/ID.cancel.
type Cancel struct {
	V       int
	Session string
	Epoch   int64
	ID      string
	Why     Why
}

// Refused says that the guest answered a message of its agent by itself, so that the journal has it, as the shim writes it to new/ID.refused. Nothing
// of the message is in it but the name of a tool: what it says is the host's to word.
type Refused struct {
	V       int
	Session string
	Epoch   int64
	ID      string
	Code    errs.Code // [errs.Oversize], [errs.Invalid] or [errs.UnknownTool]
	Tool    string    // as the agent wrote it, or ""
	More    int64     // refused before it, and not told: see [Allowance]
}

// Gate is what the first process of a sandbox found, as it writes it to new/gate.json once, before open.
type Gate struct {
	V       int
	Session string
	Epoch   int64
	Build   string // of the guest's binaries
	NetNS   string // identity of the sandbox's network namespace: device:inode of /proc/self/ns/net
	Probe   []byte // a JSON object: what answered, and how it was asked
}

// Progress is the newest progress of a call, as the host publishes it to progress/ID.json. Unlike a result it is replaced by the next one.
type Progress struct {
	V        int
	ID       string
	N        int64   // 1, 2, 3: which one this is
	Progress float64 // grows
	Total    float64 // 0: unknown
	Message  string
}

package relay

import "time"

// Bounds of the format. A side that exceeds one gets an error of its own; nothing is cut silently.
const (
	MaxLine      = 8 << 20 // bytes of a JSON-RPC line between harness and shim
	MaxArguments = 1 << 20 // bytes of a call's arguments
	MaxCall      = MaxArguments + 8<<10
	MaxNote      = 4 << 10  // bytes of a cancel record, and of a refusal
	MaxGate      = 64 << 10 // bytes of gate.json
	MaxProgress  = 32 << 10 // a message of escapes fits
	MaxInline    = 1 << 20  // bytes of a CallToolResult that is handed over inline; a longer one is cut to a file by control
	MaxResult    = MaxInline + 8<<10
	MaxFile      = 64 << 20 // bytes of a result file
	MaxSession   = 64 << 10 // bytes of session.json
	MaxTools     = MaxLine  // bytes of tools.json: a tools/list is one line
	MaxToolCount = 4096

	MaxInFlight       = 64   // calls of a session without a result
	MaxUnacknowledged = 1000 // results of a session that nobody has read
	MaxEntries        = 4096 // names in new/

	MaxToolName    = 64
	MaxHarnessCall = 256
	MaxTrace       = 64
	MaxMessage     = 4 << 10 // bytes of a progress message

	OutBytes  = 32 << 20 // out/ and the host's claimed/ together
	OutInodes = 8192
	InBytes   = 256 << 20
	FileBytes = 192 << 20 // result files of a session together; the oldest go first
)

// DefaultTimeout and MaxTimeout are a call's timeout_ms where the harness sets none, and its upper bound.
const (
	DefaultTimeout = 120 * time.Second
	MaxTimeout     = 10 * time.Minute
)

// DeadlineMargin is how long before a call's timeout control is asked for what it knows, so that the answer arrives in time. A call that is
// shorter than twice the margin is asked for at its half.
const DeadlineMargin = 15 * time.Second

// AskAt returns when, after the first sight of a call, control is asked for what is known.
func AskAt(timeout time.Duration) time.Duration {
	return timeout - min(DeadlineMargin, timeout/2)
}

// AnswerAt returns when, after the first sight of a call, the host answers itself where control did not: a third of the way from AskAt to the
// end. Another third later a guest gives up by its own clock, so the harness always reads words before its own timeout.
func AnswerAt(timeout time.Duration) time.Duration {
	return AskAt(timeout) + (timeout-AskAt(timeout))/3
}

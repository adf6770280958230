// Package errs holds the codes and safe messages that every zone shares.
//
// An [Error] has three parts: a code for machines, a message that a person (or the model) may read and that says what to do, and a
// detail that only the log sees. Nothing else crosses a zone boundary: a plain error becomes [Internal] there.
package errs

import (
	"errors"
	"fmt"
)

// Code names one kind of failure. The text form is stable: it stands in tool results, in --json output and in the journal.
type Code string

// Codes of a tool result and of a call's end.
const (
	RuleDenied       Code = "rule_denied"       // no grant, or its condition, refuses the call
	UnknownTool      Code = "unknown_tool"      // the session has no such tool; hidden tools read the same
	InvalidArguments Code = "invalid_arguments" // the arguments break the reviewed schema
	LimitReached     Code = "limit_reached"     // a grant's count or rate, or a bound of the session
	Busy             Code = "busy"              // too many open questions, or calls in flight
	ApprovalDenied   Code = "approval_denied"   // a person declined
	ApprovalPending  Code = "approval_pending"  // a person has not decided yet
	ApprovalExpired  Code = "approval_expired"  // nobody decided in time
	StillRunning     Code = "still_running"     // sent, no answer yet
	Rejected         Code = "rejected"          // the server says that it did not run
	OutcomeUncertain Code = "outcome_uncertain" // sent, the answer was lost
	Revoked          Code = "revoked"           // a switch was thrown
	Voided           Code = "voided"            // what was approved changed before it ran
	NotConnected     Code = "not_connected"     // no credential for this subject
	NotSent          Code = "not_sent"          // nothing left the worker
	NoAnswer         Code = "no_answer"         // a read was sent and its answer lost: it is safe to ask again
	ResolvedDone     Code = "resolved_done"     // a person says that an uncertain call happened
	ResolvedNotDone  Code = "resolved_not_done" // a person says that it did not
	UpstreamError    Code = "upstream_error"    // the server answered with a JSON-RPC error
	ResultWaits      Code = "result_waits"      // answered; too many large answers are on their way into the host's sandboxes
	RecordedAnswer   Code = "recorded_answer"   // the answer of an earlier, equal call
	Cancelled        Code = "cancelled"         // the harness cancelled before anything was sent
	Abandoned        Code = "abandoned"         // the server asked for more and got no answer
	DeadlineExceeded Code = "deadline_exceeded" // not admitted within the record's timeout_ms
	UnknownCall      Code = "unknown_call"      // await_call of a call that this session does not have
)

// Codes of interfaces: command line, API, relay, links.
const (
	Invalid         Code = "invalid"          // the input is wrong; the message says where
	NotFound        Code = "not_found"        // no such object
	Conflict        Code = "conflict"         // somebody else was first, or the object changed
	NotAllowed      Code = "not_allowed"      // this identity may not do this
	Unreachable     Code = "unreachable"      // the other side does not answer
	Unavailable     Code = "unavailable"      // a part that is needed is down; safe to try again
	Oversize        Code = "oversize"         // a bound of bytes or entries
	Fenced          Code = "fenced"           // a stale epoch, lease or incarnation
	Quarantined     Code = "quarantined"      // the store is older than what others remember
	NotDurable      Code = "not_durable"      // the store cannot promise durability, so nothing is dispatched
	StoreFull       Code = "store_full"       // no room left; admission stopped
	TooOld          Code = "too_old"          // a guest or peer older than N-1
	ProtectedNumber Code = "protected_number" // a protected call of another version
	Uncertain       Code = "uncertain"        // exit code 6 of the command line
	Internal        Code = "internal"         // a defect of ours; the log has the detail
)

// Error is a failure with a code, a message that is safe to show, and a detail for the log.
type Error struct {
	Code    Code
	Message string // lower case, no period, no secret; says what to do
	Detail  error  // for the log only; may be nil
}

// Error returns code, message and detail: for logs, never for people. Use [Message] for those.
func (e *Error) Error() string {
	if e.Detail != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.Detail)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Unwrap returns the detail.
func (e *Error) Unwrap() error { return e.Detail }

// New makes an error with a safe message.
func New(code Code, message string) *Error { return &Error{Code: code, Message: message} }

// Newf makes an error with a formatted safe message: only values that a person may see.
func Newf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Wrap makes an error with a safe message and keeps err as its detail.
func Wrap(code Code, message string, err error) *Error {
	return &Error{Code: code, Message: message, Detail: err}
}

// CodeOf returns the code of err: "" for nil, [Internal] for an error that is not ours.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}

// Message returns what a person may read of err.
func Message(err error) string {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Message
	}
	return "internal error; the log has the detail"
}

// Is reports whether err carries code.
func Is(err error, code Code) bool { return err != nil && CodeOf(err) == code }

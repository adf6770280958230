package journal

import "slices"

// Failure says how an exchange failed, in one word of the worker. Empty: a complete, valid answer was read. A word that is not known here reads
// as the worst: sent, no complete answer.
type Failure string

// Failures before any byte of the call.
const (
	FailIntent     Failure = "intent"     // the worker refused the intent
	FailRequest    Failure = "request"    // the request cannot be formed: arguments, names or header values
	FailBusy       Failure = "busy"       // the worker does not queue
	FailLate       Failure = "late"       // Go after start_before
	FailClosed     Failure = "closed"     // closed before Go
	FailCredential Failure = "credential" // it does not open, or does not fit
	FailAddress    Failure = "address"    // refused by the address guard
	FailResolve    Failure = "resolve"
	FailConnect    Failure = "connect"
	FailTLS        Failure = "tls"
	FailInitialize Failure = "initialize"
)

// Failures after at least one byte.
const (
	FailWrite     Failure = "write"     // the request was not written whole
	FailReset     Failure = "reset"     // the connection ended without an answer
	FailCut       Failure = "cut"       // the answer ended early
	FailStream    Failure = "stream"    // the event stream ended without our answer
	FailTimeout   Failure = "timeout"   // no whole answer in time
	FailSilence   Failure = "silence"   // no byte for too long
	FailCancelled Failure = "cancelled" // the worker stopped waiting: it ends
	FailHTTP      Failure = "http"      // not an HTTP/1.1 answer
	FailStatus    Failure = "status"    // a complete HTTP answer with another status than 200
	FailNoAnswer  Failure = "no_answer" // 202, or for a callback a 2xx without a body
	FailMedia     Failure = "media"     // neither JSON nor an event stream
	FailEncoding  Failure = "encoding"  // compressed, though only identity is accepted
	FailOversize  Failure = "oversize"  // over a bound
	FailRoom      Failure = "room"      // a long answer found no memory in time
	FailJSON      Failure = "json"      // not one strict JSON-RPC answer: syntax, duplicate names, bad UTF-8, depth, members
	FailID        Failure = "id"        // an answer to another request
	FailTask      Failure = "task"      // control's own word: the server made a task, and what became of it will not be learned
	FailRunGone   Failure = "run_gone"  // control's own word: the run did not come back within 15 s
	FailMalformed Failure = "malformed" // control's own word: the worker's report makes no sense
)

// Answer is what control read in a complete message.
type Answer string

// Answers.
const (
	AnswerNone     Answer = ""
	AnswerResult   Answer = "result"
	AnswerIsError  Answer = "is_error"
	AnswerError    Answer = "error" // a JSON-RPC error
	AnswerInput    Answer = "input_required"
	AnswerTask     Answer = "task"
	AnswerCallback Answer = "callback" // a complete 2xx JSON body of a callback
)

// Evidence is what is known of a dispatch that ended: the worker's facts, what control read in the body, what the connection is marked with.
type Evidence struct {
	Transport Transport
	Failure   Failure
	Status    int    // HTTP; 0: none was read
	Answer    Answer // of a complete, valid message
	RPCCode   int64  // with AnswerError
	Callback  bool   // the connection is an HTTP callback
	Moved     []int  // statuses that the connection counts as uncertain
}

// Verdict reads the outcome table: it returns the event of a dispatch that ended. It does not know attempts: whether an unsent dispatch, or a
// lost read, is tried again is the caller's ([OnRetry]).
func Verdict(e Evidence) Event {
	if e.Transport == TransportNotSent {
		return OnUnsent
	}
	if e.Transport != TransportAnswered {
		return OnLost
	}
	switch e.Failure {
	case "":
		return complete(e)
	case FailStatus:
		if Rejecting(e.Status) && !slices.Contains(e.Moved, e.Status) {
			return OnReject
		}
	}
	return OnLost
}

// complete judges a complete and valid message.
func complete(e Evidence) Event {
	if e.Callback {
		if e.Status/100 == 2 && e.Answer == AnswerCallback {
			return OnAnswer
		}
		return OnLost
	}
	if e.Status != 200 {
		return OnLost
	}
	switch e.Answer {
	case AnswerResult, AnswerIsError:
		return OnAnswer
	case AnswerInput:
		return OnInput
	case AnswerTask:
		return OnTask
	case AnswerError:
		if RejectingCode(e.RPCCode) {
			return OnReject
		}
		return OnAnswer
	}
	return OnLost
}

// Rejecting reports whether a complete HTTP answer of this status, whatever its body, says that the call did not run.
func Rejecting(status int) bool {
	switch status {
	case 400, 401, 403, 404, 405, 406, 413, 415, 422, 429:
		return true
	}
	return false
}

// RejectingCode reports whether a JSON-RPC error of this code says that the call did not run: parse error, invalid request, unknown method,
// invalid params (JSON-RPC 2.0), and header mismatch, missing capability, unsupported version (MCP 2026-07-28).
func RejectingCode(code int64) bool {
	switch code {
	case -32700, -32600, -32601, -32602, -32020, -32021, -32022:
		return true
	}
	return false
}

package upstream

import (
	"errors"

	"sallyport.dev/errs"
	"sallyport.dev/worker/netguard"
)

// Failure says in one word how an exchange failed. The words stand in the journal; empty means that a complete and valid answer was read.
type Failure string

// Failures of Prepare: nothing of the call was sent.
const (
	FailRequest    Failure = "request"    // the request cannot be formed: arguments, names or header values
	FailAddress    Failure = "address"    // an address that this connection may not reach
	FailResolve    Failure = "resolve"    // the name has no address
	FailConnect    Failure = "connect"    // nobody answers at the address
	FailTLS        Failure = "tls"        // handshake or certificate
	FailCredential Failure = "credential" // the server wants another credential (401, 403)
	FailInitialize Failure = "initialize" // the era or the session could not be settled
)

// Failures of Send. Where [Outcome.Bytes] is zero, nothing was sent.
const (
	FailClosed    Failure = "closed"    // the preparation was closed, or used before
	FailWrite     Failure = "write"     // the request was not written whole
	FailReset     Failure = "reset"     // the connection ended without an answer
	FailCut       Failure = "cut"       // the answer ended early
	FailStream    Failure = "stream"    // the event stream ended properly, without an answer
	FailTimeout   Failure = "timeout"   // no whole answer in time
	FailSilence   Failure = "silence"   // no byte for too long
	FailCancelled Failure = "cancelled" // the caller stopped waiting
	FailHTTP      Failure = "http"      // not an HTTP/1.1 answer
	FailStatus    Failure = "status"    // a complete HTTP answer with another status than 200
	FailNoAnswer  Failure = "no_answer" // 202, or for a callback a 2xx without a body
	FailMedia     Failure = "media"     // neither JSON nor an event stream
	FailEncoding  Failure = "encoding"  // compressed, though we accept identity only
	FailOversize  Failure = "oversize"  // over a bound
	FailRoom      Failure = "room"      // a long answer found no memory in time
	FailJSON      Failure = "json"      // not one strict JSON-RPC answer: syntax, duplicate names, bad UTF-8, depth, members
	FailID        Failure = "id"        // an answer to another request
)

// Error is a failed Prepare, probe or catalog. Nothing of a call was sent.
type Error struct {
	Failure   Failure
	Status    int    // HTTP, of the question that failed; 0: none was read
	Challenge string // WWW-Authenticate of a 401 or 403, bounded, without our credential
	err       *errs.Error
}

// Error returns failure, code, message and detail, for logs.
func (e *Error) Error() string { return string(e.Failure) + ": " + e.err.Error() }

// Unwrap gives the [errs.Error]: code [errs.Invalid] (the request), [errs.NotAllowed] (an address), [errs.NotConnected] (the credential) or
// [errs.Unreachable].
func (e *Error) Unwrap() error { return e.err }

// FailureOf returns the word of an error of this package, "" for any other.
func FailureOf(err error) Failure {
	var e *Error
	if errors.As(err, &e) {
		return e.Failure
	}
	return ""
}

func badRequest(message string, detail error) *Error {
	return &Error{Failure: FailRequest, err: errs.Wrap(errs.Invalid, message, detail)}
}

// opening makes an Error of a connection that was not opened.
func opening(err error) *Error {
	var g *netguard.Error
	if !errors.As(err, &g) {
		return &Error{Failure: FailConnect, err: errs.Wrap(errs.Unreachable, "the server cannot be reached", err)}
	}
	failure := map[netguard.Step]Failure{
		netguard.StepResolve: FailResolve, netguard.StepAddress: FailAddress, netguard.StepConnect: FailConnect, netguard.StepTLS: FailTLS,
	}[g.Step]
	return &Error{Failure: failure, err: errs.Wrap(errs.CodeOf(g), errs.Message(g), g)}
}

// asking makes an Error of a question (discover, initialize, ping, list) that got no use of an answer.
func asking(what string, r *reply) *Error {
	e := &Error{Failure: FailInitialize, Status: r.status, Challenge: r.challenge}
	switch {
	case r.status == 401 || r.status == 403:
		e.Failure = FailCredential
		e.err = errs.Newf(errs.NotConnected, "the server refused the credential (HTTP %d)", r.status)
	case r.status >= 300 && r.status < 400:
		e.err = errs.Newf(errs.Unreachable, "the server redirects (HTTP %d), and no redirect is followed; configure the address where it ends", r.status)
	case r.failure == FailStatus:
		e.err = errs.Newf(errs.Unreachable, "the server answered %s with HTTP %d", what, r.status)
	case r.failure != "":
		e.err = errs.Newf(errs.Unreachable, "the server did not answer %s (%s)", what, r.failure)
	default:
		e.err = errs.Newf(errs.Unreachable, "the server refused %s (error %d)", what, r.message.code)
	}
	if r.detail != "" {
		e.err.Detail = errors.New(r.detail)
	}
	return e
}

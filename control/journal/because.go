package journal

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxBecause is how many bytes of a line's detail are kept: it is a worker's text, and may name what a server sent.
const maxBecause = 512

// sentences say what each failure means, for the line of the journal that a person reads.
var sentences = map[Failure]string{
	FailIntent:     "the worker refused the intent",
	FailRequest:    "the request could not be formed",
	FailBusy:       "the worker had no room",
	FailLate:       "the worker was held up for too long after it was released",
	FailClosed:     "it was closed before it was released",
	FailCredential: "the credential was refused, or does not open",
	FailAddress:    "the address may not be reached",
	FailResolve:    "the name has no usable address",
	FailConnect:    "nobody answers at the address",
	FailTLS:        "the TLS handshake failed",
	FailInitialize: "the server did not settle how to talk to it",
	FailWrite:      "the request was not written whole",
	FailReset:      "the connection ended without an answer",
	FailCut:        "the answer ended early",
	FailStream:     "the event stream ended without the answer",
	FailTimeout:    "no whole answer came in time",
	FailSilence:    "no byte came for too long",
	FailCancelled:  "the worker stopped waiting",
	FailHTTP:       "what came is no HTTP/1.1 answer",
	FailStatus:     "the server answered with a status",
	FailNoAnswer:   "the server took it and gave no answer",
	FailMedia:      "what came is neither JSON nor an event stream",
	FailEncoding:   "the answer is compressed, which was not offered",
	FailOversize:   "the answer is over a bound",
	FailRoom:       "a long answer found no memory in time",
	FailJSON:       "what came is not one strict JSON-RPC answer",
	FailID:         "what came answers another request",
	FailTask:       "what became of the server's task is not known",
	FailRunGone:    "the worker that had it did not come back",
	FailMalformed:  "the worker's report makes no sense",
}

// Because says why a dispatch came to what it did: the word of the failure, what it means, the HTTP status, and the worker's own detail; "" for an
// answer that is nobody's failure. It is pure, and safe to show to people: a worker's detail has no secret and no body. The model never reads it.
func (e Evidence) Because(detail string) string {
	var b strings.Builder
	switch {
	case e.Failure != "":
		b.WriteString(string(e.Failure) + ": ")
		if s := sentences[e.Failure]; s != "" {
			b.WriteString(s)
		} else {
			b.WriteString("the worker says no more")
		}
	case e.Answer == AnswerError && RejectingCode(e.RPCCode):
		b.WriteString("error: the server answered with error " + strconv.FormatInt(e.RPCCode, 10))
	case Verdict(e) == OnLost:
		b.WriteString("answer: what came is no answer to a call")
	default:
		return ""
	}
	if e.Status != 0 && e.Status != 200 {
		b.WriteString(" (HTTP " + strconv.Itoa(e.Status) + ")")
	}
	if detail = cutText(detail, maxBecause); detail != "" {
		b.WriteString(": " + detail)
	}
	return b.String()
}

// cutText keeps at most so many bytes of a text, whole characters of valid UTF-8.
func cutText(s string, most int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

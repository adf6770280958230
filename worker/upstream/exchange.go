package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"sallyport.dev/relay/strictjson"
)

// kind is what an exchange expects back.
type kind int

const (
	kindCall     kind = iota // a JSON-RPC response
	kindNotice               // any status without a body to speak of
	kindCallback             // a JSON document
	kindHead                 // the head alone
)

// exchange is one request, whole, and what is expected of its answer.
type exchange struct {
	wire     []byte
	kind     kind
	id       string // of the JSON-RPC request
	revision string // "" before it is settled
	answer   time.Duration
	deadline time.Time // of the answer, once it is written
	patient  bool      // a question that may take as long as a call
	silence  time.Duration
	result   int64
	place    *place // of a long answer; nil: it takes what it takes, within result
	secret   Credential
	token    string                       // progress is wanted under this token
	sent     func(int64)                  // may be nil
	progress func(Progress)               // may be nil
	request  func(m message, done func()) // an old-era server asks something; done when it was answered; may be nil
}

// reply is what an exchange came to.
type reply struct {
	bytes     int64
	status    int
	failure   Failure
	detail    string
	message   message // kindCall
	document  []byte  // kindCallback
	session   string  // Mcp-Session-Id
	stream    bool    // kindHead: an event stream began
	challenge string
	written   time.Duration
	waited    time.Duration
	read      time.Duration
	reusable  bool          // the answer was read to its end, and both sides keep the connection
	rest      io.ReadCloser // what is left of an event stream after our answer
}

// envelope is what a JSON-RPC answer may be longer than its result.
const envelope = 4 << 10

// streamSlack is what an event stream may be longer than two answers: progress, comments, other notifications.
const streamSlack = 4 << 20

// roundTrip writes x once and reads its answer. It is the only place where a request is written.
func (k *conn) roundTrip(ctx context.Context, x *exchange) (r reply) {
	switch {
	case ctx.Err() != nil:
		return reply{failure: FailCancelled}
	case k.spoke():
		return reply{failure: FailReset, detail: "the connection ended before the request"}
	}
	start := time.Now()
	deadline := start.Add(x.answer)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	x.deadline = deadline
	k.src.arm(deadline, x.silence)
	stop := context.AfterFunc(ctx, k.src.cancel)
	defer func() {
		if !stop() {
			r.reusable = false
		}
	}()
	n, err := k.write(x.wire)
	r.bytes = n
	r.written = time.Since(start)
	if err != nil {
		r.failure = FailWrite
		if n == 0 {
			r.detail = "the kernel took nothing"
			return r
		}
		// The server may have answered without reading on (413). What it said is a fact; that it said nothing is none.
		k.src.arm(time.Now().Add(min(earlyGrace, time.Until(deadline))), 0)
	} else if x.sent != nil {
		x.sent(n)
	}
	<-k.ready
	r.waited = time.Since(start) - r.written
	defer func() { r.read = time.Since(start) - r.written - r.waited }()
	if k.err != nil {
		if r.failure == "" {
			r.failure = k.readFailure(k.err, false)
		}
		return r
	}
	r.failure = "" // an answer has begun
	k.readAnswer(ctx, x, &r)
	if err != nil && r.failure != "" && r.status == 0 {
		r.failure = FailWrite
	}
	if err != nil {
		r.reusable = false
	}
	return r
}

// readAnswer reads head and body, status first.
func (k *conn) readAnswer(ctx context.Context, x *exchange, r *reply) {
	resp, failure := k.readHead() //nolint:bodyclose // the body is the connection: read to its end, drained or closed with it
	if failure != "" {
		r.failure = failure
		return
	}
	r.status = resp.StatusCode
	r.session = resp.Header.Get("Mcp-Session-Id")
	if r.status == http.StatusUnauthorized || r.status == http.StatusForbidden {
		r.challenge = challenge(resp.Header, x.secret)
	}
	k.src.allow(2*x.result + streamSlack)
	keep := !resp.Close && resp.ProtoAtLeast(1, 1)
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	coding := resp.Header.Get("Content-Encoding")
	plain := coding == "" || coding == "identity"
	if x.kind == kindHead {
		r.stream = media == "text/event-stream" && r.status == http.StatusOK
		return
	}
	if media == "text/event-stream" && plain && r.status == http.StatusOK && x.kind == kindCall {
		k.readStream(ctx, x, r, resp.Body)
		if r.failure == "" && keep {
			r.rest = resp.Body
		}
		return
	}
	body, failure := k.readBody(ctx, x, resp)
	if failure != "" {
		r.failure = failure
		return
	}
	r.reusable = keep && k.in.Buffered() == 0
	judge(x, r, body, media, plain)
}

// judge reads a complete body.
func judge(x *exchange, r *reply, body []byte, media string, plain bool) {
	ok := r.status == http.StatusOK || x.kind == kindCallback && r.status/100 == 2
	switch {
	case x.kind == kindNotice:
		if r.status/100 != 2 {
			r.failure = FailStatus
		}
		return
	case !ok:
		r.failure = FailStatus
		if r.status == http.StatusAccepted {
			r.failure = FailNoAnswer
		}
		if plain && media == "application/json" && x.kind == kindCall {
			if m, failure, _ := response(x, body); failure == "" { // the server explains itself
				r.message = m
			}
		}
		return
	case x.kind == kindCallback && len(bytes.TrimSpace(body)) == 0:
		r.failure = FailNoAnswer
		return
	case !plain:
		r.failure = FailEncoding
		return
	case media != "application/json":
		r.failure = FailMedia
		return
	}
	if x.kind == kindCallback {
		if err := strictjson.Check(body); err != nil {
			r.failure, r.detail = FailJSON, err.Error()
			return
		}
		r.document = body
		return
	}
	m, failure, detail := response(x, body)
	if failure != "" {
		r.failure, r.detail = failure, detail
		return
	}
	r.message = m
}

// response finds our response in a JSON body.
func response(x *exchange, body []byte) (message, Failure, string) {
	body = bytes.TrimSpace(body)
	list := [][]byte{body}
	if x.revision == batchedIn && len(body) > 0 && body[0] == '[' {
		var err error
		if list, err = strictjson.Array(body, nil); err != nil {
			return message{}, FailJSON, err.Error()
		}
	}
	other := false
	for _, raw := range list {
		m, err := parseMessage(raw)
		switch {
		case err != nil:
			return m, FailJSON, err.Error()
		case m.isResponse() && m.answers(x.id):
			return m, "", ""
		case m.isResponse():
			other = true
		}
	}
	if other {
		return message{}, FailID, ""
	}
	return message{}, FailJSON, "no response"
}

// protocolBegin is how every answer of HTTP/1 begins.
const protocolBegin = "HTTP/1."

// readHead reads the final status line and header. Interim answers (RFC 9110, section 15.2) are skipped within the head's budget; 101 is not one,
// because we asked for no other protocol.
func (k *conn) readHead() (*http.Response, Failure) {
	for {
		if begin, err := k.in.Peek(len(protocolBegin)); !strings.HasPrefix(protocolBegin, string(begin)) {
			return nil, FailHTTP
		} else if err != nil {
			return nil, k.readFailure(err, true)
		}
		resp, err := http.ReadResponse(k.in, &http.Request{Method: http.MethodPost})
		if err != nil {
			// The text of the error may quote the server, and the server may quote our credential. Where the bytes ended too early, the
			// parser may have taken half a line for a whole one.
			if ended := k.src.ended(); ended != nil {
				return nil, k.readFailure(ended, true)
			}
			if isTransport(err) {
				return nil, k.readFailure(err, true)
			}
			return nil, FailHTTP
		}
		switch {
		case resp.ProtoMajor != 1, resp.StatusCode < 100, resp.StatusCode == http.StatusSwitchingProtocols:
			return nil, FailHTTP
		case resp.StatusCode >= 200:
			return resp, ""
		}
	}
}

// firstRead is how much memory a length that is only claimed gets. What is longer needs a place.
const firstRead = 2 << 20

// readBody reads a body to its end.
func (k *conn) readBody(ctx context.Context, x *exchange, resp *http.Response) ([]byte, Failure) {
	most := x.result + envelope
	if resp.ContentLength > most {
		return nil, FailOversize
	}
	size := resp.ContentLength
	if size < 0 {
		size = 512
	}
	body := make([]byte, 0, min(size, firstRead)+1)
	body, err := readUpTo(resp.Body, body, min(most+1, firstRead))
	if err == nil && len(body) == firstRead {
		need := most
		if resp.ContentLength > 0 {
			need = resp.ContentLength
		}
		if failure := x.place.take(ctx, k, x.deadline, need); failure != "" {
			return nil, failure
		}
		if more := need - firstRead; resp.ContentLength > 0 && more > 0 {
			body = slices.Grow(body, int(more)+1) // it is coming
		}
		body, err = readUpTo(resp.Body, body, most+1)
	}
	switch {
	case int64(len(body)) > most:
		return nil, FailOversize
	case err == nil:
		return body, ""
	case isTransport(err):
		return nil, k.readFailure(err, true)
	}
	return nil, FailHTTP // broken chunks
}

// readUpTo appends what r has to b, until b has most bytes or r ends.
func readUpTo(r io.Reader, b []byte, most int64) ([]byte, error) {
	for int64(len(b)) < most {
		if len(b) == cap(b) {
			b = extend(b, min(bytes.MinRead, int(most)-len(b)), most)
		}
		n, err := r.Read(b[len(b):min(cap(b), int(most))])
		b = b[:len(b)+n]
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return b, err
		}
	}
	return b, nil
}

// isTransport tells errors of the connection and of its bounds from those of a parser.
func isTransport(err error) bool {
	var op interface{ Timeout() bool } // net.Error and os.ErrDeadlineExceeded
	return errors.Is(err, errOversize) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		isReset(err) || errors.As(err, &op)
}

// challenge joins WWW-Authenticate, bounded and without our credential.
func challenge(h http.Header, secret Credential) string {
	var b bytes.Buffer
	for _, v := range h.Values("WWW-Authenticate") {
		if b.Len()+len(v) > 4<<10 || !plainValue(v) {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(v)
	}
	return secret.scrub(b.String())
}

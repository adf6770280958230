package upstream

import (
	"context"
	"crypto/sha256"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// Prepared is a dispatch of which no byte has left. Exactly one of Send and Close must follow; calling both, or twice, is safe.
type Prepared struct {
	c        *Client
	r        *route
	k        *conn
	x        *exchange
	s        *session
	revision string
	reused   bool
	write    bool
	took     time.Duration
	hooks    Hooks
	elicit   bool
	spent    atomic.Bool
}

// Address is what was dialed.
func (p *Prepared) Address() netip.AddrPort { return p.k.addr }

// Protocol is the settled MCP revision, "" for a callback.
func (p *Prepared) Protocol() string { return p.revision }

// Session is the exported old-era session, for the caller to seal; nil where there is none.
func (p *Prepared) Session() []byte { return p.s.export() }

// Took is how long Prepare took.
func (p *Prepared) Took() time.Duration { return p.took }

// Prepare opens what the call needs and builds its request, whole. Errors: *[Error]; nothing of the call was sent.
func (c *Client) Prepare(ctx context.Context, t *Target, call *Call, hooks Hooks) (*Prepared, error) {
	start := time.Now()
	r, err := newRoute(t)
	if err != nil {
		return nil, err
	}
	q, err := c.callRequest(call)
	if err != nil {
		return nil, err
	}
	p := &Prepared{c: c, r: r, hooks: hooks, elicit: call.Elicit}
	if p.revision, err = c.revision(ctx, r); err != nil {
		return nil, err
	}
	var (
		extra     [][2]string
		sessionID string
	)
	switch {
	case p.revision == Modern:
		if call.Task == "" {
			if extra, err = paramHeaders(call.Schema, call.Arguments); err != nil {
				return nil, err
			}
		}
		q.modern(call.Elicit)
	case call.Task != "":
		return nil, badRequest("a server of this revision has no tasks", nil)
	default:
		if p.s, err = c.session(ctx, r, p.revision, call.Elicit, call.Session); err != nil {
			return nil, err
		}
		p.revision, sessionID = p.s.revision, p.s.id
	}
	if call.Trace != "" {
		q.meta = appendText(q.meta, "traceparent", call.Trace)
	}
	if call.Progress {
		q.meta = appendText(q.meta, "progressToken", call.ID)
	}
	name := call.Tool
	if call.Task != "" {
		name = call.Task // SEP-2663, "Routing Headers"
	}
	p.x = c.newExchange(r, q, p.revision, sessionID, name, extra)
	p.x.sent = hooks.Sent
	if call.Progress {
		p.x.token, p.x.progress = call.ID, hooks.Progress
	}
	if err := p.connect(ctx, call.Write); err != nil {
		return nil, err
	}
	p.took = time.Since(start)
	return p, nil
}

// connect takes a connection: for a write one that never carried a request.
func (p *Prepared) connect(ctx context.Context, write bool) error {
	p.k = p.c.pool.take(p.r.key, write)
	if p.k == nil {
		var err error
		if p.k, err = p.c.open(ctx, p.r); err != nil {
			return err
		}
	}
	p.reused, p.write = p.k.used, write
	return nil
}

// callRequest checks a call and begins its request. Arguments are spliced in as bytes, so they must be exactly one JSON object.
func (c *Client) callRequest(call *Call) (*rpc, error) {
	if !validID(call.ID) {
		return nil, badRequest("a call's id has 1 to 64 letters, digits, dots, dashes or underscores", nil)
	}
	if call.Trace != "" && !validTrace(call.Trace) {
		return nil, badRequest("the trace is not a W3C traceparent", nil)
	}
	if call.Task != "" {
		return c.taskRequest(call)
	}
	if call.Tool == "" || len(call.Tool) > 512 {
		return nil, badRequest("a tool's name has 1 to 512 bytes", nil)
	}
	if err := strictObject(call.Arguments); err != nil {
		return nil, badRequest("the arguments are not one strict JSON object", err)
	}
	q := &rpc{version: c.version, id: call.ID, method: "tools/call"}
	q.params = appendText(q.params, "name", call.Tool)
	q.params = appendMember(q.params, "arguments", call.Arguments)
	if call.InputResponses != nil {
		if err := strictObject(call.InputResponses); err != nil {
			return nil, badRequest("the input responses are not one strict JSON object", err)
		}
		q.params = appendMember(q.params, "inputResponses", call.InputResponses)
	}
	if call.RequestState != nil {
		if err := strictjson.Check(call.RequestState); err != nil {
			return nil, badRequest("the request state is not one strict JSON value", err)
		}
		q.params = appendMember(q.params, "requestState", call.RequestState)
	}
	return q, nil
}

// MaxTask is how long a task's handle may be, in bytes.
const MaxTask = 1 << 10

// taskRequest begins a request about a task.
func (c *Client) taskRequest(call *Call) (*rpc, error) {
	if len(call.Task) > MaxTask || !utf8.ValidString(call.Task) {
		return nil, badRequest("a task's handle has 1 to 1,024 bytes of UTF-8", nil)
	}
	q := &rpc{version: c.version, id: call.ID, method: "tasks/get"}
	if call.GiveUp {
		q.method = "tasks/cancel"
	}
	q.params = appendText(q.params, "taskId", call.Task)
	return q, nil
}

func strictObject(raw []byte) error {
	_, err := strictjson.Object(raw, nil)
	return err
}

func validID(id string) bool {
	for i := range len(id) {
		c := id[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_') {
			return false
		}
	}
	return id != "" && len(id) <= 64
}

// validTrace accepts a version 00 traceparent (W3C Trace Context, section 3.2).
func validTrace(s string) bool {
	if len(s) != 55 || s[:3] != "00-" || s[35] != '-' || s[52] != '-' {
		return false
	}
	for i := 3; i < len(s); i++ {
		c := s[i]
		if i != 35 && i != 52 && !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
			return false
		}
	}
	return true
}

// Close gives up a dispatch that was not sent. Its connection, if it never carried a request, may serve another write for a moment.
func (p *Prepared) Close() {
	if p.spent.CompareAndSwap(false, true) {
		p.c.pool.put(p.k)
	}
}

// Send writes the request, once, and waits for the answer. The context ends the waiting, never the call: on 2026-07-28 a closed stream is a
// cancellation upstream, so a write's context should live until its time is over. A second Send sends nothing.
func (p *Prepared) Send(ctx context.Context) Outcome {
	out := Outcome{Transport: NotSent, Failure: FailClosed, Protocol: p.revision, Address: p.k.addr, Reused: p.reused}
	if !p.spent.CompareAndSwap(false, true) {
		return out
	}
	var questions *questions
	if p.s != nil && p.revision != Modern {
		questions = p.c.answerQuestions(ctx, p)
		p.x.request = questions.put
	}
	place := &place{room: p.c.room}
	p.x.place = place
	r := p.k.roundTrip(ctx, p.x)
	if questions != nil {
		questions.end()
	}
	if p.write && p.c.pool.enough(p.r.key) {
		r.reusable, r.rest = false, nil
	}
	p.c.settle(p.k, &r)
	if p.write && r.failure == "" {
		p.c.openSpare(p.r)
	}
	p.learn(&r)
	out.Session = p.s.export()
	out.Timings = Timings{Connect: p.took, Write: r.written, Wait: r.waited, Read: r.read}
	out.Bytes, out.Status, out.Failure = r.bytes, r.status, r.failure
	out.Detail, out.Challenge = p.r.credential.scrub(r.detail), r.challenge
	switch {
	case r.bytes == 0:
		out.Transport = NotSent
	case r.failure == "" || r.failure == FailStatus || r.failure == FailNoAnswer:
		out.Transport = Answered
	default:
		out.Transport = Sent
	}
	out.setBody(p.r.credential, r.message.raw, r.document)
	if place.shrink(int64(len(out.Body))); place.held > 0 {
		out.Release = sync.OnceFunc(place.release)
	}
	return out
}

// setBody takes over the answer, without our credential.
func (o *Outcome) setBody(secret Credential, bodies ...[]byte) {
	for _, body := range bodies {
		if body == nil {
			continue
		}
		clean, found := secret.scrubJSON(body)
		if found {
			o.Redacted, o.Original = true, sha256.Sum256(body)
			if err := strictjson.Check(clean); err != nil { // two names became one
				o.Failure, o.Transport, o.Detail, clean = FailJSON, Sent, errs.Message(err), nil
			}
		}
		o.Body = clean
	}
}

// learn notes that a session lives, or drops what a refusal proved wrong, so that the next call asks again. This call does not.
func (p *Prepared) learn(r *reply) {
	switch explained := r.message.fault != nil; {
	case r.failure == "" && !explained:
		p.c.alive(p.r.owner, p.s)
	case p.s != nil && (r.status == 404 || r.status == 400 && !explained):
		p.c.forget(p.c.stopped, p.r.owner, p.s)
		p.s = nil
		p.c.eras.forget(p.r.eraKey())
	case r.failure == FailStatus && (r.status == 400 || r.status == 404 || r.status == 405), r.message.code == codeVersion:
		p.c.eras.forget(p.r.eraKey())
	}
}

package upstream

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"time"

	"sallyport.dev/relay/strictjson"
)

// Callback is one call of a tool on a platform's own endpoint.
type Callback struct {
	ID        string // the call's id: webhook-id, the same for every attempt, so that the receiver can tell repeats
	Tool      string
	Arguments []byte // one JSON object, sent byte for byte
	Session   string
	Owner     string
	Write     bool
	Trace     string // our own traceparent, or ""
}

// PrepareCallback is [Client.Prepare] for an HTTP callback: {call, tool, arguments, session, owner}, signed as Standard Webhooks do when the
// credential is a signing key. The answer's JSON document becomes [Outcome.Body] as it came. Errors: *[Error]; nothing of the call was sent.
func (c *Client) PrepareCallback(ctx context.Context, t *Target, call *Callback, hooks Hooks) (*Prepared, error) {
	start := time.Now()
	r, err := newRoute(t)
	if err != nil {
		return nil, err
	}
	if !validID(call.ID) || call.Tool == "" {
		return nil, badRequest("a callback needs the call's id and the tool's name", nil)
	}
	if err := strictObject(call.Arguments); err != nil {
		return nil, badRequest("the arguments are not one strict JSON object", err)
	}
	if call.Trace != "" && !validTrace(call.Trace) {
		return nil, badRequest("the trace is not a W3C traceparent", nil)
	}
	body := appendText([]byte("{"), "call", call.ID)
	body = appendText(body, "tool", call.Tool)
	body = appendMember(body, "arguments", call.Arguments)
	body = appendText(body, "session", call.Session)
	body = appendText(body, "owner", call.Owner)
	body[len(body)-1] = '}'

	head := appendHead(make([]byte, 0, 1024), "POST", r, "application/json")
	for _, h := range signature(r.credential.signer(), call.ID, start, body) {
		head = appendHeader(head, h[0], h[1])
	}
	if call.Trace != "" {
		head = appendHeader(head, "traceparent", call.Trace)
	}
	p := &Prepared{c: c, r: r, hooks: hooks, x: &exchange{
		wire: endHead(head, body), kind: kindCallback, secret: r.credential, sent: hooks.Sent,
		answer: r.limits.Answer, silence: r.limits.Silence, result: r.limits.Result,
	}}
	if err := p.connect(ctx, call.Write); err != nil {
		return nil, err
	}
	p.took = time.Since(start)
	return p, nil
}

// signature makes the three headers of Standard Webhooks: id, seconds, and HMAC-SHA-256 over "id.seconds.body". Without a key it still says which
// call this is.
func signature(key []byte, id string, now time.Time, body []byte) [][2]string {
	seconds := strconv.FormatInt(now.Unix(), 10)
	out := [][2]string{{"webhook-id", id}, {"webhook-timestamp", seconds}}
	if key == nil {
		return out
	}
	m := hmac.New(sha256.New, key)
	m.Write([]byte(id + "." + seconds + "."))
	m.Write(body)
	return append(out, [2]string{"webhook-signature", "v1," + base64.StdEncoding.EncodeToString(m.Sum(nil))})
}

// SignNotice makes the Standard Webhooks headers of a notification (webhook, push, chat) whose body is body; it has no arguments of a call.
// Errors: *[Error] of FailRequest.
func SignNotice(key Credential, id string, now time.Time, body []byte) ([][2]string, error) {
	if !validID(id) || strictjson.Check(body) != nil {
		return nil, badRequest("a notification has an id and a strict JSON body", nil)
	}
	return signature(key.signer(), id, now, body), nil
}

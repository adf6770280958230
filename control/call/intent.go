package call

import (
	"encoding/hex"
	"strconv"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/intent"
	"sallyport.dev/relay"
)

// continuation is what travels beside the intent of an attempt that answers an input_required: {"requestState":…,"inputResponses":…}, both as they
// were, by concatenation.
func continuation(c *control.Call) []byte {
	if len(c.Answer) == 0 {
		return nil
	}
	b := []byte{'{'}
	if len(c.RequestState) > 0 {
		b = append(append(b, `"requestState":`...), c.RequestState...)
	}
	if len(b) > 1 {
		b = append(b, ',')
	}
	b = append(append(b, `"inputResponses":`...), c.Answer...)
	return append(b, '}')
}

// intentOf is the intent of the coming attempt of a call.
func intentOf(c *control.Call, to *control.Connection, tool *control.Tool, credential *control.Credential, upstream []byte, by control.Authority, run Run, now time.Time) (*intent.Intent, intent.Beside) {
	attempt := c.Attempt + 1
	l := limitsOf(to)
	in := &intent.Intent{
		V: intent.Protected, ID: control.NewID(), Org: c.Org, Kind: intent.Call, Call: c.ID, Attempt: attempt, Session: c.Session, Epoch: c.Epoch,
		Binding: c.Binding.String(), Connection: to.Name, Revision: to.Revision, Pool: to.Pool, Transport: intent.TransportMCP,
		Origin: to.Origin, Path: to.Path, Allow: to.Network.Allow, PlainHTTP: to.Network.HTTP, AuthType: or(to.Auth.Type, intent.AuthNone),
		AuthHeader: to.Auth.Name, Protocol: to.Protocol, Tool: c.Tool, Effect: string(c.Effect), Authority: by.String(), Owner: string(c.Owner),
		Trace: traceOf(c.ID, attempt), ResultBytes: relay.MaxFile, ConnectMS: l.Connect.Milliseconds(), AnswerMS: l.Timeout.Milliseconds(),
		SilenceMS: l.Silence.Milliseconds(), NotBefore: now.UnixMilli(), StartBefore: now.Add(startWindow).UnixMilli(),
		FinishBefore: now.Add(startWindow + 3*l.Connect + l.Timeout).UnixMilli(), Audience: run.ID,
	}
	if in.Allow == nil {
		in.Allow = []string{}
	}
	in.Scopes = []string{}
	if to.Kind == control.KindCallback {
		in.Transport = intent.TransportCallback
	}
	if in.AuthType != intent.AuthHeader {
		in.AuthHeader = ""
	}
	beside := intent.Beside{Arguments: c.Arguments, Meta: continuation(c)}
	if to.Kind != control.KindCallback {
		beside.Tool, beside.Upstream = tool.Raw, upstream
	}
	if credential != nil {
		in.Subject, in.Version, in.Account = credential.Subject, credential.Version, credential.Account
	}
	digest := c.ArgsDigest
	in.Arguments = hex.EncodeToString(digest[:])
	in.Meta, in.Schema, in.Upstream = intent.Digest(beside.Meta), intent.Digest(beside.Tool), intent.Digest(beside.Upstream)
	return in, beside
}

// limitsOf fills a connection's limits in.
func limitsOf(c *control.Connection) control.ConnectionLimits {
	l := c.Limits
	within := func(d, otherwise, most time.Duration) time.Duration {
		if d <= 0 {
			d = otherwise
		}
		return min(d, most)
	}
	l.Connect = within(l.Connect, 5*time.Second, intent.MaxConnect)
	l.Timeout = within(l.Timeout, 2*time.Minute, intent.MaxAnswer)
	l.Silence = within(l.Silence, 2*time.Minute, intent.MaxAnswer)
	if l.Concurrent <= 0 {
		l.Concurrent = 16
	}
	if l.Result <= 0 {
		l.Result = relay.MaxInline
	}
	l.Result = min(l.Result, relay.MaxInline)
	return l
}

// concurrent is how many dispatches of a connection may be out at once.
func (p *Pipeline) concurrent(name string) int {
	c := &control.Connection{}
	if policy := p.policy.Load(); policy != nil && policy.Connections[name] != nil {
		c = policy.Connections[name]
	}
	return limitsOf(c).Concurrent
}

// traceOf is our own traceparent (W3C Trace Context): nothing of the guest's goes upstream.
func traceOf(id string, attempt int) string {
	d := control.SumParts("trace v1", []byte(id))
	span := control.SumParts("span v1", []byte(id), []byte(strconv.Itoa(attempt)))
	return "00-" + hex.EncodeToString(d[:16]) + "-" + hex.EncodeToString(span[:8]) + "-01"
}

package executor

import (
	"context"

	"github.com/go-json-experiment/json"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	wire "sallyport.dev/intent/oauth"
	"sallyport.dev/worker/upstream"
)

// probeReport is the output of a probe: strict JSON.
type probeReport struct {
	OK              bool        `json:"ok"`
	Protocol        string      `json:"protocol"`
	Address         string      `json:"address"`
	NeedsCredential bool        `json:"needs_credential"`
	Steps           []probeStep `json:"steps"`
	// Found is how one signs in, where the server wants a credential and the connection has none yet; NotFound is why that is not known.
	Found    *wire.Found `json:"found,omitzero"`
	NotFound string      `json:"not_found,omitzero"`
}

type probeStep struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	TookUS int64  `json:"took_us"`
}

// probe tests a connection. It changes nothing upstream; what it says of bytes is answered or not, and nothing rests on it.
func (x *Executor) probe(in *intent.Intent, target *upstream.Target) func(context.Context, *sallyportv1.Outcome) {
	return func(ctx context.Context, o *sallyportv1.Outcome) {
		r, err := x.cfg.Upstream.Probe(ctx, target)
		if err != nil {
			failed(o, err)
			return
		}
		p := probeReport{OK: r.OK(), Protocol: r.Protocol, NeedsCredential: r.NeedsCredential, Steps: []probeStep{}}
		if r.Address.IsValid() {
			p.Address = r.Address.String()
		}
		for _, s := range r.Steps {
			p.Steps = append(p.Steps, probeStep{Name: s.Name, OK: s.OK, Detail: s.Message, TookUS: s.Took.Microseconds()})
		}
		if p.NeedsCredential && in.AuthType == intent.AuthNone && x.cfg.OAuth != nil {
			if p.Found, err = x.cfg.OAuth.Trusting(target.Trust).Look(ctx, in, r.Challenge); err != nil {
				p.Found, p.NotFound = nil, errs.Message(err)
			}
		}
		output, err := json.Marshal(p)
		if err != nil {
			failed(o, err)
			return
		}
		o.Transport, o.Output, o.Protocol, o.Address, o.Challenge = sallyportv1.Transport_TRANSPORT_ANSWERED, output, r.Protocol, p.Address, r.Challenge
	}
}

// catalog lists a connection's tools.
func (x *Executor) catalog(target *upstream.Target) func(context.Context, *sallyportv1.Outcome) {
	return func(ctx context.Context, o *sallyportv1.Outcome) {
		c, err := x.cfg.Upstream.ListTools(ctx, target)
		if err != nil {
			failed(o, err)
			return
		}
		for _, t := range c.Excluded {
			o.Detail += "left out " + t.Name + ": " + t.Reason + "\n"
		}
		o.Transport, o.Output, o.Protocol = sallyportv1.Transport_TRANSPORT_ANSWERED, c.Bytes(), c.Protocol
	}
}

// failed is the outcome of a question that got no answer. Questions may have been asked, so it never reads as proof that nothing was sent.
func failed(o *sallyportv1.Outcome, err error) {
	o.Transport, o.Failure, o.Detail = sallyportv1.Transport_TRANSPORT_SENT, string(upstream.FailureOf(err)), errs.Message(err)
	if o.Failure == "" {
		o.Failure = "request"
	}
}

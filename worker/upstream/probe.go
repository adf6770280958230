package upstream

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
	"sallyport.dev/worker/netguard"
)

// ProbeStep is one part of a test of a connection, in the order in which it was taken.
type ProbeStep struct {
	Name    string // resolve, address, connect, tls, authenticate, protocol, tools
	OK      bool
	Took    time.Duration
	Message string // what was found, or what is wrong and what to do; safe to show
}

// Report is what a test of a connection found. A failed step is the last one.
type Report struct {
	Steps        []ProbeStep
	Address      netip.AddrPort
	Protocol     string
	ServerInfo   []byte // the server's bytes, or nil; self-reported
	Capabilities []byte
	Instructions string // at most 4 KiB; self-reported
	// NeedsCredential: the server refused the request for want of a (better) credential.
	NeedsCredential bool
	Challenge       string
	Tools           *Catalog
}

// OK reports whether every step succeeded.
func (p *Report) OK() bool {
	return len(p.Steps) > 0 && p.Steps[len(p.Steps)-1].OK
}

func (p *Report) step(name string, start time.Time, err error, found string) bool {
	s := ProbeStep{Name: name, OK: err == nil, Took: time.Since(start), Message: found}
	if err != nil {
		s.Message = errs.Message(err)
	}
	p.Steps = append(p.Steps, s)
	return err == nil
}

const maxInstructions = 4 << 10

// Probe tests a connection: every step for real, none that changes anything. The error is of the target itself (*[Error] of FailRequest);
// what a server does wrong stands in the report.
func (c *Client) Probe(ctx context.Context, t *Target) (*Report, error) {
	r, err := newRoute(t)
	if err != nil {
		return nil, err
	}
	r.protocol = "" // a test believes nothing
	c.eras.forget(r.eraKey())
	p := &Report{}
	if !c.probeNetwork(ctx, r, p) || t.Callback {
		return p, nil
	}
	start := time.Now()
	revision, result, err := c.discover(ctx, r)
	var s *session
	if err == nil && revision != Modern {
		s, result, err = c.initializeFully(ctx, r, revision, false)
		defer func() { c.leave(r, s) }()
	}
	var e *Error
	if errors.As(err, &e) && e.Failure == FailCredential {
		p.NeedsCredential, p.Challenge = true, e.Challenge
		p.step("authenticate", start, err, "")
		return p, nil
	}
	p.step("authenticate", start, nil, "")
	if s != nil {
		revision = s.revision
	}
	if err != nil {
		err = c.explainOld(ctx, r, err)
	}
	if !p.step("protocol", start, err, revision) {
		return p, nil
	}
	p.Protocol = revision
	p.describe(result)
	c.eras.set(r.eraKey(), revision)
	start = time.Now()
	r.limits.Result = max(r.limits.Result, maxCatalogBytes)
	p.Tools, err = c.listTools(ctx, r, revision, s)
	if errors.As(err, &e) && e.Failure == FailCredential {
		p.NeedsCredential, p.Challenge = true, e.Challenge
	}
	p.step("tools", start, err, "")
	return p, nil
}

// probeNetwork opens a connection step by step, and lets it rest for the questions that follow.
func (c *Client) probeNetwork(ctx context.Context, r *route, p *Report) bool {
	step := func() (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, r.limits.Connect) }
	start := time.Now()
	resolving, cancel := step()
	defer cancel()
	checked, err := c.guard.Resolve(resolving, r.origin, r.policy)
	var refused *netguard.Error
	if errors.As(err, &refused) && refused.Step == netguard.StepAddress {
		p.step("resolve", start, nil, "")
		return p.step("address", start, err, "")
	}
	if !p.step("resolve", start, err, "") {
		return false
	}
	var list []string
	for _, a := range checked.Addresses() {
		list = append(list, a.Addr().String())
	}
	p.step("address", start, nil, strings.Join(list, ", "))
	start = time.Now()
	connecting, cancel := step()
	defer cancel()
	raw, addr, err := c.guard.Dial(connecting, checked)
	if !p.step("connect", start, err, addr.String()) {
		return false
	}
	p.Address = addr
	m := &meter{Conn: raw}
	stream := raw
	if r.origin.TLS {
		start = time.Now()
		shaking, cancel := step()
		defer cancel()
		t, err := c.guard.Handshake(shaking, m, r.origin, r.trust)
		if !p.step("tls", start, err, "") {
			return false
		}
		stream = t
	}
	if stream == raw {
		stream = m
	}
	k := newConn(r.key, addr, m, stream)
	k.watch(&c.background, c.pool.drop)
	c.pool.put(k)
	return true
}

// describe takes over what a server says about itself.
func (p *Report) describe(result []byte) {
	if result == nil {
		return
	}
	p.ServerInfo, _ = strictjson.Lookup(result, "serverInfo")
	if info, ok := strictjson.Lookup(result, "_meta", "io.modelcontextprotocol/serverInfo"); ok {
		p.ServerInfo = info
	}
	p.Capabilities, _ = strictjson.Lookup(result, "capabilities")
	p.Instructions = text(result, "instructions")
	if len(p.Instructions) > maxInstructions {
		p.Instructions = strings.ToValidUTF8(p.Instructions[:maxInstructions], "")
	}
}

// explainOld looks whether a server that answered neither era speaks the transport of 2024-11-05 (HTTP+SSE), so that a person learns why.
func (c *Client) explainOld(ctx context.Context, r *route, err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Status != 400 && e.Status != 404 && e.Status != 405 {
		return err
	}
	head := appendHead(nil, "GET", r, "text/event-stream")
	x := &exchange{wire: append(head, "\r\n"...), kind: kindHead, answer: r.limits.Connect, result: r.limits.Result, secret: r.credential}
	rep, openErr := c.ask(ctx, r, x)
	if openErr != nil || rep.failure != "" || !rep.stream {
		return err
	}
	return &Error{Failure: FailInitialize, Status: e.Status, err: errs.Wrap(errs.Unreachable,
		"the server speaks HTTP+SSE, the transport of 2024-11-05, which is not supported; ask its operator for the Streamable HTTP address", e)}
}

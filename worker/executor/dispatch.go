package executor

import (
	"context"
	"errors"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/worker/keyring"
	"sallyport.dev/worker/netguard"
	"sallyport.dev/worker/oauth"
	"sallyport.dev/worker/upstream"
)

// dispatch is the one goroutine of an intent: it prepares, waits to be released or dropped, and sends at most once.
func (x *Executor) dispatch(e *entry, job *sallyportv1.IntentJob) {
	defer e.cancel()
	p, refused := x.prepare(e, job)
	if refused != nil {
		x.settle(e, onFailed, refused)
		return
	}
	x.mu.Lock()
	e.ready = &sallyportv1.Ready{
		Intent: e.in.ID, Address: p.address(), Protocol: p.protocol(), UpstreamSession: p.session, PrepareUs: time.Since(e.arrived).Microseconds(),
	}
	if e.state == armed && intent.CheckGo(&e.in, time.Now()) != intent.Accepted {
		x.step(e, onLate)
	} else {
		if job.GetGo() {
			e.started = time.Now() // a read's Go came with it: what it waited for was its own preparation
		}
		x.step(e, onPrepared)
	}
	x.mu.Unlock()

	select {
	case <-e.released:
	case <-e.ctx.Done():
		// Both may be true: a read that was released and aborted at once. Nothing has left then, and its outcome must say so.
		p.close()
		x.settle(e, onDone, p.describe(unsent(e.in.ID, "cancelled", "closed before its bytes left")))
		return
	}
	if x.stall != nil {
		x.stall()
	}
	if heldUp(&e.in, e.started, time.Now()) {
		p.close()
		x.settle(e, onDone, p.describe(unsent(e.in.ID, "late", "the worker was held up for over 2 s after Go")))
		return
	}
	// The answer is awaited until finish_before; a context that ends earlier would, on 2026-07-28, cancel the call upstream.
	ctx, cancel := context.WithDeadline(e.ctx, time.UnixMilli(e.in.FinishBefore))
	defer cancel()
	o, release := p.send(ctx)
	x.mu.Lock()
	e.release = release
	x.mu.Unlock()
	x.settle(e, onDone, o)
}

// heldUp reports whether too much time went by between Go and now for the first byte to leave: by the monotonic clock, and, because that one stands
// still while a machine sleeps, by the wall clock against start_before.
func heldUp(in *intent.Intent, started, now time.Time) bool {
	return now.Sub(started) > firstByte || now.UnixMilli() > in.StartBefore+firstByte.Milliseconds()
}

// task is a prepared intent of any kind.
type task struct {
	x       *Executor
	in      *intent.Intent
	call    Prepared // calls
	ask     func(ctx context.Context, o *sallyportv1.Outcome)
	session []byte // sealed
	opened  time.Duration
}

func (t *task) address() string {
	if t.call == nil || !t.call.Address().IsValid() {
		return ""
	}
	return t.call.Address().String()
}

func (t *task) protocol() string {
	if t.call == nil {
		return ""
	}
	return t.call.Protocol()
}

func (t *task) close() {
	if t.call != nil {
		t.call.Close()
	}
}

// describe adds what is known of the preparation.
func (t *task) describe(o *sallyportv1.Outcome) *sallyportv1.Outcome {
	o.Address, o.Protocol = t.address(), t.protocol()
	o.Timings = &sallyportv1.Timings{OpenUs: t.opened.Microseconds()}
	if t.call != nil {
		o.Timings.ConnectUs = t.call.Took().Microseconds()
	}
	return o
}

// send sends, and returns what gives back the memory of a long answer; nil: nothing does.
func (t *task) send(ctx context.Context) (o *sallyportv1.Outcome, release func()) {
	if t.ask != nil {
		o = t.describe(&sallyportv1.Outcome{Intent: t.in.ID})
		t.ask(ctx, o)
		return o, nil
	}
	u := t.call.Send(ctx)
	return t.x.outcome(t, u), u.Release
}

var transports = map[upstream.Transport]sallyportv1.Transport{
	upstream.NotSent:  sallyportv1.Transport_TRANSPORT_NOT_SENT,
	upstream.Sent:     sallyportv1.Transport_TRANSPORT_SENT,
	upstream.Answered: sallyportv1.Transport_TRANSPORT_ANSWERED,
}

// outcome puts facts into a frame. A transport that is not known reads as sent: never as proof of nothing.
func (x *Executor) outcome(t *task, u upstream.Outcome) *sallyportv1.Outcome {
	transport, ok := transports[u.Transport]
	if !ok || transport == sallyportv1.Transport_TRANSPORT_NOT_SENT && u.Bytes != 0 {
		transport = sallyportv1.Transport_TRANSPORT_SENT
	}
	o := t.describe(&sallyportv1.Outcome{
		Intent: t.in.ID, Transport: transport, BytesWritten: u.Bytes, HttpStatus: int32(u.Status), Failure: string(u.Failure), Body: u.Body,
		Detail: u.Detail, Challenge: u.Challenge,
	})
	if u.Redacted {
		o.RedactedDigest = u.Original[:]
	}
	if u.Protocol != "" {
		o.Protocol = u.Protocol
	}
	o.Timings.WriteUs, o.Timings.WaitUs, o.Timings.ReadUs = u.Timings.Write.Microseconds(), u.Timings.Wait.Microseconds(), u.Timings.Read.Microseconds()
	sealed, err := x.cfg.Keyring.SealSession(t.in, u.Session)
	if err != nil {
		x.cfg.Log.Error("upstream session not sealed; the next call opens its own", "intent", t.in.ID, "err", err)
	}
	o.UpstreamSession = sealed
	return o
}

// prepare opens the credential and prepares the intent's kind. What it refuses, it refuses with zero bytes sent.
func (x *Executor) prepare(e *entry, job *sallyportv1.IntentJob) (*task, *sallyportv1.Outcome) {
	in := &e.in
	t := &task{x: x, in: in}
	switch in.Kind {
	case intent.Call, intent.Probe, intent.Catalog, intent.Poll:
	case intent.Authorize, intent.Exchange, intent.Refresh, intent.Revoke:
		if x.cfg.OAuth == nil {
			return nil, unsent(in.ID, "unsupported", "this worker does no sign-ins, so no intents of kind "+string(in.Kind))
		}
		if in.AuthType != intent.AuthOAuth {
			return nil, unsent(in.ID, "request", "a sign-in is for a connection of type oauth")
		}
		trust, err := x.trust(in, job)
		if err != nil {
			return nil, unsent(in.ID, "credential", errs.Message(err))
		}
		t.ask = x.signIn(in, job, x.cfg.OAuth.Trusting(trust))
		return t, nil
	default:
		return nil, unsent(in.ID, "unsupported", "this build of the worker does not know intents of kind "+string(in.Kind))
	}
	target, session, err := x.target(in, job)
	if err != nil {
		x.cfg.Log.Warn("credential not opened", "intent", in.ID, "connection", in.Connection, "err", err)
		return nil, unsent(in.ID, "credential", errs.Message(err))
	}
	t.opened = time.Since(e.arrived)
	switch in.Kind {
	case intent.Probe:
		t.ask = x.probe(in, target)
	case intent.Catalog:
		t.ask = x.catalog(target)
	default:
		if err := x.prepareCall(e, t, target, job, session); err != nil {
			o := unsent(in.ID, string(upstream.FailureOf(err)), errs.Message(err))
			if o.Failure == "" {
				o.Failure = "request"
			}
			var u *upstream.Error
			if errors.As(err, &u) {
				o.HttpStatus, o.Challenge = int32(u.Status), u.Challenge
			}
			x.cfg.Log.Info("not prepared", "intent", in.ID, "connection", in.Connection, "failure", o.Failure, "err", err)
			o.Timings = &sallyportv1.Timings{OpenUs: t.opened.Microseconds(), ConnectUs: (time.Since(e.arrived) - t.opened).Microseconds()}
			return nil, o
		}
	}
	return t, nil
}

// target builds where an intent goes, and with what.
func (x *Executor) target(in *intent.Intent, job *sallyportv1.IntentJob) (*upstream.Target, []byte, error) {
	secret, err := x.cfg.Keyring.Credential(in, job.GetSealedCredential())
	if err != nil {
		return nil, nil, err
	}
	defer secret.Wipe()
	credential, err := credentialOf(in, secret)
	if err != nil {
		return nil, nil, err
	}
	session, err := x.cfg.Keyring.Session(in, job.GetUpstreamSession())
	if err != nil {
		return nil, nil, err
	}
	trust, err := x.trust(in, job)
	if err != nil {
		return nil, nil, err
	}
	owner := in.Session + " " + in.Connection
	if in.Session == "" {
		owner = in.ID // a test or a pull shares nothing
	}
	return &upstream.Target{
		Origin: in.Origin, Path: in.Path, Allow: in.Allow, PlainHTTP: in.PlainHTTP, Trust: trust, Protocol: in.Protocol, Credential: credential, Owner: owner,
		Callback: in.Transport == intent.TransportCallback,
		Limits: upstream.Limits{
			Connect: time.Duration(in.ConnectMS) * time.Millisecond, Answer: time.Duration(in.AnswerMS) * time.Millisecond,
			Silence: time.Duration(in.SilenceMS) * time.Millisecond, Result: in.ResultBytes,
		},
	}, session, nil
}

// trust opens what the connection's TLS rests on beside the system's authorities.
func (x *Executor) trust(in *intent.Intent, job *sallyportv1.IntentJob) (netguard.Trust, error) {
	t, err := intent.ParseTrust(job.GetTls())
	if err != nil {
		return netguard.Trust{}, err
	}
	if t.Version == 0 {
		return netguard.ParseTrust(t.Authorities, nil, time.Now())
	}
	secret, err := x.cfg.Keyring.Certificate(in, t.Certificate, t.Version)
	if err != nil {
		return netguard.Trust{}, err
	}
	defer secret.Wipe()
	pem := []byte(secret.Text())
	defer clear(pem)
	return netguard.ParseTrust(t.Authorities, pem, time.Now())
}

func credentialOf(in *intent.Intent, secret keyring.Secret) (upstream.Credential, error) {
	switch in.AuthType {
	case intent.AuthNone:
		return upstream.None(), nil
	case intent.AuthHeader:
		return upstream.Header(in.AuthHeader, secret.Text())
	case intent.AuthBearer:
		return upstream.Bearer(secret.Text())
	case intent.AuthOAuth:
		g, err := oauth.ParseGrant(secret.Text())
		if err != nil {
			return upstream.Credential{}, err
		}
		return upstream.Bearer(g.Access)
	case intent.AuthSignature:
		return upstream.SigningKey(secret.Text())
	default:
		return upstream.Credential{}, errs.Newf(errs.Invalid, "this build of the worker does not know authentication of type %s", in.AuthType)
	}
}

// continuation is the kind's own input of a call that goes on after input_required (SEP-2322): JSON values, passed on byte for byte.
type continuation struct {
	InputResponses jsontext.Value `json:"inputResponses,omitzero"`
	RequestState   jsontext.Value `json:"requestState,omitzero"`
}

func (x *Executor) prepareCall(e *entry, t *task, target *upstream.Target, job *sallyportv1.IntentJob, session []byte) error {
	in := t.in
	hooks := upstream.Hooks{
		Sent: func(n int64) {
			x.tell(e, &sallyportv1.WorkerFrame{Frame: &sallyportv1.WorkerFrame_Sent{Sent: &sallyportv1.Sent{Intent: in.ID, Bytes: n}}})
		},
		Progress: func(p upstream.Progress) {
			x.tell(e, &sallyportv1.WorkerFrame{Frame: &sallyportv1.WorkerFrame_Progress{
				Progress: &sallyportv1.JobProgress{Intent: in.ID, Progress: p.Progress, Total: p.Total, Message: p.Message},
			}})
		},
	}
	if in.Kind == intent.Poll {
		return x.preparePoll(e, t, target, job)
	}
	var err error
	if in.Transport == intent.TransportCallback {
		if len(job.GetMeta()) > 0 {
			return errs.New(errs.Invalid, "a callback has no continuation")
		}
		t.call, err = x.cfg.Upstream.PrepareCallback(e.ctx, target, &upstream.Callback{
			ID: in.Call, Tool: in.Tool, Arguments: job.GetArguments(), Session: in.Session, Owner: in.Owner, Write: in.Effect == intent.Write, Trace: in.Trace,
		}, hooks)
		return err
	}
	var c continuation
	if len(job.GetMeta()) > 0 {
		if err := json.Unmarshal(job.GetMeta(), &c, json.RejectUnknownMembers(true)); err != nil {
			return errs.Wrap(errs.Invalid, "the call's continuation is not strict JSON", err)
		}
	}
	t.call, err = x.cfg.Upstream.Prepare(e.ctx, target, &upstream.Call{
		ID: in.ID, Tool: in.Tool, Arguments: job.GetArguments(), Write: in.Effect == intent.Write, Trace: in.Trace, Progress: true, Schema: job.GetTool(),
		Session: session, InputResponses: c.InputResponses, RequestState: c.RequestState,
		// What a server of this era asks for ends its answer, and control puts it to a person, where the session has one. Before it, a server would
		// ask on the open stream, where nobody answers: it is not told that somebody could.
		Elicit: in.Attended && in.Protocol == upstream.Modern,
	}, hooks)
	if err != nil {
		return err
	}
	t.session, err = x.cfg.Keyring.SealSession(in, t.call.Session())
	if err != nil {
		t.call.Close()
		t.call = nil
	}
	return err
}

// taskInput is the own input of a poll: the handle of the server's task, as the server gave it, and whether to ask the server to end it.
type taskInput struct {
	Task   string `json:"task"`
	GiveUp bool   `json:"give_up,omitzero"`
}

// preparePoll prepares the question about a task. It is a read: whatever becomes of it, the call itself was sent before and is not sent again.
func (x *Executor) preparePoll(e *entry, t *task, target *upstream.Target, job *sallyportv1.IntentJob) error {
	var input taskInput
	if err := json.Unmarshal(job.GetMeta(), &input, json.RejectUnknownMembers(true)); err != nil || input.Task == "" {
		return errs.Wrap(errs.Invalid, "the poll names no task", err)
	}
	var err error
	t.call, err = x.cfg.Upstream.Prepare(e.ctx, target, &upstream.Call{ID: t.in.ID, Task: input.Task, GiveUp: input.GiveUp, Trace: t.in.Trace}, upstream.Hooks{})
	return err
}

// tell sends a frame that nothing depends on.
func (x *Executor) tell(e *entry, f *sallyportv1.WorkerFrame) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.push(e, f)
}

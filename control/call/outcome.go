package call

import (
	"context"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

// awaitOutcome waits for what the dispatch that is out comes to. Silence is no answer: an attempt whose run cannot be asked for 15 s, or that is
// proven dead, is lost; for a write that means uncertain.
func (d *driver) awaitOutcome(ctx context.Context) {
	if d.out.intent != d.row.Intent {
		d.p.reg.forget(d.out.intent)
		d.out = attempt{intent: d.row.Intent, run: d.row.Run, worker: d.row.Worker}
		d.p.reg.expect(d.row.Intent, attemptOf{l: d.l, run: d.row.Run, worker: d.row.Worker})
	}
	var askBy, goneBy time.Time // when the run is asked, when it counts as gone
	asked := 0
	ask := func() {
		asked++
		askBy = time.Now().Add(runGone)
		if err := d.p.cfg.Workers.Attest(d.out.run, d.out.intent); err != nil && goneBy.IsZero() {
			goneBy = time.Now().Add(runGone)
		}
	}
	if d.out.finishBy.IsZero() {
		ask() // adopted, or the barrier's answer was lost: nobody knows how far it came
	} else {
		askBy = d.out.finishBy.Add(runGone)
	}
	for !d.stopped && d.row.State == journal.Dispatching {
		if !goneBy.IsZero() && d.p.cfg.Workers.Dead(d.out.worker, d.out.run) {
			d.settle(ctx, Outcome{Intent: d.out.intent, Transport: journal.TransportSent, Failure: journal.FailRunGone})
			return
		}
		until := askBy
		if !goneBy.IsZero() && goneBy.Before(until) {
			until = goneBy
		}
		switch m := d.wait(ctx, until).(type) {
		case toldOutcome:
			if m.Intent == d.out.intent {
				d.settle(ctx, m.Outcome)
			}
		case toldAttested:
			if m.intent != d.out.intent {
				continue
			}
			switch m.Attestation {
			case NotStarted:
				d.settle(ctx, Outcome{Intent: m.intent, Transport: journal.TransportNotSent, Failure: journal.FailClosed, Detail: attested})
			case Running:
				goneBy = time.Time{}
				askBy = time.Now().Add(max(runGone, time.Until(d.out.finishBy.Add(runGone))))
				asked = 0
			case Finished:
				goneBy = time.Time{}
			}
		case toldRunDown:
			if m.run == d.out.run && goneBy.IsZero() {
				goneBy = time.Now().Add(runGone)
			}
		case toldRunUp:
			if m.ID == d.out.run {
				goneBy = time.Time{}
				ask()
			} else if goneBy.IsZero() {
				goneBy = time.Now().Add(runGone) // another run of the same worker: Dead says whether this one can still exist
			}
		case toldReady:
			// A run that came back says again that it is ready. Whether Go reached it is not known here, so it is asked, never released again.
			if m.Intent == d.out.intent {
				ask()
			}
		case nil:
			switch now := time.Now(); {
			case d.stopped:
			case d.wantCancel:
				d.tooLate(ctx)
			case d.reread:
				d.reload(ctx)
			case !goneBy.IsZero() && !now.Before(goneBy), asked > 2:
				d.settle(ctx, Outcome{Intent: d.out.intent, Transport: journal.TransportSent, Failure: journal.FailRunGone})
			case !now.Before(askBy):
				ask()
			}
			d.recheck = false // what is out is out: a revocation does not call it back
		}
	}
}

// tooLate notes a cancel that came after something may have been sent. A write's answer is awaited all the same; a read is let go.
func (d *driver) tooLate(ctx context.Context) {
	d.wantCancel = false
	yes := true
	d.row.Cancel, d.row.Gone = true, true
	d.note(ctx, Note{Call: d.row.ID, Event: "cancel_requested", Actor: d.row.Host, Reason: d.whyCancel, Set: Set{Cancel: &yes, Gone: &yes}})
	if d.row.Effect == control.Read {
		d.p.cfg.Workers.Close(d.out.run, d.out.intent, "cancelled")
	}
}

// settle judges an outcome by the table and writes it, before anybody reads it; then the worker may forget it.
func (d *driver) settle(ctx context.Context, o Outcome) {
	d.answered = time.Now()
	d.keepUpstream(ctx, o.Upstream)
	d.credentialRefused(o)
	d.endPass(healthOf(&o))
	event, set := d.p.judge(d.row, o)
	d.apply(ctx, event, set, o)
	if d.stopped {
		return
	}
	d.p.redacted(ctx, d.row.ID, d.row.Worker, &o)
	if o.Failure != journal.FailRunGone {
		d.p.cfg.Workers.Acknowledge(d.out.run, o.Intent)
	}
	if d.row.State != journal.Dispatching {
		d.p.reg.forget(o.Intent)
		d.out = attempt{}
		d.freeSlot()
	}
}

// redacted notes that the worker replaced the credential in an answer: the digest of what the server sent stands beside that of what is kept.
func (p *Pipeline) redacted(ctx context.Context, id, worker string, o *Outcome) {
	if o.Redacted.IsZero() {
		return
	}
	n := Note{Call: id, Event: NoteRedacted, Actor: worker, Digest: o.Redacted, Reason: "the credential stood in the answer; what is kept has SHA-256 " + control.Sum(o.Body).String()}
	if err := p.cfg.Store.Note(ctx, n); err != nil && ctx.Err() == nil {
		p.cfg.Log.Warn("a line of the journal was not written", "call", id, "event", n.Event, "err", err)
	}
}

// apply takes the step that an outcome's event means.
func (d *driver) apply(ctx context.Context, event journal.Event, set Set, o Outcome) {
	why := control.Step{Actor: d.row.Worker}
	if set.Reason != nil {
		why.Reason = *set.Reason
	}
	if len(o.Body) > 0 {
		why.Digest = control.Sum(o.Body)
	}
	if set.Code != nil {
		why.Code = *set.Code
	}
	lostRead := event == journal.OnLost && d.row.Effect == control.Read && d.row.Repeat
	// What would end the same way again (a refused address, a credential that does not open) is not tried twice, as with a write's Prepare.
	unsent := event == journal.OnUnsent && transient(prepareMessage(o.Failure))
	if (unsent || lostRead) && !d.row.Cancel && !d.wantCancel {
		s := d.situation()
		s.MayRepeat = true
		if _, err := journal.Next(d.row.State, journal.OnRetry, s); err == nil {
			why.Code = ""
			if d.retry(ctx, why, set.Facts) || d.stopped {
				return
			}
			return // the row was read again: the loop goes by it
		}
	}
	switch event {
	case journal.OnLost:
		if d.row.Effect == control.Write {
			d.step(ctx, event, why, set, d.uncertainQuestion())
			return
		}
	case journal.OnInput:
		d.inputWanted(ctx, why, set)
		return
	}
	d.step(ctx, event, why, set, nil)
}

// retry goes for another attempt under the same approval; the counter is not taken again.
func (d *driver) retry(ctx context.Context, why control.Step, facts *control.Facts) bool {
	why.From, why.Event, why.To, why.Attempt = d.row.State, journal.OnRetry, journal.Retrying, d.row.Attempt
	a := &Advance{
		Call: d.row.ID, From: d.row.State, Attempt: d.row.Attempt, Lease: d.row.Lease, Step: why, Set: Set{Facts: facts}, Durable: d.row.Effect == control.Write,
	}
	for pause := storeRetry; ; pause = min(2*pause, storeRetryTop) {
		got, err := d.p.cfg.Store.Advance(ctx, a)
		switch {
		case err == nil && got == Done:
			d.moved(a)
			return true
		case err == nil:
			d.reload(ctx)
			return !d.stopped && d.row.State == journal.Retrying
		}
		if !d.pause(ctx, pause) {
			return false
		}
	}
}

// attested is the detail of an attempt that its run vouched for.
const attested = "its run attests that it did not start, and now never will"

// judge reads an outcome: the event of the table, and what is written beside the state.
func (p *Pipeline) judge(c *control.Call, o Outcome) (journal.Event, Set) {
	e := journal.Evidence{Transport: o.Transport, Failure: o.Failure, Status: o.Status}
	if o.Failure == "" && o.Transport == journal.TransportNotSent {
		e.Failure = journal.FailMalformed
	}
	if policy := p.policy.Load(); policy != nil {
		if to := policy.Connections[c.Connection]; to != nil {
			e.Callback, e.Moved = to.Kind == control.KindCallback, to.Uncertain
		}
	}
	if e.Transport == journal.TransportNotSent && o.Bytes > 0 {
		// A report that contradicts itself proves nothing.
		e.Transport, e.Failure = journal.TransportSent, journal.FailMalformed
	}
	facts := control.Facts{Transport: e.Transport, HTTPStatus: o.Status, Bytes: o.Bytes}
	var input message
	if e.Transport == journal.TransportAnswered {
		input = read(o.Body, e.Callback)
		if e.Failure == "" {
			e.Answer, e.RPCCode = input.answer, input.code
			if e.Answer == journal.AnswerNone {
				e.Failure = journal.FailMalformed
			}
		}
	}
	facts.Failure = e.Failure
	event := journal.Verdict(e)
	switch {
	case e.Failure == journal.FailStatus:
		facts.Protocol, facts.RPCCode = journal.ProtocolStatus, input.code
	case e.Answer == journal.AnswerError:
		facts.Protocol, facts.RPCCode = journal.ProtocolError, e.RPCCode
	case e.Answer != journal.AnswerNone:
		facts.Protocol, facts.ToolResult = journal.ProtocolResult, journal.ToolOK
		if e.Answer == journal.AnswerIsError {
			facts.ToolResult = journal.ToolError
		}
	}
	set := Set{Facts: &facts, Body: o.Body}
	code := codeOf(event, c.Effect)
	set.Code = &code
	if event == journal.OnInput {
		// What is not there now must not stay from the round before: empty, not nil, writes.
		set.RequestState, set.InputRequests = append([]byte{}, input.state...), append([]byte{}, input.requests...)
	}
	if event == journal.OnTask {
		set.TaskHandle = input.task
	}
	if because := e.Because(o.Detail); because != "" {
		set.Reason = &because
	}
	return event, set
}

// codeOf is the code of the end that an event leads to.
func codeOf(event journal.Event, effect control.Effect) errs.Code {
	switch event {
	case journal.OnReject:
		return errs.Rejected
	case journal.OnUnsent:
		return errs.NotSent
	case journal.OnLost:
		if effect == control.Read {
			return errs.NoAnswer
		}
		return errs.OutcomeUncertain
	}
	return ""
}

// message is what control reads in a complete answer. It changes nothing and keeps the bytes.
type message struct {
	answer   journal.Answer
	code     int64
	requests []byte // inputRequests
	state    []byte // requestState
	task     []byte // the task's handle
}

func read(body []byte, callback bool) message {
	var m message
	if len(body) == 0 || strictjson.Check(body) != nil {
		return m
	}
	if callback {
		m.answer = journal.AnswerCallback
		if isTrue(body, "isError") {
			if _, ok := strictjson.Lookup(body, "content"); ok {
				m.answer = journal.AnswerCallback
			}
		}
		return m
	}
	if fault, ok := strictjson.Lookup(body, "error"); ok {
		raw, _ := strictjson.Lookup(fault, "code")
		code, isInt := strictjson.Int(raw)
		if isInt {
			m.answer, m.code = journal.AnswerError, code
		}
		return m
	}
	result, ok := strictjson.Lookup(body, "result")
	if !ok || result[0] != '{' {
		return m
	}
	raw, _ := strictjson.Lookup(result, "resultType")
	switch kind, _ := strictjson.Unquote(raw); kind {
	case "input_required":
		m.answer = journal.AnswerInput
		m.requests, _ = strictjson.Lookup(result, "inputRequests")
		m.state, _ = strictjson.Lookup(result, "requestState")
	case "task":
		if m.task = handleOf(result); m.task != nil {
			m.answer = journal.AnswerTask
		}
	default:
		m.answer = journal.AnswerResult
		if isTrue(result, "isError") {
			m.answer = journal.AnswerIsError
		}
	}
	return m
}

func isTrue(object []byte, name string) bool {
	raw, _ := strictjson.Lookup(object, name)
	return string(raw) == "true"
}

// uncertainQuestion asks people whether it happened. It never expires.
func (d *driver) uncertainQuestion() *control.Question {
	q := d.question(d.row, d.p.policy.Load(), "it was sent and its answer was lost: look whether it happened", d.p.cfg.Store.Now())
	q.Kind, q.Form, q.ExpiresAt = control.AskUncertain, nil, time.Time{}
	q.Second = false
	return q
}

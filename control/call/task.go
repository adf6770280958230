package call

import (
	"context"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/relay/strictjson"
)

// Bounds of following a task (SEP-2663). A server's own numbers count within them.
const (
	taskHandle   = 1 << 10 // bytes of its id
	taskPause    = 2 * time.Second
	taskPauseMin = 250 * time.Millisecond
	taskPauseMax = time.Minute
	taskLife     = 24 * time.Hour
	taskSilence  = 15 * time.Minute // how long it is asked for in vain
)

// task is a server's handle of a call that it goes on with by itself, as the row keeps it.
type task struct {
	id    string
	life  time.Duration // from the call's start
	pause time.Duration // between two questions
}

// taskOf reads the members of a task, in a row or in an answer. ok is false where it has no usable id.
func taskOf(members []byte) (t task, ok bool) {
	raw, _ := strictjson.Lookup(members, "taskId")
	t.id, ok = strictjson.Unquote(raw)
	if !ok || t.id == "" || len(t.id) > taskHandle {
		return task{}, false
	}
	t.life, t.pause = taskLife, taskPause
	if ms, ok := lookupInt(members, "ttlMs"); ok && ms >= 0 {
		t.life = time.Duration(min(ms, taskLife.Milliseconds())) * time.Millisecond
	}
	if ms, ok := lookupInt(members, "pollIntervalMs"); ok {
		t.pause = time.Duration(min(max(ms, taskPauseMin.Milliseconds()), taskPauseMax.Milliseconds())) * time.Millisecond
	}
	return t, true
}

func lookupInt(object []byte, name string) (int64, bool) {
	raw, ok := strictjson.Lookup(object, name)
	if !ok {
		return 0, false
	}
	return strictjson.Int(raw)
}

// handleOf is what a row keeps of a task: its id and its times, byte for byte; nil where it has no usable id.
func handleOf(result []byte) []byte {
	if _, ok := taskOf(result); !ok {
		return nil
	}
	b := []byte{'{'}
	for _, name := range []string{"taskId", "ttlMs", "pollIntervalMs"} {
		if raw, ok := strictjson.Lookup(result, name); ok {
			b = append(append(append(append(b, '"'), name...), `":`...), raw...)
			b = append(b, ',')
		}
	}
	b[len(b)-1] = '}'
	return b
}

// poll follows the task that a server made of a call, with the credential that the call went with, until it ends. A question about a task is a read
// of its own intent: the call was sent before and is never sent again. What cannot be learned is lost, for a write uncertain.
func (d *driver) poll(ctx context.Context) {
	t, ok := taskOf(d.row.TaskHandle)
	if !ok {
		d.lostTask(ctx, "the server made a task without a usable id")
		return
	}
	heard := time.Now()
	for pause := t.pause; !d.stopped && d.row.State == journal.Working; {
		d.idle(ctx, pause)
		switch {
		case d.stopped:
			return
		case d.reread:
			d.reload(ctx)
			continue
		case d.wantCancel:
			if d.letGo(ctx, t) {
				return
			}
			continue
		case d.p.cfg.Store.Now().Sub(d.row.StartedAt) > t.life:
			d.lostTask(ctx, "the server's task did not end in its time")
			return
		case time.Since(heard) > taskSilence:
			d.lostTask(ctx, "the server could not be asked for its task")
			return
		}
		o, asked := d.askTask(ctx, t, false)
		if d.stopped || d.row.State != journal.Working {
			return
		}
		verdict, reason := taskVerdict(o, asked)
		switch verdict {
		case taskUnknown:
			pause = min(2*pause, taskPauseMax)
		case taskLost:
			d.lostTask(ctx, reason)
		case taskEnded:
			d.endTask(ctx, o)
		case taskGoesOn:
			heard = time.Now()
			if result, ok := strictjson.Lookup(o.Body, "result"); ok {
				if now, ok := taskOf(result); ok && now.id == t.id {
					t = now
				}
			}
			pause = t.pause
		}
	}
}

// taskAnswer is what the answer to a question about a task means.
type taskAnswer int

const (
	taskUnknown taskAnswer = iota // no answer, or none that says anything: asked again
	taskGoesOn
	taskEnded // completed or failed: the answer carries the call's own
	taskLost  // nothing will be learned any more
)

// taskVerdict reads the answer to a question about a task.
func taskVerdict(o Outcome, asked bool) (taskAnswer, string) {
	if asked && o.Transport == journal.TransportNotSent && o.Failure == journal.FailRequest {
		return taskLost, "servers of its revision have no tasks"
	}
	if !asked || o.Transport != journal.TransportAnswered || o.Failure != "" || strictjson.Check(o.Body) != nil {
		return taskUnknown, ""
	}
	if fault, ok := strictjson.Lookup(o.Body, "error"); ok {
		if code, _ := lookupInt(fault, "code"); code == invalidParams {
			return taskLost, "the server does not know its task any more"
		}
		return taskUnknown, ""
	}
	raw, _ := strictjson.Lookup(o.Body, "result", "status")
	switch status, _ := strictjson.Unquote(raw); status {
	case "working":
		return taskGoesOn, ""
	case "completed", "failed":
		return taskEnded, ""
	case "cancelled":
		return taskLost, "the server ended it before it was complete, and part of it may have happened"
	case "input_required":
		return taskLost, "the server's task asks for something, which cannot be given to a task from here"
	}
	return taskUnknown, ""
}

// invalidParams is what a server answers that does not know a task (SEP-2663, "Protocol Errors").
const invalidParams = -32602

// askTask makes one question about the task: is it done, or, to give it up, may it end. asked is false where no question could be made.
func (d *driver) askTask(ctx context.Context, t task, giveUp bool) (o Outcome, asked bool) {
	policy, err := d.p.current(ctx)
	if err == nil && d.recheck {
		err = d.p.reloadSession(ctx, d.s)
	}
	if err != nil {
		return o, false
	}
	m, err := d.matter(ctx, policy)
	if err != nil {
		return o, false
	}
	m.decided = true
	if d.row.Authority.Kind == control.ByGrant {
		m.given = d.row.Authority.ID
	}
	dec := d.p.rules.decide(ctx, m)
	d.recheck = false
	if dec.ruling == RulingRefuse {
		d.lostTask(ctx, "the server's task is not asked for any more: "+dec.reason)
		return o, false
	}
	now := *d.row
	if d.bind(&now, dec); now.Binding != d.row.Binding {
		d.lostTask(ctx, "the server's task is not asked for any more: "+boundTo(&now, d.row))
		return o, false
	}
	run, err := d.p.cfg.Workers.Pick(dec.connection.Pool, dec.withdrawn(m.now))
	if err != nil {
		return o, false
	}
	job, err := d.pollJob(t, giveUp, dec, run, m.now)
	if err != nil {
		return o, false
	}
	d.out = attempt{intent: job.Intent, run: run.ID, worker: run.Worker}
	d.p.reg.expect(job.Intent, attemptOf{l: d.l, run: run.ID, worker: run.Worker})
	defer func() {
		d.p.reg.forget(job.Intent)
		d.out = attempt{}
	}()
	if d.p.cfg.Workers.Submit(run.ID, job) != nil {
		return o, false
	}
	for until := d.finishBy(); ; {
		switch got := d.wait(ctx, until).(type) {
		case toldOutcome:
			if got.Intent == job.Intent {
				d.p.cfg.Workers.Acknowledge(run.ID, job.Intent)
				d.credentialRefused(got.Outcome) // the next question goes with what the renewal brings
				return got.Outcome, true
			}
		case toldRunDown:
			if got.run == run.ID {
				return o, false
			}
		case nil:
			if d.stopped || !time.Now().Before(until) || d.wantCancel && !giveUp {
				d.p.cfg.Workers.Close(run.ID, job.Intent, "not wanted any more")
				return o, false
			}
			if d.reread {
				d.reload(ctx)
			}
		}
	}
}

// pollJob signs the question about a task. It is bound to what the call was bound to; the task's id travels beside it.
func (d *driver) pollJob(t task, giveUp bool, dec *decision, run Run, now time.Time) (Job, error) {
	row := *d.row
	row.Attempt-- // the attempt that made the task
	d.with = dec.credential
	credential, sealed, err := d.credential(dec, now)
	if err != nil {
		return Job{}, err
	}
	trust, err := d.p.trust(dec.policy, dec.connection, now)
	if err != nil {
		return Job{}, err
	}
	in, _ := intentOf(&row, dec.connection, &d.bound.Tool, credential, nil, row.Authority, run, now)
	meta := append([]byte(`{"task":`), strictjson.AppendQuote(nil, t.id)...)
	if giveUp {
		meta = append(meta, `,"give_up":true`...)
	}
	beside := intent.Beside{Meta: append(meta, '}'), TLS: trust}
	in.Kind, in.Effect, in.Arguments, in.Schema, in.Upstream = intent.Poll, intent.Read, "", "", ""
	in.Meta, in.TLS = intent.Digest(beside.Meta), intent.Digest(trust)
	return d.p.jobOf(run, in, beside, sealed, true)
}

// letGo treats a cancel of a call that is a task by now. A write's end is awaited all the same, as without a task; a read is let go, and the server is
// asked once to end it. It returns true when the call is over.
func (d *driver) letGo(ctx context.Context, t task) bool {
	why := d.whyCancel
	d.tooLate(ctx)
	if d.row.Effect == control.Write {
		return false
	}
	d.askTask(ctx, t, true)
	if !d.stopped && d.row.State == journal.Working {
		d.end(ctx, journal.OnLost, errs.Cancelled, why)
	}
	return true
}

// lostTask ends a call of whose task nothing more will be learned. The run said its last word when the task was made, so a person's word on what became
// of it is taken at once.
func (d *driver) lostTask(ctx context.Context, reason string) {
	code := codeOf(journal.OnLost, d.row.Effect)
	facts := d.row.Facts
	facts.Failure = journal.FailTask
	because := journal.Evidence{Failure: facts.Failure}.Because(reason)
	set := Set{Code: &code, Facts: &facts, Reason: &because}
	var q *control.Question
	if d.row.Effect == control.Write {
		q = d.uncertainQuestion()
		q.Text = reason + ": look whether it happened"
	}
	d.step(ctx, journal.OnLost, control.Step{Actor: d.row.Worker, Code: code, Reason: because}, set, q)
}

// endTask settles a call by what its task came to: the result or the error that the server would have answered the call with, byte for byte.
func (d *driver) endTask(ctx context.Context, o Outcome) {
	d.answered = time.Now()
	member := "result"
	raw, _ := strictjson.Lookup(o.Body, "result", "status")
	if string(raw) == `"failed"` {
		member = "error"
	}
	value, ok := strictjson.Lookup(o.Body, "result", member)
	if !ok {
		d.lostTask(ctx, "the server's task ended without saying how")
		return
	}
	body := append([]byte(`{"jsonrpc":"2.0","id":`), strictjson.AppendQuote(nil, o.Intent)...)
	body = append(append(append(append(body, `,"`...), member...), `":`...), value...)
	o.Body, o.Bytes = append(body, '}'), d.row.Bytes
	event, set := d.p.judge(d.row, o)
	if event != journal.OnAnswer && event != journal.OnReject {
		d.lostTask(ctx, "the server's task ended without a usable answer")
		return
	}
	d.apply(ctx, event, set, o)
	if !d.stopped {
		d.p.redacted(ctx, d.row.ID, d.row.Worker, &o)
	}
}

// lateTask goes on with a call whose server, as it turns out, made a task of it.
func (p *Pipeline) lateTask(ctx context.Context, row *control.Call, set Set, o Outcome) bool {
	return p.lateDriver(ctx, row, func(d *driver) {
		d.step(ctx, journal.OnTask, control.Step{Actor: row.Worker, Reason: "late evidence", Digest: control.Sum(o.Body)}, set, nil)
	})
}

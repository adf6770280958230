package call

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/grant"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

// begin takes a record up: it becomes a call, or waits for one, or is refused.
func (d *driver) begin(ctx context.Context, sub Submission, rec *relay.Call, w *waiter) {
	if d.admit(ctx, sub, rec, w) {
		d.run(ctx)
		return
	}
	d.close()
}

// admit returns true when this driver has a row to drive (or to hand over the end of).
func (d *driver) admit(ctx context.Context, sub Submission, rec *relay.Call, w *waiter) bool {
	p := d.p
	if rec.Session != sub.Session || rec.Epoch != sub.Epoch {
		d.turnAway(w, rec.Tool, errs.NotAllowed, "the record is of another session or epoch")
		return false
	}
	s, err := p.session(ctx, rec.Session, rec.Epoch)
	if err != nil {
		d.turnAway(w, rec.Tool, errs.Unavailable, "its session cannot be read")
		return false
	}
	d.s, w.s = s, s
	row := s.session()
	if row.Host != sub.Host {
		d.turnAway(w, rec.Tool, errs.NotAllowed, "the session belongs to another host")
		return false
	}
	if rec.Tool == AwaitTool {
		return d.awaitCall(ctx, rec, w)
	}
	args := control.Sum(rec.Arguments)
	for {
		earlier, mismatch := s.claim(d.l.id, rec, args)
		if earlier == "" {
			if mismatch != "" {
				d.note(ctx, Note{Call: mismatch, Event: "same_id_mismatch", Actor: sub.Host, Reason: "the harness used its call id again for another call", Digest: w.digest})
			}
			break
		}
		if d.joinAs(ctx, byResend, earlier, w, rec) {
			return false
		}
		s.forget(earlier) // it never came to stand in the journal
	}
	err = s.enter()
	w.counted = err == nil
	d.row = d.newRow(sub, rec, args)
	if err != nil {
		return d.insert(ctx, w, &decision{ruling: RulingRefuse, code: errs.Busy, reason: errs.Message(err), effect: d.row.Effect})
	}
	if late := time.Duration(rec.TimeoutMS) * time.Millisecond; rec.TimeoutMS > 0 && sub.Waited >= late {
		return d.insert(ctx, w, &decision{ruling: RulingRefuse, code: errs.DeadlineExceeded, reason: "it waited too long before it was taken up", effect: d.row.Effect})
	}
	return d.insert(ctx, w, nil)
}

// newRow is the row as the record makes it, before anything is decided.
func (d *driver) newRow(sub Submission, rec *relay.Call, args control.Digest) *control.Call {
	s := d.s.session()
	c := &control.Call{
		Org: s.Org, ID: d.l.id, Session: s.ID, Record: rec.ID, RecordDigest: d.l.digest, Epoch: rec.Epoch, Host: sub.Host, Shim: rec.Shim,
		HarnessCall: rec.HarnessCall, Trace: rec.Trace, Progress: rec.Progress, TimeoutMS: rec.TimeoutMS, Owner: s.Owner, Profile: s.Profile.Name,
		ProfileVersion: s.Profile.Version, Name: rec.Tool, Effect: control.Write, Arguments: rec.Arguments, ArgsDigest: args, Lease: d.p.cfg.Run,
		Delivery: journal.DeliveryNone,
	}
	if d.bound = d.s.tool(rec.Tool); d.bound != nil {
		c.Connection, c.Revision, c.Catalog = d.bound.Connection, d.bound.Revision, d.bound.Catalog
		c.Tool, c.Effect, c.Repeat, c.Client = d.bound.Tool.Name, d.bound.Tool.Effect, d.bound.Tool.Repeat, d.bound.Tool.Client
	}
	return c
}

// turnAway answers a record that makes no row: there is no session that could hold one.
func (d *driver) turnAway(w *waiter, tool string, code errs.Code, reason string) {
	t := text{tool: tool, id: d.l.id, code: code, reason: reason}
	d.p.cfg.Hosts.Journaled(w.addr, w.digest)
	d.p.hand(d.s, w, d.l.id, journal.Refused, textResult(t.render()), false)
}

// insert puts the call to the rules and inserts its row, until one ruling stands. fixed is a ruling that no rule can change.
func (d *driver) insert(ctx context.Context, w *waiter, fixed *decision) bool {
	p := d.p
	base := *d.row
	for range maxRulings {
		dec, policy, mark, joined, err := d.rule(ctx, fixed, w)
		if joined {
			return false
		}
		if err != nil {
			return d.notAdmitted(w, errs.Unavailable, "its store does not answer")
		}
		row := base
		a, job, run := d.admission(&row, dec, policy, mark)
		got, err := d.admitStubbornly(ctx, a)
		switch {
		case err != nil:
			code := errs.CodeOf(err)
			if code != errs.StoreFull && code != errs.Quarantined {
				code = errs.Unavailable
			}
			return d.notAdmitted(w, code, "its record cannot be written")
		case got.Result == Done:
		case got.Result == Attaches:
			d.row = got.Earlier
			return d.standing(ctx, w)
		case got.Result == Conflicts:
			return d.conflicting(w)
		case got.Result == NotOpen, got.Result == Closed:
			return d.notAdmitted(w, errs.NotAllowed, "the session is not open")
		case got.Result == Busy:
			fixed = &decision{ruling: RulingRefuse, code: errs.Busy, reason: fmt.Sprintf("%d questions of this session are open", MaxOpenQuestions), effect: dec.effect}
			continue
		case got.Result == Limited && dec.ruling != RulingGrant:
			fixed = &decision{ruling: RulingRefuse, code: errs.LimitReached, reason: limitReason(dec.takes), effect: dec.effect}
			continue
		default: // Stale, Changed, Suspends, Twinned, Limited under a given grant: what it rested on moved
			if _, err := p.reloadPolicy(ctx); err != nil {
				return d.notAdmitted(w, errs.Unavailable, "its store does not answer")
			}
			continue
		}
		d.row = &row
		d.row.AdmittedAt = p.cfg.Store.Now()
		d.s.moved(d.row)
		p.cfg.Hosts.Journaled(w.addr, w.digest)
		d.add(w)
		for _, s := range a.Steps {
			p.observe(d.row, s)
		}
		if a.Question != nil {
			d.expires = a.Question.ExpiresAt.Sub(d.row.AdmittedAt)
			d.drifted = policy.Drift[row.Connection][row.Tool]
		}
		if job != nil {
			d.send(run, *job)
		}
		return true
	}
	return d.notAdmitted(w, errs.Unavailable, "its rules changed all the time")
}

// admitStubbornly inserts, and when the store's answer is lost, asks again: the row that stands is then this very one.
func (d *driver) admitStubbornly(ctx context.Context, a *Admission) (Admitted, error) {
	var got Admitted
	var err error
	for try := range 4 {
		if try > 0 && !d.pause(ctx, storeRetry<<try) {
			break
		}
		got, err = d.p.cfg.Store.Admit(ctx, a)
		if err != nil {
			if c := errs.CodeOf(err); c == errs.StoreFull || errors.Is(err, context.Canceled) {
				break
			}
			continue
		}
		if e := got.Earlier; try > 0 && got.Result == Attaches && e.Lease == a.Call.Lease && e.State == a.Call.State && e.Intent == a.Call.Intent {
			return Admitted{Result: Done}, nil
		}
		return got, nil
	}
	return got, err
}

func (p *Pipeline) reloadPolicy(ctx context.Context) (*control.Policy, error) { return p.current(ctx) }

// notAdmitted answers a call that has no row.
func (d *driver) notAdmitted(w *waiter, code errs.Code, reason string) bool {
	d.s.forget(d.l.id)
	d.turnAway(w, d.row.Name, code, reason)
	return false
}

// conflicting answers a record whose id is taken by other bytes. The attempt stands in the journal already.
func (d *driver) conflicting(w *waiter) bool {
	d.p.cfg.Hosts.Journaled(w.addr, w.digest)
	t := text{tool: d.row.Name, id: d.l.id, code: errs.Conflict, reason: "another call of the same id was made before"}
	d.p.hand(d.s, w, d.l.id, journal.Refused, textResult(t.render()), false)
	return false
}

// standing goes on with a row that stood already: the record came again after its driver, or the process, ended.
func (d *driver) standing(ctx context.Context, w *waiter) bool {
	d.p.cfg.Hosts.Journaled(w.addr, w.digest)
	if d.row.ID != d.l.id {
		// The record stands for another call.
		w.uncount()
		d.joined = d.row.ID
		d.p.join(ctx, d.row.ID, w)
		return false
	}
	d.s.moved(d.row)
	if d.row.State.Unfinished() && d.row.Lease != d.p.cfg.Run {
		t := d.text()
		d.p.hand(d.s, w, d.row.ID, d.row.State, textResult(t.render()), false)
		return false
	}
	d.add(w)
	d.adopted = true
	if d.row.State == journal.Dispatching {
		d.p.reg.expect(d.row.Intent, attemptOf{l: d.l, run: d.row.Run, worker: d.row.Worker})
	}
	return true
}

// rule decides about the coming call, and looks for twins: a write whose twin is unfinished or unread, and whose waiter is gone, is that twin asked for
// again. joined: the record waits for it.
func (d *driver) rule(ctx context.Context, fixed *decision, w *waiter) (dec *decision, policy *control.Policy, mark int64, joined bool, err error) {
	p := d.p
	if policy, err = p.current(ctx); err != nil {
		return nil, nil, 0, false, err
	}
	if fixed != nil {
		return fixed, policy, 0, false, nil
	}
	m, err := d.matter(ctx, policy)
	if err != nil {
		return nil, nil, 0, false, err
	}
	dec = p.rules.decide(ctx, m)
	if dec.effect != control.Write || dec.ruling == RulingRefuse || d.row.Client {
		return dec, policy, 0, false, nil
	}
	d.bind(d.row, dec)
	twins, mark, err := p.cfg.Store.Twins(ctx, d.row.Twin)
	if err != nil {
		return nil, nil, 0, false, err
	}
	for _, t := range twins {
		switch {
		case t.State == journal.Uncertain, t.State == journal.Rejected && !dec.connection.Trusted:
			if m.doubted == "" {
				m.doubted = fmt.Sprintf("an equal call (%s) is %s", t.ID, t.State)
			}
		case d.abandonedTwin(t):
			if d.joinAs(ctx, byTwin, t.ID, w, nil) {
				d.s.forget(d.l.id)
				return nil, nil, 0, true, nil
			}
		}
	}
	if m.doubted != "" {
		dec = p.rules.decide(ctx, m)
	}
	if dec.ruling == RulingGrant {
		if m.suspended, err = p.cfg.Store.Suspended(ctx, d.row.Owner, d.row.Connection, d.row.Tool); err != nil {
			return nil, nil, 0, false, err
		}
		if m.suspended {
			dec = p.rules.decide(ctx, m)
		}
	}
	if dec.ruling == RulingAsk {
		dec.reason = twinText(twins, m)
	}
	return dec, policy, mark, false, nil
}

// abandonedTwin reports whether an equal write waits for nobody any more: unfinished, or answered and unread for at most ten minutes, and its
// waiter cancelled, gone, told that it is pending, or of another shim of this sandbox.
func (d *driver) abandonedTwin(t *control.Call) bool {
	const fresh = 10 * time.Minute
	switch {
	case t.State.Unfinished():
	case t.State == journal.Answered && d.p.cfg.Store.Now().Sub(t.SettledAt) <= fresh:
	default:
		return false
	}
	if t.Gone || t.Session == d.row.Session && t.Shim != d.row.Shim {
		return true
	}
	// A question whose caller was told that it is pending waits for await_call; the same call again is asked for by the same model.
	return t.Session == d.row.Session && t.State.Unfinished() && d.p.unwaited(t.ID)
}

// unwaited reports whether no record waits for a live call.
func (p *Pipeline) unwaited(id string) bool {
	l := p.reg.find(id)
	if l == nil {
		return false
	}
	answer := make(chan bool, 1)
	if !l.box.put(askWaiters{answer}) {
		return false
	}
	select {
	case none := <-answer:
		return none
	case <-time.After(time.Second): // its driver is in the store; a second call is safer than none
		return false
	case <-p.life.Done():
		return false
	}
}

// askWaiters asks a driver whether nobody waits.
type askWaiters struct{ none chan bool }

func twinText(twins []*control.Call, m *matter) string {
	var lines []string
	if m.doubted != "" {
		lines = append(lines, m.doubted+": it may have happened already")
	}
	for _, t := range twins {
		if t.State.Unfinished() || t.State == journal.Answered {
			lines = append(lines, fmt.Sprintf("an equal call (%s) is %s", t.ID, t.State))
		}
	}
	return strings.Join(lines, "; ")
}

// matter is the call as it is put to the rules now.
func (d *driver) matter(ctx context.Context, policy *control.Policy) (*matter, error) {
	now := d.p.cfg.Store.Now()
	m := &matter{session: d.s.session(), bound: d.bound, args: d.row.Arguments, policy: policy, now: now, usage: d.p.usage(ctx)}
	if d.bound == nil || d.bound.Tool.Client {
		return m, nil
	}
	c := policy.Connections[d.bound.Connection]
	if c == nil || c.Auth.Type == "" || c.Auth.Type == "none" {
		return m, nil
	}
	subject := control.SubjectShared
	if c.Auth.Per == "person" {
		subject = string(m.session.Owner)
	}
	var err error
	m.credential, err = d.p.credential(ctx, policy, c.Name, subject, now)
	return m, err
}

// usage reads counters for conditions and given grants.
func (p *Pipeline) usage(ctx context.Context) grant.Usage {
	return func(key string, per time.Duration) (int64, int64, error) {
		got, err := p.cfg.Store.Usage(ctx, []Take{{Key: key, Per: per}})
		if err != nil || len(got) != 1 {
			return 0, 0, errors.Join(err, errs.New(errs.Unavailable, "a counter cannot be read"))
		}
		return got[0].Calls, got[0].Bytes, nil
	}
}

// bind writes into the row what the decision is bound to.
func (d *driver) bind(row *control.Call, dec *decision) {
	row.Effect = dec.effect
	row.Subject, row.Account = dec.subject, dec.account
	row.Binding = control.BindingOf(row).Digest()
	if row.Effect == control.Write && !row.Client {
		row.Twin = twinOf(row)
	}
}

// admission turns a ruling into the one insert. For an allowed read it also makes the job that is sent once the row stands.
func (d *driver) admission(row *control.Call, dec *decision, policy *control.Policy, mark int64) (*Admission, *Job, Run) {
	now := d.p.cfg.Store.Now()
	d.bind(row, dec)
	if dec.ruling == RulingRefuse {
		row.Twin = control.Digest{}
	}
	a := &Admission{
		Call: row, TwinMark: mark, MaxOpen: MaxOpenQuestions, Durable: false,
		Guard: Guard{
			Generation: policy.Generation, Session: row.Session, Epoch: row.Epoch, Credential: dec.credential, Owner: row.Owner,
			Connection: row.Connection, Tool: row.Tool, Suspending: dec.suspending, Takes: dec.takes,
		},
	}
	actor := d.p.cfg.Run
	a.Steps = []control.Step{{Event: journal.OnRecord, To: journal.Admitted, Actor: row.Host, Digest: row.RecordDigest}}
	to := func(event journal.Event, state journal.State, code errs.Code, reason string, digest control.Digest) {
		row.State = state
		a.Steps = append(a.Steps, control.Step{
			From: journal.Admitted, Event: event, To: state, Attempt: row.Attempt, Actor: actor, Code: code, Reason: reason, Digest: digest,
		})
	}
	end := func(event journal.Event, state journal.State, code errs.Code, reason string) {
		row.Code, row.Reason = code, reason
		to(event, state, code, reason, control.Digest{})
	}
	switch {
	case dec.ruling == RulingRefuse && dec.code == errs.DeadlineExceeded:
		end(journal.OnExpire, journal.Expired, dec.code, dec.reason)
	case dec.ruling == RulingRefuse:
		reason := dec.reason
		end(journal.OnRefuse, journal.Refused, dec.code, reason)
		d.hint, d.switchedAt = dec.hint, dec.at
	case dec.ruling == RulingGrant:
		row.State = journal.Admitted
		row.Authority = control.Authority{Kind: control.ByGrant, ID: dec.grant}
	case dec.ruling == RulingAsk:
		a.Question = d.question(row, policy, dec.reason, now)
		row.ExpiresAt = a.Question.ExpiresAt
		to(journal.OnAsk, journal.Asking, "", "", row.Binding)
		a.Durable = true // a person may decide on it at once
	default:
		job, run, err := d.readJob(row, dec, now)
		if err != nil {
			end(journal.OnPrepareFailed, journal.Failed, errs.NotSent, errs.Message(err))
			a.Guard.Takes = nil
			return a, nil, Run{}
		}
		to(journal.OnCommit, journal.Dispatching, "", "", control.Sum(job.Encoded))
		return a, &job, run
	}
	return a, nil, Run{}
}

// readJob prepares the one message of an allowed read and sets the row's first attempt.
func (d *driver) readJob(row *control.Call, dec *decision, now time.Time) (Job, Run, error) {
	by := control.Authority{Kind: control.ByRule}
	if dec.grant != "" {
		by = control.Authority{Kind: control.ByGrant, ID: dec.grant}
	}
	run, err := d.p.cfg.Workers.Pick(dec.connection.Pool)
	if err != nil {
		return Job{}, run, err
	}
	job, err := d.job(row, dec, by, run, now, true)
	if err != nil {
		return job, run, err
	}
	row.Attempt, row.Intent, row.Worker, row.Run, row.Authority, row.StartedAt = 1, job.Intent, run.Worker, run.ID, by, now
	return job, run, nil
}

func limitReason(takes []Take) string {
	for _, t := range takes {
		if t.Calls > 0 && t.Per > 0 {
			return fmt.Sprintf("its rule allows %d calls in %s, and they are used up", t.Calls, words(t.Per))
		}
		if t.Calls > 0 {
			return fmt.Sprintf("its rule allows %d calls, and they are used up", t.Calls)
		}
	}
	return "what its rule allows is used up"
}

// question asks a person about the call, by the stricter of both versions of the profile.
func (d *driver) question(row *control.Call, policy *control.Policy, note string, now time.Time) *control.Question {
	s := d.s.session()
	frozen := s.Profile
	q := &control.Question{
		Org: row.Org, ID: control.NewID(), Kind: control.AskApproval, Call: row.ID, Session: row.Session, Owner: row.Owner, Profile: row.Profile,
		Approvers: frozen.Approvers, Second: frozen.Approval.Second, NotOwner: frozen.Approval.NotOwner, Local: !s.SameUID, Binding: row.Binding,
		Text: note, State: control.QuestionOpen,
	}
	expires := frozen.Approval.Expires
	if newest := policy.Profiles[row.Profile]; newest != nil {
		q.Approvers = newest.Approvers
		q.Second = q.Second || newest.Approval.Second
		q.NotOwner = q.NotOwner || newest.Approval.NotOwner
		if newest.Approval.Expires > 0 && (expires <= 0 || newest.Approval.Expires < expires) {
			expires = newest.Approval.Expires
		}
	}
	if row.Client {
		q.Kind = control.AskClient
		if d.bound != nil {
			q.Form = outputSchema(d.bound.Tool.Raw)
		}
	}
	if expires <= 0 {
		expires = time.Hour
	}
	q.ExpiresAt = now.Add(min(expires, 7*24*time.Hour))
	return q
}

// joinAs makes the record of w an alias of another call, and lets it wait there. rec is nil for a twin that was found while deciding.
func (d *driver) joinAs(ctx context.Context, kind waitKind, id string, w *waiter, rec *relay.Call) bool {
	alias := &control.Alias{ID: d.l.id, Session: w.addr.Session, Record: w.addr.Record, RecordDigest: w.digest, Kind: string(kind), Call: id}
	got, row, err := d.p.cfg.Store.Attach(ctx, alias, w.addr.Epoch)
	if err != nil || got != Done && got != Attaches {
		if err != nil && !errs.Is(err, errs.NotFound) {
			d.p.cfg.Log.Warn("a record was not journaled as an alias", "call", id, "err", err)
		}
		return false
	}
	d.p.cfg.Hosts.Journaled(w.addr, w.digest)
	w.uncount()
	w.kind = kind
	w.old = row.State == journal.Answered
	if w.old && kind != byAwait {
		d.note(ctx, Note{Call: id, Event: "answered_again", Actor: w.addr.Host, Digest: w.digest})
	}
	d.joined = row.ID
	d.p.join(ctx, row.ID, w)
	return true
}

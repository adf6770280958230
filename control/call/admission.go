package call

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/grant"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

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
	row.State = journal.Admitted
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
		if d.slot == "" && !d.p.slots.try(dec.connection.Name, limitsOf(dec.connection).Concurrent, d.l) {
			break // it is admitted, and waits in line for its dispatch
		}
		d.slot = dec.connection.Name
		if _, err := d.takePass(dec.connection); err != nil {
			break // its dispatch waits, or says why there is none
		}
		job, run, err := d.readJob(row, dec, now)
		if errs.Is(err, errs.Busy) {
			break
		}
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
	run, err := d.p.cfg.Workers.Pick(dec.connection.Pool, dec.withdrawn(now))
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

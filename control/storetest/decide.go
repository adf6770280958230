package storetest

import (
	"testing"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

func testDecide(t *testing.T, f *fixture) {
	c, q := f.admit(control.Write, journal.Asking)
	open, err := f.Inbox.Questions(t.Context(), inbox.Filter{Session: f.session.ID})
	f.no(err)
	want(t, "open questions", len(open), 1)
	if open[0].OpenedAt.IsZero() {
		t.Fatal("a question has no time")
	}
	for name, c := range map[string]struct {
		change func(*inbox.Decide)
		want   inbox.Outcome
	}{
		"another digest": {func(d *inbox.Decide) { d.Decision.Binding = control.Sum([]byte("x")) }, inbox.Mismatch},
		"no digest":      {func(d *inbox.Decide) { d.Decision.Binding = control.Digest{} }, inbox.Mismatch},
		"a stranger":     {func(d *inbox.Decide) { d.Actor.Person, d.Decision.By = "local:eve", "local:eve" }, inbox.Forbidden},
		"an answer":      {func(d *inbox.Decide) { d.Decision.Verdict = control.Answer }, inbox.Unfit},
	} {
		t.Run(name, func(t *testing.T) {
			d := decision(q, control.Approve)
			c.change(d)
			want(t, "outcome", f.decide(d).Outcome, c.want)
			want(t, "state", f.ask(q.ID).State, control.QuestionOpen)
		})
	}
	got := f.decide(decision(q, control.Approve))
	want(t, "outcome", got.Outcome, inbox.Closes)
	want(t, "call", got.Call, c.ID)
	row := f.load(c.ID)
	want(t, "state", row.State, journal.Approved)
	want(t, "authority", row.Authority, control.Authority{Kind: control.ByApproval, ID: q.ID})
	want(t, "lease", row.Lease, run)
	if row.DecidedAt.IsZero() {
		t.Fatal("no time of decision")
	}
	now := f.ask(q.ID)
	want(t, "question", now.State, control.QuestionApproved)
	want(t, "decisions", len(now.Decisions), 1)
	want(t, "by", now.Decisions[0].By, owner)
	want(t, "again", f.decide(decision(q, control.Refuse)).Outcome, inbox.Too)
	_, err = f.Inbox.Decide(t.Context(), decision(&control.Question{ID: control.NewID()}, control.Approve))
	wantCode(t, err, errs.NotFound)
	lines, err := f.Call.Steps(t.Context(), c.ID)
	f.no(err)
	last := lines[len(lines)-1]
	want(t, "journal", last.Event, journal.OnApprove)
	want(t, "actor", last.Actor, string(owner))
	want(t, "digest", last.Digest, q.Binding)

	// A session grant comes with an approval, in the same transaction.
	_, q = f.admit(control.Write, journal.Asking)
	d := decision(q, control.Approve)
	g := given("from-approval", "session")
	g.Session = f.session.ID
	d.Grant = &g
	want(t, "outcome", f.decide(d).Outcome, inbox.Closes)
	f.reload()
	want(t, "given", len(f.policy.Given), 1)
}

func testSecond(t *testing.T, f *fixture) {
	c := f.row(control.Write)
	a := f.admission(c, journal.Asking)
	a.Question.Second, a.Question.Approvers = true, []string{"owner", "bea"}
	_, err := f.Call.Admit(t.Context(), a)
	f.no(err)
	q := a.Question
	want(t, "first", f.decide(decision(q, control.Approve)).Outcome, inbox.Counted)
	want(t, "state", f.load(c.ID).State, journal.Asking)
	want(t, "same person", f.decide(decision(q, control.Approve)).Outcome, inbox.Twice)
	d := decision(q, control.Approve)
	d.Decision.By, d.Actor = "bea", inbox.Actor{Person: "bea"}
	want(t, "second", f.decide(d).Outcome, inbox.Closes)
	want(t, "state", f.load(c.ID).State, journal.Approved)
	want(t, "decisions", len(f.ask(q.ID).Decisions), 2)
}

func testDecideLate(t *testing.T, f *fixture) {
	c := f.row(control.Write)
	a := f.admission(c, journal.Asking)
	a.Question.ExpiresAt = f.Call.Now().Add(-time.Second)
	_, err := f.Call.Admit(t.Context(), a)
	f.no(err)
	want(t, "outcome", f.decide(decision(a.Question, control.Approve)).Outcome, inbox.Expired)
	want(t, "state", f.load(c.ID).State, journal.Asking)
	want(t, "expire", f.advance(f.step(c, journal.OnExpire, journal.Expired)), "done")
	want(t, "question", f.ask(a.Question.ID).State, control.QuestionExpired)
}

func testDeny(t *testing.T, f *fixture) {
	c, q := f.admit(control.Write, journal.Asking)
	want(t, "outcome", f.decide(decision(q, control.Refuse)).Outcome, inbox.Closes)
	row := f.load(c.ID)
	want(t, "state", row.State, journal.Denied)
	want(t, "code", row.Code, errs.ApprovalDenied)
	want(t, "reason", row.Reason, "because")
	if row.SettledAt.IsZero() {
		t.Fatal("a denied call has no end")
	}
	want(t, "question", f.ask(q.ID).State, control.QuestionDenied)
}

func testAnswers(t *testing.T, f *fixture) {
	t.Run("client tool", func(t *testing.T) {
		c := f.row(control.Write)
		a := f.admission(c, journal.Asking)
		c.Client = true
		a.Question.Kind = control.AskClient
		_, err := f.Call.Admit(t.Context(), a)
		f.no(err)
		d := decision(a.Question, control.Answer)
		d.Answer = []byte(`{"content":[]}`)
		want(t, "outcome", f.decide(d).Outcome, inbox.Closes)
		row := f.load(c.ID)
		want(t, "state", row.State, journal.Answered)
		want(t, "body", string(row.Body), string(d.Answer))
	})
	wanted := func(t *testing.T) (*control.Call, *control.Question) {
		c, q := f.approved()
		want(t, "commit", f.commit(f.barrier(c, control.Authority{Kind: control.ByApproval, ID: q.ID})), "done")
		c = f.load(c.ID)
		s := f.step(c, journal.OnInput, journal.InputWanted)
		s.Set.RequestState, s.Set.InputRequests = []byte("opaque"), []byte(`[{"n":1.10}]`)
		ends := f.Call.Now().Add(time.Hour)
		s.Set.ExpiresAt = &ends
		s.Question = f.question(c, control.AskInput)
		want(t, "input", f.advance(s), "done")
		return f.load(c.ID), s.Question
	}
	t.Run("input", func(t *testing.T) {
		c, q := wanted(t)
		want(t, "state kept", string(c.RequestState), "opaque")
		d := decision(q, control.Answer)
		d.Answer, d.Bind = []byte(`{"x":1.10}`), control.Sum([]byte("answer"))
		want(t, "outcome", f.decide(d).Outcome, inbox.Closes)
		row := f.load(c.ID)
		want(t, "state", row.State, journal.Retrying)
		want(t, "answer", string(row.Answer), string(d.Answer))
		want(t, "rounds", row.Rounds, 1)
		want(t, "binding", row.Binding, d.Bind)
		b := f.barrier(row, control.Authority{Kind: control.ByApproval, ID: q.ID})
		want(t, "commit", f.commit(b), "done")
		want(t, "attempt", f.load(c.ID).Attempt, 2)
		// The next round asks without a state: an empty slice clears what the one before left, nil would keep it.
		row = f.load(c.ID)
		s := f.step(row, journal.OnInput, journal.InputWanted)
		s.Set.RequestState = []byte{}
		s.Question = f.question(row, control.AskInput)
		want(t, "asked again", f.advance(s), "done")
		row = f.load(c.ID)
		want(t, "state cleared", len(row.RequestState), 0)
		want(t, "requests kept", string(row.InputRequests), `[{"n":1.10}]`)
	})
	t.Run("no input", func(t *testing.T) {
		c, q := wanted(t)
		want(t, "outcome", f.decide(decision(q, control.Refuse)).Outcome, inbox.Closes)
		row := f.load(c.ID)
		want(t, "state", row.State, journal.Abandoned)
		want(t, "code", row.Code, errs.Abandoned)
	})
}

package storetest

import (
	"fmt"
	"testing"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/revocation"
	"sallyport.dev/errs"
)

func (f *fixture) dispatching() *control.Call {
	f.t.Helper()
	c, q := f.approved()
	want(f.t, "commit", f.commit(f.barrier(c, approvalOf(q))), call.Done)
	return f.load(c.ID)
}

func testSettle(t *testing.T, f *fixture) {
	c := f.dispatching()
	s := f.step(c, journal.OnAnswer, journal.Answered)
	body := []byte(`{"jsonrpc":"2.0","id":1,"result":{"n":12345678901234567890,"content":[],"é":"\u00e9"}}`)
	facts := control.Facts{
		Transport: journal.TransportAnswered, Protocol: journal.ProtocolResult, ToolResult: journal.ToolOK, HTTPStatus: 200, Bytes: 321,
	}
	code := errs.RecordedAnswer
	s.Set = call.Set{Facts: &facts, Body: body, Delivery: journal.DeliveryPublished, Code: &code}
	want(t, "settle", f.advance(s), call.Done)
	row := f.load(c.ID)
	want(t, "state", row.State, journal.Answered)
	want(t, "body", string(row.Body), string(body))
	want(t, "facts", row.Facts, facts)
	want(t, "delivery", row.Delivery, journal.DeliveryPublished)
	want(t, "code", row.Code, code)
	if row.SettledAt.IsZero() {
		t.Fatal("no end")
	}
	want(t, "twice", f.advance(s), call.Fenced)

	// Every fact is kept.
	c = f.dispatching()
	s = f.step(c, journal.OnReject, journal.Rejected)
	facts = control.Facts{Transport: journal.TransportAnswered, Protocol: journal.ProtocolError, HTTPStatus: 200, RPCCode: -32602, Failure: journal.FailStatus, Bytes: 1}
	s.Set = call.Set{Facts: &facts}
	want(t, "settle", f.advance(s), call.Done)
	want(t, "facts", f.load(c.ID).Facts, facts)

	// A task's handle survives.
	c = f.dispatching()
	s = f.step(c, journal.OnTask, journal.Working)
	s.Set = call.Set{TaskHandle: []byte("task-1")}
	want(t, "task", f.advance(s), call.Done)
	want(t, "handle", string(f.load(c.ID).TaskHandle), "task-1")
}

func testLate(t *testing.T, f *fixture) {
	// Late evidence closes the question.
	c, q := f.uncertain()
	s := f.step(c, journal.OnAnswer, journal.Answered)
	s.Set.Body = []byte(`{}`)
	want(t, "late answer", f.advance(s), call.Done)
	want(t, "question", f.ask(q.ID).State, control.QuestionClosed)

	// A person was first: the evidence finds no row.
	c, q = f.uncertain()
	resolution := &call.Resolution{
		Call: c.ID, Attempt: 1, By: owner, Note: "I looked", Override: "the worker is gone",
		Step: control.Step{From: journal.Uncertain, Event: journal.OnResolveNotDone, To: journal.ResolvedNotDone, Attempt: 1, Actor: string(owner)},
	}
	got, err := f.Call.Resolve(t.Context(), resolution)
	f.no(err)
	want(t, "resolve", got, call.Done)
	row := f.load(c.ID)
	want(t, "state", row.State, journal.ResolvedNotDone)
	want(t, "by", row.ResolvedBy, owner)
	if row.Note == "" {
		t.Fatal("no note")
	}
	want(t, "question", f.ask(q.ID).State, control.QuestionResolved)
	want(t, "late", f.advance(f.step(c, journal.OnAnswer, journal.Answered)), call.Fenced)
	got, err = f.Call.Resolve(t.Context(), resolution)
	f.no(err)
	want(t, "twice", got, call.Fenced)
}

func testResolveRetry(t *testing.T, f *fixture) {
	c, _ := f.uncertain()
	retry := f.row(control.Write)
	retry.Twin, retry.RetryOf, retry.ID, retry.Record = c.Twin, c.ID, control.NewID(), ""
	retry.RecordDigest = control.Digest{}
	a := f.admission(retry, journal.Asking)
	_, mark, err := f.Call.Twins(t.Context(), c.Twin)
	f.no(err)
	a.TwinMark, a.Guard.Epoch, a.Guard.Generation = mark, 0, f.policy.Generation-1
	r := &call.Resolution{
		Call: c.ID, Attempt: 1, By: owner, Note: "again", Retry: a,
		Step: control.Step{From: journal.Uncertain, Event: journal.OnResolveRetry, To: journal.Superseded, Attempt: 1, Actor: string(owner)},
	}
	got, err := f.Call.Resolve(t.Context(), r)
	f.no(err)
	want(t, "another generation", got, call.Stale)
	want(t, "state", f.load(c.ID).State, journal.Uncertain)
	a.Guard.Generation++
	got, err = f.Call.Resolve(t.Context(), r)
	f.no(err)
	want(t, "resolve", got, call.Done)
	row := f.load(c.ID)
	want(t, "state", row.State, journal.Superseded)
	want(t, "retried by", row.RetriedBy, retry.ID)
	row = f.load(retry.ID)
	want(t, "retry", row.State, journal.Asking)
	want(t, "retry of", row.RetryOf, c.ID)
}

func testAdopt(t *testing.T, f *fixture) {
	f.no(f.Call.Renew(t.Context(), run, 1))
	d := f.dispatching()
	a, _ := f.admit(control.Write, journal.Asking)
	u, _ := f.uncertain()
	r, _ := f.admit(control.Write, journal.Refused)
	// Uncertain and ended calls are nobody's to drive.
	const next = "controlrunbbbbbbbbbbbbbbbb"
	f.no(f.Call.Renew(t.Context(), next, 1<<40))
	got, err := f.Call.Adopt(t.Context(), next, 1)
	f.no(err)
	want(t, "one at a time", len(got), 1)
	want(t, "oldest first", got[0].ID, d.ID)
	want(t, "arguments", string(got[0].Arguments), string(d.Arguments))
	more, err := f.Call.Adopt(t.Context(), next, 100)
	f.no(err)
	want(t, "the rest", len(more), 1)
	want(t, "lease", f.load(a.ID).Lease, next)
	want(t, "lease", f.load(u.ID).Lease, run)
	want(t, "lease", f.load(r.ID).Lease, run)
	none, err := f.Call.Adopt(t.Context(), next, 100)
	f.no(err)
	want(t, "nothing twice", len(none), 0)
	want(t, "the old run", f.advance(f.step(d, journal.OnLost, journal.Uncertain)), call.Fenced)
	wantCode(t, f.Call.Renew(t.Context(), run, 1<<40), errs.Fenced)
	// A decision keeps the lease that stands.
	q, err := f.Inbox.Questions(t.Context(), inbox.Filter{Call: a.ID})
	f.no(err)
	f.decide(decision(q[0], control.Approve))
	want(t, "lease", f.load(a.ID).Lease, next)
}

func testDeliver(t *testing.T, f *fixture) {
	c, _ := f.admit(control.Write, journal.Refused)
	open, err := f.Call.OpenCalls(t.Context(), f.session.ID)
	f.no(err)
	want(t, "unread", len(open), 1)
	f.Call.Deliver(call.Delivered{Call: c.ID, Delivery: journal.DeliveryAcknowledged}, call.Delivered{Call: control.NewID(), Delivery: journal.DeliveryPublished})
	f.Call.Deliver(call.Delivered{Call: c.ID, Delivery: journal.DeliveryPublished})
	f.admit(control.Write, journal.Refused) // what rides along is committed with it
	want(t, "delivery", f.load(c.ID).Delivery, journal.DeliveryAcknowledged)
	open, err = f.Call.OpenCalls(t.Context(), f.session.ID)
	f.no(err)
	want(t, "unread", len(open), 1)
	if open[0].ID == c.ID {
		t.Fatal("a read call is open")
	}
	gone, cancel := true, true
	f.no(f.Call.Note(t.Context(), call.Note{Call: open[0].ID, Event: "cancel_requested", Actor: host, Set: call.Set{Gone: &gone, Cancel: &cancel}}))
	row := f.load(open[0].ID)
	want(t, "gone", row.Gone && row.Cancel, true)
	wantCode(t, f.Call.Note(t.Context(), call.Note{Call: control.NewID(), Event: "x"}), errs.NotFound)
	f.no(f.Call.PutUpstream(t.Context(), f.session.ID, "tracker", []byte("sealed")))
	b, err := f.Call.Upstream(t.Context(), f.session.ID, "tracker")
	f.no(err)
	want(t, "upstream", string(b), "sealed")
	f.no(f.Call.PutUpstream(t.Context(), f.session.ID, "tracker", nil))
	b, err = f.Call.Upstream(t.Context(), f.session.ID, "tracker")
	f.no(err)
	want(t, "upstream", len(b), 0)
}

func testList(t *testing.T, f *fixture) {
	var ids []string
	for range 5 {
		c, _ := f.admit(control.Write, journal.Refused)
		ids = append(ids, c.ID)
	}
	f.admit(control.Read, journal.Dispatching)
	filter := call.Filter{Org: control.Org, Session: f.session.ID, States: []journal.State{journal.Refused}, Limit: 2}
	var got []string
	for {
		page, next, err := f.Call.ListCalls(t.Context(), filter)
		f.no(err)
		for _, c := range page {
			got = append(got, c.ID)
			want(t, "bodies", len(c.Arguments), 0)
		}
		if next == "" {
			break
		}
		filter.Cursor = next
	}
	want(t, "calls", len(got), 5)
	for i := range got {
		want(t, "newest first", got[i], ids[len(ids)-1-i])
	}
	_, _, err := f.Call.ListCalls(t.Context(), call.Filter{Limit: 0})
	wantCode(t, err, errs.Invalid)
	_, _, err = f.Call.ListCalls(t.Context(), call.Filter{Limit: 1, Cursor: "'; drop table"})
	wantCode(t, err, errs.Invalid)
	none, _, err := f.Call.ListCalls(t.Context(), call.Filter{Org: control.Org, Owner: "bea", Limit: 10})
	f.no(err)
	want(t, "of somebody else", len(none), 0)
	for prefix, n := range map[string]int{ids[0]: 1, ids[0][:10]: 1, "zzzzzzzz": 0, ids[0] + "a": 0} {
		some, _, err := f.Call.ListCalls(t.Context(), call.Filter{Org: control.Org, IDPrefix: prefix, Limit: 10})
		f.no(err)
		want(t, "calls that begin with "+prefix, len(some), n)
	}
}

func testPurge(t *testing.T, f *fixture) {
	c := f.dispatching()
	wantCode(t, f.Call.PurgeCall(t.Context(), c.ID, owner), errs.Conflict)
	s := f.step(c, journal.OnAnswer, journal.Answered)
	s.Set.Body = []byte("body")
	f.advance(s)
	f.no(f.Call.PurgeCall(t.Context(), c.ID, owner))
	row := f.load(c.ID)
	want(t, "arguments", len(row.Arguments), 0)
	want(t, "body", len(row.Body), 0)
	want(t, "digest", row.ArgsDigest, c.ArgsDigest)
	wantCode(t, f.Call.PurgeCall(t.Context(), control.NewID(), owner), errs.NotFound)
}

func testSubject(t *testing.T, f *fixture) {
	last, _ := f.admit(control.Write, journal.Refused)
	before := f.dispatching()
	f.advance(f.step(before, journal.OnAnswer, journal.Answered))
	u, _ := f.uncertain()
	twin := f.row(control.Write)
	twin.Twin = control.Sum([]byte("twin"))
	f.admitRow(twin, journal.Admitted)
	c := f.row(control.Write)
	c.Twin = twin.Twin
	a := f.admission(c, journal.Asking)
	_, a.TwinMark, _ = f.Call.Twins(t.Context(), c.Twin)
	_, err := f.Call.Admit(t.Context(), a)
	f.no(err)
	s, err := f.Inbox.QuestionSubject(t.Context(), a.Question.ID)
	f.no(err)
	want(t, "arguments", string(s.Call.Arguments), string(c.Arguments))
	want(t, "question", s.Question.ID, a.Question.ID)
	want(t, "last", s.Last.ID, before.ID)
	want(t, "arguments of the last", string(s.Last.Arguments), string(last.Arguments))
	want(t, "twins", len(s.Twins), 1)
	want(t, "twin", s.Twins[0].ID, twin.ID)
	want(t, "uncertain", len(s.Uncertain), 1)
	want(t, "uncertain", s.Uncertain[0].ID, u.ID)
	want(t, "before", len(s.Before), 2)
	_, err = f.Inbox.QuestionSubject(t.Context(), control.NewID())
	wantCode(t, err, errs.NotFound)
}

func testImpact(t *testing.T, f *fixture) {
	c := f.dispatching()
	f.admit(control.Write, journal.Asking)
	f.admit(control.Write, journal.Refused)
	got, err := f.Revocation.Impact(t.Context(), control.SwitchConnection, "tracker")
	f.no(err)
	want(t, "impact", got, revocation.Impact{Calls: 2, InFlight: 1, Questions: 1, Credentials: 1})
	got, err = f.Revocation.Impact(t.Context(), control.SwitchSession, f.session.ID)
	f.no(err)
	want(t, "sessions", got.Sessions, 1)
	got, err = f.Revocation.Impact(t.Context(), control.SwitchConnection, "other")
	f.no(err)
	want(t, "nothing", got, revocation.Impact{})
	open, err := f.Revocation.OpenIntents(t.Context(), control.SwitchEverything, "")
	f.no(err)
	want(t, "open intents", fmt.Sprint(open), fmt.Sprint([]revocation.OpenIntent{{Call: c.ID, Intent: c.Intent, Run: c.Run}}))
}

func testQuarantine(t *testing.T, f *fixture) {
	d := f.dispatching()
	a, q := f.admit(control.Write, journal.Asking)
	r, _ := f.admit(control.Read, journal.Dispatching)
	e, _ := f.admit(control.Write, journal.Refused)
	g := given("nightly", "standing")
	f.no(f.Grant.GiveGrant(t.Context(), &g))
	f.reload()
	before, err := f.Revocation.History(t.Context())
	f.no(err)
	got, err := f.Revocation.Quarantine(t.Context(), "a worker remembers more")
	f.no(err)
	want(t, "impact", got, revocation.Impact{Sessions: 1, Calls: 3, Grants: 1, Credentials: 1, Questions: 1})
	want(t, "dispatching write", f.load(d.ID).State, journal.Uncertain)
	want(t, "asking write", f.load(a.ID).State, journal.Uncertain)
	want(t, "read", f.load(r.ID).State, journal.Voided)
	want(t, "ended", f.load(e.ID).State, journal.Refused)
	want(t, "question", f.ask(q.ID).State, control.QuestionClosed)
	open, err := f.Inbox.Questions(t.Context(), inbox.Filter{Org: control.Org})
	f.no(err)
	want(t, "what people must look at", len(open), 2)
	f.reload()
	if f.policy.Quarantine == "" {
		t.Fatal("the policy does not say that the store is in quarantine")
	}
	s, err := f.Session.Session(t.Context(), f.session.ID)
	f.no(err)
	want(t, "session", s.State, control.SessionClosed)
	res, err := f.Call.Admit(t.Context(), f.admission(f.row(control.Read), journal.Dispatching))
	f.no(err)
	want(t, "admission", res.Result, call.Stale)
	after, err := f.Revocation.AcceptRestore(t.Context(), owner, "accepted")
	f.no(err)
	if after.Incarnation == before.Incarnation || after.Quarantine != "" || after.Counter < before.Counter {
		t.Fatalf("history %+v after %+v", after, before)
	}
	f.reload()
	want(t, "quarantine", f.policy.Quarantine, "")
	want(t, "given", len(f.policy.Given), 1)
	want(t, "suspended", f.policy.Given[0].Suspended, "")
}

func testRemember(t *testing.T, f *fixture) {
	remember := func(want bool, seen revocation.History) {
		t.Helper()
		got, err := f.Revocation.Remember(t.Context(), "host one", seen)
		f.no(err)
		if got != want {
			t.Fatalf("%+v: quarantine %v", seen, got)
		}
	}
	at, err := f.Revocation.History(t.Context())
	f.no(err)
	remember(false, revocation.History{})
	remember(false, at)
	remember(false, revocation.History{Incarnation: at.Incarnation, Counter: 1})
	lost := revocation.History{Incarnation: at.Incarnation, Counter: at.Counter + 100}
	remember(true, lost)
	f.reload()
	if f.policy.Quarantine == "" {
		t.Fatal("the policy does not say that the store is in quarantine")
	}
	remember(true, at) // still
	other := revocation.History{Incarnation: control.NewID(), Counter: 3}
	remember(true, other)
	now, err := f.Revocation.AcceptRestore(t.Context(), owner, "known")
	f.no(err)
	for _, seen := range []revocation.History{at, lost, other, now} { // what was accepted counts no more
		remember(false, seen)
	}
	remember(true, revocation.History{Incarnation: control.NewID(), Counter: 1})
}

package storetest

import (
	"testing"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/grant"
	"sallyport.dev/control/journal"
)

func approvalOf(q *control.Question) control.Authority {
	return control.Authority{Kind: control.ByApproval, ID: q.ID}
}

func testApprovalOnce(t *testing.T, f *fixture) {
	c, q := f.approved()
	other, _ := f.admit(control.Write, journal.Admitted)

	b := f.barrier(other, approvalOf(q))
	want(t, "an approval of another call", f.commit(b), call.Unusable)
	b = f.barrier(c, approvalOf(q))
	b.Binding = control.Sum([]byte("other"))
	want(t, "another binding", f.commit(b), call.Unusable)
	want(t, "a rule for a write that asked", f.load(c.ID).State, journal.Approved)

	b = f.barrier(c, approvalOf(q))
	want(t, "commit", f.commit(b), call.Done)
	row := f.load(c.ID)
	want(t, "state", row.State, journal.Dispatching)
	want(t, "attempt", row.Attempt, 1)
	want(t, "intent", row.Intent, b.Intent)
	want(t, "run", row.Run, b.Run)
	want(t, "question", f.ask(q.ID).State, control.QuestionUsed)
	want(t, "commit again", f.commit(b), call.Fenced)

	// The same approval covers the next attempt of the same call.
	s := f.step(row, journal.OnRetry, journal.Retrying)
	want(t, "retry", f.advance(s), call.Done)
	row = f.load(c.ID)
	want(t, "second attempt", f.commit(f.barrier(row, approvalOf(q))), call.Done)
	want(t, "attempt", f.load(c.ID).Attempt, 2)

	// An asking call has no approval.
	c, q = f.admit(control.Write, journal.Asking)
	c.State = journal.Approved
	want(t, "an open question", f.commit(f.barrier(c, approvalOf(q))), call.Fenced)
}

func testApprovalExpires(t *testing.T, f *fixture) {
	c := f.row(control.Write)
	a := f.admission(c, journal.Asking)
	_, err := f.Call.Admit(t.Context(), a)
	f.no(err)
	d := decision(a.Question, control.Approve)
	d.Grace = 0
	f.decide(d)
	row := f.load(c.ID)
	want(t, "expiry kept", row.ExpiresAt.Equal(a.Question.ExpiresAt.Truncate(time.Millisecond)), true)

	c, q := f.row(control.Write), (*control.Question)(nil)
	a = f.admission(c, journal.Asking)
	a.Call.ExpiresAt = f.Call.Now().Add(-time.Second)
	q = a.Question
	_, err = f.Call.Admit(t.Context(), a)
	f.no(err)
	d = decision(q, control.Approve)
	d.Grace = -time.Hour
	f.decide(d)
	row = f.load(c.ID)
	want(t, "state", row.State, journal.Approved)
	want(t, "after its end", f.commit(f.barrier(row, approvalOf(q))), call.Unusable)
	want(t, "question", f.ask(q.ID).State, control.QuestionApproved)
	want(t, "expire", f.advance(f.step(row, journal.OnExpire, journal.Expired)), call.Done)
	want(t, "question", f.ask(q.ID).State, control.QuestionExpired)
}

func testSwitchBarrier(t *testing.T, f *fixture) {
	c, q := f.approved()
	b := f.barrier(c, approvalOf(q))
	f.no(f.Revocation.Throw(t.Context(), &control.Switch{Org: control.Org, ID: control.NewID(), Kind: control.SwitchEverything, By: owner}))
	want(t, "commit", f.commit(b), call.Stale)
	want(t, "state", f.load(c.ID).State, journal.Approved)
	f.reload()
	want(t, "void", f.advance(f.step(c, journal.OnVoid, journal.Voided)), call.Done)
	want(t, "question", f.ask(q.ID).State, control.QuestionClosed)
}

func testClosedBarrier(t *testing.T, f *fixture) {
	c, q := f.approved()
	b := f.barrier(c, approvalOf(q))
	f.no(f.Session.ParkSession(t.Context(), f.session.ID, 1))
	// A parked session keeps its approval: the call runs.
	want(t, "parked", f.commit(b), call.Done)
	got, err := f.Call.Admit(t.Context(), f.admission(f.row(control.Write), journal.Asking))
	f.no(err)
	want(t, "nothing new", got.Result, call.NotOpen)

	f2 := newSessionOf(f)
	c, q = f2.approved()
	b = f2.barrier(c, approvalOf(q))
	f.no(f.Session.CloseSession(t.Context(), f2.session.ID, 0, "ada", "done"))
	want(t, "closed", f2.commit(b), call.Closed)
}

// newSessionOf is the fixture with another open session.
func newSessionOf(f *fixture) *fixture {
	next := *f
	next.session = f.open()
	return &next
}

func testCredentialBarrier(t *testing.T, f *fixture) {
	c, q := f.approved()
	// A new credential may be a new generation of the policy, as every change is; the version is checked all the same.
	b := f.barrier(c, approvalOf(q))
	put := func(c control.Credential) {
		f.no(f.PutCredential(c))
		f.reload()
		b.Guard.Generation = f.policy.Generation
	}
	put(credential(2))
	want(t, "a newer version", f.commit(b), call.Changed)
	broken := credential(3)
	broken.State = control.CredentialBroken
	put(broken)
	b.Guard.Credential.Version = 3
	want(t, "broken", f.commit(b), call.Changed)
	put(credential(4))
	b.Guard.Credential.Version = 4
	want(t, "good", f.commit(b), call.Done)
}

func testCounters(t *testing.T, f *fixture) {
	takes := []call.Take{{Key: "a", Calls: 1, ExpectUsed: 0, AddBytes: 3}, {Key: "b", Per: 24 * time.Hour, Bytes: 5, AddBytes: 3, ExpectUsed: -1}}
	c, q := f.approved()
	b := f.barrier(c, approvalOf(q))
	b.Guard.Takes = takes
	want(t, "first", f.commit(b), call.Done)
	used, err := f.Call.Usage(t.Context(), takes)
	f.no(err)
	want(t, "a", used[0], call.Usage{Calls: 1, Bytes: 3})
	want(t, "b", used[1], call.Usage{Calls: 1, Bytes: 3})

	c, q = f.approved()
	b = f.barrier(c, approvalOf(q))
	b.Guard.Takes = takes
	want(t, "somebody took", f.commit(b), call.Stale)
	b.Guard.Takes = []call.Take{{Key: "b", Per: 24 * time.Hour, Bytes: 5, AddBytes: 3, ExpectUsed: -1}}
	want(t, "bytes are used up", f.commit(b), call.Limited)
	used, err = f.Call.Usage(t.Context(), takes)
	f.no(err)
	want(t, "b after a refusal", used[1], call.Usage{Calls: 1, Bytes: 3})
	b.Guard.Takes = nil
	want(t, "no limit", f.commit(b), call.Done)

	// Admission of a question takes nothing.
	a := f.admission(f.row(control.Write), journal.Asking)
	a.Guard.Takes = []call.Take{{Key: "c", Calls: 1, ExpectUsed: -1}}
	_, err = f.Call.Admit(t.Context(), a)
	f.no(err)
	used, err = f.Call.Usage(t.Context(), a.Guard.Takes)
	f.no(err)
	want(t, "c", used[0].Calls, int64(0))
}

func testGivenBarrier(t *testing.T, f *fixture) {
	g := given("nightly", "standing")
	f.no(f.Grant.GiveGrant(t.Context(), &g))
	f.reload()
	by := control.Authority{Kind: control.ByGrant, ID: "nightly"}
	c, _ := f.admit(control.Write, journal.Admitted)
	b := f.barrier(c, by)
	b.Guard.Takes = []call.Take{{Key: grant.CounterOfGiven("nightly"), Calls: 20, ExpectUsed: -1}}
	want(t, "commit", f.commit(b), call.Done)
	all, err := f.Grant.GivenGrants(t.Context(), grant.Filter{Org: control.Org})
	f.no(err)
	want(t, "used", all[0].Used, int64(1))

	c, _ = f.admit(control.Write, journal.Admitted)
	b = f.barrier(c, control.Authority{Kind: control.ByGrant, ID: "unknown"})
	want(t, "unknown grant", f.commit(b), call.Unusable)
	b = f.barrier(c, by)
	b.Binding = control.Sum([]byte("other"))
	want(t, "a grant, and another binding", f.commit(b), call.Unusable)
	f.no(f.Grant.EndGrant(t.Context(), "nightly", owner, "over"))
	b = f.barrier(c, by)
	want(t, "generation", f.commit(b), call.Stale)
	f.reload()
	b = f.barrier(c, by)
	want(t, "ended grant", f.commit(b), call.Unusable)

	late := given("late", "standing")
	late.Until = f.Call.Now().Add(-time.Second)
	f.no(f.Grant.GiveGrant(t.Context(), &late))
	f.reload()
	want(t, "late grants are in no policy", len(f.policy.Given), 0)
	b = f.barrier(c, control.Authority{Kind: control.ByGrant, ID: "late"})
	want(t, "late grant", f.commit(b), call.Unusable)
}

func testSuspends(t *testing.T, f *fixture) {
	g := given("nightly", "standing")
	f.no(f.Grant.GiveGrant(t.Context(), &g))
	f.reload()
	yes, err := f.Call.Suspended(t.Context(), owner, "tracker", "create_issue")
	f.no(err)
	want(t, "suspended", yes, false)
	u, _ := f.uncertain()
	yes, err = f.Call.Suspended(t.Context(), owner, "tracker", "create_issue")
	f.no(err)
	want(t, "suspended", yes, true)
	yes, err = f.Call.Suspended(t.Context(), "bea", "tracker", "create_issue")
	f.no(err)
	want(t, "another owner", yes, false)
	all, err := f.Grant.GivenGrants(t.Context(), grant.Filter{Org: control.Org})
	f.no(err)
	if all[0].Suspended == "" {
		t.Fatal("the list does not say that the grant is suspended")
	}
	c, _ := f.admit(control.Write, journal.Admitted)
	b := f.barrier(c, control.Authority{Kind: control.ByGrant, ID: "nightly"})
	b.Guard.Suspending = true
	want(t, "commit", f.commit(b), call.Suspends)
	got, err := f.Call.Resolve(t.Context(), &call.Resolution{
		Call: u.ID, Attempt: 1, By: owner, Note: "it is there",
		Step: control.Step{From: journal.Uncertain, Event: journal.OnResolveDone, To: journal.ResolvedDone, Attempt: 1, Actor: string(owner)},
	})
	f.no(err)
	want(t, "resolve", got, call.Done)
	want(t, "commit", f.commit(b), call.Done)
}

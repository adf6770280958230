package call_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

func TestUncertain(t *testing.T) {
	bubble(t, "a lost answer", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: lost()})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.later(time.Minute)
		r.says(c, "create_issue was sent to tracker, but the answer was lost: it may or may not have happened (call "+id(c)+", outcome_uncertain). Do not repeat it. A person was asked to check.", `"isError":true`)
		r.state(c, journal.Uncertain)
		r.sends(c, 1)
		if q := r.question(c); q.Kind != control.AskUncertain || !q.ExpiresAt.IsZero() {
			t.Fatalf("question %+v", q)
		}
		// The same call again asks, and names the twin; nothing attaches.
		d := r.do("create_issue", issue)
		r.state(d, journal.Asking)
		if q := r.question(d); !strings.Contains(q.Text, id(c)) {
			t.Fatalf("the question does not name the twin: %q", q.Text)
		}
	})
	bubble(t, "a run that does not come back", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: answered(`{}`), hold: make(chan struct{})})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.workers.cut()
		r.later(14 * time.Second)
		r.state(c, journal.Dispatching)
		r.later(2 * time.Second)
		r.state(c, journal.Uncertain)
		r.endHolds()
	})
	bubble(t, "a run that comes back with the answer", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.workers.cut()
		close(hold)
		r.later(10 * time.Second)
		r.workers.join()
		synctest.Wait()
		r.says(c, `{"content":[]}`)
		r.sends(c, 1)
	})
	bubble(t, "a run that was replaced", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: answered(`{}`), hold: make(chan struct{})})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.workers.restart()
		r.later(time.Second)
		r.state(c, journal.Uncertain)
		r.sends(c, 1)
		r.endHolds()
	})
	bubble(t, "an outcome that is never reported is asked for", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: answered(`{"content":[]}`), mute: true})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.later(4 * time.Minute)
		r.says(c, `{"content":[]}`)
	})
	bubble(t, "late evidence", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.workers.cut()
		r.later(time.Minute)
		r.state(c, journal.Uncertain)
		close(hold)
		r.workers.join()
		synctest.Wait()
		r.state(c, journal.Answered)
		if len(r.questions()) != 0 {
			t.Fatal("its question is open")
		}
		a := r.do("await_call", `{"call":"`+id(c)+`"}`)
		r.says(a, `{"content":[]}`)
		r.sends(c, 1)
	})
	bubble(t, "late proof that nothing was sent", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: unsent(journal.FailReset), hold: hold})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.workers.cut()
		r.later(time.Minute)
		close(hold)
		r.workers.join()
		synctest.Wait()
		r.state(c, journal.Failed)
		r.sends(c, 0)
	})
	bubble(t, "late evidence after a person spoke", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.workers.cut()
		r.later(time.Minute)
		r.no(r.resolve(c, control.Done, false))
		close(hold)
		r.workers.join()
		synctest.Wait()
		r.state(c, journal.ResolvedDone)
		r.says(r.do("await_call", `{"call":"`+id(c)+`"}`), "it did happen", string(errs.ResolvedDone))
	})
}

// resolve is a person's word on an uncertain call.
func (r *rig) resolve(c *record, v control.Verdict, override bool) error {
	_, err := r.p.Resolve(r.t.Context(), call.ResolveRequest{
		Call: id(c), Verdict: v, Actor: inbox.Actor{Person: ada, Local: true}, Note: "I looked", Override: override,
	})
	synctest.Wait()
	return err
}

func TestResolve(t *testing.T) {
	uncertain := func(r *rig) *record {
		r.plan(plan{outcome: lost()})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.state(c, journal.Uncertain)
		r.plan(plan{outcome: answered(`{"content":[]}`)})
		return c
	}
	bubble(t, "not done, after the run reported", func(t *testing.T, r *rig) {
		c := uncertain(r)
		r.no(r.resolve(c, control.NotDone, false))
		r.state(c, journal.ResolvedNotDone)
		r.says(r.do("await_call", `{"call":"`+id(c)+`"}`), "it did not happen")
		if code := errs.CodeOf(r.resolve(c, control.Done, false)); code != errs.Conflict {
			t.Fatalf("twice: %s", code)
		}
	})
	bubble(t, "where the agent could be the person, not from this machine", func(t *testing.T, r *rig) {
		r.no(r.db.Change(r.s.ID, func(s *control.Session) { s.SameUID = true }))
		r.plan(plan{outcome: lost()})
		c := r.do("create_issue", issue)
		r.no(r.decide(r.question(c), control.Approve, func(q *inbox.Request) { q.Actor.Local = false }))
		r.state(c, journal.Uncertain)
		if err := r.resolve(c, control.Done, false); errs.CodeOf(err) != errs.NotAllowed || !strings.Contains(errs.Message(err), "browser") {
			t.Fatalf("a local word: %v", err)
		}
	})
	bubble(t, "not done while the run may have it", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: answered(`{}`), hold: make(chan struct{})})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.workers.cut()
		r.later(time.Minute)
		for _, v := range []control.Verdict{control.NotDone, control.RunAgain} {
			if code := errs.CodeOf(r.resolve(c, v, false)); code != errs.Uncertain {
				t.Fatalf("%s: %s", v, code)
			}
		}
		r.state(c, journal.Uncertain)
		r.no(r.resolve(c, control.NotDone, true))
		if note := r.row(c).Note; !strings.Contains(note, "override") {
			t.Fatalf("the override is not kept: %q", note)
		}
		r.endHolds()
	})
	bubble(t, "a dead run", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: answered(`{}`), hold: make(chan struct{})})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.workers.restart()
		r.later(time.Second)
		r.no(r.resolve(c, control.NotDone, false))
		r.endHolds()
	})
	bubble(t, "retry is a new call with its own decision", func(t *testing.T, r *rig) {
		c := uncertain(r)
		retry, err := r.p.Resolve(t.Context(), call.ResolveRequest{Call: id(c), Verdict: control.RunAgain, Actor: inbox.Actor{Person: ada, Local: true}, Note: "not there"})
		r.no(err)
		synctest.Wait()
		r.state(c, journal.Superseded)
		row, err := r.db.Call(t.Context(), retry)
		r.no(err)
		if row.State != journal.Asking || row.RetryOf != id(c) || string(row.Arguments) != issue {
			t.Fatalf("%s, retry of %s, %s", row.State, row.RetryOf, row.Arguments)
		}
		if r.row(c).RetriedBy != retry {
			t.Fatal("the old call does not name the new one")
		}
		qs, err := r.db.Questions(t.Context(), inbox.Filter{Call: retry})
		r.no(err)
		r.no(r.decide(qs[0], control.Approve))
		row, err = r.db.Call(t.Context(), retry)
		r.no(err)
		if row.State != journal.Answered {
			t.Fatalf("the retry is %s", row.State)
		}
		r.says(r.do("await_call", `{"call":"`+id(c)+`"}`), `{"content":[]}`)
		r.sends(c, 1)
		if r.workers.sent[retry] != 1 {
			t.Fatalf("the retry was sent %d times", r.workers.sent[retry])
		}
	})
	bubble(t, "needs a note, the right person and a known word", func(t *testing.T, r *rig) {
		c := uncertain(r)
		for name, q := range map[string]call.ResolveRequest{
			"no note":    {Call: id(c), Verdict: control.Done, Actor: inbox.Actor{Person: ada, Local: true}},
			"a stranger": {Call: id(c), Verdict: control.Done, Note: "n", Actor: inbox.Actor{Person: "eve"}},
			"a verdict":  {Call: id(c), Verdict: control.Approve, Note: "n", Actor: inbox.Actor{Person: ada, Local: true}},
			"no call":    {Call: control.NewID(), Verdict: control.Done, Note: "n", Actor: inbox.Actor{Person: ada, Local: true}},
		} {
			if _, err := r.p.Resolve(t.Context(), q); err == nil {
				t.Errorf("%s: resolved", name)
			}
		}
		r.state(c, journal.Uncertain)
		if err := r.decide(r.question(c), control.Approve); errs.CodeOf(err) != errs.Invalid {
			t.Errorf("approved: %v", err)
		}
	})
}

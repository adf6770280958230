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
	"sallyport.dev/intent"
)

const issue = `{"project":"web","title":"x"}`

func id(c *record) string { return control.CallID(c.session.ID, c.id) }

func TestWrite(t *testing.T) {
	bubble(t, "nothing is sent before a person decided, and then once", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		r.waits(c)
		r.state(c, journal.Asking)
		r.sends(c, 0)
		if len(r.workers.entries) != 0 {
			t.Fatal("a worker has an intent before the decision")
		}
		r.approve(c)
		r.says(c, `"ok"`)
		r.state(c, journal.Answered)
		r.sends(c, 1)
		row := r.row(c)
		if row.Authority.Kind != control.ByApproval || row.Attempt != 1 {
			t.Fatalf("authority %v, attempt %d", row.Authority, row.Attempt)
		}
		steps, err := r.db.Steps(t.Context(), row.ID)
		r.no(err)
		var path []string
		for _, s := range steps {
			path = append(path, string(s.To))
		}
		if got := strings.Join(path, " "); got != "admitted asking approved dispatching answered" {
			t.Fatalf("the journal says %s", got)
		}
	})
	bubble(t, "denied", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		r.no(r.decide(r.question(c), control.Refuse, func(q *inbox.Request) { q.Reason = `duplicate of #41` }))
		r.says(c, `A person declined create_issue: \"duplicate of #41\" (approval_denied). Do not repeat it. Follow the reason, or say so in your answer.`, `"isError":true`)
		r.sends(c, 0)
	})
	bubble(t, "expired", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		r.later(45 * time.Second)
		r.later(time.Hour)
		r.state(c, journal.Expired)
		a := r.do("await_call", `{"call":"`+id(c)+`"}`)
		r.says(a, "Nobody decided create_issue within 1 h; it did not run (approval_expired)")
		if err := r.decide(&control.Question{ID: r.anyQuestion(c).ID}, control.Approve); err == nil {
			t.Fatal("an expired question was decided")
		}
	})
	bubble(t, "held, then pending, then awaited", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		r.later(44 * time.Second)
		r.waits(c)
		if got := len(r.hosts.progress[c.id]); got != 4 {
			t.Fatalf("%d progress messages while held", got)
		}
		r.later(time.Second)
		r.says(c, "create_issue waits for a person (call "+id(c)+", approval_pending). It has not run. Go on with other work, then call mcp__sallyport__await_call with {\\\"call\\\":\\\""+id(c)+"\\\"}. Do not call create_issue again for this.", `"isError":false`)
		a := r.do("await_call", `{"call":"`+id(c)+`"}`)
		r.waits(a)
		r.later(45 * time.Second)
		r.says(a, "approval_pending")
		b := r.do("await_call", `{"call":"`+id(c)+`"}`)
		r.approve(c)
		r.says(b, `{"content":[{"type":"text","text":"ok"}]}`)
		r.sends(c, 1)
		if r.hosts.count[c.id] != 1 {
			t.Fatal("the first record was answered twice")
		}
		r.p.Acknowledge(c.addr) // of "pending"
		r.later(2 * time.Second)
		if d := r.row(c).Delivery; d != journal.DeliveryPublished {
			t.Fatalf("delivery %s", d)
		}
		r.p.Acknowledge(b.addr)
		synctest.Wait()
		if d := r.row(c).Delivery; d != journal.DeliveryAcknowledged {
			t.Fatalf("delivery %s", d)
		}
	})
	bubble(t, "no hold", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		r.says(c, "approval_pending")
		r.approve(c)
		r.says(r.do("await_call", `{"call":"`+id(c)+`"}`), `"ok"`)
	}, func(a *control.Apply) { a.Profiles[0].Hold = 0 })
	bubble(t, "at most five questions", func(t *testing.T, r *rig) {
		for i := range 5 {
			r.waits(r.do("create_issue", `{"project":"web","n":`+string(rune('0'+i))+`}`))
		}
		c := r.do("create_issue", `{"project":"web","n":9}`)
		r.says(c, "5 questions of this session are open (busy)")
		r.state(c, journal.Refused)
	})
	bubble(t, "unsent after go: again under the same approval", func(t *testing.T, r *rig) {
		n := 0
		r.workers.plan = func(in *intent.Intent) plan {
			if in.Attempt == 1 {
				n++
				return plan{outcome: unsent(journal.FailReset)}
			}
			return plan{outcome: answered(`{"content":[]}`)}
		}
		c := r.do("create_issue", issue)
		r.approve(c)
		r.state(c, journal.Retrying)
		r.later(100 * time.Millisecond)
		r.says(c, `{"content":[]}`)
		r.sends(c, 1)
		if row := r.row(c); row.Attempt != 2 {
			t.Fatalf("attempt %d", row.Attempt)
		}
	})
	bubble(t, "prepare fails: nothing was sent", func(t *testing.T, r *rig) {
		r.plan(plan{prepare: unsent(journal.FailTLS)})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.later(time.Second)
		r.says(c, "nothing was sent (not_sent)")
		r.state(c, journal.Failed)
		r.sends(c, 0)
		if a := r.row(c).Attempt; a != 0 {
			t.Fatalf("attempt %d: prepare is before the barrier", a)
		}
	})
	bubble(t, "rejected", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: call.Outcome{Transport: journal.TransportAnswered, Status: 422, Failure: journal.FailStatus, Bytes: 5}})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.says(c, "tracker refused create_issue (HTTP 422) and says that it did not run")
		r.sends(c, 1)
	})
	bubble(t, "a status that this connection moved", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: call.Outcome{Transport: journal.TransportAnswered, Status: 422, Failure: journal.FailStatus, Bytes: 5}})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.state(c, journal.Uncertain)
	}, func(a *control.Apply) { a.Connections[0].Uncertain = []int{422} })
	bubble(t, "the worker is told what it may do", func(t *testing.T, r *rig) {
		var got *intent.Intent
		r.workers.plan = func(in *intent.Intent) plan {
			got = in
			return plan{outcome: answered(`{"content":[]}`)}
		}
		c := r.do("create_issue", issue)
		r.approve(c)
		row := r.row(c)
		q := r.anyQuestion(c)
		want := intent.Intent{
			V: intent.Protected, ID: row.Intent, Org: "default", Kind: intent.Call, Call: row.ID, Attempt: 1, Session: r.s.ID, Epoch: 1,
			Binding: row.Binding.String(), Connection: "tracker", Revision: 1, Pool: "default", Transport: "mcp", Origin: "https://tracker.example.org",
			Path: "/mcp", AuthType: "bearer", Subject: "shared", Version: 1, Account: "bot", Protocol: "2025-11-25", Tool: "create_issue", Effect: "write",
			Arguments: control.Sum([]byte(issue)).String(), Authority: "approval:" + q.ID, Owner: string(ada), Attended: true, ResultBytes: 64 << 20, ConnectMS: 5000,
			AnswerMS: 120000, SilenceMS: 120000, Audience: r.workers.run,
		}
		want.Schema, want.Trace, want.NotBefore, want.StartBefore, want.FinishBefore = got.Schema, got.Trace, got.NotBefore, got.StartBefore, got.FinishBefore
		want.Allow, want.Scopes = got.Allow, got.Scopes
		if a, _ := intent.Encode(*got); true {
			if b, _ := intent.Encode(want); string(a) != string(b) {
				t.Fatalf("\ngot  %s\nwant %s", a, b)
			}
		}
		if got.StartBefore-got.NotBefore != 30_000 {
			t.Fatalf("start within %d ms", got.StartBefore-got.NotBefore)
		}
	})
}

// anyQuestion returns the newest question of a call, open or not.
func (r *rig) anyQuestion(c *record) *control.Question {
	r.t.Helper()
	qs, err := r.db.Questions(r.t.Context(), inbox.Filter{Call: id(c), States: []control.QuestionState{
		control.QuestionOpen, control.QuestionApproved, control.QuestionUsed, control.QuestionDenied, control.QuestionAnswered, control.QuestionResolved,
		control.QuestionExpired, control.QuestionClosed,
	}})
	r.no(err)
	if len(qs) == 0 {
		r.t.Fatal("the call has no question")
	}
	return qs[len(qs)-1]
}

func TestAwait(t *testing.T) {
	bubble(t, "refuses what is not its own", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		other := r.open(true)
		for name, args := range map[string]string{
			"an unknown id":    `{"call":"` + control.NewID() + `"}`,
			"another sessions": `{"call":"` + id(c) + `"}`,
		} {
			a := r.do("await_call", args, func(c *record) { c.session = other })
			r.says(a, "This session has no call", string(errs.UnknownCall))
			_ = name
		}
		for _, args := range []string{`{}`, `{"call":5}`, `{"call":"x"}`} {
			r.says(r.do("await_call", args), string(errs.InvalidArguments))
		}
	})
	bubble(t, "cancelling it cancels the waiting only", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		a := r.do("await_call", `{"call":"`+id(c)+`"}`)
		r.p.Cancel(a.addr, call.CancelHarness)
		synctest.Wait()
		r.says(a, string(errs.Cancelled))
		r.state(c, journal.Asking)
		r.approve(c)
		r.says(c, `"ok"`)
	})
	bubble(t, "a running call", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
		c := r.do("create_issue", issue)
		r.approve(c)
		a := r.do("await_call", `{"call":"`+id(c)+`"}`)
		r.later(45 * time.Second)
		r.says(a, "create_issue was sent to tracker and has no answer yet (call "+id(c)+", still_running). Do not repeat it.")
		r.waits(c)
		r.p.Cancel(c.addr, call.CancelDeadline)
		synctest.Wait()
		r.says(c, string(errs.StillRunning))
		close(hold)
		synctest.Wait()
		b := r.do("await_call", `{"call":"`+id(c)+`"}`)
		r.says(b, `{"content":[]}`)
		r.sends(c, 1)
	})
	bubble(t, "answered after a restart", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		a := r.do("await_call", `{"call":"`+id(c)+`"}`)
		r.crash(false)
		r.p.Attach(a.addr)
		r.p.Attach(c.addr)
		synctest.Wait()
		r.approve(c)
		r.says(a, `"ok"`)
		r.says(c, `"ok"`)
		r.sends(c, 1)
	})
}

func TestCancel(t *testing.T) {
	bubble(t, "before the decision", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		r.p.Cancel(c.addr, call.CancelHarness)
		synctest.Wait()
		r.state(c, journal.Cancelled)
		if len(r.questions()) != 0 {
			t.Fatal("its question is open")
		}
		r.sends(c, 0)
	})
	bubble(t, "and the decision was faster: still nothing is sent", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		q := r.question(c)
		_, err := inbox.DecideQuestion(t.Context(), r.db, nil, nil, inbox.Request{Question: q.ID, Verdict: control.Approve, Binding: q.Binding, Actor: inbox.Actor{Person: ada}})
		r.no(err)
		r.p.Cancel(c.addr, call.CancelHarness) // before anybody told the pipeline of the decision
		synctest.Wait()
		r.state(c, journal.Cancelled)
		r.sends(c, 0)
	})
	bubble(t, "while it is prepared", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		r.workers.cutReady = true
		r.approve(c)
		r.state(c, journal.Approved)
		r.p.Cancel(c.addr, call.CancelHarness)
		synctest.Wait()
		r.state(c, journal.Cancelled)
		r.sends(c, 0)
	})
	bubble(t, "after something was sent", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.p.Cancel(c.addr, call.CancelHarness)
		synctest.Wait()
		r.state(c, journal.Dispatching)
		if row := r.row(c); !row.Cancel || !row.Gone {
			t.Fatal("the cancel is not noted")
		}
		close(hold)
		synctest.Wait()
		r.state(c, journal.Answered)
		r.sends(c, 1)
	})
	bubble(t, "a read that was sent is let go", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: answered(`{}`), hold: make(chan struct{})})
		c := r.do("list_issues", `{"project":"web"}`)
		r.p.Cancel(c.addr, call.CancelHarness)
		synctest.Wait()
		r.state(c, journal.Failed)
		r.sends(c, 1)
		for h := range r.holds() {
			close(h)
		}
	})
	bubble(t, "a closed pipe keeps it", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		r.p.Cancel(c.addr, call.CancelClosed)
		synctest.Wait()
		r.state(c, journal.Asking)
		if !r.row(c).Gone {
			t.Fatal("the approval does not show that its agent is gone")
		}
		r.approve(c)
		r.state(c, journal.Answered)
		r.sends(c, 1)
	})
	bubble(t, "a closed pipe ends it where the profile says so", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		r.p.Cancel(c.addr, call.CancelClosed)
		synctest.Wait()
		r.state(c, journal.Cancelled)
		// Also when it was told that the call is pending.
		d := r.do("create_issue", `{"project":"web","n":2}`)
		r.later(45 * time.Second)
		r.says(d, "approval_pending")
		r.p.Cancel(d.addr, call.CancelClosed)
		synctest.Wait()
		r.state(d, journal.Cancelled)
	}, func(a *control.Apply) { a.Profiles[0].OnDisconnect = "cancel" })
	bubble(t, "the deadline asks for what is known", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		r.p.Cancel(c.addr, call.CancelDeadline)
		synctest.Wait()
		r.says(c, "approval_pending")
		r.state(c, journal.Asking)
	})
	bubble(t, "a cancel of one never touches another", func(t *testing.T, r *rig) {
		a, b := r.do("create_issue", issue), r.do("create_issue", `{"project":"api"}`)
		r.p.Cancel(a.addr, call.CancelHarness)
		r.p.Cancel(r.rec("create_issue", issue).addr, call.CancelHarness)
		synctest.Wait()
		r.state(b, journal.Asking)
	})
}

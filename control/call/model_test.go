package call_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
)

// action is one thing that somebody does in the model: what, and which.
type action struct {
	what string
	n    int
}

func (a action) String() string { return fmt.Sprintf("%s(%d)", a.what, a.n) }

var actions = []string{
	"write", "write", "write", "read", "again", "cancel", "close", "deadline", "approve", "approve", "approve", "deny", "await", "later", "later", "cut", "join",
	"restart", "plan", "plan", "release", "crash", "revoke", "restore", "resolve", "fault", "refresh", "drop", "adopt", "ack",
}

// world is the model's bookkeeping.
type world struct {
	r       *rig
	records []*record
	holds   []chan struct{}
	thrown  bool
}

var outcomes = []call.Outcome{
	answered(`{"content":[]}`), lost(), unsent(journal.FailReset),
	{Transport: journal.TransportAnswered, Status: 503, Failure: journal.FailStatus, Bytes: 1},
	{Transport: journal.TransportAnswered, Status: 403, Failure: journal.FailStatus, Bytes: 1},
	answered(`{"content":[],"isError":true}`),
}

func pick[T any](all []T, n int) (T, bool) {
	var none T
	if len(all) == 0 {
		return none, false
	}
	return all[n%len(all)], true
}

func (w *world) do(a action) {
	r := w.r
	switch a.what {
	case "write":
		c := r.do("create_issue", fmt.Sprintf(`{"project":"web","n":%d}`, a.n%3), func(c *record) {
			if a.n%2 == 0 {
				c.shim = otherShim
			}
			if a.n%5 == 0 {
				c.harness = "toolu_1"
			}
		})
		w.records = append(w.records, c)
	case "read":
		w.records = append(w.records, r.do("list_issues", `{"project":"web"}`))
	case "again":
		if c, ok := pick(w.records, a.n); ok {
			r.submit(c)
		}
	case "cancel", "close", "deadline":
		if c, ok := pick(w.records, a.n); ok {
			r.p.Cancel(c.addr, map[string]call.CancelWhy{"cancel": call.CancelHarness, "close": call.CancelClosed, "deadline": call.CancelDeadline}[a.what])
		}
	case "ack":
		if c, ok := pick(w.records, a.n); ok {
			r.p.Acknowledge(c.addr)
		}
	case "approve", "deny":
		if q, ok := pick(r.questions(control.AskApproval), a.n); ok {
			v := control.Approve
			if a.what == "deny" {
				v = control.Refuse
			}
			_ = r.decide(q, v) // a store that is away, or a race that was lost: still pending
		}
	case "await":
		if c, ok := pick(w.records, a.n); ok {
			r.do("await_call", `{"call":"`+id(c)+`"}`)
		}
	case "later":
		r.later([]time.Duration{time.Second, 20 * time.Second, 50 * time.Second, 5 * time.Minute}[a.n%4])
	case "cut":
		r.workers.cut()
	case "join":
		r.workers.join()
	case "restart":
		r.workers.restart()
	case "plan":
		p := plan{outcome: outcomes[a.n%len(outcomes)], mute: a.n%7 == 3}
		if a.n%3 == 0 {
			p.hold = make(chan struct{})
			w.holds = append(w.holds, p.hold)
		}
		if a.n%11 == 1 {
			p.prepare = unsent(journal.FailConnect)
		}
		r.plan(p)
	case "release":
		for _, h := range w.holds {
			close(h)
		}
		w.holds = nil
		r.plan(plan{outcome: outcomes[0]})
	case "crash":
		r.db.SetFault(nil)
		r.crash(a.n%2 == 0)
		if a.n%3 > 0 {
			for _, c := range w.records {
				r.p.Attach(c.addr)
			}
		}
	case "adopt":
		old := r.p
		r.db.SetFault(nil)
		r.start()
		defer old.Stop()
	case "revoke":
		if !w.thrown {
			w.thrown = true
			_ = r.db.Throw(r.t.Context(), &control.Switch{Org: control.Org, ID: control.NewID(), Kind: control.SwitchConnection, Name: "tracker", By: ada})
			if a.n%2 == 0 {
				r.p.PolicyChanged()
			}
		}
	case "restore":
		w.thrown = false
		_, _ = r.db.Restore(r.t.Context(), control.SwitchConnection, "tracker", ada)
		r.p.PolicyChanged()
	case "resolve":
		if q, ok := pick(r.questions(control.AskUncertain), a.n); ok {
			v := []control.Verdict{control.Done, control.NotDone, control.RunAgain}[a.n%3]
			_, _ = r.p.Resolve(r.t.Context(), call.ResolveRequest{Call: q.Call, Verdict: v, Actor: inbox.Actor{Person: ada, Local: true}, Note: "n"})
		}
	case "fault":
		op := []string{"Admit", "Commit", "Advance", "Call", "Twins", "Policy", "Attach", "Note"}[a.n%8]
		left := 1 + a.n%2
		r.db.SetFault(func(at string, committed bool) error {
			if at == op && committed == (a.n%3 == 0) && left > 0 {
				left--
				return errors.New("away")
			}
			return nil
		})
	case "refresh":
		// The same account, a new version: as a refresh does.
		_ = r.db.PutCredential(control.Credential{
			Org: control.Org, Connection: "tracker", Subject: control.SubjectShared, Version: int64(100 + a.n), Sealed: control.Sealed("s"), Account: "bot",
			State: control.CredentialGood,
		})
	case "drop":
		r.workers.mu.Lock()
		r.workers.dropGo = a.n%2 == 0
		r.workers.mu.Unlock()
	}
	synctest.Wait()
}

// check says what is broken now, or "".
func (w *world) check() string {
	r := w.r
	if broken := r.rules(); broken != "" {
		return broken
	}
	calls, _, err := r.db.ListCalls(r.t.Context(), call.Filter{Org: control.Org, Limit: 500})
	if err != nil {
		return "" // the store is away
	}
	r.workers.mu.Lock()
	defer r.workers.mu.Unlock()
	for _, c := range calls {
		sent := r.workers.sent[c.ID]
		if c.Effect == control.Write {
			if sent > 1 {
				return fmt.Sprintf("write %s was sent %d times", c.ID, sent)
			}
			never := []journal.State{journal.Refused, journal.Denied, journal.Cancelled, journal.Expired, journal.Voided, journal.Failed, journal.Asking, journal.Approved, journal.Admitted, journal.Retrying}
			if sent > 0 && slices.Contains(never, c.State) {
				return fmt.Sprintf("write %s is %s and was sent", c.ID, c.State)
			}
			if sent == 0 && c.State == journal.Answered {
				return fmt.Sprintf("write %s is answered and was never sent", c.ID)
			}
			if c.Attempt > 0 && c.Authority.Kind != control.ByApproval {
				return fmt.Sprintf("write %s ran by %v", c.ID, c.Authority)
			}
		}
		steps, err := r.db.Steps(r.t.Context(), c.ID)
		if err != nil {
			return ""
		}
		state, attempt := journal.None, 0
		for _, s := range steps {
			if s.From == s.To {
				continue // a note
			}
			if s.From != state || !journal.Legal(s.From, s.Event, s.To) || s.Attempt < attempt {
				return fmt.Sprintf("call %s: the journal jumps from %s to %s by %s", c.ID, state, s.To, s.Event)
			}
			state, attempt = s.To, s.Attempt
		}
		if state != c.State || attempt != c.Attempt {
			return fmt.Sprintf("call %s is %s at attempt %d, and its journal says %s at %d", c.ID, c.State, c.Attempt, state, attempt)
		}
	}
	return ""
}

// settled lets everything end that can without people, and says what did not.
func (w *world) settled() string {
	r := w.r
	r.db.SetFault(nil)
	w.do(action{what: "release"})
	r.workers.mu.Lock()
	r.workers.dropGo = false
	r.workers.mu.Unlock()
	w.do(action{what: "restore"})
	r.workers.join()
	r.later(10 * time.Minute)
	calls, _, err := r.db.ListCalls(r.t.Context(), call.Filter{Org: control.Org, Limit: 500})
	if err != nil {
		return err.Error()
	}
	for _, c := range calls {
		if c.State.Unfinished() && c.State != journal.Asking {
			return fmt.Sprintf("call %s is still %s\n%s", c.ID, c.State, r.logged())
		}
	}
	for _, c := range w.records {
		r.p.Attach(c.addr)
	}
	r.later(time.Minute)
	for _, c := range w.records {
		if r.result(c) == "" {
			return fmt.Sprintf("record %s has no answer\n%s", c.id, r.logged())
		}
	}
	return ""
}

// Whatever people, agents, workers, the store and the power do, in whatever order: no write is sent twice, what is called unsent was not sent, the
// journal is one path through the table, and everything comes to an end.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		plan := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) action {
			return action{rapid.SampledFrom(actions).Draw(t, "what"), rapid.IntRange(0, 41).Draw(t, "n")}
		}), 1, 40).Draw(rt, "actions")
		broken := ""
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			w := &world{r: r}
			for i, a := range plan {
				w.do(a)
				if broken = w.check(); broken != "" {
					broken = fmt.Sprintf("after %v: %s\n%s", plan[:i+1], broken, r.logged())
					break
				}
			}
			if broken == "" {
				if broken = w.settled(); broken == "" {
					broken = w.check()
				}
			}
			for _, h := range w.holds {
				close(h)
			}
			r.p.Stop()
			close(r.stop)
		})
		if broken != "" {
			rt.Fatal(broken)
		}
	})
}

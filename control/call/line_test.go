package call_test

import (
	"testing"
	"testing/synctest"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

func TestLine(t *testing.T) {
	one := func(a *control.Apply) { a.Connections[0].Limits.Concurrent = 1 }
	bubble(t, "no more dispatches are out than a connection takes", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
		a := r.do("get_issue", `{"project":"web"}`)
		b := r.do("get_issue", `{"project":"web"}`)
		w := r.do("create_issue", issue)
		r.approve(w)
		r.state(a, journal.Dispatching)
		r.state(b, journal.Admitted)
		r.state(w, journal.Approved)
		if n := len(r.workers.entries); n != 1 {
			t.Fatalf("the worker has %d intents", n)
		}
		r.p.Cancel(b.addr, call.CancelDeadline)
		synctest.Wait()
		r.says(b, "get_issue has not run yet: it waits for its turn at tracker", "still_running", `"isError":false`)
		again := r.do("await_call", `{"call":"`+id(b)+`"}`)
		close(hold)
		synctest.Wait()
		r.says(a, `{"content":[]}`)
		r.says(again, `{"content":[]}`)
		r.says(w, `{"content":[]}`)
		r.sends(w, 1)
	}, one)
	bubble(t, "who waits can be cancelled, and takes no turn", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
		r.do("get_issue", `{"project":"web"}`)
		b, c := r.do("get_issue", `{"project":"web"}`), r.do("get_issue", `{"project":"web"}`)
		r.p.Cancel(b.addr, call.CancelHarness)
		synctest.Wait()
		r.state(b, journal.Cancelled)
		close(hold)
		synctest.Wait()
		r.says(c, `{"content":[]}`)
		r.sends(b, 0)
		r.says(r.do("get_issue", `{"project":"web"}`), `{"content":[]}`)
	}, one)
	bubble(t, "who waits can be revoked", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
		r.do("get_issue", `{"project":"web"}`)
		b := r.do("get_issue", `{"project":"web"}`)
		r.throw(control.SwitchTool, "tracker/get_issue")
		r.says(b, string(errs.Revoked))
		close(hold)
	}, one)
	bubble(t, "a busy worker is waited for", func(t *testing.T, r *rig) {
		r.workers.refuse = errs.New(errs.Busy, "no room")
		c := r.do("get_issue", `{"project":"web"}`)
		r.waits(c)
		r.state(c, journal.Admitted)
		r.later(time.Second)
		r.workers.mu.Lock()
		r.workers.refuse = nil
		r.workers.mu.Unlock()
		r.later(time.Second)
		r.says(c, `"ok"`)
		if a := r.row(c).Attempt; a != 1 {
			t.Fatalf("attempt %d", a)
		}
	})
	bubble(t, "but not for long", func(t *testing.T, r *rig) {
		r.workers.refuse = errs.New(errs.Busy, "no room")
		c := r.do("get_issue", `{"project":"web"}`)
		r.later(5 * time.Second)
		r.says(c, "no room (busy). Nothing was sent.")
		r.state(c, journal.Failed)
	})
	bubble(t, "what was adopted counts", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
		a := r.do("get_issue", `{"project":"web"}`)
		r.crash(false)
		r.state(a, journal.Dispatching)
		b := r.do("get_issue", `{"project":"web"}`)
		r.state(b, journal.Admitted)
		close(hold)
		synctest.Wait()
		r.says(b, `{"content":[]}`)
	}, one)
}

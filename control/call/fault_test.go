package call_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
)

// fault makes the store fail: n times, at op, before or after its commit.
func (r *rig) fault(op string, n int, committed bool) {
	r.db.SetFault(func(at string, done bool) error {
		if at == op && done == committed && n > 0 {
			n--
			return errors.New("the store is away")
		}
		return nil
	})
}

func TestStoreFaults(t *testing.T) {
	for _, when := range []struct {
		name      string
		committed bool
	}{{"before", false}, {"after", true}} {
		bubble(t, "admission of a read, answer lost "+when.name+" the commit", func(t *testing.T, r *rig) {
			r.fault("Admit", 1, when.committed)
			c := r.do("get_issue", `{"project":"web"}`)
			r.later(time.Second)
			r.says(c, `"ok"`)
			r.sends(c, 1)
		})
		bubble(t, "admission of a write, answer lost "+when.name+" the commit", func(t *testing.T, r *rig) {
			r.fault("Admit", 1, when.committed)
			c := r.do("create_issue", issue)
			r.later(time.Second)
			if len(r.questions()) != 1 {
				t.Fatalf("%d questions", len(r.questions()))
			}
			r.approve(c)
			r.says(c, `"ok"`)
			r.sends(c, 1)
		})
		bubble(t, "the barrier, answer lost "+when.name+" the commit", func(t *testing.T, r *rig) {
			c := r.do("create_issue", issue)
			q := r.question(c)
			r.fault("Commit", 1, when.committed)
			r.no(r.decide(q, control.Approve))
			r.later(time.Second)
			r.says(c, `"ok"`)
			r.sends(c, 1)
			wantAttempts := 1
			if when.committed {
				wantAttempts = 2 // the first was attested not started
			}
			if a := r.row(c).Attempt; a != wantAttempts {
				t.Fatalf("attempt %d", a)
			}
		})
		bubble(t, "the settle, answer lost "+when.name+" the commit", func(t *testing.T, r *rig) {
			c := r.do("create_issue", issue)
			q := r.question(c)
			r.fault("Advance", 3, when.committed)
			r.no(r.decide(q, control.Approve))
			r.later(10 * time.Second)
			r.says(c, `"ok"`)
			r.sends(c, 1)
			r.state(c, journal.Answered)
		})
	}
	bubble(t, "a record that cannot be written is refused", func(t *testing.T, r *rig) {
		r.fault("Admit", 1000, false)
		for _, c := range []*record{r.do("get_issue", `{"project":"web"}`), r.do("create_issue", issue)} {
			r.later(5 * time.Second)
			r.says(c, "its record cannot be written (unavailable). Nothing was sent.")
			r.sends(c, 0)
		}
		r.fault("", 0, false)
		r.says(r.do("get_issue", `{"project":"web"}`), `"ok"`)
	})
	bubble(t, "nothing is delivered before the settle is written", func(t *testing.T, r *rig) {
		c := r.rec("get_issue", `{"project":"web"}`)
		r.fault("Advance", 1000, false)
		r.submit(c)
		r.later(time.Minute)
		r.waits(c)
		if len(r.workers.entries) != 1 {
			t.Fatal("the worker was told to forget the outcome")
		}
		r.fault("", 0, false)
		r.later(10 * time.Second)
		r.says(c, `"ok"`)
		r.sends(c, 1)
	})
	bubble(t, "an outage while a person thinks leaves it pending", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		r.db.SetFault(func(string, bool) error { return errors.New("the store is away") })
		r.p.PolicyChanged()
		r.later(time.Minute)
		r.says(c, "approval_pending")
		r.db.SetFault(nil)
		r.later(time.Minute)
		r.state(c, journal.Asking)
		r.approve(c)
		r.state(c, journal.Answered)
	})
}

func TestCrash(t *testing.T) {
	for _, power := range []bool{false, true} {
		name := " (killed)"
		if power {
			name = " (power lost)"
		}
		bubble(t, "asking"+name, func(t *testing.T, r *rig) {
			c := r.do("create_issue", issue)
			r.crash(power)
			r.p.Attach(c.addr)
			synctest.Wait()
			r.waits(c)
			r.approve(c)
			r.says(c, `"ok"`)
			r.sends(c, 1)
		})
		bubble(t, "approved while control was down"+name, func(t *testing.T, r *rig) {
			c := r.do("create_issue", issue)
			q := r.question(c)
			r.p.Stop()
			r.no(r.decide(q, control.Approve))
			r.workers.cut()
			r.start()
			r.workers.join()
			r.later(time.Second)
			r.state(c, journal.Answered)
			r.sends(c, 1)
		})
		bubble(t, "dispatched and answered while control was down"+name, func(t *testing.T, r *rig) {
			hold := make(chan struct{})
			r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
			c := r.do("create_issue", issue)
			r.approve(c)
			r.p.Stop()
			if power {
				r.db.Crash()
			}
			close(hold)
			r.workers.cut()
			r.start()
			r.workers.join()
			synctest.Wait()
			r.state(c, journal.Answered)
			r.p.Attach(c.addr)
			synctest.Wait()
			r.says(c, `{"content":[]}`)
			r.sends(c, 1)
		})
		bubble(t, "dispatched, and the worker is gone too"+name, func(t *testing.T, r *rig) {
			r.plan(plan{outcome: answered(`{}`), hold: make(chan struct{})})
			c := r.do("create_issue", issue)
			r.approve(c)
			r.p.Stop()
			if power {
				r.db.Crash()
			}
			r.workers.cut()
			r.start()
			r.later(20 * time.Second)
			r.state(c, journal.Uncertain)
			r.endHolds()
		})
		bubble(t, "between barrier and go"+name, func(t *testing.T, r *rig) {
			c := r.do("create_issue", issue)
			q := r.question(c)
			r.workers.dropGo = true
			r.no(r.decide(q, control.Approve))
			r.state(c, journal.Dispatching)
			r.workers.dropGo = false
			r.crash(power)
			r.later(time.Second)
			r.state(c, journal.Answered)
			r.sends(c, 1)
			if a := r.row(c).Attempt; a != 2 {
				t.Fatalf("attempt %d", a)
			}
		})
		bubble(t, "a granted write that was not committed"+name, func(t *testing.T, r *rig) {
			r.workers.cutReady = true
			c := r.do("create_issue", issue)
			r.state(c, journal.Admitted)
			r.workers.cutReady = false
			r.crash(power)
			r.later(time.Second)
			if power {
				r.submit(c) // the admission was not durable: the host still has the record
			}
			r.state(c, journal.Answered)
			r.sends(c, 1)
		}, unattended, func(a *control.Apply) { a.Standing = append(a.Standing, standing("nightly", "", 50)) })
	}
	bubble(t, "drained before the end", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
		a, b := r.do("create_issue", issue), r.do("create_issue", `{"project":"api"}`)
		r.approve(a)
		left := make(chan int, 1)
		go func() { left <- r.p.Drain(t.Context()) }()
		r.later(time.Second)
		r.approve(b)
		c := r.do("get_issue", `{"project":"web"}`)
		r.state(b, journal.Approved)
		close(hold)
		r.later(time.Second)
		if n := <-left; n != 0 {
			t.Fatalf("%d attempts are left", n)
		}
		r.says(a, `{"content":[]}`)
		r.sends(b, 0)
		r.crash(true)
		r.submit(c)
		r.later(time.Second)
		r.state(b, journal.Answered)
		r.says(c, `{"content":[]}`)
		r.sends(b, 1)
	})
	bubble(t, "the question survives a week of restarts", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		for range 5 {
			r.later(24 * time.Hour)
			r.crash(true)
		}
		r.state(c, journal.Asking)
		r.approve(c)
		r.state(c, journal.Answered)
		r.sends(c, 1)
	}, func(a *control.Apply) { a.Profiles[0].Approval.Expires = 7 * 24 * time.Hour })
	bubble(t, "a stale run stops", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		old := r.p
		r.start() // another run takes the calls over
		r.approve(c)
		r.p, old = old, r.p
		r.p.Wake(id(c)) // the old one looks
		r.later(time.Minute)
		r.p, old = old, r.p
		r.state(c, journal.Answered)
		r.sends(c, 1)
		old.Stop()
	})
}

package call_test

import (
	"testing"
	"testing/synctest"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/intent"
)

func limited(change func(*control.ConnectionLimits)) option {
	return func(a *control.Apply) { change(&a.Connections[0].Limits) }
}

// seen is how many intents the worker was given.
func (r *rig) seen() int {
	r.workers.mu.Lock()
	defer r.workers.mu.Unlock()
	n := 0
	for _, count := range r.workers.attempts {
		n += count
	}
	return n
}

func TestBreaker(t *testing.T) {
	down := plan{prepare: call.Outcome{Transport: journal.TransportNotSent, Failure: journal.FailConnect}, outcome: call.Outcome{
		Transport: journal.TransportNotSent, Failure: journal.FailConnect,
	}}
	up := plan{outcome: answered(`{"content":[{"type":"text","text":"ok"}]}`)}
	breaker := limited(func(l *control.ConnectionLimits) { l.Breaker = control.Breaker{Failures: 2, Pause: time.Minute} })
	run := func(name string, f func(*testing.T, *rig)) { bubble(t, name, f, breaker) }
	open := func(t *testing.T, r *rig) {
		t.Helper()
		r.plan(down)
		c := r.do("get_issue", `{"project":"web"}`)
		r.later(time.Second)
		r.state(c, journal.Failed) // its two attempts opened the breaker
		r.plan(up)
	}
	run("a write is refused before its barrier, and no worker hears of it", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		open(t, r)
		before := r.seen()
		r.approve(c)
		r.state(c, journal.Failed)
		r.says(c, "tracker could not be reached; nothing was sent (not_sent). It is safe to call create_issue again later.")
		row := r.row(c)
		if row.Attempt != 0 || row.Intent != "" || row.Reason != "the last 2 calls of tracker failed; it is left alone for 59 s" {
			t.Errorf("attempt %d, intent %q, reason %q", row.Attempt, row.Intent, row.Reason)
		}
		r.sends(c, 0)
		if got := r.seen(); got != before {
			t.Errorf("the worker was given %d intents", got-before)
		}
	})
	run("a read is refused without an attempt", func(t *testing.T, r *rig) {
		open(t, r)
		before := r.seen()
		c := r.do("get_issue", `{"project":"web"}`)
		r.state(c, journal.Failed)
		if row := r.row(c); row.Attempt != 0 || r.seen() != before {
			t.Errorf("attempt %d, %d intents", row.Attempt, r.seen()-before)
		}
	})
	run("after the pause one call goes ahead, and an answer lets all through", func(t *testing.T, r *rig) {
		open(t, r)
		r.later(time.Minute)
		hold := make(chan struct{})
		r.plan(plan{outcome: up.outcome, hold: hold})
		ahead := r.do("get_issue", `{"project":"web"}`)
		beside := r.do("get_issue", `{"project":"api"}`)
		r.state(ahead, journal.Dispatching)
		r.state(beside, journal.Failed)
		r.plan(up)
		close(hold)
		synctest.Wait()
		r.says(ahead, `"ok"`)
		r.says(r.do("get_issue", `{"project":"api"}`), `"ok"`)
	})
	run("one that is cancelled leaves the next to go ahead", func(t *testing.T, r *rig) {
		open(t, r)
		r.later(time.Minute)
		r.plan(plan{outcome: call.Outcome{Transport: journal.TransportSent, Failure: journal.FailCancelled}})
		r.do("get_issue", `{"project":"web"}`)
		r.plan(up)
		r.says(r.do("get_issue", `{"project":"web"}`), `"ok"`)
	})
	run("what a server says of a call does not count", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: call.Outcome{Transport: journal.TransportAnswered, Failure: journal.FailStatus, Status: 400}})
		for range 5 {
			r.state(r.do("get_issue", `{"project":"web"}`), journal.Rejected)
		}
	})
}

func TestRate(t *testing.T) {
	rate := limited(func(l *control.ConnectionLimits) { l.Rate = control.Rate{Calls: 2, Per: 10 * time.Second} })
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, rate)
		defer r.end()
		for range 2 {
			r.says(r.do("get_issue", `{"project":"web"}`), `"ok"`)
		}
		third := r.do("get_issue", `{"project":"web"}`)
		r.state(third, journal.Admitted) // in line: it has its turn within seconds
		r.later(6 * time.Second)
		r.says(third, `"ok"`)
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, limited(func(l *control.ConnectionLimits) { l.Rate = control.Rate{Calls: 1, Per: time.Hour} }))
		defer r.end()
		r.says(r.do("get_issue", `{"project":"web"}`), `"ok"`)
		c := r.do("create_issue", issue)
		r.approve(c)
		r.says(c, "Sallyport did not run create_issue: tracker takes 1 calls in 1 h, and they are used up for now (busy). Nothing was sent.")
		r.sends(c, 0)
		if row := r.row(c); row.State != journal.Failed || row.Attempt != 0 {
			t.Errorf("%s, attempt %d", row.State, row.Attempt)
		}
	})
}

// TestUncertainStatuses: a status that a connection moves is no rejection, for a write; and on one whose rejections are trusted a rejected twin does
// not make the next one ask.
func TestUncertainStatuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(a *control.Apply) { a.Connections[0].Uncertain = []int{422} })
		defer r.end()
		for status, want := range map[int]journal.State{422: journal.Uncertain, 400: journal.Rejected} {
			r.workers.mu.Lock()
			r.workers.plan = func(*intent.Intent) plan {
				return plan{outcome: call.Outcome{Transport: journal.TransportAnswered, Failure: journal.FailStatus, Status: status}}
			}
			r.workers.mu.Unlock()
			c := r.do("create_issue", issue)
			r.approve(c)
			r.state(c, want)
			r.sends(c, 1)
		}
	})
}

// TestCertificate: what a connection's TLS rests on travels beside the intent, bound by it; without the certificate that it shows nothing is sent.
func TestCertificate(t *testing.T) {
	bubble(t, "beside the intent", func(t *testing.T, r *rig) {
		r.no(r.db.PutCredential(control.Credential{
			Org: control.Org, Connection: "tracker", Subject: intent.CertificateSubject, Version: 1, Sealed: control.Sealed("certificate"), State: control.CredentialGood,
			ExpiresAt: r.db.Now().Add(time.Minute),
		}))
		r.p.PolicyChanged()
		r.says(r.do("get_issue", `{"project":"web"}`), `"ok"`)
		r.workers.mu.Lock()
		trust := r.workers.trust
		r.workers.mu.Unlock()
		if string(trust) != `{"authorities":"PEM","version":1,"certificate":"Y2VydGlmaWNhdGU="}` {
			t.Errorf("beside the intent: %s", trust)
		}
		r.later(time.Minute)
		c := r.do("create_issue", issue)
		r.approve(c)
		r.later(time.Second)
		r.state(c, journal.Failed)
		r.sends(c, 0)
		if row := r.row(c); row.Intent != "" || row.Reason != "the certificate that tracker shows is out of date; store another one with: sallyport credentials set tracker --certificate" {
			t.Errorf("intent %q, reason %q", row.Intent, row.Reason)
		}
	}, func(a *control.Apply) { a.Connections[0].TLS = control.TLS{Authorities: "PEM", Certificate: true} })
	bubble(t, "missing", func(t *testing.T, r *rig) {
		c := r.do("get_issue", `{"project":"web"}`)
		r.later(time.Second)
		r.state(c, journal.Failed)
		r.sends(c, 0)
	}, func(a *control.Apply) { a.Connections[0].TLS.Certificate = true })
}

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

func TestRevocation(t *testing.T) {
	levels := func(r *rig) map[control.SwitchKind]string {
		return map[control.SwitchKind]string{
			control.SwitchSession: r.s.ID, control.SwitchHost: host, control.SwitchTool: "tracker/create_issue", control.SwitchConnection: "tracker",
			control.SwitchCredential: "tracker/shared", control.SwitchPerson: string(ada), control.SwitchEverything: "",
		}
	}
	for _, kind := range []control.SwitchKind{
		control.SwitchSession, control.SwitchHost, control.SwitchTool, control.SwitchConnection, control.SwitchCredential, control.SwitchPerson, control.SwitchEverything,
	} {
		bubble(t, string(kind), func(t *testing.T, r *rig) {
			name := levels(r)[kind]
			c := r.do("create_issue", issue)
			q := r.question(c)
			r.throw(kind, name)
			r.says(c, "Access to tracker was withdrawn at 00:00 UTC; create_issue did not run (revoked). Do not repeat it.")
			r.state(c, journal.Voided)
			if err := r.decide(q, control.Approve); errs.CodeOf(err) != errs.Conflict {
				t.Fatalf("a voided question was decided: %v", err)
			}
			d := r.do("create_issue", `{"project":"api"}`)
			r.says(d, string(errs.Revoked))
			r.sends(c, 0)
			// Restored, the same session works again.
			_, err := r.db.Restore(t.Context(), kind, name, ada)
			r.no(err)
			r.p.PolicyChanged()
			e := r.do("create_issue", `{"project":"api","n":1}`)
			r.approve(e)
			r.says(e, `"ok"`)
		})
	}
	bubble(t, "a switch with an end", func(t *testing.T, r *rig) {
		r.no(r.db.Throw(t.Context(), &control.Switch{
			Org: control.Org, ID: control.NewID(), Kind: control.SwitchTool, Name: "tracker/list_issues", By: ada, Until: r.db.Now().Add(time.Minute),
		}))
		r.says(r.do("list_issues", `{"project":"web"}`), string(errs.Revoked))
		r.later(time.Minute)
		r.says(r.do("list_issues", `{"project":"web"}`), `"ok"`)
	})
	bubble(t, "before the barrier, though nobody announced it", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		q := r.question(c)
		r.no(r.db.Throw(t.Context(), &control.Switch{Org: control.Org, ID: control.NewID(), Kind: control.SwitchConnection, Name: "tracker", By: ada}))
		r.no(r.decide(q, control.Approve))
		r.says(c, string(errs.Revoked))
		r.sends(c, 0)
	})
	bubble(t, "between prepare and barrier", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		q := r.question(c)
		r.workers.cutReady = true
		r.no(r.decide(q, control.Approve))
		r.state(c, journal.Approved)
		r.no(r.db.Throw(t.Context(), &control.Switch{Org: control.Org, ID: control.NewID(), Kind: control.SwitchConnection, Name: "tracker", By: ada}))
		r.workers.ready()
		synctest.Wait()
		r.says(c, string(errs.Revoked))
		r.sends(c, 0)
	})
	bubble(t, "between prepare and barrier, while another call reads the new rules", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		q := r.question(c)
		r.workers.cutReady = true
		r.no(r.decide(q, control.Approve))
		r.state(c, journal.Approved)
		r.no(r.db.Throw(t.Context(), &control.Switch{Org: control.Org, ID: control.NewID(), Kind: control.SwitchTool, Name: "tracker/create_issue", By: ada}))
		r.says(r.do("list_issues", `{"project":"web"}`), `"ok"`)
		r.workers.ready()
		synctest.Wait()
		r.says(c, string(errs.Revoked))
		r.sends(c, 0)
	})
	bubble(t, "a worker, though its link still stands", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		q := r.question(c)
		r.no(r.db.Throw(t.Context(), &control.Switch{Org: control.Org, ID: control.NewID(), Kind: control.SwitchWorker, Name: r.workers.worker, By: ada}))
		r.says(r.do("list_issues", `{"project":"web"}`), string(errs.NotSent))
		r.no(r.decide(q, control.Approve))
		r.later(time.Minute)
		r.says(c, string(errs.NotSent))
		r.sends(c, 0)
	})
	bubble(t, "a worker, between prepare and barrier", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		q := r.question(c)
		r.workers.cutReady = true
		r.no(r.decide(q, control.Approve))
		r.no(r.db.Throw(t.Context(), &control.Switch{Org: control.Org, ID: control.NewID(), Kind: control.SwitchWorker, Name: r.workers.worker, By: ada}))
		r.workers.ready()
		r.later(time.Minute)
		r.says(c, string(errs.NotSent))
		r.sends(c, 0)
	})
	bubble(t, "what was sent is awaited", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.throw(control.SwitchEverything, "")
		r.state(c, journal.Dispatching)
		close(hold)
		synctest.Wait()
		r.says(c, `{"content":[]}`)
	})
}

func TestVoided(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *rig)
		says   string
		code   errs.Code
	}{
		"tightening": {func(r *rig) {
			r.apply(func(a *control.Apply) {
				p := *r.profile
				p.Grants = append([]control.Grant{{Tools: []string{"tracker/*"}, Rule: control.Deny}}, p.Grants...)
				a.Profiles = []control.Profile{p}
			})
		}, "a rule denies it", errs.RuleDenied},
		"unattended now": {func(r *rig) {
			r.apply(func(a *control.Apply) {
				p := *r.profile
				p.Attended = false
				a.Profiles = []control.Profile{p}
			})
		}, "unattended", errs.RuleDenied},
		"the profile is gone": {func(r *rig) {
			r.apply(func(a *control.Apply) { a.RemoveProfiles = []string{"dev"} })
		}, "did not run", errs.Revoked},
		"the connection is disabled": {func(r *rig) {
			r.apply(func(a *control.Apply) {
				c := *r.connect
				c.State = control.ConnectionDisabled
				a.Connections = []control.Connection{c}
			})
		}, "out of service", errs.Unavailable},
		"the connection was changed": {func(r *rig) {
			r.apply(func(a *control.Apply) {
				c := *r.connect
				c.Revision, c.Path = 2, "/other"
				a.Connections = []control.Connection{c}
			})
		}, "was changed since this session was opened", errs.Voided},
		"another account": {func(r *rig) {
			r.credential(2, "other")
			r.p.PolicyChanged()
			synctest.Wait()
		}, "the account changed", errs.Voided},
		"the tool was taken out": {func(r *rig) {
			r.apply(func(a *control.Apply) {
				a.Catalogs = []control.Catalog{catalogOf(tool("get_issue", control.Read, false))}
			})
		}, "withdrawn", errs.Revoked},
		"a closed session": {func(r *rig) {
			r.no(r.db.CloseSession(r.t.Context(), r.s.ID, 0, "ada", "done"))
			r.p.PolicyChanged()
			synctest.Wait()
		}, "its session was closed", errs.Voided},
	} {
		for _, asked := range []string{"asking", "approved and not running"} {
			bubble(t, name+", "+asked, func(t *testing.T, r *rig) {
				call := r.do("create_issue", issue)
				if asked != "asking" {
					r.workers.cutReady = true
					r.approve(call)
				}
				c.change(r)
				r.says(call, c.says, string(c.code))
				r.state(call, journal.Voided)
				if len(r.questions()) != 0 {
					t.Fatal("its question is open")
				}
				r.sends(call, 0)
			})
		}
	}
	bubble(t, "what does not touch it leaves it", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		r.credential(2, "bot") // a refresh
		r.apply(func(a *control.Apply) {
			p := *r.profile
			p.Hold = time.Minute
			a.Profiles = []control.Profile{p}
		})
		r.no(r.db.ParkSession(t.Context(), r.s.ID, 1))
		r.p.PolicyChanged()
		synctest.Wait()
		r.state(c, journal.Asking)
		r.approve(c)
		r.says(c, `"ok"`)
	})
}

// ready lets the worker get ready with what it kept back.
func (w *fakeWorkers) ready() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cutReady = false
	for id, e := range w.entries {
		if e.state == "ready" {
			run := w.run
			w.emit(func(ev call.WorkerEvents) { ev.Ready(run, call.Ready{Intent: id}) })
		}
	}
}

func TestApprovers(t *testing.T) {
	two := func(a *control.Apply) {
		a.Profiles[0].Approval.Second = true
		a.Profiles[0].Approvers = []string{"owner", "group:leads"}
	}
	bea := func(q *inbox.Request) { q.Actor = inbox.Actor{Person: "bea", Groups: []string{"leads"}} }
	bubble(t, "two people", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		q := r.question(c)
		r.no(r.decide(q, control.Approve))
		r.waits(c)
		if err := r.decide(q, control.Approve); errs.CodeOf(err) != errs.NotAllowed {
			t.Fatalf("the same person twice: %v", err)
		}
		r.no(r.decide(q, control.Approve, bea))
		r.says(c, `"ok"`)
	}, two)
	bubble(t, "the second may deny", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		q := r.question(c)
		r.no(r.decide(q, control.Approve))
		r.no(r.decide(q, control.Refuse, bea))
		r.state(c, journal.Denied)
	}, two)
	bubble(t, "not the owner", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		q := r.question(c)
		if err := r.decide(q, control.Approve); errs.CodeOf(err) != errs.NotAllowed {
			t.Fatalf("the owner: %v", err)
		}
		r.no(r.decide(q, control.Approve, bea))
		r.says(c, `"ok"`)
	}, two, func(a *control.Apply) { a.Profiles[0].Approval = control.Approval{NotOwner: true} })
	bubble(t, "the newest version's demands count for a session that is open", func(t *testing.T, r *rig) {
		r.apply(func(a *control.Apply) {
			p := *r.profile
			p.Approval.Second, p.Approvers = true, []string{"owner", "bea"}
			a.Profiles = []control.Profile{p}
		})
		c := r.do("create_issue", issue)
		if q := r.question(c); !q.Second {
			t.Fatal("one approver is enough")
		}
	})
	bubble(t, "where the agent could be the approver, not from this machine", func(t *testing.T, r *rig) {
		r.no(r.db.Change(r.s.ID, func(s *control.Session) { s.SameUID = true }))
		c := r.do("create_issue", issue)
		q := r.question(c)
		if err := r.decide(q, control.Approve); errs.CodeOf(err) != errs.NotAllowed || !strings.Contains(errs.Message(err), "browser") {
			t.Fatalf("a local approval: %v", err)
		}
		r.no(r.decide(q, control.Approve, func(q *inbox.Request) { q.Actor.Local = false }))
		r.says(c, `"ok"`)
	})
	bubble(t, "what is shown is what is decided", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		q := r.question(c)
		if err := r.decide(q, control.Approve, func(q *inbox.Request) { q.Binding = control.Sum([]byte("x")) }); errs.CodeOf(err) != errs.Conflict {
			t.Fatalf("another digest: %v", err)
		}
		if err := r.decide(q, control.Verdict("maybe")); errs.CodeOf(err) != errs.Invalid {
			t.Fatalf("an unclear word: %v", err)
		}
		r.state(c, journal.Asking)
		if q.Binding != r.row(c).Binding {
			t.Fatal("the question is bound to something else than its call")
		}
	})
}

func TestTwins(t *testing.T) {
	equal := `{ "title":"x", "project":"web" }` // other white space and order, the same call
	bubble(t, "its waiter is there: a call of its own, and the question names the twin", func(t *testing.T, r *rig) {
		a := r.do("create_issue", issue)
		b := r.do("create_issue", equal)
		if q := r.question(b); !strings.Contains(q.Text, "an equal call ("+id(a)+") is asking") {
			t.Fatalf("the question says %q", q.Text)
		}
		r.approve(a)
		r.approve(b)
		r.sends(a, 1)
		r.sends(b, 1)
	})
	bubble(t, "its waiter is gone: one question, one effect", func(t *testing.T, r *rig) {
		a := r.do("create_issue", issue)
		r.p.Cancel(a.addr, call.CancelClosed)
		synctest.Wait()
		b := r.do("create_issue", equal, func(c *record) { c.shim = otherShim })
		r.waits(b)
		if len(r.questions()) != 1 {
			t.Fatalf("%d questions", len(r.questions()))
		}
		if r.row(a).Gone {
			t.Fatal("somebody waits again, and the approval shows that nobody does")
		}
		r.approve(a)
		r.says(b, `"ok"`)
		r.sends(a, 1)
		r.sends(b, 0)
		// The alias is journaled: the record again, after a restart, is answered from the journal.
		r.crash(false)
		r.hosts.results = nil
		r.hosts.results = map[string]relayResult{}
		r.submit(b)
		r.says(b, `"ok"`)
		r.sends(b, 0)
	})
	bubble(t, "another shim of the sandbox", func(t *testing.T, r *rig) {
		a := r.do("create_issue", issue)
		b := r.do("create_issue", equal, func(c *record) { c.shim = otherShim })
		r.approve(a)
		r.says(b, `"ok"`)
		r.sends(a, 1)
		r.sends(b, 0)
	})
	bubble(t, "told that it is pending, and called again", func(t *testing.T, r *rig) {
		a := r.do("create_issue", issue)
		r.later(45 * time.Second)
		r.says(a, "approval_pending")
		b := r.do("create_issue", equal)
		r.waits(b)
		if len(r.questions()) != 1 {
			t.Fatalf("%d questions", len(r.questions()))
		}
		r.approve(a)
		r.says(b, `"ok"`)
	})
	bubble(t, "answered, unread, its waiter gone: the recorded answer", func(t *testing.T, r *rig) {
		a := r.do("create_issue", issue)
		r.p.Cancel(a.addr, call.CancelClosed)
		r.approve(a)
		b := r.do("create_issue", equal)
		r.says(b, "This is the recorded answer of call "+id(a), "create_issue was not run a second time (recorded_answer)", `{"type":"text","text":"ok"}`)
		r.sends(b, 0)
	})
	bubble(t, "answered and unread for long: a call of its own", func(t *testing.T, r *rig) {
		a := r.do("create_issue", issue)
		r.p.Cancel(a.addr, call.CancelClosed)
		r.approve(a)
		r.later(11 * time.Minute)
		b := r.do("create_issue", equal)
		r.state(b, journal.Asking)
	})
	bubble(t, "read: a call of its own", func(t *testing.T, r *rig) {
		a := r.do("create_issue", issue)
		r.approve(a)
		r.p.Acknowledge(a.addr)
		b := r.do("create_issue", equal, func(c *record) { c.shim = otherShim })
		r.state(b, journal.Asking)
	})
	bubble(t, "over the sessions of one owner and profile", func(t *testing.T, r *rig) {
		a := r.do("create_issue", issue)
		r.p.Cancel(a.addr, call.CancelClosed)
		synctest.Wait()
		other := r.open(true)
		b := r.do("create_issue", equal, func(c *record) { c.session = other })
		r.waits(b)
		r.approve(a)
		r.says(b, `"ok"`)
		r.sends(a, 1)
		r.p.Acknowledge(b.addr)
		synctest.Wait()
		if d := r.row(a).Delivery; d != journal.DeliveryAcknowledged {
			t.Fatalf("delivery %s", d)
		}
	})
	bubble(t, "rejected without proof: always asked", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: call.Outcome{Transport: journal.TransportAnswered, Status: 400, Failure: journal.FailStatus, Bytes: 9}})
		a := r.do("create_issue", issue)
		r.state(a, journal.Rejected)
		b := r.do("create_issue", equal)
		r.says(b, "is rejected", string(errs.RuleDenied))
	}, unattended, func(a *control.Apply) { a.Standing = append(a.Standing, standing("nightly", "", 50)) })
	bubble(t, "rejected, on a connection whose rejections are trusted", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: call.Outcome{Transport: journal.TransportAnswered, Status: 400, Failure: journal.FailStatus, Bytes: 9}})
		a := r.do("create_issue", issue)
		r.state(a, journal.Rejected)
		r.plan(plan{outcome: answered(`{"content":[]}`)})
		r.says(r.do("create_issue", equal), `{"content":[]}`)
	}, unattended, func(a *control.Apply) {
		a.Standing = append(a.Standing, standing("nightly", "", 50))
		a.Connections[0].Trusted = true
	})
	bubble(t, "another literal is another call", func(t *testing.T, r *rig) {
		a := r.do("create_issue", `{"project":"web","n":1}`)
		r.p.Cancel(a.addr, call.CancelClosed)
		synctest.Wait()
		b := r.do("create_issue", `{"project":"web","n":1.0}`)
		r.state(b, journal.Asking)
	})
}

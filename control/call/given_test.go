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

func standing(id string, when string, calls int64) control.GivenGrant {
	return control.GivenGrant{
		Org: control.Org, ID: id, Kind: "standing", Profile: "dev", Tools: []string{"tracker/create_issue"}, When: when, Limit: control.Limit{Calls: calls, Per: 24 * time.Hour},
		Until: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), By: ada, Reason: "triage",
	}
}

func unattended(a *control.Apply) {
	a.Profiles[0].Attended = false
	a.Profiles[0].Grants[1].When = ""
}

func TestStandingGrant(t *testing.T) {
	given := func(g control.GivenGrant) option {
		return func(a *control.Apply) { a.Standing = append(a.Standing, g) }
	}
	bubble(t, "covers a write of an unattended session", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		r.says(c, `"ok"`)
		r.sends(c, 1)
		if row := r.row(c); row.Authority != (control.Authority{Kind: control.ByGrant, ID: "nightly"}) {
			t.Fatalf("authority %v", row.Authority)
		}
		if len(r.questions()) != 0 {
			t.Fatal("somebody was asked")
		}
	}, unattended, given(standing("nightly", `args.project == "web"`, 50)))
	bubble(t, "without one a write is refused at once", func(t *testing.T, r *rig) {
		r.says(r.do("create_issue", issue), "a person would have to decide, and this session is unattended", string(errs.RuleDenied))
	}, unattended)
	bubble(t, "another project", func(t *testing.T, r *rig) {
		r.says(r.do("create_issue", `{"project":"api"}`), string(errs.RuleDenied))
		if c := r.do("create_issue", issue); r.result(c) == "" {
			t.Fatal("no result")
		}
	}, unattended, given(standing("nightly", `args.project == "web"`, 50)))
	bubble(t, "a condition that errs does not cover", func(t *testing.T, r *rig) {
		r.says(r.do("create_issue", `{"project":"web"}`), "there is no member title", string(errs.RuleDenied))
	}, unattended, given(standing("nightly", `args.title == "x"`, 50)))
	bubble(t, "used up", func(t *testing.T, r *rig) {
		r.says(r.do("create_issue", issue), `"ok"`)
		r.says(r.do("create_issue", `{"project":"web","n":1}`), "its 1 calls are used up")
		r.later(24 * time.Hour)
		r.says(r.do("create_issue", `{"project":"web","n":2}`), `"ok"`)
	}, unattended, given(standing("nightly", "", 1)))
	bubble(t, "many at once take no more than there are", func(t *testing.T, r *rig) {
		for i := range 20 {
			c := r.rec("create_issue", `{"project":"web","n":`+strings.Repeat("1", i+1)+`}`)
			r.p.Submit(call.Submission{Host: host, Session: r.s.ID, Epoch: 1, Record: c.bytes})
		}
		synctest.Wait()
		total := 0
		for _, n := range r.workers.sent {
			total += n
		}
		if total != 3 {
			t.Fatalf("%d writes were sent", total)
		}
	}, unattended, given(standing("nightly", "", 3)))
	bubble(t, "over, revoked, or withdrawn", func(t *testing.T, r *rig) {
		r.no(r.db.Throw(t.Context(), &control.Switch{Org: control.Org, ID: control.NewID(), Kind: control.SwitchGrant, Name: "nightly", By: ada}))
		r.p.PolicyChanged()
		r.says(r.do("create_issue", issue), "grant nightly was withdrawn")
		_, err := r.db.Restore(t.Context(), control.SwitchGrant, "nightly", ada)
		r.no(err)
		r.p.PolicyChanged()
		r.says(r.do("create_issue", issue), `"ok"`)
		r.no(r.db.EndGrant(t.Context(), "nightly", ada, "over"))
		r.says(r.do("create_issue", `{"project":"web","n":1}`), string(errs.RuleDenied))
	}, unattended, given(standing("nightly", "", 50)))
	bubble(t, "suspended while a write of the tool is uncertain", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: lost()})
		c := r.do("create_issue", issue)
		r.state(c, journal.Uncertain)
		r.plan(plan{outcome: answered(`{"content":[]}`)})
		r.says(r.do("create_issue", `{"project":"web","n":1}`), "a write of this tool is uncertain")
		r.no(r.resolve(c, control.Done, false))
		r.says(r.do("create_issue", `{"project":"web","n":2}`), `{"content":[]}`)
	}, unattended, given(standing("nightly", "", 50)))
	bubble(t, "named by a standing grant alone, it is not unknown while that does not count", func(t *testing.T, r *rig) {
		r.apply(func(a *control.Apply) {
			p := *r.profile
			p.Grants = p.Grants[:1]
			a.Profiles = []control.Profile{p}
		})
		r.plan(plan{outcome: lost()})
		c := r.do("create_issue", issue)
		r.state(c, journal.Uncertain)
		r.says(r.do("create_issue", `{"project":"web","n":1}`), "a write of this tool is uncertain", string(errs.RuleDenied))
		r.plan(plan{outcome: answered(`{"content":[]}`)})
		r.no(r.resolve(c, control.Done, false))
		r.says(r.do("create_issue", `{"project":"web","n":2}`), `{"content":[]}`)
		r.says(r.do("create_issue", `{"project":"web","n":3}`), "used up", string(errs.RuleDenied))
	}, unattended, given(standing("nightly", "", 2)))
	again := func(r *rig) *record {
		r.apply(func(a *control.Apply) {
			p := *r.profile
			p.Grants = p.Grants[:1] // the grant alone names the tool
			a.Profiles = []control.Profile{p}
		})
		r.workers.plan = func(in *intent.Intent) plan {
			if in.Attempt == 1 {
				return plan{outcome: unsent(journal.FailReset)}
			}
			return plan{outcome: answered(`{"content":[]}`)}
		}
		c := r.do("create_issue", issue)
		r.state(c, journal.Retrying)
		return c
	}
	bubble(t, "unsent after go: again under the same grant, its last call", func(t *testing.T, r *rig) {
		c := again(r)
		r.later(100 * time.Millisecond)
		r.says(c, `{"content":[]}`)
		r.sends(c, 1)
		if row := r.row(c); row.Attempt != 2 || row.Authority.Kind != control.ByGrant {
			t.Fatalf("attempt %d by %v", row.Attempt, row.Authority)
		}
	}, unattended, given(standing("nightly", "", 1)))
	bubble(t, "ended between two attempts", func(t *testing.T, r *rig) {
		c := again(r)
		r.no(r.db.EndGrant(t.Context(), "nightly", ada, "over"))
		r.p.PolicyChanged()
		r.later(100 * time.Millisecond)
		r.says(c, "it is over")
		r.sends(c, 0)
	}, unattended, given(standing("nightly", "", 50)))
	bubble(t, "withdrawn between two attempts", func(t *testing.T, r *rig) {
		c := again(r)
		r.no(r.db.Throw(t.Context(), &control.Switch{Org: control.Org, ID: control.NewID(), Kind: control.SwitchGrant, Name: "nightly", By: ada}))
		r.p.PolicyChanged()
		r.later(100 * time.Millisecond)
		r.says(c, "grant nightly was withdrawn")
		r.sends(c, 0)
	}, unattended, given(standing("nightly", "", 50)))
	bubble(t, "ended between prepare and barrier", func(t *testing.T, r *rig) {
		r.workers.cutReady = true
		c := r.do("create_issue", issue)
		r.state(c, journal.Admitted)
		r.no(r.db.EndGrant(t.Context(), "nightly", ada, "over"))
		r.workers.ready()
		synctest.Wait()
		r.state(c, journal.Refused)
		r.sends(c, 0)
	}, unattended, given(standing("nightly", "", 50)))
	bubble(t, "ended while attended: a person is asked", func(t *testing.T, r *rig) {
		r.workers.cutReady = true
		c := r.do("create_issue", issue)
		r.state(c, journal.Admitted)
		r.no(r.db.EndGrant(t.Context(), "nightly", ada, "over"))
		r.workers.ready()
		synctest.Wait()
		r.state(c, journal.Asking)
		r.approve(c)
		r.says(c, `"ok"`)
		r.sends(c, 1)
	}, given(standing("nightly", "", 50)))
}

func TestSessionGrant(t *testing.T) {
	grantOf := func(when string, calls int64) func(*inbox.Request) {
		return func(q *inbox.Request) { q.Grant = &inbox.GrantRequest{When: when, Calls: calls, For: time.Minute} }
	}
	bubble(t, "covers what its constraint says, and no more", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		r.no(r.decide(r.question(c), control.Approve, grantOf(`args.project == "web"`, 1)))
		r.says(c, `"ok"`)
		d := r.do("create_issue", `{"project":"web","n":1}`)
		r.says(d, `"ok"`)
		if row := r.row(d); row.Authority.Kind != control.ByGrant {
			t.Fatalf("authority %v", row.Authority)
		}
		r.waits(r.do("create_issue", `{"project":"web","n":2}`)) // used up
		r.waits(r.do("create_issue", `{"project":"api"}`))
		other := r.open(true)
		r.waits(r.do("create_issue", `{"project":"web","n":3}`, func(c *record) { c.session = other }))
	})
	bubble(t, "ends", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		r.no(r.decide(r.question(c), control.Approve, grantOf("", 20)))
		r.later(time.Minute)
		r.waits(r.do("create_issue", `{"project":"web","n":1}`))
	})
	bubble(t, "is bounded", func(t *testing.T, r *rig) {
		c := r.do("create_issue", issue)
		q := r.question(c)
		for name, g := range map[string]inbox.GrantRequest{
			"too many":        {Calls: 21},
			"too long":        {For: 31 * time.Minute},
			"a bad condition": {When: "args.nothing == 1"},
			"negative":        {Calls: -1},
		} {
			err := r.decide(q, control.Approve, func(q *inbox.Request) { q.Grant = &g })
			if errs.CodeOf(err) != errs.Invalid {
				t.Errorf("%s: %v", name, err)
			}
		}
		r.state(c, journal.Asking)
	})
}

package storetest

import (
	"testing"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/session"
	"sallyport.dev/errs"
)

func testPolicy(t *testing.T, f *fixture) {
	want(t, "profile version", f.policy.Profiles["dev"].Version, int64(1))
	again, err := f.Call.Policy(t.Context(), f.policy)
	f.no(err)
	if again != f.policy {
		t.Fatal("an unchanged policy is another value")
	}
	before := f.policy.Generation
	f.no(f.Revocation.Throw(t.Context(), &control.Switch{Org: control.Org, ID: control.NewID(), Kind: control.SwitchTool, Name: "tracker/create_issue", By: owner}))
	f.reload()
	if f.policy.Generation <= before || len(f.policy.Switches) != 1 {
		t.Fatalf("generation %d after %d, %d switches", f.policy.Generation, before, len(f.policy.Switches))
	}
	if f.policy.Switches[0].At.IsZero() {
		t.Fatal("the switch has no time")
	}
	n, err := f.Revocation.Restore(t.Context(), control.SwitchTool, "tracker/create_issue", owner)
	f.no(err)
	want(t, "restored", n, 1)
	f.reload()
	want(t, "switches", len(f.policy.Switches), 0)
	ended, err := f.Revocation.Switches(t.Context(), true)
	f.no(err)
	want(t, "ended switches", len(ended), 1)

	g := given("nightly", "standing")
	f.no(f.Grant.GiveGrant(t.Context(), &g))
	wantCode(t, f.Grant.GiveGrant(t.Context(), &g), errs.Conflict)
	f.reload()
	want(t, "given", len(f.policy.Given), 1)
	f.no(f.Grant.EndGrant(t.Context(), "nightly", owner, "over"))
	wantCode(t, f.Grant.EndGrant(t.Context(), "unknown", owner, "over"), errs.NotFound)
	f.reload()
	want(t, "given", len(f.policy.Given), 0)
}

func given(id, kind string) control.GivenGrant {
	return control.GivenGrant{
		Org: control.Org, ID: id, Kind: kind, Profile: "dev", Owner: owner, Tools: []string{"tracker/*"}, Limit: control.Limit{Calls: 20},
		Until: time.Now().Add(time.Hour), By: owner, Reason: "triage",
	}
}

func testApply(t *testing.T, f *fixture) {
	p := profile("dev")
	p.Hold = time.Minute
	_, err := f.Grant.Apply(t.Context(), &control.Apply{Org: control.Org, By: owner, Expect: f.policy.Generation - 1, Profiles: []control.Profile{p}})
	wantCode(t, err, errs.Conflict)
	same, err := f.Call.Policy(t.Context(), f.policy)
	f.no(err)
	want(t, "hold after a refused apply", same.Profiles["dev"].Hold, 45*time.Second)
	generation, err := f.Grant.Apply(t.Context(), &control.Apply{
		Org: control.Org, By: owner, Expect: f.policy.Generation, Profiles: []control.Profile{p}, Standing: []control.GivenGrant{given("nightly", "standing")},
		Groups: map[string][]control.Person{"leads": {"bea"}},
	})
	f.no(err)
	f.reload()
	want(t, "generation", f.policy.Generation, generation)
	want(t, "version", f.policy.Profiles["dev"].Version, int64(2))
	want(t, "hold", f.policy.Profiles["dev"].Hold, time.Minute)
	want(t, "given", len(f.policy.Given), 1)
	want(t, "group", len(f.policy.Groups["leads"]), 1)
	_, err = f.Grant.Apply(t.Context(), &control.Apply{Org: control.Org, By: owner, Expect: generation, RemoveStanding: []string{"nightly"}, RemoveConnections: []string{"tracker"}})
	f.no(err)
	f.reload()
	want(t, "given", len(f.policy.Given), 0)
	if f.policy.Connections["tracker"] != nil {
		t.Fatal("a removed connection is in the policy")
	}
	if f.policy.Catalogs["tracker"] != nil {
		t.Fatal("the catalog of a removed connection is in the policy")
	}
}

func testTickets(t *testing.T, f *fixture) {
	d, ticket := f.ticket()
	other := f.newSession()
	other.Owner = "local:eve"
	wantCode(t, f.Session.OpenSession(t.Context(), d, other, f.policy.Generation), errs.NotAllowed)
	s := f.newSession()
	wantCode(t, f.Session.OpenSession(t.Context(), d, s, f.policy.Generation-1), errs.Conflict)
	f.no(f.Session.OpenSession(t.Context(), d, s, f.policy.Generation))
	wantCode(t, f.Session.OpenSession(t.Context(), d, f.newSession(), f.policy.Generation), errs.NotAllowed)
	ticket.Digest, ticket.Until = control.Sum([]byte("late")), f.Call.Now().Add(-time.Second)
	f.no(f.Session.PutTicket(t.Context(), ticket))
	wantCode(t, f.Session.OpenSession(t.Context(), ticket.Digest, f.newSession(), f.policy.Generation), errs.NotAllowed)
	got, err := f.Session.Session(t.Context(), s.ID)
	f.no(err)
	want(t, "state", got.State, control.SessionOpening)
	want(t, "tools", len(got.Tools), 1)
	want(t, "raw", string(got.Tools[0].Tool.Raw), string(s.Tools[0].Tool.Raw))
	want(t, "profile", got.Profile.Hold, s.Profile.Hold)
	_, err = f.Session.Session(t.Context(), control.NewID())
	wantCode(t, err, errs.NotFound)
}

func testEpochs(t *testing.T, f *fixture) {
	id := f.session.ID
	confirm := session.Confirmation{Session: id, Epoch: 1, Host: host, Parent: "proof", PolicyDigest: f.session.PolicyDigest}
	f.no(f.Session.ConfirmGate(t.Context(), confirm)) // the same proof again: a lost answer
	for name, c := range map[string]session.Confirmation{
		"another parent": {Session: id, Epoch: 1, Host: host, Parent: "other", PolicyDigest: f.session.PolicyDigest},
		"another host":   {Session: id, Epoch: 1, Host: host + "2", Parent: "proof", PolicyDigest: f.session.PolicyDigest},
		"another policy": {Session: id, Epoch: 1, Host: host, Parent: "proof"},
		"another epoch":  {Session: id, Epoch: 2, Host: host, Parent: "proof", PolicyDigest: f.session.PolicyDigest},
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, f.Session.ConfirmGate(t.Context(), c), errs.Fenced) })
	}
	wantCode(t, f.Session.ParkSession(t.Context(), id, 2), errs.Fenced)
	f.no(f.Session.ParkSession(t.Context(), id, 1))
	_, err := f.Session.ResumeSession(t.Context(), id, 2, host, session.Facts{Driver: "bwrap", Closed: "proven"})
	wantCode(t, err, errs.Fenced)
	epoch, err := f.Session.ResumeSession(t.Context(), id, 1, host+"2", session.Facts{Driver: "bwrap", Closed: "proven"})
	f.no(err)
	want(t, "epoch", epoch, int64(2))
	_, err = f.Session.ResumeSession(t.Context(), id, 1, host, session.Facts{})
	wantCode(t, err, errs.Fenced)
	wantCode(t, f.Session.ConfirmGate(t.Context(), confirm), errs.Fenced)
	got, err := f.Session.Session(t.Context(), id)
	f.no(err)
	want(t, "state", got.State, control.SessionOpening)
	want(t, "parent", got.Parent, "")
	want(t, "host", got.Host, host+"2")
	wantCode(t, f.Session.CloseSession(t.Context(), id, 1, "host", "old"), errs.Fenced)
	f.no(f.Session.CloseSession(t.Context(), id, 0, "ada", "done"))
	f.no(f.Session.CloseSession(t.Context(), id, 2, "ada", "done"))
	_, err = f.Session.ResumeSession(t.Context(), id, 2, host, session.Facts{})
	wantCode(t, err, errs.Fenced)
	all, err := f.Session.Sessions(t.Context(), session.Filter{Org: control.Org})
	f.no(err)
	want(t, "open sessions", len(all), 0)
	all, err = f.Session.Sessions(t.Context(), session.Filter{Org: control.Org, States: []control.SessionState{control.SessionClosed}})
	f.no(err)
	want(t, "closed sessions", len(all), 1)
}

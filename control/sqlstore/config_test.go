package sqlstore

import (
	"testing"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/grant"
	"sallyport.dev/control/machine"
	"sallyport.dev/control/revocation"
	"sallyport.dev/errs"
)

func wantCode(t *testing.T, err error, code errs.Code) {
	t.Helper()
	if errs.CodeOf(err) != code {
		t.Fatalf("got %v, want %q", err, code)
	}
}

func TestConnectionsAreTestedAtTheirRevision(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	w := newWorld(t, s)
	before := w.generation
	wantCode(t, s.Tested(bg, "tracker", 7, "2026-07-28", ada), errs.Conflict)
	wantCode(t, s.Tested(bg, "nobody", 1, "2026-07-28", ada), errs.NotFound)
	if w.reload().Generation != before {
		t.Fatal("a refused change made a generation")
	}
	w.no(s.Tested(bg, "tracker", 1, "2026-07-28", ada))
	p := w.reload()
	if c := p.Connections["tracker"]; c.Protocol != "2026-07-28" || c.State != control.ConnectionEnabled || p.Generation == before || c.Catalog.IsZero() {
		t.Fatalf("%+v", c)
	}
	w.no(s.SetState(bg, "tracker", control.ConnectionDisabled, ada))
	if c := w.reload().Connections["tracker"]; c.State != control.ConnectionDisabled {
		t.Fatalf("%+v", c)
	}
	wantCode(t, s.SetState(bg, "nobody", control.ConnectionDisabled, ada), errs.NotFound)
}

// What was approved for a connection must not meet another one of its name.
func TestAConnectionThatComesAgainHasANewRevision(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	w := newWorld(t, s)
	old := *w.reload().Connections["tracker"]
	_, err := s.Apply(bg, &control.Apply{By: ada, Expect: w.generation, RemoveConnections: []string{"tracker"}})
	w.no(err)
	p := w.reload()
	if p.Connections["tracker"] != nil || p.Catalogs["tracker"] != nil {
		t.Fatal("it is still there")
	}
	c, err := s.Credential(bg, "tracker", control.SubjectShared)
	if err != nil || c.State != control.CredentialRevoked || c.Sealed != nil {
		t.Fatalf("its credential: %+v %v", c, err)
	}
	_, err = s.Apply(bg, &control.Apply{By: ada, Expect: w.generation, Connections: []control.Connection{old}})
	w.no(err)
	if again := w.reload().Connections["tracker"]; again.Revision <= old.Revision {
		t.Fatalf("revision %d after %d", again.Revision, old.Revision)
	}
}

func TestApplyIsAllOrNothing(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	w := newWorld(t, s)
	raw := []byte(`{}`)
	before := w.generation
	_, err := s.Apply(bg, &control.Apply{
		By: ada, Expect: w.generation,
		Profiles: []control.Profile{{Org: control.Org, Name: "other"}},
		Catalogs: []control.Catalog{{Connection: "tracker", Digest: control.Sum(raw), Tools: []control.Tool{{Name: "a", Raw: raw}, {Name: "a", Raw: raw}}}}, // one name twice
	})
	wantCode(t, err, errs.Internal)
	p := w.reload()
	if p.Profiles["other"] != nil || p.Generation != before || len(p.Catalogs["tracker"].Tools) != 1 {
		t.Fatalf("a part of it stands: %+v", p)
	}
}

func TestCredentialVersions(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	w := newWorld(t, s)
	next := func(version int64) *control.Credential {
		return &control.Credential{
			Connection: "tracker", Subject: control.SubjectShared, Version: version, Sealed: control.Sealed("second"), AssociatedData: []byte("ad2"),
			KeyFingerprint: "f", Account: "bot", State: control.CredentialGood, ExpiresAt: time.UnixMilli(99).UTC(),
		}
	}
	wantCode(t, s.PutCredential(bg, next(1), ada), errs.Conflict)
	wantCode(t, s.PutCredential(bg, next(3), ada), errs.Conflict)
	w.no(s.PutCredential(bg, next(2), ada))
	c, err := s.Credential(bg, "tracker", control.SubjectShared)
	if err != nil || c.Version != 2 || string(c.Sealed) != "second" || string(c.AssociatedData) != "ad2" || !c.ExpiresAt.Equal(time.UnixMilli(99)) {
		t.Fatalf("%+v %v", c, err)
	}
	if n := s.count(t, "SELECT count(*) FROM credentials WHERE sealed IS NOT NULL"); n != 1 {
		t.Fatalf("%d versions can still be opened", n)
	}
	wantCode(t, s.MarkCredential(bg, "tracker", control.SubjectShared, 1, control.CredentialBroken), errs.Conflict)
	wantCode(t, s.MarkCredential(bg, "nobody", control.SubjectShared, 0, control.CredentialBroken), errs.Conflict)
	w.no(s.MarkCredential(bg, "tracker", control.SubjectShared, 2, control.CredentialExpiring))
	all, err := s.Credentials(bg)
	if err != nil || len(all) != 1 || all[0].State != control.CredentialExpiring || all[0].Sealed != nil {
		t.Fatalf("%+v %v", all, err)
	}
	w.no(s.RemoveCredential(bg, "tracker", control.SubjectShared, ada))
	c, err = s.Credential(bg, "tracker", control.SubjectShared)
	if err != nil || c.State != control.CredentialRevoked || c.Sealed != nil {
		t.Fatalf("%+v %v", c, err)
	}
	wantCode(t, s.RemoveCredential(bg, "tracker", "nobody", ada), errs.NotFound)
	_, err = s.Credential(bg, "nobody", control.SubjectShared)
	wantCode(t, err, errs.NotFound)
}

func TestDrift(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	w := newWorld(t, s)
	w.no(s.MarkDrift(bg, "tracker", map[string]bool{"create_issue": true, "other": false}))
	p := w.reload()
	if !p.Drift["tracker"]["create_issue"] || len(p.Drift["tracker"]) != 2 || !p.Stopped["tracker"]["create_issue"] || len(p.Stopped["tracker"]) != 1 {
		t.Fatalf("%+v %+v", p.Drift, p.Stopped)
	}
	w.no(s.MarkDrift(bg, "tracker", map[string]bool{"other": false, "create_issue": true}))
	if w.reload().Generation != p.Generation {
		t.Fatal("the same drift again made a generation")
	}
	w.no(s.MarkDrift(bg, "tracker", nil))
	if p := w.reload(); len(p.Drift) != 0 {
		t.Fatalf("%+v", p.Drift)
	}
	wantCode(t, s.MarkDrift(bg, "nobody", nil), errs.NotFound)
}

// TestLists: a list that was rejected stays so when it is seen again, one that another took the place of is a draft again, and what is approved ends the
// drafts.
func TestLists(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	w := newWorld(t, s)
	a, b := control.Sum([]byte("a")), control.Sum([]byte("b"))
	states := func() string {
		t.Helper()
		got, err := s.Lists(bg, "tracker", control.CatalogDraft, control.CatalogRejected, control.CatalogSuperseded, control.CatalogApproved)
		w.no(err)
		out := map[control.Digest]string{}
		for _, l := range got {
			out[l.Digest] = string(l.State)
		}
		return out[a] + " " + out[b]
	}
	for _, step := range []struct {
		name string
		do   func() error
		want string
		code errs.Code
	}{
		{"seen", func() error { return s.PutDraft(bg, "tracker", a, []byte("a")) }, "draft ", ""},
		{"another is seen", func() error { return s.PutDraft(bg, "tracker", b, []byte("b")) }, "superseded draft", ""},
		{"the first is seen again", func() error { return s.PutDraft(bg, "tracker", a, []byte("a")) }, "draft superseded", ""},
		{"what is none is rejected", func() error { return s.RejectDraft(bg, "tracker", b, ada) }, "draft superseded", errs.Conflict},
		{"rejected", func() error { return s.RejectDraft(bg, "tracker", a, ada) }, "rejected superseded", ""},
		{"rejected and seen again", func() error { return s.PutDraft(bg, "tracker", a, []byte("a")) }, "rejected superseded", ""},
		{"another", func() error { return s.PutDraft(bg, "tracker", b, []byte("b")) }, "rejected draft", ""},
		{"as reviewed again", func() error { return s.NoDraft(bg, "tracker") }, "rejected superseded", ""},
		{"of no connection", func() error { return s.PutDraft(bg, "nobody", b, []byte("b")) }, "rejected superseded", errs.NotFound},
	} {
		err := step.do()
		if step.code == "" {
			w.no(err)
		} else {
			wantCode(t, err, step.code)
		}
		if got := states(); got != step.want {
			t.Fatalf("%s: %q, want %q", step.name, got, step.want)
		}
	}
	w.no(s.PutDraft(bg, "tracker", b, []byte("b")))
	p := w.reload()
	_, err := s.Apply(bg, &control.Apply{Org: control.Org, By: ada, Expect: p.Generation, Catalogs: []control.Catalog{{
		Org: control.Org, Connection: "tracker", Digest: a, Tools: p.Catalogs["tracker"].Tools, Listed: []byte("a"),
	}}})
	w.no(err)
	if got := states(); got != "approved superseded" {
		t.Fatalf("approved: %q", got)
	}
	_, err = s.Apply(bg, &control.Apply{Org: control.Org, By: ada, Expect: w.reload().Generation, RemoveConnections: []string{"tracker"}})
	w.no(err)
	if got := states(); got != " " {
		t.Fatalf("removed: %q", got)
	}
}

func TestStandingGrantsInTheRecordAndOutOfIt(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	w := newWorld(t, s)
	g := control.GivenGrant{
		ID: "nightly", Kind: "standing", Profile: "dev", Tools: []string{"tracker/*"}, When: `args.project == "web"`, Limit: control.Limit{Calls: 5, Per: time.Hour},
		Until: s.Now().Add(time.Hour), By: ada, Reason: "triage",
	}
	w.no(s.GiveGrant(bg, &g))
	wantCode(t, s.GiveGrant(bg, &g), errs.Conflict)
	got, err := s.GivenGrants(bg, grant.Filter{Kind: "standing"})
	if err != nil || len(got) != 1 || got[0].When != g.When || got[0].Limit != g.Limit || got[0].Reason != g.Reason {
		t.Fatalf("%+v %v", got, err)
	}
	w.no(s.EndGrant(bg, "nightly", ada, "done"))
	if got, err := s.GivenGrants(bg, grant.Filter{}); err != nil || len(got) != 0 {
		t.Fatalf("%+v %v", got, err)
	}
	if got, err := s.GivenGrants(bg, grant.Filter{Ended: true}); err != nil || len(got) != 1 || !got[0].Revoked {
		t.Fatalf("%+v %v", got, err)
	}
}

func TestSwitchesEndByTime(t *testing.T) {
	opts := testOptions(t, t.TempDir())
	clock := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	opts.Now = func() time.Time { return clock }
	s := openTest(t, opts)
	w := newWorld(t, s)
	x := &control.Switch{ID: control.NewID(), Kind: control.SwitchTool, Name: "tracker/create_issue", By: ada, Until: clock.Add(time.Hour)}
	w.no(s.Throw(bg, x))
	wantCode(t, s.Throw(bg, x), errs.Conflict)
	if got, err := s.Switches(bg, false); err != nil || len(got) != 1 || !revocation.InForce(&got[0], s.Now()) {
		t.Fatalf("%+v %v", got, err)
	}
	clock = clock.Add(2 * time.Hour)
	if got, err := s.Switches(bg, false); err != nil || len(got) != 0 {
		t.Fatalf("%+v %v", got, err)
	}
	if n, err := s.Restore(bg, control.SwitchTool, "tracker/create_issue", ada); err != nil || n != 0 {
		t.Fatal(n, err)
	}
}

func TestMachines(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	const id = "spiffe://sallyport.internal/worker/default/one"
	k := machine.Token{Digest: control.Sum([]byte("token")), ID: id, Role: "worker", Name: "one", Pool: "default", By: ada, Until: s.Now().Add(time.Minute)}
	if err := s.PutToken(bg, k); err != nil {
		t.Fatal(err)
	}
	late := k
	late.Digest, late.Until = control.Sum([]byte("late")), s.Now().Add(-time.Second)
	if err := s.PutToken(bg, late); err != nil {
		t.Fatal(err)
	}
	_, err := s.Machine(bg, id)
	wantCode(t, err, errs.NotFound)
	_, err = s.TakeToken(bg, late.Digest)
	wantCode(t, err, errs.NotAllowed)
	_, err = s.TakeToken(bg, control.Sum([]byte("unknown")))
	wantCode(t, err, errs.NotAllowed)
	got, err := s.TakeToken(bg, k.Digest)
	if err != nil || got.ID != id || got.Role != "worker" || got.Pool != "default" || got.By != ada {
		t.Fatalf("%+v %v", got, err)
	}
	_, err = s.TakeToken(bg, k.Digest)
	wantCode(t, err, errs.NotAllowed)

	s.Seen(id, machine.Sight{Run: "run", Build: "b", Confinement: "full", PoolKey: []byte("key")})
	s.Seen(id, machine.Sight{Run: "run2", Build: "b", Confinement: "full"})
	if err := s.do(bg, 0, insertRun("flush")); err != nil {
		t.Fatal(err)
	}
	m, err := s.Machine(bg, id)
	if err != nil || m.Run != "run2" || string(m.PoolKey) != "key" || m.Seen.IsZero() || m.Removed {
		t.Fatalf("%+v %v", m, err)
	}
	local := machine.Machine{ID: "spiffe://sallyport.internal/host/local", Role: "host", Name: "local"}
	for range 2 {
		if err := s.Enrol(bg, local); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := s.Machines(bg, "host"); err != nil || len(all) != 1 {
		t.Fatalf("%+v %v", all, err)
	}
	if all, err := s.Machines(bg, ""); err != nil || len(all) != 2 {
		t.Fatalf("%+v %v", all, err)
	}
	if err := s.Remove(bg, local.ID, ada); err != nil {
		t.Fatal(err)
	}
	if m, err := s.Machine(bg, local.ID); err != nil || !m.Removed {
		t.Fatalf("%+v %v", m, err)
	}
	wantCode(t, s.Enrol(bg, local), errs.NotAllowed)
	wantCode(t, s.Remove(bg, "spiffe://sallyport.internal/host/nobody", ada), errs.NotFound)
}

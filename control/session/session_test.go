package session_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/control"
	"sallyport.dev/control/memstore"
	"sallyport.dev/control/session"
	"sallyport.dev/errs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func policy(change ...func(*control.Policy)) *control.Policy {
	tool := func(name string) control.Tool {
		return control.Tool{Name: name, As: "tracker_" + name, Effect: control.Write, Raw: []byte(`{"name":"` + name + `"}`)}
	}
	p := &control.Policy{
		Org: control.Org, Generation: 3,
		Profiles: map[string]*control.Profile{"dev": {
			Name: "dev", Version: 7, Attended: true, Hold: time.Minute, Sandbox: control.SandboxPolicy{Driver: "bwrap", Closed: "proven"},
			Grants: []control.Grant{{Tools: []string{"tracker/create"}, Rule: control.Ask}},
		}},
		Connections: map[string]*control.Connection{"tracker": {Name: "tracker", Revision: 4, State: control.ConnectionEnabled}, "bare": {Name: "bare"}},
		Catalogs:    map[string]*control.Catalog{"tracker": {Connection: "tracker", Digest: control.Sum([]byte("c")), Tools: []control.Tool{tool("create"), tool("delete"), tool("list")}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func request(change ...func(*session.Request)) session.Request {
	r := session.Request{Owner: "ada", Profile: "dev", Attended: true, Harness: "claude", Host: "h", Facts: session.Facts{Driver: "bwrap", Closed: "proven"}}
	for _, f := range change {
		f(&r)
	}
	return r
}

func named(names ...string) func(*control.Profile, string, string) bool {
	return func(_ *control.Profile, connection, tool string) bool {
		for _, n := range names {
			if n == connection+"/"+tool {
				return true
			}
		}
		return false
	}
}

func TestFreeze(t *testing.T) {
	p := policy()
	s, err := session.Freeze(p, request(), named("tracker/list", "tracker/create"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Tools) != 2 || s.Tools[0].Name != "tracker_create" || s.Tools[1].Name != "tracker_list" {
		t.Fatalf("tools %+v", s.Tools)
	}
	if b := s.Tools[0]; b.Revision != 4 || b.Catalog != control.Sum([]byte("c")) || b.Tool.Effect != control.Write {
		t.Fatalf("bound %+v", b)
	}
	if s.Epoch != 1 || s.State != control.SessionOpening || s.Profile.Version != 7 || !control.ValidID(s.ID) || s.PolicyDigest.IsZero() {
		t.Fatalf("session %+v", s)
	}
	// Frozen: what the profile becomes does not reach it.
	p.Profiles["dev"].Hold = time.Hour
	if s.Profile.Hold != time.Minute {
		t.Fatal("a frozen profile changed")
	}
	// The digest names the binding: another tool, another digest; the same again, the same.
	again, _ := session.Freeze(policy(), request(), named("tracker/list", "tracker/create"), time.Now())
	fewer, _ := session.Freeze(policy(), request(), named("tracker/list"), time.Now())
	other, _ := session.Freeze(policy(func(p *control.Policy) { p.Profiles["dev"].Grants[0].When = "true" }), request(), named("tracker/list", "tracker/create"), time.Now())
	if again.PolicyDigest != s.PolicyDigest || fewer.PolicyDigest == s.PolicyDigest || other.PolicyDigest == s.PolicyDigest {
		t.Fatal("the policy digest does not name the binding")
	}
	if again.ID == s.ID {
		t.Fatal("two sessions of one id")
	}
}

func TestFreezeRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		p    *control.Policy
		r    session.Request
		code errs.Code
	}{
		"quarantine":       {policy(func(p *control.Policy) { p.Quarantine = "old" }), request(), errs.Quarantined},
		"no profile":       {policy(), request(func(r *session.Request) { r.Profile = "x" }), errs.NotFound},
		"attended":         {policy(func(p *control.Policy) { p.Profiles["dev"].Attended = false }), request(), errs.NotAllowed},
		"another driver":   {policy(), request(func(r *session.Request) { r.Facts.Driver = "process" }), errs.NotAllowed},
		"asserted only":    {policy(), request(func(r *session.Request) { r.Facts.Closed = "asserted" }), errs.NotAllowed},
		"not closed":       {policy(), request(func(r *session.Request) { r.Facts.Closed = "no" }), errs.NotAllowed},
		"an unknown word":  {policy(), request(func(r *session.Request) { r.Facts.Closed = "maybe" }), errs.Invalid},
		"two of one name":  {policy(func(p *control.Policy) { p.Catalogs["tracker"].Tools[1].As = "tracker_create" }), request(), errs.Conflict},
		"no word of facts": {policy(), request(func(r *session.Request) { r.Facts = session.Facts{} }), errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			all := func(*control.Profile, string, string) bool { return true }
			if _, err := session.Freeze(c.p, c.r, all, time.Now()); errs.CodeOf(err) != c.code {
				t.Fatalf("got %v", err)
			}
		})
	}
	// Unattended in an attended profile is narrower, and taken.
	s, err := session.Freeze(policy(), request(func(r *session.Request) { r.Attended = false }), named(), time.Now())
	if err != nil || s.Attended || len(s.Tools) != 0 {
		t.Fatalf("got %+v, %v", s, err)
	}
}

func TestTickets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memstore.New()
		if _, err := db.Apply(t.Context(), &control.Apply{Expect: 1, Profiles: []control.Profile{{Name: "dev", Attended: true}}}); err != nil {
			t.Fatal(err)
		}
		want := session.TicketRequest{Owner: "local:ada", Profile: "dev", Attended: true, Local: true}
		text, until, err := session.IssueTicket(t.Context(), db, want)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := session.ParseTicket(text); err != nil || got != want {
			t.Fatalf("got %+v, %v", got, err)
		}
		if until.Sub(db.Now()) != session.TicketLife {
			t.Fatalf("until %s", until)
		}
		open := func(text string, change ...func(*control.Session)) error {
			s := &control.Session{ID: control.NewID(), Epoch: 1, Owner: "local:ada", Profile: control.Profile{Name: "dev"}, Attended: true, State: control.SessionOpening}
			for _, f := range change {
				f(s)
			}
			return db.OpenSession(t.Context(), session.TicketDigest(text), s, 2)
		}
		// Not one byte of it can be changed, and it is for one owner, profile and kind.
		for name, err := range map[string]error{
			"another text":    open(text + "x"),
			"another owner":   open(text, func(s *control.Session) { s.Owner = "local:eve" }),
			"another profile": open(text, func(s *control.Session) { s.Profile.Name = "ci" }),
			"unattended":      open(text, func(s *control.Session) { s.Attended = false }),
		} {
			if errs.CodeOf(err) != errs.NotAllowed {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := open(text); err != nil {
			t.Fatal(err)
		}
		if err := open(text); errs.CodeOf(err) != errs.NotAllowed {
			t.Fatalf("a second time: %v", err)
		}
		late, _, err := session.IssueTicket(t.Context(), db, want)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(session.TicketLife)
		if err := open(late); errs.CodeOf(err) != errs.NotAllowed {
			t.Fatalf("too late: %v", err)
		}
		if _, _, err := session.IssueTicket(t.Context(), db, session.TicketRequest{Owner: "a", Profile: "none"}); errs.CodeOf(err) != errs.NotFound {
			t.Fatalf("no profile: %v", err)
		}
	})
	for name, text := range map[string]string{
		"nothing": "", "no prefix": "x.y.z", "no secret": "spo1.e30", "no base64": "spo1.!!!.x", "no JSON": "spo1.AAAA.x", "unknown member": "spo1.eyJ4IjoxfQ.x",
		"long": "spo1." + strings.Repeat("A", 5000) + ".x",
	} {
		if _, err := session.ParseTicket(text); errs.CodeOf(err) != errs.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

package storetest

import (
	"testing"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/session"
	"sallyport.dev/errs"
)

const (
	owner = control.Person("local:ada")
	host  = "spiffe://sallyport.internal/host/one"
	run   = "controlrunaaaaaaaaaaaaaaaa"
)

// fixture is a database with one connection, profile, credential and open session.
type fixture struct {
	Stores
	t       *testing.T
	session *control.Session
	policy  *control.Policy
}

func newFixture(t *testing.T, s Stores) *fixture {
	f := &fixture{Stores: s, t: t}
	p, err := s.Call.Policy(t.Context(), nil)
	f.no(err)
	_, err = s.Grant.Apply(t.Context(), &control.Apply{
		Org: control.Org, By: owner, At: s.Call.Now(), Expect: p.Generation,
		Connections: []control.Connection{connection("tracker")},
		Catalogs:    []control.Catalog{catalog("tracker")},
		Profiles:    []control.Profile{profile("dev")},
	})
	f.no(err)
	f.no(s.PutCredential(credential(1)))
	f.reload()
	f.session = f.open()
	return f
}

func connection(name string) control.Connection {
	return control.Connection{
		Org: control.Org, Name: name, Kind: control.KindMCP, Origin: "https://" + name + ".example.org", Path: "/mcp", Pool: "default",
		Auth: control.Auth{Type: "bearer", Per: "shared"}, Limits: control.ConnectionLimits{Timeout: 2 * time.Minute, Concurrent: 16, Result: 1 << 20},
		Revision: 1, State: control.ConnectionEnabled, Protocol: "2025-11-25", Catalog: catalog(name).Digest,
	}
}

func catalog(name string) control.Catalog {
	raw := []byte(`{"name":"create_issue","inputSchema":{"type":"object"}}`)
	return control.Catalog{
		Org: control.Org, Connection: name, Digest: control.SumParts("catalog v1", []byte("create_issue"), raw), State: control.CatalogApproved,
		Tools: []control.Tool{{Name: "create_issue", As: name + "_create_issue", Effect: control.Write, Raw: raw}},
	}
}

func profile(name string) control.Profile {
	return control.Profile{
		Org: control.Org, Name: name, Attended: true, Attached: "deny", OnDisconnect: "keep", Approvers: []string{"owner"}, Hold: 45 * time.Second,
		Approval: control.Approval{Expires: time.Hour},
		Grants:   []control.Grant{{Tools: []string{"tracker/create_issue"}, Rule: control.Ask}},
	}
}

func credential(version int64) control.Credential {
	return control.Credential{
		Org: control.Org, Connection: "tracker", Subject: control.SubjectShared, Version: version, Sealed: control.Sealed("sealed"),
		AssociatedData: []byte("ad"), KeyFingerprint: "f", Account: "bot", State: control.CredentialGood,
	}
}

func (f *fixture) no(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// want fails unless got is want.
func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func wantCode(t *testing.T, err error, code errs.Code) {
	t.Helper()
	if errs.CodeOf(err) != code {
		t.Fatalf("got error %v, want code %q", err, code)
	}
}

func (f *fixture) reload() {
	f.t.Helper()
	p, err := f.Call.Policy(f.t.Context(), f.policy)
	f.no(err)
	f.policy = p
}

func (f *fixture) ticket() (control.Digest, session.Ticket) {
	f.t.Helper()
	d := control.Sum([]byte(control.NewID()))
	t := session.Ticket{Org: control.Org, Digest: d, Owner: owner, Profile: "dev", Attended: true, Local: true, Until: f.Call.Now().Add(time.Minute)}
	f.no(f.Session.PutTicket(f.t.Context(), t))
	return d, t
}

func (f *fixture) newSession() *control.Session {
	return &control.Session{
		Org: control.Org, ID: control.NewID(), Epoch: 1, Owner: owner, Profile: *f.policy.Profiles["dev"], Attended: true, Harness: "claude", Host: host,
		Driver: "bwrap", Closed: "proven", PolicyDigest: control.Sum([]byte("policy")), State: control.SessionOpening,
		Tools: []control.BoundTool{{Name: "tracker_create_issue", Connection: "tracker", Revision: 1, Catalog: catalog("tracker").Digest, Tool: catalog("tracker").Tools[0]}},
	}
}

func (f *fixture) open() *control.Session {
	f.t.Helper()
	d, _ := f.ticket()
	s := f.newSession()
	f.no(f.Session.OpenSession(f.t.Context(), d, s, f.policy.Generation))
	f.no(f.Session.ConfirmGate(f.t.Context(), session.Confirmation{Session: s.ID, Epoch: 1, Host: host, Parent: "proof", PolicyDigest: s.PolicyDigest}))
	s.State, s.Parent = control.SessionOpen, "proof"
	return s
}

// row is a call of the fixture's session that is not stored yet.
func (f *fixture) row(effect control.Effect) *control.Call {
	record := control.NewID()
	args := []byte(`{"title":"x","n":12345678901234567890}`)
	c := &control.Call{
		Org: control.Org, ID: control.CallID(f.session.ID, record), Session: f.session.ID, Record: record, RecordDigest: control.Sum([]byte(record)),
		Epoch: 1, Host: host, Shim: "shim", HarnessCall: "toolu_1", TimeoutMS: 120000, Owner: owner, Profile: "dev", Name: "tracker_create_issue",
		ProfileVersion: 1, Revision: 1, Catalog: catalog("tracker").Digest, Connection: "tracker", Tool: "create_issue", Effect: effect, Subject: control.SubjectShared, Account: "bot",
		Arguments: args, ArgsDigest: control.Sum(args), Binding: control.Sum([]byte("binding" + record)), Lease: run,
	}
	if effect == control.Write {
		c.Twin = control.Sum([]byte("twin" + record))
	}
	return c
}

// guard holds in the fixture's database.
func (f *fixture) guard(epoch int64) call.Guard {
	return call.Guard{
		Generation: f.policy.Generation, Session: f.session.ID, Epoch: epoch,
		Credential: call.CredentialRef{Connection: "tracker", Subject: control.SubjectShared, Version: 1},
		Owner:      owner, Connection: "tracker", Tool: "create_issue",
	}
}

func steps(path ...any) []control.Step {
	var out []control.Step
	from := journal.None
	for i := 0; i < len(path); i += 2 {
		to := path[i+1].(journal.State)
		out = append(out, control.Step{From: from, Event: path[i].(journal.Event), To: to, Actor: run})
		from = to
	}
	return out
}

// admission of a call that comes as far as state.
func (f *fixture) admission(c *control.Call, state journal.State) *call.Admission {
	c.State = state
	a := &call.Admission{Call: c, Guard: f.guard(1), Durable: c.Effect == control.Write, Steps: steps(journal.OnRecord, journal.Admitted)}
	switch state {
	case journal.Refused:
		a.Steps = steps(journal.OnRecord, journal.Admitted, journal.OnRefuse, journal.Refused)
		c.Code, c.Reason = errs.RuleDenied, "no grant"
	case journal.Asking:
		a.Steps = steps(journal.OnRecord, journal.Admitted, journal.OnAsk, journal.Asking)
		a.Question = f.question(c, control.AskApproval)
		a.MaxOpen = 5
		c.ExpiresAt = a.Question.ExpiresAt
	case journal.Dispatching:
		a.Steps = steps(journal.OnRecord, journal.Admitted, journal.OnCommit, journal.Dispatching)
		c.Attempt, c.Intent, c.Worker, c.Run = 1, control.NewID(), "spiffe://sallyport.internal/worker/default/one", control.NewID()
		c.Authority = control.Authority{Kind: control.ByRule}
		a.Steps[1].Attempt = 1
	}
	return a
}

func (f *fixture) question(c *control.Call, kind control.QuestionKind) *control.Question {
	return &control.Question{
		Org: control.Org, ID: control.NewID(), Kind: kind, Call: c.ID, Session: c.Session, Owner: owner, Profile: "dev", Approvers: []string{"owner"},
		Local: true, Binding: c.Binding, Text: "asks", State: control.QuestionOpen, ExpiresAt: f.Call.Now().Add(time.Hour),
	}
}

// admit stores a call that comes as far as state, and returns it with its question.
func (f *fixture) admit(effect control.Effect, state journal.State) (*control.Call, *control.Question) {
	f.t.Helper()
	c := f.row(effect)
	return c, f.admitRow(c, state)
}

func (f *fixture) admitRow(c *control.Call, state journal.State) *control.Question {
	f.t.Helper()
	a := f.admission(c, state)
	got, err := f.Call.Admit(f.t.Context(), a)
	f.no(err)
	want(f.t, "admit", got.Result, call.Done)
	return a.Question
}

// barrier of a call as it stands.
func (f *fixture) barrier(c *control.Call, by control.Authority) *call.Barrier {
	return &call.Barrier{
		Call: c.ID, From: c.State, Attempt: c.Attempt, Lease: c.Lease, Guard: f.guard(0), Binding: c.Binding, Authority: by, Subject: c.Subject,
		Account: c.Account, Intent: control.NewID(), Worker: "spiffe://sallyport.internal/worker/default/one", Run: control.NewID(),
		Step:    control.Step{From: c.State, Event: journal.OnCommit, To: journal.Dispatching, Attempt: c.Attempt + 1, Actor: run},
		Durable: true,
	}
}

func (f *fixture) commit(b *call.Barrier) call.Result {
	f.t.Helper()
	got, err := f.Call.Commit(f.t.Context(), b)
	f.no(err)
	return got
}

// step is a compare-and-set on a call as it stands.
func (f *fixture) step(c *control.Call, event journal.Event, to journal.State) *call.Advance {
	return &call.Advance{
		Call: c.ID, From: c.State, Attempt: c.Attempt, Lease: c.Lease, Durable: true,
		Step: control.Step{From: c.State, Event: event, To: to, Attempt: c.Attempt, Actor: run},
	}
}

func (f *fixture) advance(s *call.Advance) call.Result {
	f.t.Helper()
	got, err := f.Call.Advance(f.t.Context(), s)
	f.no(err)
	return got
}

func (f *fixture) load(id string) *control.Call {
	f.t.Helper()
	c, err := f.Call.Call(f.t.Context(), id)
	f.no(err)
	return c
}

func (f *fixture) ask(id string) *control.Question {
	f.t.Helper()
	q, err := f.Inbox.Question(f.t.Context(), id)
	f.no(err)
	return q
}

func decision(q *control.Question, v control.Verdict) *inbox.Decide {
	return &inbox.Decide{
		Question: q.ID, Decision: control.Decision{Verdict: v, By: owner, Binding: q.Binding, Reason: "because"},
		Actor: inbox.Actor{Person: owner, Local: true}, Grace: time.Minute,
	}
}

func (f *fixture) decide(d *inbox.Decide) inbox.Decided {
	f.t.Helper()
	got, err := f.Inbox.Decide(f.t.Context(), d)
	f.no(err)
	return got
}

// approved stores a write that a person approved.
func (f *fixture) approved() (*control.Call, *control.Question) {
	f.t.Helper()
	c, q := f.admit(control.Write, journal.Asking)
	want(f.t, "decision", f.decide(decision(q, control.Approve)).Outcome, inbox.Closes)
	return f.load(c.ID), q
}

// uncertain stores a write whose answer was lost.
func (f *fixture) uncertain() (*control.Call, *control.Question) {
	f.t.Helper()
	c, q := f.approved()
	want(f.t, "commit", f.commit(f.barrier(c, control.Authority{Kind: control.ByApproval, ID: q.ID})), call.Done)
	c = f.load(c.ID)
	s := f.step(c, journal.OnLost, journal.Uncertain)
	s.Question = f.question(c, control.AskUncertain)
	s.Question.ExpiresAt = time.Time{}
	want(f.t, "lost", f.advance(s), call.Done)
	return f.load(c.ID), s.Question
}

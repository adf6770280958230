package sqlstore

import (
	"runtime"
	"testing"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/session"
)

const (
	ada     = control.Person("local:ada")
	theHost = "spiffe://sallyport.internal/host/one"
	theRun  = "controlrunaaaaaaaaaaaaaaaa"
)

// world is a store with one connection, profile, credential and open session, and calls in it.
type world struct {
	*Store
	t          testing.TB
	session    string
	generation int64
}

func newWorld(t testing.TB, s *Store) *world {
	t.Helper()
	w := &world{Store: s, t: t, session: control.NewID()}
	p, err := s.Policy(t.Context(), nil)
	w.no(err)
	raw := []byte(`{"name":"create_issue","inputSchema":{"type":"object"}}`)
	digest := control.SumParts("catalog v1", []byte("create_issue"), raw)
	tool := control.Tool{Name: "create_issue", As: "new_issue", Effect: control.Write, Raw: raw}
	_, err = s.Apply(t.Context(), &control.Apply{
		Org: control.Org, By: ada, Expect: p.Generation,
		Connections: []control.Connection{{
			Org: control.Org, Name: "tracker", Kind: control.KindMCP, Origin: "https://tracker.example.org", Path: "/mcp", Pool: "default",
			State: control.ConnectionEnabled, Catalog: digest,
		}},
		Catalogs: []control.Catalog{{Org: control.Org, Connection: "tracker", Digest: digest, Tools: []control.Tool{tool}}},
		Profiles: []control.Profile{{Org: control.Org, Name: "dev", Attended: true}},
	})
	w.no(err)
	w.no(s.PutCredential(t.Context(), &control.Credential{
		Connection: "tracker", Subject: control.SubjectShared, Version: 1, Sealed: control.Sealed("sealed"), AssociatedData: []byte("ad"), State: control.CredentialGood,
	}, ada))
	w.reload()
	w.open(w.session)
	return w
}

// elsewhere is a test seen from another goroutine than its own: what is fatal ends that goroutine and fails the test.
type elsewhere struct{ testing.TB }

func (e elsewhere) Fatal(args ...any) {
	e.Helper()
	e.Error(args...)
	runtime.Goexit()
}

func (e elsewhere) Fatalf(format string, args ...any) {
	e.Helper()
	e.Errorf(format, args...)
	runtime.Goexit()
}

func (w *world) no(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) reload() *control.Policy {
	w.t.Helper()
	p, err := w.Policy(w.t.Context(), nil)
	w.no(err)
	w.generation = p.Generation
	return p
}

func (w *world) open(id string) {
	w.t.Helper()
	p := w.reload()
	ticket := control.Sum([]byte(control.NewID()))
	w.no(w.PutTicket(w.t.Context(), session.Ticket{Digest: ticket, Owner: ada, Profile: "dev", Attended: true, Until: w.Now().Add(time.Minute)}))
	policy := control.Sum([]byte("policy"))
	w.no(w.OpenSession(w.t.Context(), ticket, &control.Session{
		Org: control.Org, ID: id, Epoch: 1, Owner: ada, Profile: *p.Profiles["dev"], Attended: true, Host: theHost, Driver: "bwrap", Closed: "proven",
		PolicyDigest: policy, State: control.SessionOpening,
	}, w.generation))
	w.no(w.ConfirmGate(w.t.Context(), session.Confirmation{Session: id, Epoch: 1, Host: theHost, Parent: "proof", PolicyDigest: policy}))
}

// row is a call that is not stored yet.
func (w *world) row(effect control.Effect, args []byte) *control.Call {
	record := control.NewID()
	c := &control.Call{
		Org: control.Org, ID: control.CallID(w.session, record), Session: w.session, Record: record, RecordDigest: control.Sum([]byte(record)), Epoch: 1,
		Host: theHost, Shim: "shim-1", HarnessCall: "toolu_01ABCDEFGHIJKLMNOP", TimeoutMS: 120000, Owner: ada, Profile: "dev", Name: "new_issue",
		Connection: "tracker", Tool: "create_issue", Effect: effect, Subject: control.SubjectShared, Account: "bot", Arguments: args,
		ArgsDigest: control.Sum(args), Binding: control.Sum([]byte(record)), Lease: theRun,
	}
	if effect == control.Write {
		c.Twin = control.Sum([]byte("twin" + record))
	}
	return c
}

func (w *world) guard(epoch int64) call.Guard {
	return call.Guard{
		Generation: w.generation, Session: w.session, Epoch: epoch, Credential: call.CredentialRef{Connection: "tracker", Subject: control.SubjectShared, Version: 1},
		Owner: ada, Connection: "tracker", Tool: "create_issue",
	}
}

// readAdmission is an allowed read: admitted, decided and committed in one insert.
func (w *world) readAdmission() *call.Admission {
	c := w.row(control.Read, []byte(`{"project":"web","query":"open issues","page":1}`))
	c.State, c.Attempt, c.Intent, c.Worker, c.Run = journal.Dispatching, 1, control.NewID(), "spiffe://sallyport.internal/worker/default/one", theRun
	c.Authority = control.Authority{Kind: control.ByRule}
	return &call.Admission{Call: c, Guard: w.guard(1), Steps: []control.Step{
		{Event: journal.OnRecord, To: journal.Admitted, Actor: theHost, Digest: c.RecordDigest},
		{From: journal.Admitted, Event: journal.OnCommit, To: journal.Dispatching, Attempt: 1, Actor: theRun, Digest: c.ArgsDigest},
	}}
}

func (w *world) admit(a *call.Admission) {
	w.t.Helper()
	got, err := w.Admit(w.t.Context(), a)
	w.no(err)
	if got.Result != call.Done {
		w.t.Fatalf("admission: %s", got.Result)
	}
}

var answer = []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"three open issues: #1 login fails, #2 slow list, #3 typo on the start page"}],"isError":false}}`)

// settle is the end of a dispatch, with its answer.
func settle(c *control.Call, isDurable bool) *call.Advance {
	facts := control.Facts{Transport: journal.TransportAnswered, Protocol: journal.ProtocolResult, ToolResult: journal.ToolOK, HTTPStatus: 200, Bytes: 412}
	return &call.Advance{
		Call: c.ID, From: journal.Dispatching, Attempt: c.Attempt, Lease: c.Lease, Durable: isDurable,
		Step: control.Step{From: journal.Dispatching, Event: journal.OnAnswer, To: journal.Answered, Attempt: c.Attempt, Actor: theRun, Digest: control.Sum(answer)},
		Set:  call.Set{Facts: &facts, Body: answer, Delivery: journal.DeliveryPublished},
	}
}

func (w *world) advance(a *call.Advance) {
	w.t.Helper()
	got, err := w.Advance(w.t.Context(), a)
	w.no(err)
	if got != call.Done {
		w.t.Fatalf("advance: %s", got)
	}
}

// asking stores a write that waits for a person.
func (w *world) asking() (*control.Call, *control.Question) {
	w.t.Helper()
	c := w.row(control.Write, []byte(`{"title":"x"}`))
	q := &control.Question{
		Org: control.Org, ID: control.NewID(), Kind: control.AskApproval, Call: c.ID, Session: w.session, Owner: ada, Profile: "dev", Local: true,
		Binding: c.Binding, State: control.QuestionOpen, ExpiresAt: w.Now().Add(time.Hour),
	}
	c.State, c.ExpiresAt = journal.Asking, q.ExpiresAt
	w.admit(&call.Admission{Call: c, Guard: w.guard(1), Question: q, Durable: true, Steps: []control.Step{
		{Event: journal.OnRecord, To: journal.Admitted, Actor: theHost},
		{From: journal.Admitted, Event: journal.OnAsk, To: journal.Asking, Actor: theRun},
	}})
	return c, q
}

// approved stores a write that a person approved.
func (w *world) approved() (*control.Call, *control.Question) {
	w.t.Helper()
	c, q := w.asking()
	d, err := w.Decide(w.t.Context(), &inbox.Decide{
		Question: q.ID, Decision: control.Decision{Verdict: control.Approve, By: ada, Binding: q.Binding}, Actor: inbox.Actor{Person: ada, Local: true}, Grace: time.Minute,
	})
	w.no(err)
	if d.Outcome != inbox.Closes {
		w.t.Fatalf("decision: %s", d.Outcome)
	}
	c.State = journal.Approved
	return c, q
}

// barrier of an approved call.
func (w *world) barrier(c *control.Call, q *control.Question) *call.Barrier {
	return &call.Barrier{
		Call: c.ID, From: c.State, Attempt: c.Attempt, Lease: c.Lease, Guard: w.guard(0), Binding: c.Binding, Authority: control.Authority{Kind: control.ByApproval, ID: q.ID},
		Subject: c.Subject, Account: c.Account, Intent: control.NewID(), Worker: "spiffe://sallyport.internal/worker/default/one", Run: theRun, Durable: true,
		Step: control.Step{From: c.State, Event: journal.OnCommit, To: journal.Dispatching, Attempt: c.Attempt + 1, Actor: theRun},
	}
}

package sqlstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/grant"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/memstore"
	"sallyport.dev/control/session"
	"sallyport.dev/errs"
)

// both is the store in memory, which is the specification, and the database, told the same.
type both struct {
	mem *memstore.DB
	sql *Store
	t   *rapid.T

	session   string
	calls     []*control.Call // as they were admitted
	questions []string
}

// same fails unless both answer the same. Times are each store's own.
func (b *both) same(what string, mem, sql any, memErr, sqlErr error) {
	b.t.Helper()
	if errs.CodeOf(memErr) != errs.CodeOf(sqlErr) {
		b.t.Fatalf("%s: in memory %v, in the database %v", what, memErr, sqlErr)
	}
	if memErr != nil {
		return
	}
	if d := cmp.Diff(mem, sql, cmpopts.EquateEmpty(), cmpopts.IgnoreTypes(time.Time{})); d != "" {
		b.t.Fatalf("%s (-memory +database):\n%s", what, d)
	}
}

func (b *both) each(what string, f func(s allStores) (any, error)) any {
	b.t.Helper()
	m, merr := f(b.mem)
	s, serr := f(b.sql)
	b.same(what, m, s, merr, serr)
	return m
}

type allStores interface {
	call.Store
	inbox.Store
}

type modelStore interface {
	session.Store
	grant.Store
}

var bg = context.Background()

func (b *both) guard(epoch int64) call.Guard {
	generation := b.generation()
	if rapid.IntRange(0, 9).Draw(b.t, "stale") == 0 {
		generation--
	}
	g := call.Guard{
		Generation: generation, Session: b.session, Epoch: epoch, Owner: ada, Connection: "tracker", Tool: "create_issue",
		Credential: call.CredentialRef{Connection: "tracker", Subject: control.SubjectShared, Version: int64(rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(b.t, "version"))},
		Suspending: rapid.IntRange(0, 3).Draw(b.t, "suspending") == 0,
	}
	if rapid.Bool().Draw(b.t, "counted") {
		g.Takes = []call.Take{{Key: "k/" + b.session, Calls: 3, ExpectUsed: -1, AddBytes: 5}}
	}
	return g
}

func (b *both) generation() int64 {
	p, err := b.sql.Policy(bg, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return p.Generation
}

func (b *both) pick() *control.Call {
	if len(b.calls) == 0 {
		b.t.Skip("no call yet")
	}
	return rapid.SampledFrom(b.calls).Draw(b.t, "call")
}

// now is a call as the database has it: the other half of a compare-and-set.
func (b *both) now(id string) *control.Call {
	c, err := b.sql.Call(bg, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func (b *both) question(c *control.Call, kind control.QuestionKind) *control.Question {
	q := &control.Question{
		Org: control.Org, ID: control.NewID(), Kind: kind, Call: c.ID, Session: c.Session, Owner: ada, Profile: "dev", Approvers: []string{"owner"}, Local: true,
		Second: rapid.IntRange(0, 4).Draw(b.t, "second") == 0, Binding: c.Binding, Text: "t", State: control.QuestionOpen, Form: []byte(`{"type":"object"}`),
	}
	b.questions = append(b.questions, q.ID)
	return q
}

// Admit makes a new call, or comes again with the record of an old one.
func (b *both) Admit(t *rapid.T) {
	b.t = t
	effect := rapid.SampledFrom([]control.Effect{control.Read, control.Write}).Draw(t, "effect")
	w := world{Store: b.sql, session: b.session}
	c := w.row(effect, []byte(fmt.Sprintf(`{"n":%d}`, len(b.calls))))
	if effect == control.Write {
		c.Twin = control.Sum([]byte(b.session + rapid.SampledFrom([]string{"a", "b"}).Draw(t, "twin")))
	}
	if len(b.calls) > 0 && rapid.IntRange(0, 7).Draw(t, "again") == 0 {
		old := b.pick()
		c.ID, c.Record, c.RecordDigest = old.ID, old.Record, old.RecordDigest
		if rapid.Bool().Draw(t, "other bytes") {
			c.RecordDigest = control.Sum([]byte("other"))
		}
	}
	a := &call.Admission{Call: c, Guard: b.guard(1), MaxOpen: 2, Durable: effect == control.Write}
	if rapid.IntRange(0, 5).Draw(t, "mark") > 0 {
		_, a.TwinMark, _ = b.sql.Twins(bg, c.Twin)
	}
	a.Steps = []control.Step{{Event: journal.OnRecord, To: journal.Admitted, Actor: theHost}}
	switch state := rapid.SampledFrom([]journal.State{journal.Refused, journal.Admitted, journal.Asking, journal.Dispatching}).Draw(t, "state"); state {
	case journal.Refused:
		a.Steps = append(a.Steps, control.Step{From: journal.Admitted, Event: journal.OnRefuse, To: state, Code: errs.RuleDenied, Reason: "no  grant"})
		c.Code, c.State = errs.RuleDenied, state
	case journal.Admitted:
		c.State = state
	case journal.Asking:
		a.Steps = append(a.Steps, control.Step{From: journal.Admitted, Event: journal.OnAsk, To: state, Digest: c.Binding})
		a.Question, c.State = b.question(c, control.AskApproval), state
	case journal.Dispatching:
		a.Steps = append(a.Steps, control.Step{From: journal.Admitted, Event: journal.OnCommit, To: state, Attempt: 1})
		c.Attempt, c.Intent, c.Run, c.State = 1, control.NewID(), theRun, state
		c.Authority = control.Authority{Kind: control.ByRule}
	}
	got := b.each("admit", func(s allStores) (any, error) {
		copied := *a
		row := *c
		copied.Call = &row
		return s.Admit(bg, &copied)
	}).(call.Admitted)
	if got.Result == call.Done {
		b.calls = append(b.calls, c)
	}
}

// Commit tries a barrier, sometimes with a wrong member.
func (b *both) Commit(t *rapid.T) {
	b.t = t
	c := b.now(b.pick().ID)
	w := world{Store: b.sql, session: b.session}
	by := control.Question{}
	if len(b.questions) > 0 {
		by.ID = rapid.SampledFrom(b.questions).Draw(t, "question")
	}
	if q, err := b.sql.Questions(bg, inbox.Filter{Call: c.ID, States: []control.QuestionState{control.QuestionApproved, control.QuestionUsed, control.QuestionAnswered}}); err == nil && len(q) > 0 {
		by.ID = q[len(q)-1].ID
	}
	x := w.barrier(c, &by)
	x.Guard = b.guard(0)
	switch rapid.IntRange(0, 9).Draw(t, "wrong") {
	case 0:
		x.Attempt++
	case 1:
		x.Lease = "another"
	case 2:
		x.Binding = control.Sum([]byte("another"))
	case 3:
		x.Authority = control.Authority{Kind: control.ByRule}
	}
	if !journal.Legal(x.From, journal.OnCommit, journal.Dispatching) {
		t.Skip("the table has no such row")
	}
	b.each("commit", func(s allStores) (any, error) { return s.Commit(bg, x) })
}

// Advance takes any step that the table allows.
func (b *both) Advance(t *rapid.T) {
	b.t = t
	c := b.now(b.pick().ID)
	var rows []journal.Transition
	for _, r := range journal.Table {
		if r.From == c.State && r.Event != journal.OnCommit && r.Event != journal.OnQuarantine {
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		t.Skip("it is over")
	}
	r := rapid.SampledFrom(rows).Draw(t, "row")
	a := &call.Advance{
		Call: c.ID, From: c.State, Attempt: c.Attempt, Lease: c.Lease, MaxOpen: 2, Durable: rapid.Bool().Draw(t, "durable"),
		Step: control.Step{From: c.State, Event: r.Event, To: r.To, Attempt: c.Attempt, Actor: theRun, Reason: "why - not", Digest: c.ArgsDigest},
	}
	reason, rounds := "a reason", c.Rounds
	a.Set = call.Set{
		Reason: &reason, Rounds: &rounds, Body: []byte("body"), Delivery: rapid.SampledFrom([]journal.Delivery{"", journal.DeliveryPublished}).Draw(t, "delivery"),
		Facts: &control.Facts{Transport: journal.TransportSent, HTTPStatus: 200, RPCCode: -5, Bytes: 9, Failure: journal.FailCut},
	}
	switch r.To {
	case journal.Uncertain:
		a.Question = b.question(c, control.AskUncertain)
	case journal.InputWanted:
		a.Question = b.question(c, control.AskInput)
		a.Set.RequestState, a.Set.InputRequests = []byte("state"), []byte("requests")
	}
	if rapid.IntRange(0, 9).Draw(t, "wrong") == 0 {
		a.Lease = "another"
	}
	b.each("advance", func(s allStores) (any, error) { return s.Advance(bg, a) })
}

// Decide lets somebody answer a question, not always somebody who may.
func (b *both) Decide(t *rapid.T) {
	b.t = t
	if len(b.questions) == 0 {
		t.Skip("no question yet")
	}
	id := rapid.SampledFrom(b.questions).Draw(t, "question")
	q, err := b.sql.Question(bg, id)
	if errs.Is(err, errs.NotFound) {
		t.Skip("its call was not admitted")
	}
	if err != nil {
		t.Fatal(err)
	}
	by := rapid.SampledFrom([]control.Person{ada, ada, "local:eve"}).Draw(t, "by")
	d := &inbox.Decide{
		Question: id, Actor: inbox.Actor{Person: by, Local: true}, Grace: time.Hour, Answer: []byte(`{"a":1}`), Bind: control.Sum([]byte(id)),
		Decision: control.Decision{
			Verdict: rapid.SampledFrom([]control.Verdict{control.Approve, control.Approve, control.Refuse, control.Answer, control.Done}).Draw(t, "verdict"),
			By:      by, Reason: "since", Binding: q.Binding,
		},
	}
	if rapid.IntRange(0, 9).Draw(t, "mismatch") == 0 {
		d.Decision.Binding = control.Sum([]byte("another"))
	}
	b.each("decide", func(s allStores) (any, error) {
		got, err := s.Decide(bg, d)
		got.Question = nil // looked at in Check
		return got, err
	})
}

// Deliver raises deliveries.
func (b *both) Deliver(t *rapid.T) {
	b.t = t
	d := call.Delivered{Call: b.pick().ID, Delivery: rapid.SampledFrom([]journal.Delivery{journal.DeliveryPublished, journal.DeliveryAcknowledged}).Draw(t, "delivery")}
	b.mem.Deliver(d)
	b.sql.Deliver(d)
	b.flush()
}

// flush waits until what rides along is written.
func (b *both) flush() {
	if err := b.sql.do(bg, 0, func(t *tx) error {
		_, err := t.exec("UPDATE leases SET until = until WHERE 0")
		return err
	}); err != nil {
		b.t.Fatal(err)
	}
}

// Note writes a line.
func (b *both) Note(t *rapid.T) {
	b.t = t
	yes := true
	n := call.Note{Call: b.pick().ID, Event: "cancel_requested", Actor: theHost, Set: call.Set{Gone: &yes}}
	b.each("note", func(s allStores) (any, error) { return nil, s.Note(bg, n) })
}

// Attach lets a record stand for a call.
func (b *both) Attach(t *rapid.T) {
	b.t = t
	record := control.NewID()
	a := &control.Alias{ID: control.CallID(b.session, record), Session: b.session, Record: record, RecordDigest: control.Sum([]byte(record)), Kind: "await", Call: b.pick().ID}
	epoch := int64(rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "epoch"))
	b.each("attach", func(s allStores) (any, error) {
		r, c, err := s.Attach(bg, a, epoch)
		return []any{r, c}, err
	})
}

// Resolve is a person's word on what is uncertain.
func (b *both) Resolve(t *rapid.T) {
	b.t = t
	c := b.now(b.pick().ID)
	r := &call.Resolution{
		Call: c.ID, Attempt: c.Attempt, By: ada, Note: "looked", Override: rapid.SampledFrom([]string{"", "the run is gone"}).Draw(t, "override"),
		Step: control.Step{From: journal.Uncertain, Event: journal.OnResolveDone, To: journal.ResolvedDone, Attempt: c.Attempt, Actor: string(ada)},
	}
	b.each("resolve", func(s allStores) (any, error) { return s.Resolve(bg, r) })
}

// Purge forgets bodies.
func (b *both) Purge(t *rapid.T) {
	b.t = t
	id := b.pick().ID
	b.each("purge", func(s allStores) (any, error) { return nil, s.PurgeCall(bg, id, ada) })
}

// Check compares everything that can be read.
func (b *both) Check(t *rapid.T) {
	b.t = t
	ctx := bg
	for _, c := range b.calls {
		got := b.each("call", func(s allStores) (any, error) { return s.Call(ctx, c.ID) }).(*control.Call)
		b.each("steps", func(s allStores) (any, error) { return s.Steps(ctx, c.ID) })
		if got.Intent != "" {
			b.each("by intent", func(s allStores) (any, error) { return s.ByIntent(ctx, got.Intent) })
		}
		b.each("twins", func(s allStores) (any, error) {
			twins, _, err := s.Twins(ctx, c.Twin)
			return twins, err
		})
	}
	for _, id := range b.questions {
		b.each("question", func(s allStores) (any, error) { return s.Question(ctx, id) })
	}
	b.each("open calls", func(s allStores) (any, error) { return s.OpenCalls(ctx, b.session) })
	b.each("usage", func(s allStores) (any, error) { return s.Usage(ctx, []call.Take{{Key: "k/" + b.session}}) })
	b.each("suspended", func(s allStores) (any, error) { return s.Suspended(ctx, ada, "tracker", "create_issue") })
	b.each("list", func(s allStores) (any, error) {
		calls, _, err := s.ListCalls(ctx, call.Filter{Org: control.Org, Session: b.session, Limit: 100, States: []journal.State{journal.Answered, journal.Refused, journal.Uncertain}})
		return calls, err
	})
}

// Whatever is done in whatever order, the database answers as the store in memory does, which is the specification.
func TestTheDatabaseIsTheModel(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	mem := memstore.New()
	for _, one := range []struct {
		store modelStore
		put   func(control.Credential) error
	}{{mem, mem.PutCredential}, {s, s.putCredential}} {
		p, err := one.store.Policy(bg, nil)
		if err == nil {
			_, err = one.store.Apply(bg, &control.Apply{Org: control.Org, By: ada, Expect: p.Generation, Profiles: []control.Profile{{Org: control.Org, Name: "dev", Attended: true}}})
		}
		if err == nil {
			err = one.put(control.Credential{Org: control.Org, Connection: "tracker", Subject: control.SubjectShared, Version: 1, State: control.CredentialGood})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		b := &both{mem: mem, sql: s, t: rt, session: control.NewID()}
		openModelSession(rt, mem, b.session)
		openModelSession(rt, s, b.session)
		rt.Repeat(map[string]func(*rapid.T){
			"admit": b.Admit, "commit": b.Commit, "advance": b.Advance, "decide": b.Decide, "deliver": b.Deliver, "note": b.Note,
			"attach": b.Attach, "resolve": b.Resolve, "purge": b.Purge,
		})
		b.Check(rt)
	})
}

func openModelSession(t *rapid.T, s modelStore, id string) {
	p, err := s.Policy(bg, nil)
	if err != nil {
		t.Fatal(err)
	}
	ticket, policy := control.Sum([]byte(id)), control.Sum([]byte("policy"))
	for _, step := range []func() error{
		func() error {
			return s.PutTicket(bg, session.Ticket{Digest: ticket, Owner: ada, Profile: "dev", Attended: true, Until: s.Now().Add(time.Hour)})
		},
		func() error {
			return s.OpenSession(bg, ticket, &control.Session{
				Org: control.Org, ID: id, Epoch: 1, Owner: ada, Profile: *p.Profiles["dev"], Attended: true, Host: theHost, PolicyDigest: policy, State: control.SessionOpening,
			}, p.Generation)
		},
		func() error {
			return s.ConfirmGate(bg, session.Confirmation{Session: id, Epoch: 1, Host: theHost, Parent: "proof", PolicyDigest: policy})
		},
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
}

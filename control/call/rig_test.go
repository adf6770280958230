package call_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/grant"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/memstore"
	"sallyport.dev/control/session"
	"sallyport.dev/intent"
	"sallyport.dev/relay"
	"sallyport.dev/relay/strictjson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	ada  = control.Person("local:ada")
	host = "spiffe://sallyport.internal/host/one"

	oneShim   = "shimaaaaaaaaaaaaaaaaaaaaaa"
	otherShim = "shimbbbbbbbbbbbbbbbbbbbbba"
)

// rig is a pipeline over the store in memory, one strict worker and one host.
type rig struct {
	t       testing.TB
	db      *memstore.DB
	workers *fakeWorkers
	hosts   *fakeHosts
	p       *call.Pipeline
	s       *control.Session
	stop    chan struct{}
	log     *bytes.Buffer
	mu      sync.Mutex
	steps   []control.Step
	renewer call.Credentials // in place of the store's
	connect *control.Connection
	profile *control.Profile
}

func tool(name string, effect control.Effect, repeat bool) control.Tool {
	raw := `{"name":"` + name + `","description":"d","inputSchema":{"type":"object","properties":{"project":{"type":"string"},"title":{"type":"string"},"n":{"type":"integer"}},"required":["project"]}}`
	return control.Tool{Name: name, As: name, Effect: effect, Repeat: repeat, Raw: []byte(raw)}
}

func catalogOf(tools ...control.Tool) control.Catalog {
	var parts [][]byte
	for _, t := range tools {
		parts = append(parts, []byte(t.Name), t.Raw)
	}
	return control.Catalog{Org: control.Org, Connection: "tracker", Digest: control.SumParts("catalog v1", parts...), Tools: tools}
}

// option changes the configuration before it is applied.
type option func(*control.Apply)

// newRig makes a rig inside a synctest bubble.
func newRig(t testing.TB, options ...option) *rig {
	r := &rig{t: t, db: memstore.New(), workers: newFakeWorkers(), hosts: newFakeHosts(), stop: make(chan struct{}), log: &bytes.Buffer{}}
	a := control.Apply{
		Org: control.Org, By: ada, Expect: 1,
		Connections: []control.Connection{{
			Org: control.Org, Name: "tracker", Kind: control.KindMCP, Origin: "https://tracker.example.org", Path: "/mcp", Pool: "default",
			Auth: control.Auth{Type: "bearer", Per: "shared"}, Revision: 1, State: control.ConnectionEnabled, Protocol: "2025-11-25",
		}},
		Catalogs: []control.Catalog{catalogOf(tool("create_issue", control.Write, false), tool("get_issue", control.Read, false), tool("list_issues", control.Read, true))},
		Profiles: []control.Profile{{
			Org: control.Org, Name: "dev", Attended: true, Attached: "deny", OnDisconnect: "keep", Approvers: []string{"owner"}, Hold: 45 * time.Second,
			Approval: control.Approval{Expires: time.Hour},
			Grants: []control.Grant{
				{Tools: []string{"tracker/list_issues", "tracker/get_issue"}, Rule: control.Allow},
				{Tools: []string{"tracker/create_issue"}, Rule: control.Ask, When: `args.project in ["web", "api"]`},
			},
		}},
	}
	for _, o := range options {
		o(&a)
	}
	_, err := r.db.Apply(t.Context(), &a)
	r.no(err)
	r.credential(1, "bot")
	r.connect, r.profile = &a.Connections[0], &a.Profiles[0]
	go r.workers.serve(r.stop)
	r.start()
	r.s = r.open(a.Profiles[0].Attended)
	return r
}

func (r *rig) credential(version int64, account string) {
	r.t.Helper()
	r.no(r.db.PutCredential(control.Credential{
		Org: control.Org, Connection: "tracker", Subject: control.SubjectShared, Version: version, Sealed: control.Sealed("sealed"), Account: account,
		State: control.CredentialGood,
	}))
}

func (r *rig) no(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// start makes a pipeline of a fresh run, as a process that starts.
func (r *rig) start() {
	r.t.Helper()
	var out io.Writer = r.log
	if os.Getenv("CALL_LOG") != "" {
		out = os.Stderr
	}
	var credentials call.Credentials = r.db
	if r.renewer != nil {
		credentials = r.renewer
	}
	r.p = call.New(call.Config{
		Run: control.NewID(), Store: r.db, Sessions: r.db, Credentials: credentials, Workers: r.workers, Signer: r.workers, Hosts: r.hosts,
		Log: slog.New(slog.NewTextHandler(&lockedWriter{w: out, mu: &r.mu}, nil)),
		Observe: func(_ *control.Call, s control.Step) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.steps = append(r.steps, s)
		},
	})
	r.no(r.p.Start(r.t.Context()))
	r.workers.mu.Lock()
	r.workers.events = r.p
	r.workers.mu.Unlock()
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// crash ends the pipeline where it stands and starts another; power: what was not durable is lost too.
func (r *rig) crash(power bool) {
	r.t.Helper()
	r.p.Stop()
	if power {
		r.db.Crash()
		r.hosts.mu.Lock()
		r.hosts.progress = map[string][]call.Progress{} // a record that was lost with the power makes a new call
		r.hosts.mu.Unlock()
	}
	r.workers.cut()
	r.start()
	r.workers.join()
	synctest.Wait() // the loss of the old Link is told before anything new is asked
}

// end stops everything and checks that nobody broke a rule.
func (r *rig) end() {
	r.t.Helper()
	r.p.Stop()
	close(r.stop)
	if broken := r.rules(); broken != "" {
		r.t.Error(broken)
	}
}

// rules returns what was broken, or "".
func (r *rig) rules() string {
	r.workers.mu.Lock()
	defer r.workers.mu.Unlock()
	r.hosts.mu.Lock()
	defer r.hosts.mu.Unlock()
	return strings.Join(append(r.workers.broken, r.hosts.broken...), "; ")
}

// open makes an open session.
func (r *rig) open(attended bool) *control.Session {
	r.t.Helper()
	p, err := r.db.Policy(r.t.Context(), nil)
	r.no(err)
	s := &control.Session{
		Org: control.Org, ID: control.NewID(), Epoch: 1, Owner: ada, Profile: *p.Profiles["dev"], Attended: attended, Harness: "claude", Host: host,
		Driver: "bwrap", Closed: "proven", State: control.SessionOpening, PolicyDigest: control.Sum([]byte("p")),
	}
	c := p.Catalogs["tracker"]
	for _, t := range c.Tools {
		s.Tools = append(s.Tools, control.BoundTool{Name: t.As, Connection: "tracker", Revision: 1, Catalog: c.Digest, Tool: t})
	}
	d := control.Sum([]byte(s.ID))
	r.no(r.db.PutTicket(r.t.Context(), session.Ticket{Digest: d, Owner: ada, Profile: "dev", Attended: attended, Until: r.db.Now().Add(time.Minute)}))
	r.no(r.db.OpenSession(r.t.Context(), d, s, p.Generation))
	r.no(r.db.ConfirmGate(r.t.Context(), session.Confirmation{Session: s.ID, Epoch: 1, Host: host, Parent: "p", PolicyDigest: s.PolicyDigest}))
	s.State = control.SessionOpen
	return s
}

// record is one call of the guest.
type record struct {
	id      string
	tool    string
	args    string
	harness string
	shim    string
	session *control.Session
	bytes   []byte
	addr    call.Address
}

func (r *rig) rec(tool, args string, change ...func(*record)) *record {
	c := &record{id: control.NewID(), tool: tool, args: args, shim: oneShim, session: r.s}
	for _, f := range change {
		f(c)
	}
	b, err := relay.AppendCall(nil, &relay.Call{
		Session: c.session.ID, Epoch: c.session.Epoch, Shim: c.shim, ID: c.id, Tool: c.tool, Arguments: []byte(c.args), TimeoutMS: 120000, Progress: true,
		HarnessCall: c.harness,
	})
	r.no(err)
	c.bytes = b
	c.addr = call.Address{Host: host, Session: c.session.ID, Epoch: c.session.Epoch, Record: c.id, Digest: control.Sum(b)}
	return c
}

// do submits a call and lets everything happen that can without time passing.
func (r *rig) do(tool, args string, change ...func(*record)) *record {
	c := r.rec(tool, args, change...)
	r.submit(c)
	return c
}

func (r *rig) submit(c *record) {
	r.p.Submit(call.Submission{Host: host, Session: c.session.ID, Epoch: c.session.Epoch, Record: c.bytes})
	synctest.Wait()
}

// result returns what the record was answered, or "" when it waits.
func (r *rig) result(c *record) string {
	r.hosts.mu.Lock()
	defer r.hosts.mu.Unlock()
	return string(r.hosts.results[c.id].Result)
}

// says fails unless the record's result holds all words.
func (r *rig) says(c *record, words ...string) {
	r.t.Helper()
	got := r.result(c)
	for _, w := range words {
		if !strings.Contains(got, w) {
			r.t.Fatalf("%s is missing in the result %q\nlog: %s", w, got, r.logged())
		}
	}
	if err := strictjson.Check([]byte(got)); err != nil {
		r.t.Fatalf("the result is not strict JSON: %v", err)
	}
}

func (r *rig) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

func (r *rig) waits(c *record) {
	r.t.Helper()
	if got := r.result(c); got != "" {
		r.t.Fatalf("the record was answered: %s", got)
	}
}

func (r *rig) row(c *record) *control.Call {
	r.t.Helper()
	row, err := r.db.Call(r.t.Context(), control.CallID(c.session.ID, c.id))
	r.no(err)
	return row
}

func (r *rig) state(c *record, want journal.State) {
	r.t.Helper()
	if got := r.row(c).State; got != want {
		r.t.Fatalf("the call is %s, not %s\nlog: %s", got, want, r.logged())
	}
}

// sends is how many attempts of the call sent a byte.
func (r *rig) sends(c *record, want int) {
	r.t.Helper()
	r.workers.mu.Lock()
	defer r.workers.mu.Unlock()
	if got := r.workers.sent[control.CallID(c.session.ID, c.id)]; got != want {
		r.t.Fatalf("%d attempts sent bytes, not %d", got, want)
	}
}

func (r *rig) plan(p plan) {
	r.workers.mu.Lock()
	defer r.workers.mu.Unlock()
	r.workers.plan = func(*intent.Intent) plan { return p }
}

// questions returns the open questions.
func (r *rig) questions(kinds ...control.QuestionKind) []*control.Question {
	r.t.Helper()
	qs, err := r.db.Questions(r.t.Context(), inbox.Filter{Org: control.Org, Kinds: kinds})
	r.no(err)
	return qs
}

func (r *rig) question(c *record) *control.Question {
	r.t.Helper()
	qs, err := r.db.Questions(r.t.Context(), inbox.Filter{Call: control.CallID(c.session.ID, c.id)})
	r.no(err)
	if len(qs) != 1 {
		r.t.Fatalf("%d open questions of the call\nlog: %s", len(qs), r.logged())
	}
	return qs[0]
}

// decide writes a decision and wakes the pipeline, as the server does.
func (r *rig) decide(q *control.Question, v control.Verdict, change ...func(*inbox.Request)) error {
	req := inbox.Request{Question: q.ID, Verdict: v, Binding: q.Binding, Actor: inbox.Actor{Person: ada, Local: true}}
	for _, f := range change {
		f(&req)
	}
	got, err := inbox.DecideQuestion(r.t.Context(), r.db, grant.CheckCondition, func(_ context.Context, c *control.Call) (control.Tool, error) {
		for _, b := range r.s.Tools {
			if b.Name == c.Name {
				return b.Tool, nil
			}
		}
		return control.Tool{}, fmt.Errorf("no tool")
	}, req)
	if err == nil {
		r.p.Wake(got.Call)
		if got.Grant != "" {
			r.p.PolicyChanged()
		}
	}
	synctest.Wait()
	return err
}

func (r *rig) approve(c *record) {
	r.t.Helper()
	r.no(r.decide(r.question(c), control.Approve))
}

func (r *rig) throw(kind control.SwitchKind, name string) {
	r.t.Helper()
	r.no(r.db.Throw(r.t.Context(), &control.Switch{Org: control.Org, ID: control.NewID(), Kind: kind, Name: name, By: ada}))
	r.p.PolicyChanged()
	synctest.Wait()
}

// apply changes the configuration of a running rig.
func (r *rig) apply(change func(*control.Apply)) {
	r.t.Helper()
	p, err := r.db.Policy(r.t.Context(), nil)
	r.no(err)
	a := control.Apply{Org: control.Org, By: ada, Expect: p.Generation}
	change(&a)
	_, err = r.db.Apply(r.t.Context(), &a)
	r.no(err)
	r.p.PolicyChanged()
	synctest.Wait()
}

// holds returns the holds of plans that were released.
func (r *rig) holds() map[chan struct{}]bool {
	r.workers.mu.Lock()
	defer r.workers.mu.Unlock()
	return maps.Clone(r.workers.held)
}

// endHolds lets what the worker holds end, so that the bubble can.
func (r *rig) endHolds() {
	for h := range r.holds() {
		close(h)
	}
	synctest.Wait()
}

// later lets time pass.
func (r *rig) later(d time.Duration) {
	<-time.After(d) // the bubble's clock
	synctest.Wait()
}

type relayResult = relay.Result

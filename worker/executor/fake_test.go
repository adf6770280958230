package executor

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/intent/seal"
	"sallyport.dev/worker/keyring"
	"sallyport.dev/worker/upstream"
)

func TestMain(m *testing.M) {
	// The property is the heart of this package: more runs than rapid's hundred, unless the command line says otherwise.
	if err := flag.Set("rapid.checks", "500"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	goleak.VerifyTestMain(m)
}

// failer is what a fake complains to: a test, or rapid's.
type failer interface {
	Errorf(format string, args ...any)
}

// fakeUpstream is as strict as the real one: a preparation is sent or closed once, never both; it counts, and it can be held at each point.
type fakeUpstream struct {
	t failer

	mu       sync.Mutex
	sends    map[string]int // by JSON-RPC id
	prepared map[string]int
	closes   map[string]int
	targets  []*upstream.Target
	calls    []*upstream.Call
	backs    []*upstream.Callback
	// prepareErr and answer decide what happens; nil: success at once.
	prepareErr func(id string) error
	holdOpen   func(ctx context.Context, id string) // blocks Prepare
	answer     func(ctx context.Context, id string) upstream.Outcome
}

func newFake(t failer) *fakeUpstream {
	return &fakeUpstream{t: t, sends: map[string]int{}, prepared: map[string]int{}, closes: map[string]int{}}
}

func (f *fakeUpstream) prepare(ctx context.Context, id string, t *upstream.Target, hooks upstream.Hooks) (Prepared, error) {
	if f.holdOpen != nil {
		f.holdOpen(ctx, id)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if f.prepareErr != nil {
		if err := f.prepareErr(id); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.prepared[id]++
	f.targets = append(f.targets, t)
	return &fakePrepared{f: f, id: id, hooks: hooks}, nil
}

func (f *fakeUpstream) Prepare(ctx context.Context, t *upstream.Target, call *upstream.Call, hooks upstream.Hooks) (Prepared, error) {
	f.mu.Lock()
	f.calls = append(f.calls, call)
	f.mu.Unlock()
	return f.prepare(ctx, call.ID, t, hooks)
}

func (f *fakeUpstream) PrepareCallback(ctx context.Context, t *upstream.Target, call *upstream.Callback, hooks upstream.Hooks) (Prepared, error) {
	f.mu.Lock()
	f.backs = append(f.backs, call)
	f.mu.Unlock()
	return f.prepare(ctx, call.ID, t, hooks)
}

func (f *fakeUpstream) Probe(ctx context.Context, t *upstream.Target) (*upstream.Report, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.targets = append(f.targets, t)
	return &upstream.Report{
		Address: netip.MustParseAddrPort("192.0.2.1:443"), Protocol: "2026-07-28",
		Steps: []upstream.ProbeStep{{Name: "resolve", OK: true, Took: time.Millisecond}, {Name: "tools", OK: true, Message: "3 tools"}},
	}, nil
}

func (f *fakeUpstream) ListTools(ctx context.Context, t *upstream.Target) (*upstream.Catalog, error) {
	if f.prepareErr != nil {
		return nil, f.prepareErr("")
	}
	return &upstream.Catalog{Protocol: "2026-07-28", Tools: []upstream.CatalogTool{{Name: "a", Raw: []byte(`{"name":"a"}`)}}, Excluded: []upstream.Excluded{{Name: "b", Reason: "bad"}}}, nil
}

func (f *fakeUpstream) count(m map[string]int, id string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return m[id]
}

type fakePrepared struct {
	f     *fakeUpstream
	id    string
	hooks upstream.Hooks
	spent bool
}

func (p *fakePrepared) Address() netip.AddrPort { return netip.MustParseAddrPort("192.0.2.1:443") }
func (p *fakePrepared) Protocol() string        { return "2025-11-25" }
func (p *fakePrepared) Session() []byte         { return []byte("exported " + p.id) }
func (p *fakePrepared) Took() time.Duration     { return 3 * time.Millisecond }

func (p *fakePrepared) spend(how string) {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	if p.spent {
		p.f.t.Errorf("%s of %s, which was spent", how, p.id)
	}
	p.spent = true
}

func (p *fakePrepared) Close() {
	p.spend("close")
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	p.f.closes[p.id]++
}

func (p *fakePrepared) Send(ctx context.Context) upstream.Outcome {
	p.spend("send")
	if ctx.Err() != nil {
		return upstream.Outcome{Transport: upstream.NotSent, Failure: upstream.FailCancelled}
	}
	p.f.mu.Lock()
	p.f.sends[p.id]++
	p.f.mu.Unlock()
	if p.hooks.Sent != nil {
		p.hooks.Sent(100)
	}
	if p.f.answer != nil {
		return p.f.answer(ctx, p.id)
	}
	return good(p.id)
}

func good(id string) upstream.Outcome {
	return upstream.Outcome{
		Transport: upstream.Answered, Bytes: 100, Status: 200, Body: []byte(`{"jsonrpc":"2.0","id":"` + id + `","result":{}}`), Protocol: "2025-11-25",
		Session: []byte("exported " + id), Timings: upstream.Timings{Write: time.Millisecond, Wait: 2 * time.Millisecond, Read: time.Millisecond},
	}
}

// fakeLink keeps the frames that an executor sends.
type fakeLink struct {
	mac intent.LinkKey

	mu     sync.Mutex
	frames []*sallyportv1.WorkerFrame
	gone   bool
}

func (l *fakeLink) Push(frames ...*sallyportv1.WorkerFrame) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return false
	}
	l.frames = append(l.frames, frames...)
	return true
}

func (l *fakeLink) PushBody(frames ...*sallyportv1.WorkerFrame) bool { return l.Push(frames...) }

func (l *fakeLink) VerifyMAC(encoded, mac []byte) bool { return l.mac.VerifyMAC(encoded, mac) }

// take returns the frames since the last take, in words, and forgets them.
func (l *fakeLink) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, f := range l.frames {
		out = append(out, words(f))
	}
	l.frames = nil
	return out
}

func (l *fakeLink) last() *sallyportv1.WorkerFrame {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.frames) == 0 {
		return nil
	}
	return l.frames[len(l.frames)-1]
}

func words(f *sallyportv1.WorkerFrame) string {
	switch f := f.GetFrame().(type) {
	case *sallyportv1.WorkerFrame_Ready:
		return "ready"
	case *sallyportv1.WorkerFrame_Sent:
		return "sent"
	case *sallyportv1.WorkerFrame_Progress:
		return "progress"
	case *sallyportv1.WorkerFrame_Chunk:
		return "chunk"
	case *sallyportv1.WorkerFrame_Outcome:
		return strings.TrimSpace("outcome " + strings.ToLower(strings.TrimPrefix(f.Outcome.GetTransport().String(), "TRANSPORT_")) + " " + f.Outcome.GetFailure())
	case *sallyportv1.WorkerFrame_Attested:
		return "attested " + strings.ToLower(strings.TrimPrefix(f.Attested.GetState().String(), "ATTEST_STATE_"))
	}
	return "unknown frame"
}

// rig is an executor with a fake at each side, and control's keys.
type rig struct {
	t    testing.TB
	x    *Executor
	up   *fakeUpstream
	link *fakeLink
	node intent.SigningKey
	keys *keyring.Keyring
	n    int
}

type memory map[string][]byte

func (m memory) Read(name string) ([]byte, error) {
	if b, ok := m[name]; ok {
		return slices.Clone(b), nil
	}
	return nil, errs.New(errs.NotFound, "there is no "+name)
}

func (m memory) Write(name string, b []byte) error {
	m[name] = slices.Clone(b)
	return nil
}

const run = "runaaaaaaaaaaaaaaaaaaaaaaa"

func newRig(t testing.TB, capacity int) *rig {
	t.Helper()
	root, err := intent.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	node, err := intent.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	ring := intent.NewRing(root.Public())
	if err := ring.Replace("a", []intent.NodeKey{root.Certify(node.Public(), time.Now().Add(time.Hour))}, time.Now()); err != nil {
		t.Fatal(err)
	}
	keys, _, err := keyring.Open(memory{})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, up: newFake(t), node: node, keys: keys, link: &fakeLink{}}
	r.x = New(Config{Run: run, Pool: "default", Ring: ring, Keyring: keys, Upstream: r.up, Capacity: capacity, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	t.Cleanup(func() {
		r.x.Close()
		keys.Close()
	})
	return r
}

var arguments = []byte(`{"title":"hello"}`)

// intent makes the next intent: a call.
func (r *rig) intent(effect string) intent.Intent {
	r.n++
	id := func(kind string) string {
		return (kind + strings.NewReplacer("0", "x", "1", "y", "8", "z", "9", "w").Replace(fmt.Sprintf("%06d", r.n)) + strings.Repeat("a", 26))[:26]
	}
	now := time.Now()
	return intent.Intent{
		V: intent.Protected, ID: id("intent"), Org: "default", Kind: intent.Call, Call: id("call"), Attempt: 1, Session: id("session"),
		Binding: intent.Digest([]byte("b")), Connection: "tracker", Revision: 1, Pool: "default", Transport: intent.TransportMCP,
		Origin: "https://mcp.tracker.example.org", Path: "/mcp", AuthType: intent.AuthNone, Tool: "create_issue", Effect: effect,
		Arguments: intent.Digest(arguments), Authority: "rule", ResultBytes: 1 << 20, ConnectMS: 5000, AnswerMS: 120_000, SilenceMS: 120_000,
		NotBefore: now.UnixMilli(), StartBefore: now.Add(30 * time.Second).UnixMilli(), FinishBefore: now.Add(3 * time.Minute).UnixMilli(), Audience: run,
	}
}

func (r *rig) job(in intent.Intent, goNow bool) *sallyportv1.IntentJob {
	r.t.Helper()
	b, err := intent.Encode(in)
	if err != nil {
		r.t.Fatal(err)
	}
	return &sallyportv1.IntentJob{Intent: b, Signature: r.node.Sign(b), KeyId: r.node.ID(), Arguments: arguments, Go: goNow}
}

// stateOf says where an intent stands.
func (r *rig) stateOf(id string) state {
	r.x.mu.Lock()
	defer r.x.mu.Unlock()
	if e := r.x.entries[id]; e != nil {
		return e.state
	}
	return r.x.ended.get(id)
}

func (r *rig) sealed(in *intent.Intent, secret string) []byte {
	r.t.Helper()
	b := seal.Bound{
		Org: in.Org, Connection: in.Connection, Subject: in.Subject, Version: in.Version, Origin: in.Origin, PathPrefix: in.Path, Header: in.AuthHeader, Account: in.Account,
	}
	s, err := seal.Seal(r.keys.Public(), seal.Credential, b.Bytes(), []byte(secret))
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

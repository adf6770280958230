package sqlstore

import (
	"bytes"
	"os"
	"testing"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// onDisk reports whether a word stands anywhere in the store's files.
func onDisk(t *testing.T, s *Store, word []byte) bool {
	t.Helper()
	entries, err := os.ReadDir(s.opts.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(s.path(e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, word) {
			return true
		}
	}
	return false
}

var canary = []byte("canary-7c1e9a40-a-body-in-clear")

// ended stores a read that was answered with body.
func (w *world) ended(args, body []byte) *control.Call {
	w.t.Helper()
	a := w.readAdmission()
	a.Call.Arguments, a.Call.ArgsDigest = args, control.Sum(args)
	w.admit(a)
	s := settle(a.Call, false)
	s.Set.Body = body
	w.advance(s)
	return a.Call
}

func TestBodiesAreSealedAtRest(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	w := newWorld(t, s)
	secret := func(n string) []byte { return append(append([]byte(nil), canary...), n...) }
	c := w.ended(secret("args"), secret("body"))
	x, q := w.approved()
	if r, err := s.Commit(t.Context(), w.barrier(x, q)); err != nil || r != call.Done {
		t.Fatal(r, err)
	}
	ask := &control.Question{
		ID: control.NewID(), Kind: control.AskInput, Call: x.ID, Session: w.session, Owner: ada, Local: true, Binding: x.Binding, Form: secret("form"),
	}
	w.advance(&call.Advance{
		Call: x.ID, From: journal.Dispatching, Attempt: 1, Lease: x.Lease, Question: ask,
		Step: control.Step{From: journal.Dispatching, Event: journal.OnInput, To: journal.InputWanted, Attempt: 1},
		Set:  call.Set{RequestState: secret("state"), InputRequests: secret("requests"), Answer: secret("answer"), TaskHandle: secret("task")},
	})
	w.oneWrite(func(acknowledged) {}) // a later commit, so that nothing waits in memory
	got, err := s.Call(t.Context(), c.ID)
	if err != nil || !bytes.Equal(got.Arguments, secret("args")) || !bytes.Equal(got.Body, secret("body")) {
		t.Fatalf("%v %v", got, err)
	}
	got, err = s.Call(t.Context(), x.ID)
	if err != nil || !bytes.Equal(got.RequestState, secret("state")) || !bytes.Equal(got.InputRequests, secret("requests")) ||
		!bytes.Equal(got.Answer, secret("answer")) || !bytes.Equal(got.TaskHandle, secret("task")) {
		t.Fatalf("%v %v", got, err)
	}
	question, err := s.Question(t.Context(), ask.ID)
	if err != nil || !bytes.Equal(question.Form, secret("form")) {
		t.Fatalf("%v %v", question, err)
	}
	if onDisk(t, s, canary) {
		t.Fatal("a body stands in a file in clear")
	}
	if !onDisk(t, s, []byte(c.ID)) {
		t.Fatal("the search finds nothing at all")
	}
}

func TestABodyOpensInItsPlaceAlone(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	w := newWorld(t, s)
	a, b := w.ended([]byte("a"), []byte("body a")), w.ended([]byte("b"), []byte("body b"))
	if err := s.do(t.Context(), 0, func(t *tx) error {
		_, err := t.exec(`UPDATE bodies SET sealed = (SELECT sealed FROM bodies o WHERE o.key = bodies.key - 16) WHERE key >> 4 = (SELECT seq FROM calls WHERE id = ?)`, b.ID)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Call(t.Context(), b.ID); !errs.Is(err, errs.Internal) {
		t.Fatalf("another call's body opens: %v", err)
	}
	if _, err := s.Call(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
}

func TestAnotherJournalKeyOpensNothing(t *testing.T) {
	opts := testOptions(t, t.TempDir())
	var id string
	reopen(t, opts, func(s *Store) { id = newWorld(t, s).ended([]byte("a"), []byte("b")).ID })
	opts.Key = freshKey(t)
	s := openTest(t, opts)
	if _, err := s.Call(t.Context(), id); !errs.Is(err, errs.Internal) {
		t.Fatal(err)
	}
	all, _, err := s.ListCalls(t.Context(), call.Filter{Limit: 10}) // everything but bodies is there
	if err != nil || len(all) != 1 || all[0].ID != id {
		t.Fatalf("%v %v", all, err)
	}
}

func TestBigBodies(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	w := newWorld(t, s)
	big := bytes.Repeat([]byte("0123456789abcdef"), 3*partSize/16)
	c := w.ended(big[:partSize+1], big)
	got, err := s.Call(t.Context(), c.ID)
	if err != nil || !bytes.Equal(got.Body, big) || !bytes.Equal(got.Arguments, big[:partSize+1]) {
		t.Fatalf("%d bytes, %v", len(got.Body), err)
	}
	if n := s.count(t, "SELECT count(*) FROM body_parts"); n < 5 {
		t.Fatalf("%d parts", n)
	}
	// A step that finds another row than it named leaves nothing behind.
	again := settle(c, false)
	again.Set.Body = big
	if r, err := s.Advance(t.Context(), again); err != nil || r != call.Fenced {
		t.Fatal(r, err)
	}
	before := s.count(t, "SELECT count(*) FROM bodies WHERE parts > 0")
	w.oneWrite(func(acknowledged) {}) // what is discarded rides along
	if n := s.count(t, "SELECT count(DISTINCT id) FROM body_parts"); n != before {
		t.Fatalf("parts of %d bodies for %d", n, before)
	}
	if err := s.PurgeCall(t.Context(), c.ID, ada); err != nil {
		t.Fatal(err)
	}
	if n := s.count(t, "SELECT count(*) FROM body_parts") + s.count(t, "SELECT count(*) FROM bodies WHERE parts > 0"); n != 0 {
		t.Fatalf("%d rows are left of purged bodies", n)
	}
}

func TestPurgedBytesAreGone(t *testing.T) {
	opts := testOptions(t, t.TempDir())
	s := openTest(t, opts)
	w := newWorld(t, s)
	c := w.ended([]byte("a"), canary)
	var sealed []byte
	if err := s.read(t.Context(), func(r *conn) error {
		_, err := r.row("SELECT sealed FROM bodies WHERE key & 15 = 1", nil, &sealed)
		return err
	}); err != nil || len(sealed) == 0 {
		t.Fatal(err)
	}
	if err := s.PurgeCall(t.Context(), c.ID, ada); err != nil {
		t.Fatal(err)
	}
	if _, err := s.w.checkpoint("TRUNCATE"); err != nil { // the log forgets with its next beginning
		t.Fatal(err)
	}
	if onDisk(t, s, sealed[20:]) {
		t.Fatal("a purged body still stands in the database")
	}
}

func TestRetention(t *testing.T) {
	opts := testOptions(t, t.TempDir())
	clock := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	opts.Now = func() time.Time { return clock }
	s := openTest(t, opts)
	w := newWorld(t, s)
	var old []*control.Call
	for range 3 * retainStep / 2 {
		old = append(old, w.ended([]byte("a"), []byte("b")))
	}
	asked, _ := w.asking()
	u, q := w.approved()
	if r, err := s.Commit(t.Context(), w.barrier(u, q)); err != nil || r != call.Done {
		t.Fatal(r, err)
	}
	w.advance(&call.Advance{
		Call: u.ID, From: journal.Dispatching, Attempt: 1, Lease: u.Lease, Durable: true,
		Step: control.Step{From: journal.Dispatching, Event: journal.OnLost, To: journal.Uncertain, Attempt: 1},
	})
	retain := func(after time.Duration) {
		t.Helper()
		clock = clock.Add(after)
		if err := s.Retain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	bodies := func() int { return s.count(t, "SELECT count(*) FROM bodies") }
	all := bodies()
	retain(29 * 24 * time.Hour)
	if bodies() != all {
		t.Fatal("bodies went before their time")
	}
	fresh := w.ended([]byte("a"), []byte("b"))
	retain(2 * 24 * time.Hour)
	if n := bodies(); n != 4 { // two of the fresh one, the arguments of what is not over
		t.Fatalf("%d bodies are left", n)
	}
	got, err := s.Call(t.Context(), old[0].ID)
	if err != nil || got.Body != nil || got.ArgsDigest.IsZero() {
		t.Fatalf("%v %v", got, err)
	}
	for _, c := range []*control.Call{asked, u, fresh} {
		if got, err := s.Call(t.Context(), c.ID); err != nil || len(got.Arguments) == 0 {
			t.Fatalf("a call that is not over, or fresh, lost its arguments: %v", err)
		}
	}
	rep := verified(t, s)
	retain(400 * 24 * time.Hour)
	if _, err := s.Call(t.Context(), old[0].ID); !errs.Is(err, errs.NotFound) {
		t.Fatal(err)
	}
	for _, c := range []*control.Call{asked, u} {
		if _, err := s.Call(t.Context(), c.ID); err != nil {
			t.Fatalf("a call that is not over is gone: %v", err)
		}
	}
	if _, err := s.Steps(t.Context(), u.ID); err != nil {
		t.Fatal(err)
	}
	w.oneWrite(func(acknowledged) {})
	later := verified(t, s)
	if later.First <= rep.First || later.Last <= rep.Last {
		t.Fatalf("%+v after %+v", later, rep)
	}
	// A store that is opened again numbers on.
	seq := later.Last
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	opts.Run = ""
	reopen(t, opts, func(s *Store) {
		if rep := verified(t, s); rep.Last <= seq {
			t.Fatalf("%d after %d", rep.Last, seq)
		}
		newWorldAgain(t, s).oneWrite(func(acknowledged) {})
	})
}

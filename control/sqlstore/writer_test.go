package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport.dev/errs"
)

func (s *Store) queued() int {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return len(s.queue.items)
}

// together runs writes as one batch and returns their errors. The first write opens the batch's turn; the others queue behind it.
func together(t *testing.T, s *Store, classes class, fs ...func(*tx) error) []error {
	t.Helper()
	out := make([]error, len(fs))
	var wg sync.WaitGroup
	gate := make(chan struct{})
	entered := make(chan struct{})
	wg.Go(func() {
		if err := s.do(t.Context(), 0, func(*tx) error { close(entered); <-gate; return nil }); err != nil {
			t.Error(err)
		}
	})
	<-entered // the writer is within a batch: the next ones wait for the next batch
	for i, f := range fs {
		wg.Go(func() { out[i] = s.do(t.Context(), classes, f) })
	}
	for s.queued() < len(fs) {
		runtime.Gosched()
	}
	close(gate)
	wg.Wait()
	return out
}

func insertRun(id string) func(*tx) error {
	return func(t *tx) error {
		_, err := t.exec("INSERT INTO leases (run, org, until, dead) VALUES (?, 'default', 0, 0)", id)
		return err
	}
}

func (s *Store) count(t *testing.T, sql string, args ...any) int {
	t.Helper()
	n := 0
	if err := s.read(t.Context(), func(c *conn) error {
		_, err := c.row(sql, args, &n)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAFailedWriteTakesNothingAlong(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	refused := errs.New(errs.Conflict, "no")
	runs := atomic.Int64{}
	got := together(t, s, 0,
		insertRun("a"),
		func(t *tx) error { // it writes, then refuses
			if err := insertRun("b")(t); err != nil {
				return err
			}
			t.record("store", "x", "", "lost", "", "", "")
			t.bump()
			return refused
		},
		func(t *tx) error { // it refuses before it writes
			return refused
		},
		func(t *tx) error {
			if err := insertRun("c")(t); err != nil {
				return err
			}
			panic("a defect") //nolint:forbidigo // the defect is the test
		},
		func(t *tx) error { // a constraint
			if err := insertRun("d")(t); err != nil {
				return err
			}
			return insertRun("d")(t)
		},
		func(t *tx) error {
			runs.Add(1)
			return insertRun("e")(t)
		},
	)
	for i, want := range []errs.Code{"", errs.Conflict, errs.Conflict, errs.Internal, errs.Internal, ""} {
		if errs.CodeOf(got[i]) != want {
			t.Errorf("write %d: %v, want %q", i, got[i], want)
		}
	}
	if n := s.count(t, "SELECT count(*) FROM leases WHERE run IN ('a', 'e')"); n != 2 {
		t.Errorf("%d of the good writes stand", n)
	}
	if n := s.count(t, "SELECT count(*) FROM leases"); n != 2 {
		t.Errorf("%d rows: a failed write left something", n)
	}
	if n := s.count(t, "SELECT count(*) FROM batches WHERE records LIKE '%lost%'"); n != 0 {
		t.Error("a failed write left a record")
	}
	if g := s.view.Load().generation; g != 1 {
		t.Errorf("a failed write made generation %d", g)
	}
}

func TestWritesShareACommit(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	before := s.HighWater().Counter
	var fs []func(*tx) error
	for i := range 50 {
		fs = append(fs, insertRun(fmt.Sprint(i)))
	}
	for _, err := range together(t, s, durable, fs...) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := s.HighWater().Counter - before; n < 1 || n > 2 {
		t.Errorf("50 writes that waited together made %d durable commits", n)
	}
	if n := s.count(t, "SELECT count(*) FROM leases"); n != 50 {
		t.Errorf("%d rows", n)
	}
}

func TestTheCounterCountsDurableCommits(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	before := s.HighWater().Counter
	for i := range 3 {
		if err := s.do(t.Context(), 0, insertRun(fmt.Sprint("n", i))); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.HighWater().Counter; got != before {
		t.Errorf("commits without fsync count: %d after %d", got, before)
	}
	for i := range 3 {
		if err := s.do(t.Context(), durable, insertRun(fmt.Sprint("d", i))); err != nil {
			t.Fatal(err)
		}
		if got := s.HighWater().Counter; got != before+int64(i)+1 {
			t.Errorf("durable commit %d: counter %d after %d", i+1, got, before)
		}
	}
	m, err := readHighwater(s.path("highwater"))
	if err != nil || m != s.HighWater() {
		t.Errorf("the file remembers %+v, %v; the store %+v", m, err, s.HighWater())
	}
}

func TestAnEndedRequestIsNotWritten(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.do(ctx, 0, insertRun("a"))
	if !errs.Is(err, errs.Unavailable) || !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if n := s.count(t, "SELECT count(*) FROM leases"); n != 0 {
		t.Fatal("it was written")
	}
	if err := s.read(ctx, func(*conn) error { return nil }); !errs.Is(err, errs.Unavailable) {
		t.Fatal(err)
	}
}

func TestAClosedStoreSaysSo(t *testing.T) {
	s, err := Open(t.Context(), testOptions(t, t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	s.SessionSeen("nobody")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.do(t.Context(), 0, insertRun("a")); !errs.Is(err, errs.Unavailable) {
		t.Error(err)
	}
	if _, err := s.Call(t.Context(), "x"); !errs.Is(err, errs.Unavailable) {
		t.Error(err)
	}
	s.SessionSeen("nobody")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestRidersAreWrittenWithoutACommit(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	s.queue.ride(insertRun("rider"))
	for s.count(t, "SELECT count(*) FROM leases") == 0 { // until the test's own deadline
		runtime.Gosched()
	}
}

func TestSightsAreNotWrittenAgainAndAgain(t *testing.T) {
	opts := testOptions(t, t.TempDir())
	clock := atomic.Int64{}
	clock.Store(1_000_000_000)
	opts.Now = func() time.Time { return time.UnixMilli(clock.Load()) }
	s := openTest(t, opts)
	w := newWorld(t, s)
	seen := func() time.Time {
		t.Helper()
		s.SessionSeen(w.session)
		if err := s.do(bg, 0, func(t *tx) error { _, err := t.exec("UPDATE leases SET until = 0"); return err }); err != nil {
			t.Fatal(err)
		}
		got, err := s.Session(bg, w.session)
		if err != nil {
			t.Fatal(err)
		}
		return got.SeenAt
	}
	first := seen()
	clock.Add(seenEvery.Milliseconds() / 2)
	if again := seen(); !again.Equal(first) {
		t.Errorf("it was written after half the time: %v, %v", first, again)
	}
	clock.Add(seenEvery.Milliseconds())
	if later := seen(); !later.After(first) {
		t.Errorf("it was not written after the time: %v", later)
	}
}

package sqlstore

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

func exported(t *testing.T, s *Store, since time.Time) string {
	t.Helper()
	var b bytes.Buffer
	if err := s.Export(t.Context(), since, &b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func auditKeys(s *Store) []ed25519.PublicKey {
	return []ed25519.PublicKey{s.opts.Audit.Public().(ed25519.PublicKey)}
}

func TestTheRecordIsWholeOverRuns(t *testing.T) {
	opts := testOptions(t, t.TempDir())
	var held []byte
	for range 3 {
		opts.Run = ""
		reopen(t, opts, func(s *Store) {
			w := newWorldAgain(t, s)
			w.oneWrite(func(acknowledged) {})
			if err := s.signCheckpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
			if held == nil {
				held = s.Checkpoint()
			}
			for range 20 {
				if err := w.oneRead(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	s := openTest(t, opts)
	signed, err := audit.DecodeSigned(held)
	if err != nil {
		t.Fatal(err)
	}
	text := exported(t, s, time.Time{})
	rep, err := audit.Verify(strings.NewReader(text), audit.Options{Keys: auditKeys(s), AtLeast: &signed})
	if err != nil || len(rep.Runs) != 4 || rep.First != 1 || rep.Covered != rep.Last || rep.Checkpoints < 4 {
		t.Fatalf("%+v %v", rep, err)
	}
	if rep.Records != rep.Last {
		t.Fatalf("%d records, the last is %d", rep.Records, rep.Last)
	}
	for _, word := range []string{string(answer), `"title"`, "open issues", "sealed"} {
		if strings.Contains(text, word) {
			t.Errorf("the record holds %q", word)
		}
	}
}

func TestStepsAreTheRecord(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	w := newWorld(t, s)
	c, q := w.approved()
	b := w.barrier(c, q)
	b.Step.Digest, b.Step.Reason, b.Step.Code = control.Sum([]byte("intent")), "because  of\xffit", errs.NotSent
	if r, err := s.Commit(t.Context(), b); err != nil || r != call.Done {
		t.Fatal(r, err)
	}
	steps, err := s.Steps(t.Context(), c.ID)
	if err != nil || len(steps) != 4 {
		t.Fatalf("%d steps, %v", len(steps), err)
	}
	last := steps[3]
	want := b.Step
	want.At, want.Reason = last.At, "because  of\uFFFDit"
	if last != want || last.At.IsZero() {
		t.Fatalf("got %+v, want %+v", last, want)
	}
	if steps[0].Event != journal.OnRecord || steps[0].From != journal.None || steps[2].Actor != string(ada) {
		t.Fatalf("%+v", steps)
	}
}

func TestAChangedDatabaseIsFoundOut(t *testing.T) {
	for name, sql := range map[string]string{
		"a record changed": `UPDATE batches SET records = replace(records, 'approve', 'deny') WHERE first = (SELECT max(first) FROM batches WHERE records LIKE '%approve%')`,
		"a batch left out": `DELETE FROM batches WHERE first = (SELECT min(first) FROM batches WHERE records LIKE '%approve%')`,
		"a link changed":   `UPDATE batches SET link = zeroblob(32) WHERE first = (SELECT min(first) FROM batches WHERE records LIKE '%approve%')`,
		"a time changed":   `UPDATE batches SET at = at + 1 WHERE first = (SELECT min(first) FROM batches WHERE records LIKE '%approve%')`,
		"a run changed":    `UPDATE runs SET id = 'other'`,
	} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, testOptions(t, t.TempDir()))
			w := newWorld(t, s)
			w.oneWrite(func(acknowledged) {})
			if err := s.signCheckpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
			verified(t, s)
			if err := s.do(t.Context(), 0, func(t *tx) error { _, err := t.exec(sql); return err }); err != nil {
				t.Fatal(err)
			}
			_, err := audit.Verify(strings.NewReader(exported(t, s, time.Time{})), audit.Options{Keys: auditKeys(s)})
			if !errs.Is(err, errs.Invalid) {
				t.Fatalf("not found: %v", err)
			}
		})
	}
}

func TestExportSince(t *testing.T) {
	opts := testOptions(t, t.TempDir())
	clock := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	opts.Now = func() time.Time { return clock }
	s := openTest(t, opts)
	w := newWorld(t, s)
	for range 5 {
		clock = clock.Add(time.Hour)
		w.oneWrite(func(acknowledged) {})
	}
	cut := clock.Add(-90 * time.Minute)
	all, err := audit.Verify(strings.NewReader(exported(t, s, time.Time{})), audit.Options{Keys: auditKeys(s)})
	if err != nil {
		t.Fatal(err)
	}
	text := exported(t, s, cut)
	some, err := audit.Verify(strings.NewReader(text), audit.Options{Keys: auditKeys(s)})
	if err != nil || some.First <= all.First || some.Last < all.Last || some.Records == 0 {
		t.Fatalf("%+v of %+v: %v", some, all, err)
	}
	for line := range strings.Lines(text) {
		var l audit.Line
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		if l.Record != nil && l.Record.At < cut.UnixMilli() {
			t.Fatalf("a record from before: %s", line)
		}
	}
	if none, err := audit.Verify(strings.NewReader(exported(t, s, clock.Add(time.Hour))), audit.Options{Keys: auditKeys(s)}); err != nil || none.Records != 0 {
		t.Fatalf("%+v %v", none, err)
	}
}

func TestWitnesses(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	newWorld(t, s)
	if err := s.signCheckpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	held := s.Checkpoint()
	if held == nil {
		t.Fatal("no checkpoint")
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // again changes nothing
		if err := s.PutWitness(t.Context(), theHost, held, ed25519.Sign(key, audit.WitnessMessage(held))); err != nil {
			t.Fatal(err)
		}
	}
	foreign, err := audit.Sign(key, audit.Checkpoint{Org: control.Org, Run: "x", Seq: 1, Link: control.Sum(nil).String()})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := foreign.Encode()
	if err := s.PutWitness(t.Context(), theHost, b, nil); !errs.Is(err, errs.NotFound) {
		t.Fatal(err)
	}
	if err := s.PutWitness(t.Context(), theHost, []byte("x"), nil); !errs.Is(err, errs.Invalid) {
		t.Fatal(err)
	}
	rep, err := audit.Verify(strings.NewReader(exported(t, s, time.Time{})), audit.Options{Keys: auditKeys(s)})
	if err != nil || rep.Unchecked != 1 {
		t.Fatalf("%+v %v", rep, err)
	}
}

func TestACheckpointSignsOnlyWhatIsNew(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	newWorld(t, s)
	for range 3 {
		if err := s.signCheckpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.count(t, "SELECT count(*) FROM checkpoints"); n != 1 {
		t.Fatalf("%d checkpoints of one state", n)
	}
}

func TestPackedNumbers(t *testing.T) {
	var list []byte
	want := []int64{1, 2, 3, 1000, 1 << 40}
	for _, n := range want {
		list = packNumber(list, n)
	}
	got := unpackNumbers(list)
	if len(got) != len(want) {
		t.Fatal(got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatal(got)
		}
	}
	if n := unpackNumbers([]byte{0x80}); len(n) != 0 {
		t.Fatal(n)
	}
}

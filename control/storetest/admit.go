package storetest

import (
	"testing"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

func testAdmitOnce(t *testing.T, f *fixture) {
	c, _ := f.admit(control.Write, journal.Admitted)
	got := f.load(c.ID)
	want(t, "arguments", string(got.Arguments), string(c.Arguments))
	want(t, "digest", got.RecordDigest, c.RecordDigest)
	want(t, "state", got.State, journal.Admitted)
	want(t, "delivery", got.Delivery, journal.DeliveryNone)
	if got.AdmittedAt.IsZero() {
		t.Fatal("no time of admission")
	}

	again := *c
	again.Lease = "another"
	res, err := f.Call.Admit(t.Context(), f.admission(&again, journal.Admitted))
	f.no(err)
	want(t, "same bytes", res.Result, call.Attaches)
	want(t, "earlier", res.Earlier.ID, c.ID)
	want(t, "earlier lease", res.Earlier.Lease, run)

	// A repeat attaches whatever has become of the session.
	f.no(f.Session.CloseSession(t.Context(), f.session.ID, 0, "ada", "done"))
	res, err = f.Call.Admit(t.Context(), f.admission(&again, journal.Admitted))
	f.no(err)
	want(t, "same bytes, closed session", res.Result, call.Attaches)

	other := *c
	other.RecordDigest = control.Sum([]byte("other bytes"))
	other.Arguments = []byte(`{}`)
	res, err = f.Call.Admit(t.Context(), f.admission(&other, journal.Admitted))
	f.no(err)
	want(t, "other bytes", res.Result, call.Conflicts)
	want(t, "arguments", string(f.load(c.ID).Arguments), string(c.Arguments))
	lines, err := f.Call.Steps(t.Context(), c.ID)
	f.no(err)
	last := lines[len(lines)-1]
	want(t, "journal line", last.Event, journal.Event("conflict"))
	want(t, "journal line's digest", last.Digest, other.RecordDigest)
	_, err = f.Call.Call(t.Context(), control.NewID())
	wantCode(t, err, errs.NotFound)
}

func testAdmitGuard(t *testing.T, f *fixture) {
	for name, c := range map[string]struct {
		change func(*call.Guard)
		want   call.Result
	}{
		"another generation":    {func(g *call.Guard) { g.Generation-- }, call.Stale},
		"another epoch":         {func(g *call.Guard) { g.Epoch = 2 }, call.NotOpen},
		"unknown session":       {func(g *call.Guard) { g.Session = control.NewID() }, call.Closed},
		"another credential":    {func(g *call.Guard) { g.Credential.Version = 2 }, call.Changed},
		"no such credential":    {func(g *call.Guard) { g.Credential.Subject = "eve" }, call.Changed},
		"a counter moved":       {func(g *call.Guard) { g.Takes = []call.Take{{Key: "k", ExpectUsed: 3}} }, call.Stale},
		"no counter left":       {func(g *call.Guard) { g.Takes = []call.Take{{Key: "k", Bytes: 10, AddBytes: 11, ExpectUsed: -1}} }, call.Limited},
		"nothing is suspending": {func(g *call.Guard) { g.Suspending = true }, call.Done},
	} {
		t.Run(name, func(t *testing.T) {
			a := f.admission(f.row(control.Read), journal.Dispatching)
			c.change(&a.Guard)
			got, err := f.Call.Admit(t.Context(), a)
			f.no(err)
			want(t, "result", got.Result, c.want)
			_, err = f.Call.Call(t.Context(), a.Call.ID)
			if c.want != call.Done {
				wantCode(t, err, errs.NotFound)
			}
		})
	}
	t.Run("a refusal needs the session only", func(t *testing.T) {
		a := f.admission(f.row(control.Write), journal.Refused)
		a.Guard.Generation, a.Guard.Credential.Version = 0, 9
		got, err := f.Call.Admit(t.Context(), a)
		f.no(err)
		want(t, "result", got.Result, call.Done)
		row := f.load(a.Call.ID)
		want(t, "code", row.Code, errs.RuleDenied)
		want(t, "reason", row.Reason, "no grant")
		if row.SettledAt.IsZero() {
			t.Fatal("a refused call has no end")
		}
	})
	t.Run("an unsent read ends at once", func(t *testing.T) {
		a := f.admission(f.row(control.Read), journal.Refused)
		a.Call.State, a.Call.Code = journal.Failed, errs.NotSent
		a.Steps = steps(journal.OnRecord, journal.Admitted, journal.OnPrepareFailed, journal.Failed)
		got, err := f.Call.Admit(t.Context(), a)
		f.no(err)
		want(t, "result", got.Result, call.Done)
		want(t, "state", f.load(a.Call.ID).State, journal.Failed)
	})
	t.Run("parked", func(t *testing.T) {
		f.no(f.Session.ParkSession(t.Context(), f.session.ID, 1))
		for _, state := range []journal.State{journal.Refused, journal.Asking, journal.Dispatching} {
			got, err := f.Call.Admit(t.Context(), f.admission(f.row(control.Read), state))
			f.no(err)
			want(t, "result", got.Result, call.NotOpen)
		}
	})
}

func testAlias(t *testing.T, f *fixture) {
	c, _ := f.admit(control.Write, journal.Asking)
	record := control.NewID()
	alias := &control.Alias{
		ID: control.CallID(f.session.ID, record), Session: f.session.ID, Record: record, RecordDigest: control.Sum([]byte(record)), Kind: "await", Call: c.ID,
	}
	attach := func(a *control.Alias, epoch int64) (call.Result, *control.Call) {
		t.Helper()
		r, row, err := f.Call.Attach(t.Context(), a, epoch)
		f.no(err)
		return r, row
	}
	r, _ := attach(alias, 2)
	want(t, "another epoch", r, call.NotOpen)
	_, err := f.Call.Alias(t.Context(), alias.ID)
	wantCode(t, err, errs.NotFound)
	r, row := attach(alias, 1)
	want(t, "first", r, call.Done)
	want(t, "call", row.ID, c.ID)
	r, row = attach(alias, 1)
	want(t, "again", r, call.Attaches)
	want(t, "call", row.ID, c.ID)
	got, err := f.Call.Alias(t.Context(), alias.ID)
	f.no(err)
	want(t, "alias", *got, *alias)
	other := *alias
	other.RecordDigest = control.Sum([]byte("other"))
	r, _ = attach(&other, 1)
	want(t, "other bytes", r, call.Conflicts)

	// A record that is an alias makes no call any more, and a record that made a call no alias.
	late := f.row(control.Write)
	late.ID, late.Record, late.RecordDigest = alias.ID, alias.Record, alias.RecordDigest
	res, err := f.Call.Admit(t.Context(), f.admission(late, journal.Admitted))
	f.no(err)
	want(t, "admission of an alias", res.Result, call.Attaches)
	want(t, "call", res.Earlier.ID, c.ID)
	r, row = attach(&control.Alias{ID: c.ID, Session: c.Session, Record: c.Record, RecordDigest: c.RecordDigest, Kind: "twin", Call: c.ID}, 1)
	want(t, "alias of a call", r, call.Attaches)
	want(t, "call", row.ID, c.ID)
	_, _, err = f.Call.Attach(t.Context(), &control.Alias{ID: control.NewID(), Session: f.session.ID, Call: control.NewID()}, 1)
	wantCode(t, err, errs.NotFound)
}

func testAdmitRead(t *testing.T, f *fixture) {
	take := call.Take{Key: "rule/x", Calls: 2, ExpectUsed: -1, AddBytes: 7}
	for i := range 3 {
		a := f.admission(f.row(control.Read), journal.Dispatching)
		a.Guard.Takes = []call.Take{take}
		got, err := f.Call.Admit(t.Context(), a)
		f.no(err)
		if i == 2 {
			want(t, "third", got.Result, call.Limited)
			break
		}
		want(t, "result", got.Result, call.Done)
		row := f.load(a.Call.ID)
		want(t, "state", row.State, journal.Dispatching)
		want(t, "attempt", row.Attempt, 1)
		want(t, "authority", row.Authority.Kind, control.ByRule)
		if row.StartedAt.IsZero() {
			t.Fatal("no start")
		}
		byIntent, err := f.Call.ByIntent(t.Context(), a.Call.Intent)
		f.no(err)
		want(t, "by intent", byIntent.ID, a.Call.ID)
	}
	used, err := f.Call.Usage(t.Context(), []call.Take{take, {Key: "rule/y"}})
	f.no(err)
	want(t, "used", used[0], call.Usage{Calls: 2, Bytes: 14})
	want(t, "unused", used[1], call.Usage{})
	_, err = f.Call.ByIntent(t.Context(), "")
	wantCode(t, err, errs.NotFound)
}

func testAdmitBusy(t *testing.T, f *fixture) {
	var last *control.Call
	for range 5 {
		last, _ = f.admit(control.Write, journal.Asking)
	}
	a := f.admission(f.row(control.Write), journal.Asking)
	got, err := f.Call.Admit(t.Context(), a)
	f.no(err)
	want(t, "sixth", got.Result, call.Busy)
	want(t, "cancel", f.advance(f.step(last, journal.OnCancel, journal.Cancelled)), call.Done)
	got, err = f.Call.Admit(t.Context(), a)
	f.no(err)
	want(t, "after one was closed", got.Result, call.Done)
}

func testTwins(t *testing.T, f *fixture) {
	none, mark, err := f.Call.Twins(t.Context(), control.Sum([]byte("nobody")))
	f.no(err)
	want(t, "twins", len(none), 0)
	want(t, "mark", mark, int64(0))

	twin := control.Sum([]byte("one"))
	first := f.row(control.Write)
	first.Twin = twin
	f.admitRow(first, journal.Asking)
	second := f.row(control.Write)
	second.Twin = twin
	got, err := f.Call.Admit(t.Context(), f.admission(second, journal.Asking))
	f.no(err)
	want(t, "without a look", got.Result, call.Twinned)
	twins, mark, err := f.Call.Twins(t.Context(), twin)
	f.no(err)
	want(t, "twins", len(twins), 1)
	want(t, "twin", twins[0].ID, first.ID)
	want(t, "bodies", len(twins[0].Arguments), 0)
	a := f.admission(second, journal.Asking)
	a.TwinMark = mark
	got, err = f.Call.Admit(t.Context(), a)
	f.no(err)
	want(t, "after a look", got.Result, call.Done)
	twins, _, err = f.Call.Twins(t.Context(), twin)
	f.no(err)
	want(t, "newest first", twins[0].ID, second.ID)

	// What ended without effect, and what was read, is no twin any more.
	want(t, "cancel", f.advance(f.step(second, journal.OnCancel, journal.Cancelled)), call.Done)
	twins, _, err = f.Call.Twins(t.Context(), twin)
	f.no(err)
	want(t, "twins", len(twins), 1)
}

func testLegal(t *testing.T, f *fixture) {
	a := f.admission(f.row(control.Write), journal.Admitted)
	a.Call.State = journal.Approved
	if _, err := f.Call.Admit(t.Context(), a); err == nil {
		t.Fatal("a row that its steps do not lead to was taken")
	}
	c, _ := f.admit(control.Write, journal.Admitted)
	for _, bad := range []struct {
		event journal.Event
		to    journal.State
	}{{journal.OnAnswer, journal.Answered}, {journal.OnAsk, journal.Approved}, {journal.OnLost, journal.Uncertain}, {"nonsense", journal.Refused}} {
		if _, err := f.Call.Advance(t.Context(), f.step(c, bad.event, bad.to)); err == nil {
			t.Fatalf("%s to %s was taken", bad.event, bad.to)
		}
	}
	want(t, "state", f.load(c.ID).State, journal.Admitted)
}

func testFences(t *testing.T, f *fixture) {
	c, _ := f.admit(control.Write, journal.Admitted)
	for name, change := range map[string]func(*call.Advance){
		"state":   func(s *call.Advance) { s.From, s.Step.From = journal.Approved, journal.Approved },
		"attempt": func(s *call.Advance) { s.Attempt = 1 },
		"lease":   func(s *call.Advance) { s.Lease = "another" },
		"call":    func(s *call.Advance) { s.Call = control.NewID() },
	} {
		t.Run(name, func(t *testing.T) {
			s := f.step(c, journal.OnCancel, journal.Cancelled)
			change(s)
			want(t, "advance", f.advance(s), call.Fenced)
			want(t, "state", f.load(c.ID).State, journal.Admitted)
			b := f.barrier(c, control.Authority{Kind: control.ByRule})
			b.From, b.Attempt, b.Lease, b.Call, b.Step.From = s.From, s.Attempt, s.Lease, s.Call, s.From
			b.Guard.Takes = []call.Take{{Key: "fences", Calls: 1, ExpectUsed: -1}}
			want(t, "commit", f.commit(b), call.Fenced)
		})
	}
	used, err := f.Call.Usage(t.Context(), []call.Take{{Key: "fences"}})
	f.no(err)
	want(t, "counter after refusals", used[0].Calls, int64(0))
	steps, err := f.Call.Steps(t.Context(), c.ID)
	f.no(err)
	want(t, "journal after refusals", len(steps), 1)
	want(t, "advance", f.advance(f.step(c, journal.OnCancel, journal.Cancelled)), call.Done)
	want(t, "again", f.advance(f.step(c, journal.OnCancel, journal.Cancelled)), call.Fenced)
}

package call

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

// waitKind is why a record waits for a call.
type waitKind string

const (
	byRecord waitKind = "record" // it made the call, or the same record came again
	byAwait  waitKind = "await"
	byResend waitKind = "resend" // the harness sent its call again
	byTwin   waitKind = "twin"
)

// waiter is a record whose result is still owed.
type waiter struct {
	addr     Address
	digest   control.Digest
	kind     waitKind
	shim     string
	progress bool
	s        *sessionState // of the record; nil when it could not be read
	counted  bool          // in the session's calls in flight
	gone     bool          // its pipe is closed
	old      bool          // the call was answered before this record came: its answer is a recorded one

	since  time.Time // of this wait
	holdAt time.Time // then it learns that a person thinks; zero: not held
	beatAt time.Time
	base   float64 // what progress starts from: seconds since the call was admitted, so that it grows over every new wait for it
}

// uncount ends its place among the session's calls in flight.
func (w *waiter) uncount() {
	if w.counted {
		w.counted = false
		w.s.leave()
	}
}

func (w *waiter) record() string { return control.CallID(w.addr.Session, w.addr.Record) }

// add makes w wait for the call; the same record twice is one waiter.
func (d *driver) add(w *waiter) {
	now := time.Now()
	hold := d.hold()
	w.since, w.holdAt, w.base = now, now.Add(hold), d.age()
	if hold > beat {
		w.beatAt = now.Add(beat)
	}
	if w.s == nil {
		if w.s = d.s; w.addr.Session != d.l.session {
			w.s = d.p.knownSession(w.addr.Session)
		}
	}
	i := slices.IndexFunc(d.waiters, func(o *waiter) bool { return o.addr.Record == w.addr.Record && o.addr.Session == w.addr.Session })
	if i < 0 {
		d.waiters = append(d.waiters, w)
		return
	}
	old := d.waiters[i]
	w.s, w.counted, w.kind, w.shim, w.progress = old.s, old.counted, old.kind, old.shim, old.progress
	w.holdAt, w.beatAt = old.holdAt, old.beatAt
	d.waiters[i] = w
}

// age is how long ago the call was admitted, in seconds.
func (d *driver) age() float64 { return max(0, d.p.cfg.Store.Now().Sub(d.row.AdmittedAt).Seconds()) }

func (d *driver) hold() time.Duration {
	s := d.s.session()
	hold := s.Profile.Hold
	if newest := d.newestProfile(); newest != nil {
		hold = newest.Hold
	}
	return min(max(hold, 0), 10*time.Minute)
}

func (d *driver) newestProfile() *control.Profile {
	if policy := d.p.policy.Load(); policy != nil {
		return policy.Profiles[d.s.session().Profile.Name]
	}
	return nil
}

// give hands a result that is not the call's end to w and ends its wait.
func (d *driver) give(w *waiter, result []byte) {
	d.waiters = slices.DeleteFunc(d.waiters, func(o *waiter) bool { return o == w })
	d.p.hand(d.s, w, d.row.ID, d.row.State, handover{result: result}, false)
}

// giveEnd hands the call's own end to w and ends its wait.
func (d *driver) giveEnd(w *waiter, h *handover) {
	d.waiters = slices.DeleteFunc(d.waiters, func(o *waiter) bool { return o == w })
	if d.p.hand(d.s, w, d.row.ID, d.row.State, *h, true) {
		return
	}
	later := text{harness: d.s.session().Harness, tool: d.row.Name, id: d.row.ID, code: errs.ResultWaits}
	d.p.hand(d.s, w, d.row.ID, d.row.State, said(later), false)
}

// said is the handover of a sentence.
func said(t text) handover { return handover{result: textResult(t.render())} }

// hand publishes a result for a record. It returns false when too much is on its way to the host: something shorter must be said then. final: it is
// the call's own end.
func (p *Pipeline) hand(s *sessionState, w *waiter, id string, state journal.State, h handover, final bool) bool {
	w.uncount()
	rec, err := record(w.addr.Record, w.digest, state, h.result)
	if err != nil {
		p.cfg.Log.Error("a result cannot be handed over", "call", id, "err", err)
		h.files = nil
		if rec, err = record(w.addr.Record, w.digest, state, textResult("The result cannot be handed over (internal). A person finds it with call "+id+".", true)); err != nil {
			return true
		}
	}
	if w.s != nil {
		w.s.handed(w.record(), outgoing{call: id, final: final, of: s})
	}
	err = p.cfg.Hosts.Result(w.addr, rec, h.files)
	if err == nil && final {
		p.published.add(publication{s: w.s, record: w.record(), call: id, at: time.Now()})
	}
	return !errs.Is(err, errs.Busy) || len(h.files) == 0
}

// text is what a waiter reads of the call as it stands.
func (d *driver) text() text {
	t := textOf(d.row, d.s.session().Harness, d.expires)
	t.hint = d.hint
	if !d.switchedAt.IsZero() {
		t.at = d.switchedAt
	}
	return t
}

// held tells waiters whose time is over that a person has not decided, or (who only awaits) that there is no answer yet. It returns when it must be
// called next; zero for never.
func (d *driver) held() time.Time {
	var next time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if d.row == nil {
		return next
	}
	now := time.Now()
	sent := d.row.State == journal.Dispatching || d.row.State == journal.Working
	for _, w := range slices.Clone(d.waiters) {
		switch {
		case w.holdAt.IsZero():
			continue
		case sent && w.kind != byAwait:
			continue // its own deadline asks
		case !now.Before(w.holdAt):
			t := d.text()
			d.give(w, textResult(t.render()))
			continue
		}
		sooner(w.holdAt)
		if !w.progress || w.beatAt.IsZero() || sent {
			continue
		}
		if !now.Before(w.beatAt) {
			w.beatAt = now.Add(beat)
			if age := d.age(); age > w.base {
				w.base = age
				d.p.cfg.Hosts.Progress(w.addr, Progress{Progress: age, Message: fmt.Sprintf("waiting for a person since %s", words(now.Sub(w.since).Round(time.Second)))})
			}
		}
		sooner(w.beatAt)
	}
	return next
}

// progressed passes the upstream's progress on, above what was shown while held: progress only grows.
func (d *driver) progressed(g Progress) {
	for _, w := range d.waiters {
		if !w.progress {
			continue
		}
		shown := g
		shown.Progress += w.base
		if shown.Total > 0 {
			shown.Total += w.base
		}
		d.p.cfg.Hosts.Progress(w.addr, shown)
	}
}

// finish hands the call's end to everybody who waits.
func (d *driver) finish(ctx context.Context) {
	for len(d.waiters) > 0 {
		w := d.waiters[0]
		d.giveEnd(w, d.endFor(ctx, w.old))
	}
}

// endFor is the call's end as it goes into the sandbox: for a record that came after the answer, behind a note that it is a recorded one.
func (d *driver) endFor(ctx context.Context, old bool) *handover {
	i := 0
	if old && d.row.State == journal.Answered {
		i = 1
	}
	if d.ends[i] == nil {
		result := resultOf(d.row, d.callback(), d.text())
		if i == 1 {
			result = recorded(result, recordedNote(d.row, d.s.session().Harness))
		}
		h := handOver(result, d.row, filesOf(d.s.session()), d.p.most(d.row))
		if h.cut != "" {
			// The journal keeps the server's bytes; what the model got instead is named, with every digest (I11).
			d.note(ctx, Note{Call: d.row.ID, Event: NoteCut, Actor: d.p.cfg.Run, Digest: control.Sum(h.result), Reason: h.cut})
		}
		d.ends[i] = &h
	}
	return d.ends[i]
}

// filesOf is where a session's sandbox sees its files.
func filesOf(s *control.Session) string {
	if s.Driver == "process" { // no sandbox: the session's folder lies wherever its host put it
		return "in/" + relay.FilesDir
	}
	return relay.GuestIn + "/" + relay.FilesDir
}

func recordedNote(c *control.Call, harness string) string {
	note := text{harness: harness, tool: c.Name, id: c.ID, code: errs.RecordedAnswer, at: c.SettledAt}
	sentence, _ := note.render()
	return sentence
}

func (d *driver) callback() bool {
	policy := d.p.policy.Load()
	if policy == nil {
		return false
	}
	c := policy.Connections[d.row.Connection]
	return c != nil && c.Kind == control.KindCallback
}

// cancelled handles a cancel. It returns true when the driver must look at what to do next.
func (d *driver) cancelled(ctx context.Context, m toldCancel) bool {
	i := slices.IndexFunc(d.waiters, func(w *waiter) bool { return w.addr.Record == m.record })
	if i < 0 {
		// Its answer was "pending": a harness that goes away then takes nothing with it; the call waits for await_call.
		if m.why == CancelClosed && d.l.id == control.CallID(d.l.session, m.record) {
			return d.agentGone(ctx)
		}
		return false
	}
	w := d.waiters[i]
	if m.why == CancelDeadline {
		t := d.text()
		d.give(w, textResult(t.render()))
		return false
	}
	if m.why == CancelClosed {
		w.gone = true
	}
	others := slices.ContainsFunc(d.waiters, func(o *waiter) bool { return o != w && !o.gone })
	if w.kind == byAwait || others {
		// It stops waiting; the call is somebody else's too, or nobody's.
		stop := text{tool: d.row.Name, id: d.row.ID, code: errs.Cancelled}
		d.give(w, textResult(stop.render()))
		return false
	}
	if m.why == CancelClosed {
		return d.agentGone(ctx)
	}
	d.wantCancel = true
	d.whyCancel = "the harness cancelled it"
	return true
}

// agentGone notes that nobody waits any more; the profile says whether the call then ends.
func (d *driver) agentGone(ctx context.Context) bool {
	if slices.ContainsFunc(d.waiters, func(w *waiter) bool { return !w.gone }) {
		return false
	}
	gone := true
	d.note(ctx, Note{Call: d.row.ID, Event: "agent_gone", Actor: d.row.Host, Set: Set{Gone: &gone}})
	d.row.Gone = true
	if d.s.session().Profile.OnDisconnect != "cancel" {
		return false
	}
	d.wantCancel = true
	d.whyCancel = "its agent is gone"
	return true
}

func (d *driver) note(ctx context.Context, n Note) {
	if err := d.p.cfg.Store.Note(ctx, n); err != nil && ctx.Err() == nil {
		d.p.cfg.Log.Warn("a line of the journal was not written", "call", n.Call, "event", n.Event, "err", err)
	}
}

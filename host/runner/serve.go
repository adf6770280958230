package runner

import (
	"context"
	"fmt"
	"time"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

// server is what one of the goroutines that look at directories keeps for itself.
type server struct {
	buffer [32 << 10]byte
	calls  []entry
	notes  []entry
}

type entry struct {
	kind     relay.Kind
	name, id string
}

func (r *Runner) serve(ctx context.Context) error {
	w := new(server)
	for {
		s, err := r.work.take(ctx)
		if err != nil {
			return err
		}
		r.work.done(s, w.serve(s))
	}
}

// serve looks at a session's directory once and reports whether there is more to do.
func (w *server) serve(s *session) (again bool) {
	s.serving.Lock()
	defer s.serving.Unlock()
	s.mu.Lock()
	stopped, open, watch := s.closed || s.exceeded, s.open, s.watch
	s.mu.Unlock()
	if stopped || watch == nil {
		return false
	}
	s.active.Store(true)
	if err := watch.Before(hostside.Wake(s.wakes.Swap(0))); err != nil {
		s.missing.Do(func() { s.log("the guest's directory cannot be listed", err) })
		return false
	}
	listing, err := w.list(s)
	if err != nil {
		s.missing.Do(func() { s.log("the guest's directory cannot be listed", err) })
		return false
	}
	if open {
		err = w.claim(s, &listing)
	} else {
		err = w.claimGate(s, &listing)
	}
	if err != nil {
		s.log("a record cannot be claimed yet", err)
		listing.More = false
	}
	s.mu.Lock()
	listing.Active = err != nil || len(s.calls) > 0
	s.mu.Unlock()
	return watch.After(listing)
}

// list fills w.calls and w.notes with as much as one turn takes.
func (w *server) list(s *session) (l hostside.Listing, err error) {
	w.calls, w.notes = w.calls[:0], w.notes[:0]
	var full bool
	l.Junk, full, err = s.box.List(w.buffer[:], func(kind relay.Kind, name, id string) bool {
		if kind == relay.KindCall {
			if len(w.calls) == turnCalls {
				l.More = true
				return len(w.notes) < turnNotes
			}
			w.calls = append(w.calls, entry{kind, name, id})
			return true
		}
		if len(w.notes) == turnNotes {
			l.More = true
			return len(w.calls) < turnCalls
		}
		w.notes = append(w.notes, entry{kind, name, id})
		return true
	})
	if len(w.notes) == 0 {
		clear(s.early)
	}
	if full {
		s.exceed("more than 4,096 entries in new/")
	}
	return l, err
}

// claim takes what was listed, calls before notes: a call is published before its cancel.
func (w *server) claim(s *session, l *hostside.Listing) error {
	waits := false // calls are left in the directory: a cancel of one is left beside it
	for _, e := range w.calls {
		if !s.room() {
			l.More = false // it is woken once there is room
			waits = true
			break
		}
		if !s.mayCall(time.Now()) {
			l.More, l.Wait = true, paceWait
			waits = true
			break
		}
		if err := w.one(s, e, l, s.admit); err != nil {
			return err
		}
	}
	for _, e := range w.notes {
		if e.kind == relay.KindCancel && (waits && !s.waits(e.id) || s.tooEarly(e.id)) {
			continue
		}
		if err := w.one(s, e, l, s.note); err != nil {
			return err
		}
	}
	return nil
}

// one claims an entry and counts what do says to it.
func (w *server) one(s *session, e entry, l *hostside.Listing, do func(*hostside.Claimed) bool) error {
	claimed, why, err := s.box.Claim(e.kind, e.name, e.id)
	switch {
	case err != nil:
		return err
	case why != hostside.Taken:
		l.Wasted++
	case do(&claimed):
		l.Useful++
	default:
		l.Wasted++
	}
	return nil
}

// room reports whether the session may hold another record; where it may not, it is woken once it may.
func (s *session) room() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held >= sessionHeld {
		s.starved = true
		return false
	}
	if !s.runner.room() {
		s.runner.starve(s)
		// What was released in between woke nobody.
		if !s.runner.room() {
			return false
		}
	}
	return true
}

// admit takes up a call record, or refuses it with a result of its own. It reports whether the record is a new call.
func (s *session) admit(claimed *hostside.Claimed) bool {
	record, err := s.parse(claimed)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false // it lies in claimed/ for whoever serves the session next
	}
	if err != nil {
		s.refuse(claimed, record.Tool, err)
		return false
	}
	c := &call{
		id: claimed.ID, claimed: *claimed, tool: record.Tool, seen: time.Now(),
		timeout: time.Duration(record.TimeoutMS) * time.Millisecond, progress: record.Progress,
	}
	first := item{what: sendCall, call: c}
	switch verdict := s.ledger.Admit(claimed.ID, claimed.Digest); verdict {
	case hostside.Fresh:
	case hostside.Finished: // it ran, or was refused, and its answer was read: control says what it knows, and runs nothing
		c.sent, c.journaled = true, true
		first.what = sendAttach
	case hostside.Attached, hostside.Answered:
		s.settle(claimed) // its result will lie, or lies, where its writer looks
		return false
	case hostside.Conflicting:
		s.refuse(claimed, record.Tool, errs.New(errs.Conflict, "its id is that of another call"))
		return false
	case hostside.TooManyFlying:
		s.refuse(claimed, record.Tool, errs.Newf(errs.Busy, "%d calls of this session have no answer yet; wait for one of them", relay.MaxInFlight))
		return false
	case hostside.TooManyUnread:
		s.refuse(claimed, record.Tool, errs.Newf(errs.Busy, "%d answers of this session were never read; its client must be restarted", relay.MaxUnacknowledged))
		return false
	}
	s.calls[c.id] = c
	s.hold(c)
	s.startClock(c)
	s.send(first)
	return true
}

// belongs compares what a record says with where it lay.
func (s *session) belongs(name, id, session string, epoch int64) error {
	switch {
	case id != name:
		return errs.New(errs.Invalid, "its id is not that of its file")
	case session != s.id:
		return errs.New(errs.NotAllowed, "it belongs to another session")
	case epoch != s.epoch:
		return errs.New(errs.Fenced, "it was made before this sandbox was started again")
	}
	return nil
}

// tooEarly reports that a cancel's call was not seen and may lie in the directory yet: a listing that runs while both are published can show the
// second alone. It is asked again with the next listing, once.
func (s *session) tooEarly(id string) bool {
	s.mu.Lock()
	waiting := s.ledger.Waiting(id)
	s.mu.Unlock()
	if waiting || s.early[id] || len(s.early) >= relay.MaxInFlight {
		delete(s.early, id)
		return false
	}
	s.early[id] = true
	s.runner.work.push(s)
	return true
}

// note takes up a cancel or an ack, and reports whether it meant anything.
func (s *session) note(claimed *hostside.Claimed) bool {
	switch claimed.Kind {
	case relay.KindAck:
		return s.acknowledge(claimed.ID)
	case relay.KindCancel:
		return s.cancel(claimed)
	case relay.KindRefused:
		return s.guestRefused(claimed)
	default: // a gate record after the gate: ignored
		s.mu.Lock()
		defer s.mu.Unlock()
		s.settle(claimed)
		return false
	}
}

func (s *session) acknowledge(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.ledger.Acknowledged(id) {
		return false
	}
	if err := s.box.Retract(id); err != nil {
		s.log("a result that was read cannot be removed", err)
	}
	if s.local[id] {
		delete(s.local, id)
	} else {
		s.ride(item{what: sendAck, id: id})
	}
	if s.undelivered > 0 {
		s.redeliver()
	}
	return true
}

func (s *session) cancel(claimed *hostside.Claimed) bool {
	record, err := relay.ParseCancel(claimed.Record)
	if err == nil {
		err = s.belongs(claimed.ID, record.ID, record.Session, record.Epoch)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.settle(claimed)
	c := s.calls[claimed.ID]
	if err != nil || c == nil {
		return false
	}
	why := sallyportv1.CancelWhy_CANCEL_WHY_CLOSED
	if record.Why == relay.WhyHarness {
		why = sallyportv1.CancelWhy_CANCEL_WHY_HARNESS
	}
	c.why = why
	if why == sallyportv1.CancelWhy_CANCEL_WHY_HARNESS && !c.sent {
		s.conclude(c, cancelledText(c.tool)) // control never heard of it, and never will
		return true
	}
	s.send(item{what: sendCancel, call: c, id: c.id, why: why})
	return true
}

// settle forgets a record that is no call in flight; s.mu is held.
func (s *session) settle(claimed *hostside.Claimed) {
	if err := s.box.Settle(claimed); err != nil {
		s.log("a claimed record cannot be removed", err)
	}
}

// refuse answers a record that is not taken, where its id is free and the session reads its results; s.mu is held.
func (s *session) refuse(claimed *hostside.Claimed, tool string, why error) {
	if s.ledger.MayRefuse(claimed.ID) {
		record, err := localRecord(claimed.ID, claimed.Digest, refusedText(tool, why))
		if err == nil {
			err = s.box.PublishResult(claimed.ID, record)
		}
		if err == nil {
			s.ledger.Refused(claimed.ID, claimed.Digest)
			s.local[claimed.ID] = true
			s.report(claimed, tool, why, 0)
		} else {
			s.log("a refusal cannot be published", err)
		}
	}
	s.settle(claimed)
}

// report tells control of a refusal, for the journal; s.mu is held. A guest that is told to wait did nothing wrong, and one that is refused faster
// than control takes it fills no memory, and no journal. more were refused along with it.
func (s *session) report(claimed *hostside.Claimed, tool string, why error, more int64) {
	if errs.Is(why, errs.Busy) {
		return
	}
	if s.refusals >= maxRefusals {
		s.log("a refusal is not journaled: too many wait to be told", why)
		return
	}
	missed, ok := s.telling.Take(time.Now(), more)
	if !ok {
		return // the next that is told counts it
	}
	reason := errs.Message(why)
	if missed > 0 {
		reason += fmt.Sprintf("; %d more were refused before it and are not listed", missed)
	}
	s.refusals++
	s.ride(item{what: sendRefused, refused: &sallyportv1.HostRefused{
		Session: s.id, Epoch: s.epoch, RecordId: claimed.ID, RecordDigest: claimed.Digest[:], Tool: tool,
		Code: string(errs.CodeOf(why)), Reason: reason,
	}})
}

// guestRefused tells control of what the guest refused by itself, in this host's words: a guest writes nothing into the journal but a tool's name.
func (s *session) guestRefused(claimed *hostside.Claimed) bool {
	record, err := relay.ParseRefused(claimed.Record)
	if err == nil {
		err = s.belongs(claimed.ID, record.ID, record.Session, record.Epoch)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.settle(claimed)
	if err != nil {
		return false
	}
	s.report(claimed, record.Tool, errs.New(record.Code, guestSays[record.Code]), record.More)
	return true
}

var guestSays = map[errs.Code]string{
	errs.Oversize:    "the agent sent a line or arguments over the bound; its guest served nothing of it",
	errs.Invalid:     "the agent sent a line that is not strict JSON: broken, a name twice, not UTF-8, or too deep; its guest served nothing of it",
	errs.UnknownTool: "the agent called a tool that this session does not have; its guest refused it",
}

// exceed ends the serving of a session whose guest took more than it may.
func (s *session) exceed(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.exceeded {
		return
	}
	s.exceeded = true
	err := hostside.Full(what)
	s.log("session ended", err)
	if tell := s.runner.cfg.Exceeded; tell != nil {
		go tell(s.id, err)
	}
}

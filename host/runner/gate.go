package runner

import (
	"context"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

// gate is what a session knows of its gate; under session.mu.
type gate struct {
	record  relay.Gate
	raw     []byte
	claimed chan struct{} // closed once there is a record
	seen    bool

	asking   *sallyportv1.HostGate // the question to control, while it is open
	answer   *sallyportv1.GateAnswer
	answered chan struct{}
	ended    chan struct{} // closed with the session
}

func newGate() gate {
	return gate{claimed: make(chan struct{}), answered: make(chan struct{}), ended: make(chan struct{})}
}

func (g *gate) close() { close(g.ended) }

// Gate waits for what the first process of a sandbox found. The record is its own word; raw is what it wrote. Only the first record counts.
// Errors: ctx's; [errs.NotFound] where the session is not served or its serving ends.
func (r *Runner) Gate(ctx context.Context, id string) (record relay.Gate, raw []byte, err error) {
	s := r.session(id)
	if s == nil {
		return relay.Gate{}, nil, notServed
	}
	select {
	case <-ctx.Done():
		return relay.Gate{}, nil, ctx.Err()
	case <-s.gate.ended:
		return relay.Gate{}, nil, notServed
	case <-s.gate.claimed:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.gate.record, s.gate.raw, nil
	}
}

// AskGate asks control to confirm that the gate may open: parent is the supervisor's proof, policyDigest what the session was opened with,
// probe what [Runner.Gate] returned. It waits over lost links. Errors: ctx's; [errs.NotAllowed] with control's reason where it stays shut;
// [errs.NotFound] where the session is not served; [errs.Conflict] where it was asked before.
func (r *Runner) AskGate(ctx context.Context, id, parent, policyDigest string, probe []byte) error {
	s := r.session(id)
	if s == nil {
		return notServed
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return notServed
	}
	if s.gate.asking != nil || s.gate.answer != nil {
		s.mu.Unlock()
		return errs.New(errs.Conflict, "the gate was asked for already")
	}
	s.gate.asking = &sallyportv1.HostGate{Session: s.id, Epoch: s.epoch, Parent: parent, PolicyDigest: policyDigest, Probe: probe}
	s.send(item{what: sendGate})
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gate.asking = nil
		return ctx.Err()
	case <-s.gate.ended:
		return notServed
	case <-s.gate.answered:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gate.answer.GetOpen() {
		return errs.Newf(errs.NotAllowed, "the gate stays shut: %s", s.gate.answer.GetReason())
	}
	return nil
}

// answered takes control's word on the gate, once, and only where it was asked.
func (s *session) answered(a *sallyportv1.GateAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.gate.asking == nil {
		return
	}
	s.gate.asking, s.gate.answer = nil, a
	close(s.gate.answered)
}

// claimGate takes the gate record of a session that is shut; whatever else lies in its directory waits until it is open.
func (w *server) claimGate(s *session, l *hostside.Listing) error {
	l.More = false
	for _, e := range w.notes {
		if e.kind != relay.KindGate {
			continue
		}
		if err := w.one(s, e, l, s.takeGate); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) takeGate(claimed *hostside.Claimed) bool {
	record, err := relay.ParseGate(claimed.Record)
	if err == nil {
		err = s.belongs("", "", record.Session, record.Epoch)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.settle(claimed)
	if err != nil {
		s.log("the gate's record is not used", err)
		return false
	}
	if s.gate.seen {
		return false
	}
	s.gate.seen = true
	s.gate.record, s.gate.raw = record, claimed.Record
	close(s.gate.claimed)
	return true
}

package runner

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
)

// peer is the runner as its link sees it.
type peer Runner

func (p *peer) runner() *Runner { return (*Runner)(p) }

// Hello implements link.Peer.
func (p *peer) Hello() *sallyportv1.HostHello {
	hello := &sallyportv1.HostHello{}
	if p.cfg.HighWater != nil {
		hello.HighWater = p.cfg.HighWater()
	}
	for _, s := range p.runner().all() {
		hello.Sessions = append(hello.Sessions, &sallyportv1.SessionAt{Session: s.id, Epoch: s.epoch})
	}
	return hello
}

// Up implements link.Peer: everything that is unfinished is said again.
func (p *peer) Up(welcome *sallyportv1.Welcome) {
	r := p.runner()
	r.setUp(true)
	if r.cfg.Frame != nil {
		r.cfg.Frame(&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Welcome{Welcome: welcome}})
	}
	for _, s := range r.all() {
		s.mu.Lock()
		s.resync()
		waiting := len(s.out) > 0
		s.mu.Unlock()
		if waiting {
			r.ready.push(s)
		}
	}
}

// Down implements link.Peer.
func (p *peer) Down(error) {
	r := p.runner()
	r.setUp(false)
	r.batches.drop()
}

func (r *Runner) setUp(up bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.up = up
}

// resync rebuilds what there is to send for a new stream; s.mu is held. Calls that control has not confirmed go out whole: it has one row for
// each id, so a repeated record attaches. The others are asked for.
func (s *session) resync() {
	var rest []item
	for _, i := range s.out {
		if i.call == nil && i.what != sendGate { // acks and last words of calls that are over
			rest = append(rest, i)
		}
	}
	s.out = nil
	for _, i := range s.said {
		if i.what == sendRefused {
			s.refusals++
		}
		s.out = append(s.out, i)
	}
	s.out = append(s.out, rest...)
	for _, c := range s.inOrder() {
		i := item{what: sendCall, call: c}
		if c.journaled {
			i.what = sendAttach
		}
		s.out = append(s.out, i)
		if c.why != 0 {
			s.out = append(s.out, item{what: sendCancel, call: c, id: c.id, why: c.why})
		}
		if c.asked {
			s.out = append(s.out, item{what: sendCancel, call: c, id: c.id, why: sallyportv1.CancelWhy_CANCEL_WHY_DEADLINE})
		}
	}
	s.said = nil
	if s.gate.asking != nil {
		s.out = append(s.out, item{what: sendGate})
	}
}

// Next implements link.Peer: frames of the sessions that have some, a few of each in turn.
func (p *peer) Next(ctx context.Context) ([]*sallyportv1.HostFrame, error) {
	r := p.runner()
	for {
		frames, size := r.takeOther(nil, 0)
		// Each session once in a batch: who has more stands at the end of the line.
		for turns := r.ready.length(); turns > 0 && len(frames) < batchFrames && size < batchBytes; turns-- {
			s := r.ready.tryTake()
			if s == nil {
				break
			}
			var more bool
			frames, size, more = s.take(frames, size)
			r.ready.done(s, more)
		}
		if len(frames) > 0 {
			return frames, nil
		}
		select {
		case <-ctx.Done():
			return nil, errs.Wrap(errs.Unavailable, "the link ended", ctx.Err())
		case <-r.ready.signal:
		}
	}
}

func (r *Runner) takeOther(frames []*sallyportv1.HostFrame, size int) ([]*sallyportv1.HostFrame, int) {
	r.otherMu.Lock()
	defer r.otherMu.Unlock()
	if r.health != nil {
		frames, size = append(frames, r.health), size+proto.Size(r.health)
		r.health = nil
	}
	n := 0
	for n < len(r.other) && len(frames) < batchFrames/2 && size < batchBytes/2 { // calls get their half
		frames, size = append(frames, r.other[n]), size+proto.Size(r.other[n])
		n++
	}
	if r.other = r.other[n:]; len(r.other) == 0 {
		r.other = nil
	} else {
		r.ready.wake()
	}
	return frames, size
}

// take adds a turn's frames of the session to a batch and reports whether it has more.
func (s *session) take(frames []*sallyportv1.HostFrame, size int) ([]*sallyportv1.HostFrame, int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for turn := 0; turn < turnFrames && len(s.out) > 0 && len(frames) < batchFrames && size < batchBytes; {
		i := s.out[0]
		s.out[0] = item{}
		s.out = s.out[1:]
		if frame, bytes := s.frame(i, now); frame != nil {
			frames, size = append(frames, frame), size+bytes
			turn++
		}
	}
	if len(s.out) == 0 {
		s.out = nil
	}
	return frames, size, len(s.out) > 0
}

// frame builds an item's frame, nil where it was overtaken. Sizes are of what can be large.
func (s *session) frame(i item, now time.Time) (*sallyportv1.HostFrame, int) {
	const small = 96
	if i.call != nil && s.calls[i.call.id] != i.call {
		return nil, 0 // it has its result
	}
	switch i.what {
	case sendCall:
		if i.call.journaled {
			return nil, 0
		}
		i.call.sent = true
		return &sallyportv1.HostFrame{Frame: &sallyportv1.HostFrame_Call{Call: &sallyportv1.HostCall{
			Session: s.id, Epoch: s.epoch, Record: i.call.claimed.Record,
			SeenAtUnixNano: i.call.seen.UnixNano(), WaitedMs: max(0, now.Sub(i.call.seen).Milliseconds()),
		}}}, small + len(i.call.claimed.Record)
	case sendAttach:
		return &sallyportv1.HostFrame{Frame: &sallyportv1.HostFrame_Attach{Attach: &sallyportv1.HostAttach{
			Session: s.id, Epoch: s.epoch, RecordId: i.call.id,
		}}}, small
	case sendCancel:
		return &sallyportv1.HostFrame{Frame: &sallyportv1.HostFrame_Cancel{Cancel: &sallyportv1.HostCancel{
			Session: s.id, Epoch: s.epoch, RecordId: i.id, Why: i.why,
		}}}, small
	case sendRefused:
		s.refusals--
		s.keep(i)
		return &sallyportv1.HostFrame{Frame: &sallyportv1.HostFrame_Refused{Refused: i.refused}}, proto.Size(i.refused)
	case sendAck:
		s.keep(i)
		return &sallyportv1.HostFrame{Frame: &sallyportv1.HostFrame_Ack{Ack: &sallyportv1.HostAck{
			Session: s.id, Epoch: s.epoch, RecordId: i.id,
		}}}, small
	default: // sendGate
		if s.gate.asking == nil {
			return nil, 0
		}
		return &sallyportv1.HostFrame{Frame: &sallyportv1.HostFrame_Gate{Gate: s.gate.asking}}, small + len(s.gate.asking.GetProbe())
	}
}

// keep remembers what nobody confirms; s.mu is held.
func (s *session) keep(i item) {
	if s.said = append(s.said, i); len(s.said) > keptSaid {
		s.said = s.said[1:]
	}
}

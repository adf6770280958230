package runner

import (
	"encoding/hex"
	"time"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

// Receive implements link.Peer. Frames of sessions that are not served in that epoch are of the past, and change nothing.
func (p *peer) Receive(frames []*sallyportv1.ControlFrame) error {
	r := p.runner()
	var journaled []*sallyportv1.Journaled
	for _, f := range frames {
		switch f := f.GetFrame().(type) {
		case *sallyportv1.ControlFrame_Journaled:
			if r.journaled(f.Journaled) {
				journaled = append(journaled, f.Journaled)
			}
		case *sallyportv1.ControlFrame_Progress:
			if s := r.at(f.Progress.GetSession(), f.Progress.GetEpoch()); s != nil {
				s.progress(f.Progress)
			}
		case *sallyportv1.ControlFrame_Result:
			if err := r.result(f.Result); err != nil {
				return err
			}
		case *sallyportv1.ControlFrame_Chunk:
			if err := r.batches.chunk(f.Chunk); err != nil {
				return err
			}
		case *sallyportv1.ControlFrame_Session:
			if r.cfg.Changed != nil {
				r.cfg.Changed(f.Session)
			}
		case *sallyportv1.ControlFrame_Gate:
			if s := r.at(f.Gate.GetSession(), f.Gate.GetEpoch()); s != nil {
				s.answered(f.Gate)
			}
		case *sallyportv1.ControlFrame_Welcome:
			return errs.New(errs.Invalid, "control sent a second welcome")
		default:
			if r.cfg.Frame != nil && f != nil {
				r.cfg.Frame(&sallyportv1.ControlFrame{Frame: f})
			}
		}
	}
	// A call whose result came with the same batch is over: its record was never moved.
	for _, j := range journaled {
		r.keep(j)
	}
	return nil
}

// journaled notes that control has a record, and reports whether its call is known.
func (r *Runner) journaled(j *sallyportv1.Journaled) bool {
	s := r.at(j.GetSession(), j.GetEpoch())
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[j.GetRecordId()]
	if c == nil || c.journaled {
		return false
	}
	if string(j.GetRecordDigest()) != string(c.claimed.Digest[:]) {
		s.log("control journaled another record of the same id", errs.New(errs.Conflict, "digests differ"))
		return false
	}
	c.journaled = true
	return true
}

// keep gives up the bytes of a journaled record and keeps its id and clock, for a restart.
func (r *Runner) keep(j *sallyportv1.Journaled) {
	s := r.at(j.GetSession(), j.GetEpoch())
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[j.GetRecordId()]
	if c == nil || s.closed {
		return
	}
	if err := s.box.Journal(&c.claimed, c.timeout); err != nil {
		s.log("a journaled record cannot be given up", err)
	}
	s.letGo(c)
}

// result publishes a result, at once or once its chunks have come.
func (r *Runner) result(f *sallyportv1.CallResult) error {
	s := r.at(f.GetSession(), f.GetEpoch())
	if s == nil || !s.waits(f.GetRecordId()) {
		r.late.Add(1)
		return r.batches.skip(f)
	}
	if len(f.GetChunkedDigest()) == 0 && len(f.GetFiles()) == 0 {
		s.deliver(f.GetRecordId(), f.GetRecord())
		return nil
	}
	return r.batches.expect(s, f)
}

func (s *session) waits(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && s.calls[id] != nil
}

// deliver publishes a result record as it is.
func (s *session) deliver(id string, record []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[id]
	if s.closed || c == nil {
		s.runner.late.Add(1)
		return
	}
	if c.result != nil {
		return // one waits for room already
	}
	if len(record) > relay.MaxResult {
		s.conclude(c, tooLargeText(c))
		return
	}
	s.publish(c, record)
}

// publish gives a call its result; s.mu is held. Where in/ is full the call stays in flight and is tried again once something was read.
func (s *session) publish(c *call, record []byte) {
	switch err := s.box.PublishResult(c.id, record); errs.CodeOf(err) {
	case "":
		s.finish(c)
	case errs.Conflict: // an earlier process had published it, and died before it knew
		s.finish(c)
	default:
		if c.result == nil {
			s.log("a result cannot be published yet", err)
			s.undelivered++
		}
		c.result = record
		s.retryLater()
	}
}

const retryEvery = time.Second

// retryLater tries the results again that found no room; s.mu is held.
func (s *session) retryLater() {
	if s.retry != nil {
		s.retry.Reset(retryEvery)
		return
	}
	s.retry = time.AfterFunc(retryEvery, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closed && s.undelivered > 0 {
			s.redeliver()
		}
	})
}

// redeliver publishes what found no room before; s.mu is held.
func (s *session) redeliver() {
	for _, c := range s.inOrder() {
		if c.result == nil {
			continue
		}
		if s.publish(c, c.result); s.calls[c.id] == c {
			return // still full
		}
	}
}

// progressEvery is how often a call's progress is published at most. What comes in between is replaced by the newest.
const progressEvery = 50 * time.Millisecond

func (s *session) progress(f *sallyportv1.CallProgress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[f.GetRecordId()]
	if s.closed || c == nil || !c.progress {
		return
	}
	c.waiting = f
	if c.slow == nil {
		s.publishProgress(c)
	}
}

// publishProgress publishes the newest progress, and holds back the next for a while; s.mu is held.
func (s *session) publishProgress(c *call) {
	f := c.waiting
	c.waiting = nil
	message := f.GetMessage()
	if len(message) > relay.MaxMessage {
		message = ""
	}
	record, err := relay.AppendProgress(nil, &relay.Progress{ID: c.id, N: c.n + 1, Progress: f.GetProgress(), Total: f.GetTotal(), Message: message})
	if err == nil {
		err = s.box.PublishProgress(c.id, record)
	}
	if err != nil {
		s.log("progress cannot be published", err)
		return
	}
	c.n++
	c.slow = time.AfterFunc(progressEvery, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.slow = nil
		if !s.closed && s.calls[c.id] == c && c.waiting != nil {
			s.publishProgress(c)
		}
	})
}

func hexName(digest []byte) string { return hex.EncodeToString(digest) }

package runner

import (
	"time"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/relay"
)

// A call's clock starts when the host first sees its record. Shortly before its time is over control is asked for what it knows; if
// nothing has come by the end, the host says itself what is known, so that nobody waits for ever.

// startClock arms the call's clock; s.mu is held.
func (s *session) startClock(c *call) {
	c.timer = time.AfterFunc(max(0, relay.AskAt(c.timeout)-time.Since(c.seen)), func() { s.ask(c) })
}

func (c *call) stopClocks() {
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.slow != nil {
		c.slow.Stop()
	}
}

// ask has control say what it knows, and waits for the end.
func (s *session) ask(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.calls[c.id] != c {
		return
	}
	c.asked = true
	s.send(item{what: sendCancel, call: c, id: c.id, why: sallyportv1.CancelWhy_CANCEL_WHY_DEADLINE})
	c.timer = time.AfterFunc(max(0, relay.AnswerAt(c.timeout)-time.Since(c.seen)), func() { s.expire(c) })
}

// expire answers a call whose time is over.
func (s *session) expire(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.calls[c.id] != c {
		return
	}
	if c.result != nil { // it has its answer, and waits for room
		c.timer = time.AfterFunc(time.Second, func() { s.expire(c) })
		s.redeliver()
		return
	}
	sent := c.sent
	s.conclude(c, expiredText(s.id, c))
	if sent && s.calls[c.id] == nil {
		// Nobody waits for it any more: it lives on as after a closed pipe.
		s.send(item{what: sendCancel, id: c.id, why: sallyportv1.CancelWhy_CANCEL_WHY_CLOSED})
	}
}

// conclude publishes a result of the host's own for a call in flight; s.mu is held. Where there is no room for it the call goes on waiting.
func (s *session) conclude(c *call, text string) {
	record, err := localRecord(c.id, c.claimed.Digest, text)
	if err != nil {
		s.log("a result cannot be written", err)
		return
	}
	c.local = true
	s.publish(c, record)
}

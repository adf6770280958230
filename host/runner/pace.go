package runner

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A session that calls beside others is held to its share: a few calls of it are in flight at any time, and beyond these it starts so many at once and
// so many a second. The rest waits in its own directory. Without this a guest with 64 calls in flight stands 64 times in every line behind the
// host, and another session's call behind all of them. A session that calls alone is not held back.
const (
	paceInFlight = 4
	paceBurst    = 16
	pacePerSec   = 100
	paceWait     = 50 * time.Millisecond // until it is looked at again: listing a full directory costs a millisecond
	paceBeside   = time.Second           // a session calls until so long after its last call was taken
)

func newPace() *rate.Limiter { return rate.NewLimiter(pacePerSec, paceBurst) }

// callers remembers the last two sessions of which a call was taken.
type callers struct {
	mu              sync.Mutex
	last, before    *session
	lastAt, otherAt time.Time // otherAt: when a call of before was taken
}

// beside notes that s has a call to be taken at now, and reports whether another session calls too.
func (c *callers) beside(s *session, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != s {
		c.before, c.otherAt = c.last, c.lastAt
		c.last = s
	}
	c.lastAt = now
	return c.before != nil && now.Sub(c.otherAt) < paceBeside
}

// forget lets go of a session that ended.
func (c *callers) forget(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.before == s {
		c.before = nil
	}
	if c.last == s {
		c.last, c.lastAt, c.before = c.before, c.otherAt, nil
	}
}

// mayCall reports whether another call of the session may be taken now.
func (s *session) mayCall(now time.Time) bool {
	if !s.runner.callers.beside(s, now) {
		return true
	}
	s.mu.Lock()
	few := len(s.calls) < paceInFlight
	s.mu.Unlock()
	return few || s.pace.AllowN(now, 1)
}

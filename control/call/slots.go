package call

import (
	"slices"
	"sync"
)

// slots bound how many dispatches of a connection are out at once, over all sessions. Who finds none waits in line, one of each session in turn, and a
// session leaves a quarter to the others: one that floods a slow server slows itself (I13). Safe for concurrent use.
type slots struct {
	mu      sync.Mutex
	all     map[string]*slot
	tickets int64
}

type slot struct {
	limit   int
	used    int
	of      map[string]int      // by session
	waiting map[string][]inLine // by session, in the order of their coming
	turn    []string            // sessions that wait, in the order of their turns
}

// toldSlot says that the slot which a driver took this ticket for is its own now.
type toldSlot struct{ ticket int64 }

// inLine is a driver that waits for a slot.
type inLine struct {
	l      *live
	ticket int64
}

func (s *slots) get(connection string, limit int) *slot {
	if s.all == nil {
		s.all = map[string]*slot{}
	}
	got := s.all[connection]
	if got == nil {
		got = &slot{of: map[string]int{}, waiting: map[string][]inLine{}}
		s.all[connection] = got
	}
	got.limit = max(limit, 1)
	return got
}

// share is what one session may hold.
func (c *slot) share() int { return max(1, c.limit-c.limit/4) }

func (c *slot) free(session string) bool { return c.used < c.limit && c.of[session] < c.share() }

func (c *slot) hold(session string) {
	c.used++
	c.of[session]++
}

// try takes a slot if one is free and nobody of the session waits before.
func (s *slots) try(connection string, limit int, l *live) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.get(connection, limit)
	if len(c.waiting[l.session]) > 0 || !c.free(l.session) {
		return false
	}
	c.hold(l.session)
	return true
}

// line puts l in line and returns its ticket: it is told when its turn came.
func (s *slots) line(connection string, limit int, l *live) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.get(connection, limit)
	s.tickets++
	if len(c.waiting[l.session]) == 0 {
		c.turn = append(c.turn, l.session)
	}
	c.waiting[l.session] = append(c.waiting[l.session], inLine{l, s.tickets})
	c.serve()
	return s.tickets
}

// force counts a dispatch that is out already: one that was adopted.
func (s *slots) force(connection string, limit int, l *live) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.get(connection, limit).hold(l.session)
}

// release gives a slot of a session back, and to who is next.
func (s *slots) release(connection, session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.all[connection]
	c.used--
	if c.of[session]--; c.of[session] == 0 {
		delete(c.of, session)
	}
	c.serve()
}

// leave takes a ticket out of the line. It returns false when it is not in it any more: the slot is its own, and the message on the way.
func (s *slots) leave(connection string, l *live, ticket int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.all[connection]
	i := slices.Index(c.waiting[l.session], inLine{l, ticket})
	if i < 0 {
		return false
	}
	c.waiting[l.session] = slices.Delete(c.waiting[l.session], i, i+1)
	c.tidy(l.session)
	return true
}

// serve hands free slots out, a session at a time. The caller holds the lock.
func (c *slot) serve() {
	for i := 0; i < len(c.turn) && c.used < c.limit; {
		session := c.turn[i]
		if !c.free(session) {
			i++
			continue
		}
		next := c.waiting[session][0]
		c.waiting[session] = c.waiting[session][1:]
		c.turn = append(slices.Delete(c.turn, i, i+1), session)
		if next.l.box.put(toldSlot{next.ticket}) {
			c.hold(session)
		}
		c.tidy(session)
	}
}

// tidy forgets a session of which nobody waits.
func (c *slot) tidy(session string) {
	if len(c.waiting[session]) > 0 {
		return
	}
	delete(c.waiting, session)
	c.turn = slices.DeleteFunc(c.turn, func(s string) bool { return s == session })
}

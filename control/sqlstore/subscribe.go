package sqlstore

import (
	"slices"

	"sallyport.dev/control/audit"
)

// Subscription receives the records of every commit, from its beginning on. A slow reader misses some: Lost says so, and the reader looks again.
type Subscription struct {
	C    <-chan []audit.Record
	c    chan []audit.Record
	s    *Store
	lost bool // guarded by the store's subsMu
}

// Subscribe returns the records of commits as they happen: wake-ups, not a log. End it with Close.
func (s *Store) Subscribe(buffer int) *Subscription {
	c := make(chan []audit.Record, max(buffer, 1))
	sub := &Subscription{C: c, c: c, s: s}
	s.subsMu.Lock()
	s.subs[sub] = struct{}{}
	s.subsMu.Unlock()
	return sub
}

// Close ends a subscription. It may be called twice.
func (u *Subscription) Close() {
	u.s.subsMu.Lock()
	delete(u.s.subs, u)
	u.s.subsMu.Unlock()
}

// Lost reports, once, whether records were left out since it was last asked.
func (u *Subscription) Lost() bool {
	u.s.subsMu.Lock()
	defer u.s.subsMu.Unlock()
	lost := u.lost
	u.lost = false
	return lost
}

// publish hands a commit's records to those who look.
func (s *Store) publish(t *tx) {
	if len(t.events) == 0 {
		return
	}
	s.subsMu.Lock()
	defer s.subsMu.Unlock()
	if len(s.subs) == 0 {
		return
	}
	records := slices.Clone(t.events)
	for sub := range s.subs {
		select {
		case sub.c <- records:
		default:
			sub.lost = true
		}
	}
}

package sqlstore

import (
	"sync"
	"time"
)

// seen keeps what is said every few seconds (this session is served, this machine is up) from being written every few seconds: with thousands of
// idle sessions that would be most of the store's work.
type seen struct {
	mu   sync.Mutex
	last map[string]sight
}

type sight struct {
	at   time.Time
	what string
}

// seenEvery is how old a written sight may be.
const seenEvery = time.Minute

// maxSights bounds the memory; past it, it begins anew.
const maxSights = 1 << 16

// worth reports whether a sight is news, and takes it as written.
func (s *seen) worth(who, what string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.last[who]; ok && last.what == what && now.Sub(last.at) < seenEvery {
		return false
	}
	if s.last == nil || len(s.last) >= maxSights {
		s.last = map[string]sight{}
	}
	s.last[who] = sight{now, what}
	return true
}

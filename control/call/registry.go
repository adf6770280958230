package call

import (
	"sync"

	"sallyport.dev/control"
)

// live is a call that a driver of this process has in hand.
type live struct {
	id      string
	session string
	digest  control.Digest // of the record that made it; zero for a retry
	box     mailbox
}

const shards = 64

// registry finds live calls by their id and by the intent of their current attempt. Its locks are sharded: the read's path takes none that another
// call of another shard holds.
type registry struct {
	calls   [shards]callShard
	intents [shards]intentShard
}

type callShard struct {
	mu  sync.Mutex
	all map[string]*live
}

type intentShard struct {
	mu  sync.Mutex
	all map[string]attemptOf
}

type attemptOf struct {
	l      *live
	run    string
	worker string
}

// shard spreads ids: they are random base32, so two characters are enough.
func shard(id string) int {
	if len(id) < 2 {
		return 0
	}
	return (int(id[0])*31 + int(id[1])) % shards
}

// claim returns the live call of an id, or makes l the one.
func (r *registry) claim(l *live) (*live, bool) {
	s := &r.calls[shard(l.id)]
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := s.all[l.id]; got != nil {
		return got, false
	}
	if s.all == nil {
		s.all = map[string]*live{}
	}
	s.all[l.id] = l
	return l, true
}

func (r *registry) find(id string) *live {
	s := &r.calls[shard(id)]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id]
}

func (r *registry) drop(l *live) {
	s := &r.calls[shard(l.id)]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[l.id] == l {
		delete(s.all, l.id)
	}
}

// each calls f for every live call; f must not block.
func (r *registry) each(f func(*live)) {
	for i := range r.calls {
		s := &r.calls[i]
		s.mu.Lock()
		all := make([]*live, 0, len(s.all))
		for _, l := range s.all {
			all = append(all, l)
		}
		s.mu.Unlock()
		for _, l := range all {
			f(l)
		}
	}
}

func (r *registry) expect(intent string, a attemptOf) {
	s := &r.intents[shard(intent)]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]attemptOf{}
	}
	s.all[intent] = a
}

func (r *registry) forget(intent string) {
	s := &r.intents[shard(intent)]
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, intent)
}

func (r *registry) attempt(intent string) (attemptOf, bool) {
	s := &r.intents[shard(intent)]
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.all[intent]
	return a, ok
}

// eachAttempt calls f for every attempt that is out; f must not block.
func (r *registry) eachAttempt(f func(intent string, a attemptOf)) {
	for i := range r.intents {
		s := &r.intents[i]
		s.mu.Lock()
		all := make(map[string]attemptOf, len(s.all))
		for id, a := range s.all {
			all[id] = a
		}
		s.mu.Unlock()
		for id, a := range all {
			f(id, a)
		}
	}
}

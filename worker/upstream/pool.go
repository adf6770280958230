package upstream

import (
	"slices"
	"sync"
	"time"
)

// How long a connection rests, and how many.
const (
	spareLife  = 5 * time.Second  // an unused connection, from its opening: a write may take it
	idleLife   = 30 * time.Second // one that carried requests, for reads
	idlePerKey = 64               // of one key
	idleTotal  = 512
	// A connection that carried a write rests only while there are few: writes open more of them than reads can use.
	idleAfterWrite = 2
)

// pool keeps resting connections by key: origin, network policy and credential. A connection that carried a request is never given to a write.
type pool struct {
	mu     sync.Mutex
	rest   map[string][]*conn
	count  int
	closed bool
	writes map[string]time.Time // of the last write, by key
}

// take returns a resting connection, newest first, or nil. A write gets only one that never carried a request and is under spareLife old; a read
// leaves those to the writes while there are others.
func (p *pool) take(key string, write bool) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	spare := func(k *conn) bool { return !k.used && time.Since(k.opened) < spareLife }
	if write {
		return p.first(key, spare)
	}
	if k := p.first(key, func(k *conn) bool { return k.used }); k != nil {
		return k
	}
	return p.first(key, spare)
}

// first takes out the newest connection that fits and still lives; the caller holds mu.
func (p *pool) first(key string, fits func(*conn) bool) *conn {
	for i := len(p.rest[key]) - 1; i >= 0; i-- {
		k := p.rest[key][i]
		if !fits(k) {
			continue
		}
		p.remove(key, i)
		k.resting.Store(false)
		k.expiry.Stop()
		if k.spoke() {
			k.close()
			continue
		}
		return k
	}
	return nil
}

func (p *pool) remove(key string, i int) {
	list := p.rest[key]
	copy(list[i:], list[i+1:])
	list[len(list)-1] = nil
	if list = list[:len(list)-1]; len(list) == 0 {
		delete(p.rest, key)
	} else {
		p.rest[key] = list
	}
	p.count--
}

// put lets k rest, or closes it. Its watch must run.
func (p *pool) put(k *conn) {
	life := idleLife
	if !k.used {
		life = spareLife - time.Since(k.opened)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// First resting, then the look: the watch looks the other way round, so that one of both sees a connection that ends now.
	k.resting.Store(true)
	if p.closed || life <= 0 || p.count >= idleTotal || len(p.rest[k.key]) >= idlePerKey || k.spoke() {
		k.resting.Store(false)
		k.close()
		return
	}
	if p.rest == nil {
		p.rest = map[string][]*conn{}
	}
	p.rest[k.key] = append(p.rest[k.key], k)
	p.count++
	k.expiry = time.AfterFunc(life, func() { p.drop(k) })
}

// drop closes k if it rests here: it expired, or ended, or the server spoke out of turn.
func (p *pool) drop(k *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.rest[k.key] {
		if other == k {
			p.remove(k.key, i)
			k.close()
			return
		}
	}
}

// wrote notes a write and reports whether it pays to open a spare for the next: the last one was as recent as a spare lives, and none rests.
func (p *pool) wrote(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	recent := now.Sub(p.writes[key]) < spareLife
	if p.writes == nil || len(p.writes) >= idleTotal {
		p.writes = map[string]time.Time{}
	}
	p.writes[key] = now
	return recent && !p.closed && p.count < idleTotal && !slices.ContainsFunc(p.rest[key], func(k *conn) bool { return !k.used })
}

// enough reports whether reads on key have connections enough.
func (p *pool) enough(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.rest[key]) >= idleAfterWrite
}

// close closes everything that rests, and what comes later.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, list := range p.rest {
		for _, k := range list {
			k.close()
		}
	}
	p.rest, p.count = nil, 0
}

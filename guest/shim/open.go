package shim

import (
	"context"
	"sync"

	"sallyport.dev/relay"
)

// openRequest is a request that has no answer yet: a call, or a subscription.
type openRequest struct {
	id           []byte
	key          string
	answers      answers
	subscription bool

	// Of a call; set before it is open.
	pending *relay.Pending
	stop    context.CancelFunc
}

// openRequests holds them by id. Whoever takes one out decides what becomes of it: an answer, silence after a cancel, or the end of the pipe.
// So a request is answered at most once, and never after it was cancelled.
type openRequests struct {
	publishing sync.Mutex // held while a record is being published, and by close

	mu     sync.Mutex
	all    map[string]*openRequest
	closed bool
}

func newOpenRequests() *openRequests { return &openRequests{all: make(map[string]*openRequest)} }

// has reports whether a request of that id is open.
func (o *openRequests) has(key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, open := o.all[key]
	return open
}

// calls and subscriptions return how many of each are open.
func (o *openRequests) calls() int         { return o.count(false) }
func (o *openRequests) subscriptions() int { return o.count(true) }

func (o *openRequests) count(subscription bool) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, r := range o.all {
		if r.subscription == subscription {
			n++
		}
	}
	return n
}

// add opens r, whose id is not open. It reports false once the pipe has ended.
func (o *openRequests) add(r *openRequest) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	o.all[r.key] = r
	return true
}

// publish opens r together with the record that it waits for: a pipe that ends meanwhile ends before both or after both. It reports false,
// and publishes nothing, once the pipe has ended.
func (o *openRequests) publish(r *openRequest, stop context.CancelFunc, record func() (*relay.Pending, error)) (bool, error) {
	o.publishing.Lock()
	defer o.publishing.Unlock()
	o.mu.Lock()
	closed := o.closed
	o.mu.Unlock()
	if closed {
		return false, nil
	}
	p, err := record()
	if err != nil {
		return false, err
	}
	r.pending, r.stop = p, stop
	return o.add(r), nil
}

// take takes r out and reports whether it was there.
func (o *openRequests) take(r *openRequest) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all[r.key] != r {
		return false
	}
	delete(o.all, r.key)
	return true
}

// takeKey takes the request of an id out, nil where none is open.
func (o *openRequests) takeKey(key string) *openRequest {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.all[key]
	delete(o.all, key)
	return r
}

// close takes all out, and keeps it so. It waits for a record that is just being published, so that its call is not forgotten.
func (o *openRequests) close() []*openRequest {
	o.publishing.Lock()
	defer o.publishing.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	var all []*openRequest
	for _, r := range o.all {
		all = append(all, r)
	}
	clear(o.all)
	return all
}

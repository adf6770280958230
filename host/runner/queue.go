package runner

import (
	"context"
	"sync"
)

// queue is a fair FIFO of sessions: each stands in it at most once, and is with at most one taker at a time.
type queue struct {
	mu     sync.Mutex
	states map[*session]state
	list   []*session
	signal chan struct{} // one token while the list is not empty and somebody may wait
}

type state uint8

const (
	idle state = iota
	queued
	taken
	takenAgain // pushed while it was taken: it is queued again once it is given back
)

func newQueue() *queue {
	return &queue{states: make(map[*session]state), signal: make(chan struct{}, 1)}
}

// push queues s, or marks it to be queued again where somebody has it.
func (q *queue) push(s *session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch q.states[s] {
	case idle:
		q.append(s)
	case taken:
		q.states[s] = takenAgain
	case queued, takenAgain:
	}
}

func (q *queue) append(s *session) {
	q.states[s] = queued
	q.list = append(q.list, s)
	q.wake()
}

func (q *queue) wake() {
	select {
	case q.signal <- struct{}{}:
	default:
	}
}

// take waits for a session; it must be given back with done. It returns ctx's error once ctx ends.
func (q *queue) take(ctx context.Context) (*session, error) {
	for {
		if s := q.tryTake(); s != nil {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-q.signal:
		}
	}
}

// tryTake returns nil where no session is queued.
func (q *queue) tryTake() *session {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		return nil
	}
	s := q.list[0]
	q.list[0] = nil
	q.list = q.list[1:]
	if len(q.list) == 0 {
		q.list = nil // lets go of what a burst left behind
	} else {
		q.wake() // for the next taker
	}
	q.states[s] = taken
	return s
}

// done gives s back; again queues it at the end of the line.
func (q *queue) done(s *session, again bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if again || q.states[s] == takenAgain {
		q.append(s)
		return
	}
	delete(q.states, s)
}

func (q *queue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.list)
}

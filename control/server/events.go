package server

import (
	"sync"
	"time"
)

// Event is one line of a Watch. It carries ids and states, never a body.
type Event struct {
	Kind   string // question | call | session | switch | machine | quarantine | config
	ID     string
	State  string
	Detail string
	// Session and Call narrow what a watcher asked for.
	Session string
	Call    string
	At      time.Time
}

// events hands events to watchers. A slow watcher loses events and is told so by a gap: rows are the truth, events only wake somebody.
type events struct {
	mu   sync.Mutex
	subs map[chan Event]bool
}

const eventBuffer = 256

func newEvents() *events { return &events{subs: map[chan Event]bool{}} }

func (e *events) publish(ev Event) {
	ev.At = time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.subs {
		select {
		case c <- ev:
		default:
		}
	}
}

func (e *events) subscribe() (c chan Event, done func()) {
	c = make(chan Event, eventBuffer)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.subs[c] = true
	return c, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.subs, c)
	}
}

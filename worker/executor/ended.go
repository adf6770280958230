package executor

import (
	"container/heap"
	"time"
)

// Bounds of what is remembered after the end.
const (
	// remember is how long an ended intent is known beyond the time in which it could be valid, and at least.
	remember = 10 * time.Minute
	// maxWrites bounds the writes that a run remembers for its whole life. A run that reached it asks to be replaced.
	maxWrites = 1 << 20
)

// ended remembers intents that cannot run again: closed ones and those whose outcome was acknowledged. A write that may have left is remembered as
// long as the run lives, so that this run can never say "not started" of it, whatever control's store forgot; everything else only until its
// intent could no longer be valid.
type ended struct {
	states map[string]state
	expiry expiries
	writes int
}

type expiry struct {
	id    string
	until time.Time
}

func newEnded() *ended { return &ended{states: map[string]state{}} }

// put remembers id in s until the time given; a zero time means for good.
func (m *ended) put(id string, s state, until time.Time) {
	if _, known := m.states[id]; !known {
		if until.IsZero() {
			m.writes++
		} else {
			heap.Push(&m.expiry, expiry{id, until})
		}
	}
	m.states[id] = s
}

// get returns closed, forgotten or absent.
func (m *ended) get(id string) state { return m.states[id] }

// expire drops what is over at now.
func (m *ended) expire(now time.Time) {
	for len(m.expiry) > 0 && m.expiry[0].until.Before(now) {
		delete(m.states, heap.Pop(&m.expiry).(expiry).id)
	}
}

// full reports whether the run should be replaced.
func (m *ended) full() bool { return m.writes >= maxWrites }

type expiries []expiry

func (e expiries) Len() int           { return len(e) }
func (e expiries) Less(i, j int) bool { return e[i].until.Before(e[j].until) }
func (e expiries) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }

// Push implements heap.Interface.
func (e *expiries) Push(x any) { *e = append(*e, x.(expiry)) }

// Pop implements heap.Interface.
func (e *expiries) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

package link

import (
	"sync"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
)

// HighWater remembers the newest history of control's store that this run has seen, over all its Links. A store that knows less was restored from an older
// copy, and control learns it from Hello. Safe for concurrent use.
type HighWater struct {
	mu   sync.Mutex
	seen *sallyportv1.HighWater
}

// See takes a history: a higher counter of the same incarnation, or another incarnation, which begins by a person's decision.
func (h *HighWater) See(w *sallyportv1.HighWater) {
	if w.GetIncarnation() == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen.GetIncarnation() != w.GetIncarnation() || w.GetCounter() > h.seen.GetCounter() {
		h.seen = w
	}
}

// Seen returns the newest history, or nil.
func (h *HighWater) Seen() *sallyportv1.HighWater {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen
}

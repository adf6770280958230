package upstream

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"
)

// longAnswers is how much memory all long answers together may take at once: those that are being read, and those whose outcome is kept. An answer
// that finds no room is not read on until there is some, or its time is over.
const longAnswers = 192 << 20

// place is the memory of one answer. It belongs to one goroutine at a time.
type place struct {
	room *semaphore.Weighted
	held int64
}

// take gets room for an answer of up to n bytes; meanwhile the server is kept waiting. A place takes room once.
func (p *place) take(ctx context.Context, k *conn, deadline time.Time, n int64) Failure {
	if p == nil || p.held > 0 {
		return ""
	}
	if !p.room.TryAcquire(n) {
		resume := k.src.pause()
		defer resume()
		ctx, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		if err := p.room.Acquire(ctx, n); err != nil {
			return FailRoom
		}
	}
	p.held = n
	return ""
}

// extend makes room in b for n more bytes. It doubles, up to most: what lies around as garbage of smaller ones is then less than b itself, where append's
// own growth leaves four times as much.
func extend(b []byte, n int, most int64) []byte {
	if len(b)+n <= cap(b) {
		return b
	}
	wide := make([]byte, len(b), len(b)+max(n, min(len(b), int(most)-len(b)))) // slices.Grow takes up to a quarter more than it is asked for
	copy(wide, b)
	return wide
}

// shrink gives back what an answer of n bytes does not need.
func (p *place) shrink(n int64) {
	if p == nil || p.held <= n {
		return
	}
	p.room.Release(p.held - n)
	p.held = n
}

// release gives all of it back.
func (p *place) release() { p.shrink(0) }

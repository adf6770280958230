package server

import (
	"context"
	"iter"
	"sync"
	"time"

	"sallyport.dev/errs"
)

// Bounds of one Link's queue. A peer that does not read for so long is cut off: it reconnects and attaches, and nothing is lost but time.
const (
	outboxFrames = 1 << 16
	outboxBytes  = 256 << 20
	batchFrames  = 256
	batchBytes   = 1 << 20
	chunkBytes   = 256 << 10
	// longBytes is how much may be on its way behind the announcing frames; one result always may.
	longBytes = 128 << 20
)

// rideFor is how long a frame that nobody waits for stays for one to ride with.
const rideFor = 5 * time.Millisecond

// outbox queues the frames of one Link. Pushing never blocks; one sender drains what has gathered into one message, so that frames are coalesced
// under load and leave at once without it. Long bodies go in lanes of their own, a frame of each in turn, so that a large answer delays no small one;
// a lane's frames are made when they are sent.
type outbox[F any] struct {
	mu     sync.Mutex
	queue  []entry[F]
	bytes  int
	closed bool
	riding bool // a timer sees to what rides
	lanes  []*lane[F]
	long   int64 // bytes of the lanes
	wake   chan struct{}
}

// lane is a body on its way.
type lane[F any] struct {
	size int64
	next func() (F, bool)
	stop func()
}

type entry[F any] struct {
	frame F
	size  int
}

func newOutbox[F any]() *outbox[F] { return &outbox[F]{wake: make(chan struct{}, 1)} }

// push queues frames together, in order. It reports false when the Link is gone or its queue is full; then none was queued, and a full queue is
// closed.
func (o *outbox[F]) push(size int, frames ...F) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.add(size, frames) {
		return false
	}
	o.signal()
	return true
}

// pushLong queues frames of size bytes together, each of about a chunk, in a lane. Errors: [errs.Unreachable] when the Link is gone, [errs.Busy] when
// too much is on its way already.
func (o *outbox[F]) pushLong(size int64, frames iter.Seq[F]) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return errs.New(errs.Unreachable, "the link is down")
	case len(o.lanes) > 0 && o.long+size > longBytes:
		return errs.New(errs.Busy, "too much is on its way")
	}
	l := &lane[F]{size: size}
	l.next, l.stop = iter.Pull(frames)
	o.lanes = append(o.lanes, l)
	o.long += size
	o.signal()
	return nil
}

// takeLong takes a frame of each lane in turn, as many as a message has room for, and one in any case; o.mu is held.
func (o *outbox[F]) takeLong(out []F, size int) []F {
	for taken := 0; len(o.lanes) > 0 && (taken == 0 || len(out) < batchFrames && size+chunkBytes <= batchBytes); {
		l := o.lanes[0]
		o.lanes = o.lanes[1:]
		f, ok := l.next()
		if !ok {
			l.stop()
			o.long -= l.size
			continue
		}
		out = append(out, f)
		size += chunkBytes
		taken++
		o.lanes = append(o.lanes, l)
	}
	if len(o.lanes) > 0 {
		o.signal()
	}
	return out
}

// shut closes the outbox; o.mu is held.
func (o *outbox[F]) shut() {
	o.closed = true
	o.queue = nil
	for _, l := range o.lanes {
		l.stop()
	}
	o.lanes, o.long = nil, 0
	o.signal()
}

// ride queues a frame for which nobody waits: it leaves with the next one that is pushed, or after [rideFor]. A message of its own would wake the
// peer for nothing.
func (o *outbox[F]) ride(size int, frame F) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.add(size, []F{frame}) {
		return false
	}
	if !o.riding {
		o.riding = true
		time.AfterFunc(rideFor, o.arrive)
	}
	return true
}

func (o *outbox[F]) arrive() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.riding = false
	if len(o.queue) > 0 {
		o.signal()
	}
}

// add queues frames; o.mu is held.
func (o *outbox[F]) add(size int, frames []F) bool {
	if o.closed {
		return false
	}
	if len(o.queue)+len(frames) > outboxFrames || o.bytes+size > outboxBytes {
		o.shut()
		return false
	}
	for i, f := range frames {
		s := size / len(frames)
		if i == 0 {
			s = size - s*(len(frames)-1)
		}
		o.queue = append(o.queue, entry[F]{f, s})
	}
	o.bytes += size
	return true
}

func (o *outbox[F]) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// next returns the frames of the next message. It reports false when the outbox is closed or ctx is done.
func (o *outbox[F]) next(ctx context.Context) ([]F, bool) {
	for {
		o.mu.Lock()
		if o.closed {
			o.mu.Unlock()
			return nil, false
		}
		if len(o.queue) > 0 || len(o.lanes) > 0 {
			n, size := 0, 0
			for n < len(o.queue) && n < batchFrames && (n == 0 || size+o.queue[n].size <= batchBytes) {
				size += o.queue[n].size
				n++
			}
			out := make([]F, n, n+len(o.lanes))
			for i := range n {
				out[i] = o.queue[i].frame
			}
			o.queue = o.queue[n:]
			if len(o.queue) == 0 {
				o.queue = nil
			} else {
				o.signal()
			}
			o.bytes -= size
			out = o.takeLong(out, size)
			o.mu.Unlock()
			if len(out) == 0 {
				continue // the last lane ended
			}
			return out, true
		}
		o.mu.Unlock()
		select {
		case <-o.wake:
		case <-ctx.Done():
			return nil, false
		}
	}
}

func (o *outbox[F]) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shut()
}

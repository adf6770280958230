// Package link is a worker's one long stream to a control node: it dials, says Hello, hands jobs to the executor and frames to control, and comes back
// when it is lost. What a lost Link carried is not lost: the executor keeps it and says it again.
package link

import (
	"context"
	"slices"
	"sync"
	"time"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
)

// Bounds of one Link's queue and of one message. A control node that does not read for so long is given up: the Link comes back empty, and what
// matters is said again.
const (
	outboxFrames = 1 << 16
	outboxBytes  = 256 << 20
	batchFrames  = 256
	batchBytes   = 1 << 20
)

// openLanes is how many bodies are on their way at once: control puts no more together.
const openLanes = 32

// rideFor is how long a frame that nobody waits for stays for one to ride with.
const rideFor = 5 * time.Millisecond

// rides reports whether nobody waits for a frame: that a call was sent only matters where its outcome does not follow at once.
func rides(f *sallyportv1.WorkerFrame) bool { return f.GetSent() != nil }

// outbox queues the frames of one Link. Pushing never blocks; the one sender drains what gathered into one message, so that frames are coalesced under
// load and leave at once without it. Bodies in chunks go in lanes of their own, a chunk of each in turn, so that a large answer delays no small one.
type outbox struct {
	mu     sync.Mutex
	frames []*sallyportv1.WorkerFrame
	lanes  [][]*sallyportv1.WorkerFrame
	count  int
	bytes  int
	closed bool
	riding bool // a timer sees to what rides
	wake   chan struct{}
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

// size is what a frame takes, as good as a bound needs it.
func size(f *sallyportv1.WorkerFrame) int {
	const rest = 256
	switch f := f.GetFrame().(type) {
	case *sallyportv1.WorkerFrame_Chunk:
		return rest + len(f.Chunk.GetData())
	case *sallyportv1.WorkerFrame_Outcome:
		return rest + len(f.Outcome.GetBody()) + len(f.Outcome.GetOutput()) + len(f.Outcome.GetDetail()) + len(f.Outcome.GetUpstreamSession())
	case *sallyportv1.WorkerFrame_Ready:
		return rest + len(f.Ready.GetUpstreamSession())
	}
	return rest
}

// push queues frames in order. It reports false when the Link is gone or the queue is full; a full queue is closed.
func (o *outbox) push(frames ...*sallyportv1.WorkerFrame) bool {
	return o.add(frames, func() { o.frames = append(o.frames, frames...) })
}

// pushLane queues frames that belong together, in order among themselves.
func (o *outbox) pushLane(frames ...*sallyportv1.WorkerFrame) bool {
	return o.add(frames, func() { o.lanes = append(o.lanes, frames) })
}

func (o *outbox) add(frames []*sallyportv1.WorkerFrame, put func()) bool {
	bytes := 0
	for _, f := range frames {
		bytes += size(f)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	if o.count+len(frames) > outboxFrames || o.bytes+bytes > outboxBytes {
		o.shut()
		return false
	}
	o.count += len(frames)
	o.bytes += bytes
	put()
	if len(frames) > 1 || !rides(frames[0]) {
		o.signal()
	} else if !o.riding {
		o.riding = true
		time.AfterFunc(rideFor, o.arrive)
	}
	return true
}

// arrive sends what still rides.
func (o *outbox) arrive() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.riding = false
	if o.count > 0 {
		o.signal()
	}
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outbox) shut() {
	o.closed = true
	o.frames, o.lanes, o.count, o.bytes = nil, nil, 0, 0
	o.signal()
}

func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shut()
}

// next waits for frames and returns a batch. It reports false when the outbox was closed or ctx ended.
func (o *outbox) next(ctx context.Context) ([]*sallyportv1.WorkerFrame, bool) {
	for {
		o.mu.Lock()
		batch, closed := o.batch(), o.closed
		o.mu.Unlock()
		switch {
		case closed:
			return nil, false
		case len(batch) > 0:
			return batch, true
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
			return nil, false
		}
	}
}

// batch takes frames up to a message's bounds: first those in the queue, then one of each lane in turn. At least one frame is taken, if there is one.
func (o *outbox) batch() []*sallyportv1.WorkerFrame {
	var batch []*sallyportv1.WorkerFrame
	bytes := 0
	fits := func(f *sallyportv1.WorkerFrame) bool {
		return len(batch) == 0 || len(batch) < batchFrames && bytes+size(f) <= batchBytes
	}
	take := func(f *sallyportv1.WorkerFrame) {
		batch = append(batch, f)
		bytes += size(f)
	}
	n := 0
	for n < len(o.frames) && fits(o.frames[n]) {
		take(o.frames[n])
		n++
	}
	if o.frames = o.frames[n:]; len(o.frames) == 0 {
		o.frames = nil
	}
	for len(o.lanes) > 0 && fits(o.lanes[0][0]) {
		turn := min(len(o.lanes), openLanes)
		lane := o.lanes[0]
		take(lane[0])
		copy(o.lanes, o.lanes[1:turn])
		if lane = lane[1:]; len(lane) > 0 {
			o.lanes[turn-1] = lane
		} else {
			o.lanes = slices.Delete(o.lanes, turn-1, turn)
		}
	}
	o.count -= len(batch)
	o.bytes -= bytes
	return batch
}

package sqlstore

import (
	"sync"
	"sync/atomic"

	"sallyport.dev/errs"
)

// syncer makes commits durable: one fdatasync of the write-ahead log covers every commit that was written before it began. It runs beside the
// writer, so that nothing but the durable writes themselves waits for the disk.
//
// Why that is enough: a commit's frames are in the log before its write is added here. If a checkpoint moved them to the database meanwhile and
// the log began anew, the checkpoint itself synced log and database first (synchronous=NORMAL).
type syncer struct {
	fsync  func() error
	after  func(Mark) // called for what is durable now, before the writes are answered
	failed atomic.Pointer[errs.Error]
	onFail func(error)

	mu      sync.Mutex
	waiting []*write
	mark    Mark // of the newest commit in waiting
	closed  bool
	wake    chan struct{}
}

func newSyncer(fsync func() error, after func(Mark), onFail func(error)) *syncer {
	return &syncer{fsync: fsync, after: after, onFail: onFail, wake: make(chan struct{}, 1)}
}

// add lets w wait for the next sync. m is the commit's.
func (y *syncer) add(w *write, m Mark) {
	y.mu.Lock()
	y.waiting = append(y.waiting, w)
	y.mark = m
	y.mu.Unlock()
}

func (y *syncer) signal() {
	select {
	case y.wake <- struct{}{}:
	default:
	}
}

// failure returns why nothing is written any more, or nil.
func (y *syncer) failure() error {
	if e := y.failed.Load(); e != nil {
		return e
	}
	return nil
}

// fail stops all writing: after a failed fsync nobody can know what is on the disk.
func (y *syncer) fail(err error) {
	e := errs.Wrap(errs.NotDurable, "the disk did not confirm a write, so nothing runs any more; look at the disk, then start control again", err)
	if y.failed.CompareAndSwap(nil, e) {
		y.onFail(e)
	}
}

func (y *syncer) close() {
	y.mu.Lock()
	y.closed = true
	y.mu.Unlock()
	y.signal()
}

func (y *syncer) take() (waiting []*write, m Mark, closed bool) {
	y.mu.Lock()
	defer y.mu.Unlock()
	waiting, y.waiting = y.waiting, nil
	return waiting, y.mark, y.closed
}

// run is the goroutine that syncs. It ends when the writer has ended and nobody waits.
func (y *syncer) run() {
	for range y.wake {
		waiting, m, closed := y.take()
		if len(waiting) > 0 {
			y.settle(waiting, m)
		}
		if closed && len(waiting) == 0 {
			return
		}
		if closed {
			y.signal()
		}
	}
}

func (y *syncer) settle(waiting []*write, m Mark) {
	err := y.failure()
	if err == nil {
		if serr := y.fsync(); serr != nil {
			y.fail(serr)
			err = y.failure()
		} else {
			y.after(m)
		}
	}
	for _, w := range waiting {
		w.done <- err
	}
}

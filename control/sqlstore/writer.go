package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sallyport.dev/control/audit"
	"sallyport.dev/errs"
)

// class says what becomes of a write when the store is not well.
type class uint8

const (
	durable  class = 1 << iota // returns only after the commit is on stable storage
	grows                      // admission: refused when the disk is full, before anything else is
	dispatch                   // lets something be sent: refused when its settle might find no room
)

// maxBatch bounds one transaction, so that the first of a batch does not wait for hundreds.
const maxBatch = 128

// write is one operation: f runs in a transaction that it may share with others. When f returns an error nothing of it stays. f may run more
// than once (after a full disk, or after another write of its batch failed halfway), so it sets its results anew each time and has no other
// effect.
type write struct {
	ctx   context.Context
	class class
	f     func(*tx) error
	done  chan error
	err   error // of f
}

var writes = sync.Pool{New: func() any { return &write{done: make(chan error, 1)} }}

// do runs f as one transaction and returns after its commit. Once f began, ctx no longer ends the wait: the outcome is always known, unless the
// store itself failed. Errors: what f returns; [errs.NotDurable], [errs.StoreFull], [errs.Quarantined], [errs.Unavailable] of the store.
func (s *Store) do(ctx context.Context, c class, f func(*tx) error) error {
	w := writes.Get().(*write)
	w.ctx, w.class, w.f, w.err = ctx, c, f, nil
	if !s.queue.put(w) {
		return errClosed()
	}
	if s.writing.TryLock() { // nobody writes: to wake the writer for it and to be woken again costs more than most batches
		s.round()
		s.writing.Unlock()
	} else {
		s.queue.signal()
	}
	err := <-w.done
	w.ctx, w.f, w.err = nil, nil, nil
	writes.Put(w)
	return err
}

func errClosed() error { return errs.New(errs.Unavailable, "the store is closed") }

// queue hands writes to the writer.
type queue struct {
	mu     sync.Mutex
	items  []*write
	riders []func(*tx) error
	lazy   *time.Timer // wakes the writer for riders when no commit came
	closed bool
	wake   chan struct{} // holds one token while there is something to take
}

// rideFor is how long a rider waits for a commit that takes it along.
const rideFor = 50 * time.Millisecond

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

func (q *queue) put(w *write) bool {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return false
	}
	q.items = append(q.items, w)
	q.mu.Unlock()
	return true
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// ride adds a change that waits for the next commit and for which nobody waits.
func (q *queue) ride(f func(*tx) error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.riders = append(q.riders, f)
	if len(q.riders) == 1 {
		q.lazy = time.AfterFunc(rideFor, q.signal)
	}
}

// take returns up to maxBatch writes and every rider, and whether the queue is closed and empty. What it leaves wakes the writer.
func (q *queue) take(into []*write) (batch []*write, riders []func(*tx) error, over bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.items), maxBatch)
	batch = append(into[:0], q.items[:n]...)
	rest := copy(q.items, q.items[n:])
	clear(q.items[rest:])
	q.items = q.items[:rest]
	if rest > 0 || q.closed {
		q.signal()
	}
	if riders, q.riders = q.riders, nil; len(riders) > 0 {
		q.lazy.Stop()
	}
	return batch, riders, q.closed && n == 0 && len(riders) == 0
}

func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}

// runWriter writes what was put while somebody else wrote, and riders that no commit took along.
func (s *Store) runWriter() {
	defer s.sync.close()
	for over := false; !over; {
		<-s.queue.wake
		s.writing.Lock()
		over = s.round()
		s.writing.Unlock()
	}
}

// round writes one batch and reports whether the queue is closed and empty; s.writing is held.
func (s *Store) round() (over bool) {
	batch, riders, over := s.queue.take(s.batch)
	s.batch = batch
	if len(batch) > 0 || len(riders) > 0 {
		s.commit(batch, riders)
		clear(batch)
		s.checkpoints.consider()
	}
	return over
}

// commit runs a batch: what the store's state refuses first, then the rest in one transaction. A full disk is met by giving back the reserve
// and running the batch again without what grows.
func (s *Store) commit(batch []*write, riders []func(*tx) error) {
	s.room.look(time.Now())
	defer s.sayRoom(s.room.said)
	run := s.refuse(batch)
	if s.sync.failure() != nil {
		return // and what would ride along is lost: nothing is written any more
	}
	err := s.transact(run, riders, false)
	if errors.Is(err, errCareful) {
		err = s.transact(run, riders, true)
	}
	if isFull(err) {
		s.room.exhausted()
		if run = s.refuse(run); len(run) > 0 {
			err = s.transact(run, nil, true)
		}
	}
	if err != nil && len(run) > 0 {
		err = storeError(err)
		s.log.Error("a commit failed", "error", err, "writes", len(run))
		for _, w := range run {
			w.done <- err
		}
	}
}

// sayRoom logs that the disk became full, or has room again: a call that is refused for it can have no row.
func (s *Store) sayRoom(before bool) {
	switch s.room.said = s.room.full; {
	case s.room.full && !before:
		s.log.Error("the disk of the store is full: nothing new is admitted until there is room", "error", s.room.unknown)
	case before && !s.room.full:
		s.log.Info("the disk of the store has room again")
	}
}

// refuse answers what may not run now and returns the others.
func (s *Store) refuse(batch []*write) []*write {
	run := batch[:0]
	for _, w := range batch {
		if err := s.refusal(w); err != nil {
			w.done <- err
			continue
		}
		run = append(run, w)
	}
	return run
}

func (s *Store) refusal(w *write) error {
	if err := s.sync.failure(); err != nil {
		return err
	}
	if err := w.ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, "the request ended before the store got to it; nothing was written", err)
	}
	return s.room.refusal(w.class)
}

// errCareful asks for a batch again, with a savepoint for each write: one of them failed after it had changed something.
var errCareful = errors.New("a write of the batch failed halfway")

// transact runs the writes in one transaction. A returned error means that none of them stands and none was answered. Without careful no
// savepoints are made: writes check before they change, so that almost none fails halfway.
func (s *Store) transact(run []*write, riders []func(*tx) error, careful bool) error {
	if len(run) == 0 && len(riders) == 0 {
		return nil
	}
	defer s.facts.end()
	t := &s.tx
	t.begin(s, careful)
	if _, err := s.w.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err := s.transactOpen(t, run, riders); err != nil {
		s.rollback()
		return err
	}
	return nil
}

func (s *Store) transactOpen(t *tx, run []*write, riders []func(*tx) error) error {
	wantsDurable := false
	for _, w := range run {
		var err error
		if w.err, err = t.operation(w.f); err != nil {
			return err
		}
		wantsDurable = wantsDurable || w.err == nil && w.class&durable != 0
	}
	for _, f := range riders {
		opErr, err := t.operation(f)
		if err != nil {
			return err
		}
		if opErr != nil {
			s.log.Warn("a rider was not written", "error", opErr)
		}
	}
	if !t.wrote && len(t.events) == 0 {
		if _, err := s.w.exec("COMMIT"); err != nil {
			return err
		}
		// What a durable write found done already may not be durable yet.
		s.answer(run, wantsDurable)
		return nil
	}
	if wantsDurable {
		t.head.counter++
	}
	if err := t.finish(); err != nil {
		return err
	}
	if _, err := s.w.exec("COMMIT"); err != nil {
		return err
	}
	s.committed(t)
	s.answer(run, wantsDurable)
	return nil
}

// answer tells each write what it came to: at once, or, what must be durable, after the next sync.
func (s *Store) answer(run []*write, wantsDurable bool) {
	for _, w := range run {
		if w.err == nil && wantsDurable && w.class&durable != 0 {
			s.sync.add(w, Mark{s.head.incarnation, s.head.counter})
			continue
		}
		w.done <- w.err
	}
	if wantsDurable {
		s.sync.signal()
	}
}

func (s *Store) rollback() {
	if !s.w.db.GetAutocommit() { // a full disk or an I/O error may have rolled it back already
		if _, err := s.w.exec("ROLLBACK"); err != nil {
			s.log.Error("a rollback failed", "error", err)
		}
	}
}

// tx is what one operation sees: the writer's connection, the batch's time, and the audit records of the batch.
type tx struct {
	*conn
	s       *Store
	now     time.Time
	head    head // as of this batch; becomes the store's with the commit
	events  []audit.Record
	moves   []*callRow // rows that were written, for the index in memory
	wrote   bool       // anything in this batch
	opWrote bool       // anything in this operation
	inOp    bool
	careful bool // each operation has a savepoint
}

func (t *tx) begin(s *Store, careful bool) {
	*t = tx{conn: s.w, s: s, careful: careful, now: s.Now(), head: s.head, events: t.events[:0], moves: t.moves[:0]}
}

// exec is a change; the first one of an operation opens its savepoint.
func (t *tx) exec(sql string, args ...any) (int64, error) {
	if t.inOp && !t.opWrote {
		if t.careful {
			if _, err := t.conn.exec("SAVEPOINT operation"); err != nil {
				return 0, &broken{err}
			}
		}
		t.opWrote, t.wrote = true, true
	}
	t.s.facts.changing(sql)
	n, err := t.conn.exec(sql, args...)
	if err != nil {
		return 0, &broken{fmt.Errorf("%w in %.60q", err, sql)}
	}
	return n, nil
}

// row reads one row inside the transaction.
func (t *tx) row(sql string, args []any, dest ...any) (bool, error) {
	found, err := t.conn.row(sql, args, dest...)
	if err != nil {
		return false, &broken{err}
	}
	return found, nil
}

// broken is a failure of the database itself, not of what was asked.
type broken struct{ err error }

func (b *broken) Error() string { return b.err.Error() }
func (b *broken) Unwrap() error { return b.err }

// operation runs f. opErr is f's own refusal, after which nothing of f stays; err means that the transaction is lost.
func (t *tx) operation(f func(*tx) error) (opErr, err error) {
	events, moves, head := len(t.events), len(t.moves), t.head
	t.inOp, t.opWrote = true, false
	opErr = t.guarded(f)
	t.inOp = false
	if opErr == nil {
		if t.opWrote && t.careful {
			_, err = t.conn.exec("RELEASE operation")
		}
		return nil, err
	}
	t.events, t.moves, t.head = t.events[:events], t.moves[:moves], head
	switch {
	case isFull(opErr) || isIO(opErr):
		return nil, opErr // the whole transaction is gone with it
	case t.opWrote && !t.careful:
		return nil, errCareful
	case t.opWrote:
		for _, sql := range []string{"ROLLBACK TO operation", "RELEASE operation"} {
			if _, err := t.conn.exec(sql); err != nil {
				return nil, err
			}
		}
	}
	var b *broken
	if errors.As(opErr, &b) {
		opErr = storeError(opErr)
	}
	return opErr, nil
}

// guarded runs f; a panic of one operation must not take the store along.
func (t *tx) guarded(f func(*tx) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errs.Wrap(errs.Internal, "a write failed in a way that is a defect; the log has the detail", fmt.Errorf("panic: %v", p))
		}
	}()
	return f(t)
}

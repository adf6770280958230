package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// head is where the store stands. Who writes owns it; others read copies.
type head struct {
	incarnation string
	counter     int64 // durable commits
	generation  int64 // of the policy
	quarantine  string
	seq         int64          // of the last audit record
	link        control.Digest // of the last batch
	calls       int64          // the highest calls.seq
}

// Store is the database. It implements the Store of call, inbox, grant, session, revocation, connection and machine, and is safe for
// concurrent use. Only one process can have it open.
type Store struct {
	opts  Options
	log   *slog.Logger
	lock  *processLock
	run   string
	runNo int64

	queue   *queue
	sync    *syncer
	readers chan *conn
	pool    int           // connections in readers
	closed  chan struct{} // nothing is read any more
	wal     *os.File      // to sync

	writing     sync.Mutex // who holds it writes a batch, or takes the last step of a checkpoint of the log
	batch       []*write   // of who writes: kept for the next
	w           *conn      // the writer's
	head        head
	tx          tx
	room        *room
	checkpoints *walCheckpointer
	highwater   *highwater
	index       *callIndex
	facts       facts

	last       atomic.Int64 // newest time that was given out, Unix milliseconds
	view       atomic.Pointer[head]
	synced     atomic.Pointer[Mark]   // newest durable commit
	checkpoint atomic.Pointer[[]byte] // newest that was signed
	policy     atomic.Pointer[control.Policy]
	building   sync.Mutex
	seen       seen

	failed  chan struct{} // closed when nothing is written any more
	stop    context.CancelFunc
	done    sync.WaitGroup // chores
	writers sync.WaitGroup // writer and syncer
	fsyncUS int64
	closing sync.Once
}

func (s *Store) path(name string) string { return filepath.Join(s.opts.Dir, name) }

// Now is the store's time: UTC, in milliseconds, never going back within a process.
func (s *Store) Now() time.Time {
	now := s.opts.Now().UnixMilli()
	for {
		last := s.last.Load()
		if now <= last {
			return time.UnixMilli(last).UTC()
		}
		if s.last.CompareAndSwap(last, now) {
			return time.UnixMilli(now).UTC()
		}
	}
}

// committed makes a batch the store's new state. The writer calls it.
func (s *Store) committed(t *tx) {
	changed := t.head.generation != s.head.generation || t.head.counter != s.head.counter || t.head.quarantine != s.head.quarantine || t.head.incarnation != s.head.incarnation
	s.head = t.head
	if changed {
		view := s.head
		s.view.Store(&view)
	}
	s.index.apply(t.moves)
}

// durableNow notes that every commit up to m is on stable storage.
func (s *Store) durableNow(m Mark) {
	s.synced.Store(&m)
	if s.highwater == nil { // opening
		return
	}
	if err := s.highwater.write(m); err != nil {
		s.log.Warn("the highwater file cannot be written", "error", err)
	}
}

func (s *Store) fdatasync() error {
	for {
		if err := unix.Fdatasync(int(s.wal.Fd())); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (s *Store) fail(err error) {
	s.log.Error("nothing is written any more", "error", err)
	close(s.failed)
}

// Failed is closed when the store stopped writing for good: the process should end and be started again.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Health is how the store is, for status and doctor.
type Health struct {
	Mark
	Quarantine string
	Durable    bool
	FsyncUS    int64 // one fdatasync, measured when the store was opened
	Run        string
}

// Health says how the store is.
func (s *Store) Health() Health {
	return Health{
		Mark: *s.synced.Load(), Quarantine: s.view.Load().quarantine, Durable: s.sync.failure() == nil, FsyncUS: s.fsyncUS, Run: s.run,
	}
}

// HighWater is the newest durable commit: what hosts and workers are told to remember.
func (s *Store) HighWater() Mark { return s.Health().Mark }

// read runs f on a connection of its own, over one consistent state.
func (s *Store) read(ctx context.Context, f func(*conn) error) error {
	if err := ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, "the request ended before the store got to it", err)
	}
	select {
	case <-ctx.Done():
		return errs.Wrap(errs.Unavailable, "the request ended before the store got to it", ctx.Err())
	case <-s.closed:
		return errClosed()
	case c := <-s.readers:
		err := c.snapshot(f)
		s.readers <- c
		return storeError(err)
	}
}

// snapshot runs f in one read transaction.
func (c *conn) snapshot(f func(*conn) error) error {
	if _, err := c.exec("BEGIN"); err != nil {
		return err
	}
	err := f(c)
	if _, cerr := c.exec("ROLLBACK"); err == nil {
		err = cerr
	}
	return err
}

// Close ends the run: what waits is written, the last checkpoint is signed. No method may be called after it.
func (s *Store) Close() error {
	var err error
	s.closing.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if cerr := s.signCheckpoint(ctx); cerr != nil && s.sync.failure() == nil {
			err = cerr
		}
		s.stop()
		s.done.Wait()
		s.drain()
		s.release()
	})
	return err
}

// drain ends writer and syncer after what waits.
func (s *Store) drain() {
	s.queue.close()
	s.writers.Wait()
}

// release closes everything. A store that is well moves its log into the database; one whose disk failed leaves the log as it is, for the next
// start to check frame by frame.
func (s *Store) release() {
	if s.checkpoints != nil {
		s.checkpoints.close()
	}
	close(s.closed)
	for range s.pool {
		(<-s.readers).close()
	}
	if s.w != nil {
		if s.sync != nil && s.sync.failure() == nil {
			if _, err := s.w.checkpoint("TRUNCATE"); err != nil {
				s.log.Warn("the log of the store was not moved into the database; the next start does it", "error", err)
			}
		}
		s.w.close()
	}
	if s.wal != nil {
		s.wal.Close()
	}
	if s.highwater != nil {
		s.highwater.close()
	}
	s.lock.release()
}

// checkpoint moves the log into the database. busy says that it could not finish, for a reader or another program.
func (c *conn) checkpoint(mode string) (busy bool, err error) {
	var b int64
	_, err = c.row("PRAGMA wal_checkpoint("+mode+")", nil, &b)
	if err != nil {
		return false, fmt.Errorf("checkpoint: %w", err)
	}
	return b != 0, nil
}

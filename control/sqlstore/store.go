package sqlstore

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/control"
	"sallyport.dev/control/journalkey"
	"sallyport.dev/control/revocation"
	"sallyport.dev/errs"
)

// Options say where a store is and what it needs. Dir, Key and Audit are required.
type Options struct {
	Dir   string             // holds store.db, store.lock, reserve and highwater; made 0700
	Key   *journalkey.Ring   // seals bodies
	Audit ed25519.PrivateKey // signs checkpoints
	Node  string             // of control, for the record
	Run   string             // of control; a fresh one when empty

	Now           func() time.Time // the store's clock; time.Now when nil
	Reserve       int64            // bytes kept for settling on a full disk; 32 MiB when 0
	Checkpoint    time.Duration    // between two signed checkpoints, when there is something new; 1 min when 0
	RetainBodies  time.Duration    // 30 days when 0
	RetainRecords time.Duration    // 400 days when 0
	Log           *slog.Logger     // slog.Default when nil

	faults // of tests
}

// faults replace what the store needs of the machine.
type faults struct {
	vfs   string
	fsync func(next func() error) func() error
	free  func() (int64, error)
	busy  time.Duration // how long another program's lock is waited for
	pages int           // of the log that start a checkpoint
}

// head is where the store stands. The writer owns it; others read copies.
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

	writing     sync.Mutex // held while a batch is written, and for the last step of a checkpoint of the log
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

// Open opens the store at opts.Dir, makes it when there is none, and begins a run. Errors: [errs.Conflict] when another process holds it,
// [errs.NotDurable] where durability cannot be had, [errs.TooOld] for a newer schema, [errs.StoreFull], [errs.Unavailable].
func Open(ctx context.Context, opts Options) (*Store, error) {
	if opts.Dir == "" || opts.Key == nil || len(opts.Audit) != ed25519.PrivateKeySize {
		return nil, errs.New(errs.Invalid, "a store needs a directory, a journal key and an audit key")
	}
	opts.defaults()
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, errs.Wrap(errs.Unavailable, "the store's directory cannot be made", err)
	}
	lock, err := lockStore(filepath.Join(opts.Dir, "store.lock"))
	if err != nil {
		return nil, err
	}
	s := &Store{
		opts: opts, log: opts.Log.With("part", "store"), lock: lock, run: opts.Run, queue: newQueue(), failed: make(chan struct{}),
		closed: make(chan struct{}),
	}
	if err := s.open(ctx); err != nil {
		s.release()
		return nil, storeError(err)
	}
	return s, nil
}

func (o *Options) defaults() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Run == "" {
		o.Run = control.NewID()
	}
	if o.Reserve == 0 {
		o.Reserve = 32 << 20
	}
	if o.Checkpoint == 0 {
		o.Checkpoint = time.Minute
	}
	if o.RetainBodies == 0 {
		o.RetainBodies = 30 * 24 * time.Hour
	}
	if o.RetainRecords == 0 {
		o.RetainRecords = 400 * 24 * time.Hour
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.vfs == "" {
		registerVFS()
		o.vfs = vfsName
	}
	if o.free == nil {
		o.free = freeBytes(o.Dir)
	}
	if o.pages == 0 {
		o.pages = walPages
	}
	if o.busy == 0 {
		o.busy = 5 * time.Second
	}
	if o.fsync == nil {
		o.fsync = func(next func() error) func() error { return next }
	}
}

func (s *Store) path(name string) string { return filepath.Join(s.opts.Dir, name) }

func (s *Store) open(ctx context.Context) error {
	if err := checkFileSystem(s.opts.Dir, s.log); err != nil {
		return err
	}
	remembered, remErr := readHighwater(s.path("highwater"))
	if remErr != nil && errs.CodeOf(remErr) != errs.Invalid {
		return remErr
	}
	if err := s.openDatabase(ctx); err != nil {
		return err
	}
	if err := s.load(); err != nil {
		return err
	}
	s.room = newRoom(s.path("reserve"), s.opts.Reserve, s.opts.free)
	var err error
	if s.checkpoints, err = newWALCheckpointer(s); err != nil {
		return err
	}
	s.sync = newSyncer(s.opts.fsync(s.fdatasync), s.durableNow, s.fail)
	for range cap(s.readers) {
		c, err := s.opts.connect(s.path("store.db"), true, 4<<10)
		if err != nil {
			return err
		}
		s.readers <- c
		s.pool++
	}
	began := time.Now()
	if err := s.opts.fsync(s.fdatasync)(); err != nil {
		return errs.Wrap(errs.NotDurable, "the disk of the store does not confirm writes; nothing can be dispatched from here", err)
	}
	s.fsyncUS = time.Since(began).Microseconds()
	s.writers.Go(s.runWriter)
	s.writers.Go(s.sync.run)
	if err := s.begin(ctx, remembered, remErr); err != nil {
		s.drain()
		return err
	}
	chores, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.done.Go(func() { s.checkpoints.run(chores) })
	s.done.Go(func() { s.runChores(chores) })
	return nil
}

// openDatabase opens the writer's connection, brings the schema up to date, and writes the log of an earlier process into the database: what a
// failed fsync may have left in memory only is written anew and synced.
func (s *Store) openDatabase(ctx context.Context) error {
	s.readers = make(chan *conn, min(max(runtime.GOMAXPROCS(0), 2), 8))
	path := s.path("store.db")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	f.Close()
	if s.w, err = s.opts.connect(path, false, 16<<10); err != nil {
		return err
	}
	var mode string
	if _, err := s.w.row("PRAGMA journal_mode = wal", nil, &mode); err != nil {
		return err
	}
	if mode != "wal" {
		return errs.Newf(errs.NotDurable, "the file system of the store has no shared memory or locks (journal mode %s); put --state on a local disk", mode)
	}
	if err := migrate(ctx, path, s.opts.vfs); err != nil {
		return err
	}
	if busy, err := s.w.checkpoint("TRUNCATE"); err != nil {
		return err
	} else if busy {
		return errs.New(errs.Unavailable, "another program reads the store's database; close it, then start again")
	}
	if s.wal, err = os.OpenFile(path+"-wal", os.O_RDWR, 0); err != nil {
		return err
	}
	for _, name := range []string{path + "-wal", path + "-shm"} {
		if err := os.Chmod(name, 0o600); err != nil {
			return err
		}
	}
	return syncDir(s.opts.Dir)
}

// networkFileSystems do not promise what the store needs, whatever they answer.
var networkFileSystems = map[int64]string{
	unix.NFS_SUPER_MAGIC: "NFS", unix.SMB_SUPER_MAGIC: "SMB", 0xff534d42: "CIFS", 0xfe534d42: "SMB2", unix.CODA_SUPER_MAGIC: "Coda",
	unix.AFS_SUPER_MAGIC: "AFS", 0x01021997: "9p", 0x00c36400: "Ceph",
}

func checkFileSystem(dir string, log *slog.Logger) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return errs.Wrap(errs.Unavailable, "the store's directory cannot be looked at", err)
	}
	if name, ok := networkFileSystems[int64(uint32(st.Type))]; ok {
		return errs.Newf(errs.NotDurable, "the store's directory is on a network file system (%s), which does not promise durable commits; put --state on a local disk", name)
	}
	if uint32(st.Type) == unix.TMPFS_MAGIC {
		log.Warn("the store's directory is in memory: it survives this process, not a restart of the machine")
	}
	return nil
}

// load reads where the store stands, and makes the first row of a new one.
func (s *Store) load() error {
	h := &s.head
	found, err := s.w.row("SELECT incarnation, counter, generation, quarantine FROM meta", nil, &h.incarnation, &h.counter, &h.generation, &h.quarantine)
	if err != nil {
		return err
	}
	if !found {
		h.incarnation, h.generation = control.NewID(), 1
		if _, err := s.w.exec(`INSERT INTO meta (one, org, incarnation, counter, generation, quarantine, head_seq, head_run, head_link)
VALUES (1, ?, ?, 0, 1, '', 0, '', NULL)`, control.Org, h.incarnation); err != nil {
			return err
		}
	}
	var headSeq, headCalls int64
	if _, err := s.w.row("SELECT head_seq, calls FROM meta", nil, &headSeq, &headCalls); err != nil {
		return err
	}
	if _, err := s.w.row("SELECT coalesce(max(last), 0) FROM batches", nil, &h.seq); err != nil {
		return err
	}
	if _, err := s.w.row("SELECT coalesce(max(seq), 0) FROM calls", nil, &h.calls); err != nil {
		return err
	}
	h.seq, h.calls = max(h.seq, headSeq), max(h.calls, headCalls)
	if s.index, err = loadIndex(s.w); err != nil {
		return err
	}
	view := *h
	s.view.Store(&view)
	s.synced.Store(&Mark{h.incarnation, h.counter})
	return nil
}

// begin starts the run's chain, and enters quarantine where the highwater file knows more than the database.
func (s *Store) begin(ctx context.Context, remembered Mark, remErr error) error {
	if err := s.beginRun(ctx); err != nil {
		return err
	}
	switch {
	case remErr != nil:
		if _, err := s.Quarantine(ctx, "the highwater file beside the store is damaged, so nobody can say whether the store is whole"); err != nil {
			return err
		}
	case remembered != Mark{}:
		if _, err := s.Remember(ctx, "the highwater file beside the store", revocation.History{Incarnation: remembered.Incarnation, Counter: remembered.Counter}); err != nil {
			return err
		}
	}
	var err error
	s.highwater, err = openHighwater(s.path("highwater"), *s.synced.Load())
	return err
}

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

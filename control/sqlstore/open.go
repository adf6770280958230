package sqlstore

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/control"
	"sallyport.dev/control/revocation"
	"sallyport.dev/errs"
)

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
	// The names must be as durable as what is in the files.
	if err := syncDir(s.opts.Dir); err != nil {
		return err
	}
	return syncDir(filepath.Dir(s.opts.Dir))
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

package sqlstore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// disk is the file system of a test: it can run out of room, and a sync of it can fail. Both are seen by SQLite itself.
type disk struct {
	vfs.VFSFilename
	left    atomic.Int64 // bytes that files may still grow
	badSync atomic.Bool
}

// newDisk registers a disk that walVFS stands on, as the real one does, and returns its name.
func newDisk(t *testing.T) (*disk, string) {
	d := &disk{VFSFilename: vfs.Find("").(vfs.VFSFilename)}
	d.left.Store(1 << 40)
	name := strings.ReplaceAll(t.Name(), "/", "-")
	vfs.Register(name, walVFS{d})
	t.Cleanup(func() { vfs.Unregister(name) })
	return d, name
}

func (d *disk) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	f, out, err := d.VFSFilename.OpenFilename(name, flags)
	if err != nil {
		return f, out, err
	}
	return &diskFile{File: f, d: d}, out, nil
}

type diskFile struct {
	vfs.File
	d *disk
}

func (f *diskFile) WriteAt(p []byte, off int64) (int, error) {
	size, err := f.File.Size()
	if err != nil {
		return 0, err
	}
	if grow := off + int64(len(p)) - size; grow > 0 && f.d.left.Add(-grow) < 0 {
		f.d.left.Add(grow)
		return 0, &fs.PathError{Op: "write", Path: "disk", Err: syscall.ENOSPC}
	}
	return f.File.WriteAt(p, off)
}

func (f *diskFile) Sync(flags vfs.SyncFlag) error {
	if f.d.badSync.Load() {
		return syscall.EIO
	}
	return f.File.Sync(flags)
}

func (f *diskFile) SharedMemory() vfs.SharedMemory {
	return f.File.(vfs.FileSharedMemory).SharedMemory()
}

func (f *diskFile) MemoryMapper() vfs.MemoryMapper {
	return f.File.(vfs.FileMemoryMapper).MemoryMapper()
}

func TestAfterAFailedFsyncNothingRuns(t *testing.T) {
	dir := t.TempDir()
	opts := testOptions(t, dir)
	var bad atomic.Bool
	opts.fsync = func(next func() error) func() error {
		return func() error {
			if bad.Load() {
				return syscall.EIO
			}
			return next()
		}
	}
	s, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, s)
	c, q := w.approved()
	other, otherQ := w.approved()
	before := s.HighWater()
	bad.Store(true)
	if _, err := s.Commit(t.Context(), w.barrier(c, q)); !errs.Is(err, errs.NotDurable) {
		t.Fatalf("the barrier says %v", err)
	}
	select {
	case <-s.Failed():
	default:
		t.Fatal("the store does not say that it failed")
	}
	bad.Store(false) // a disk that comes back proves nothing about what it dropped
	if _, err := s.Commit(t.Context(), w.barrier(other, otherQ)); !errs.Is(err, errs.NotDurable) {
		t.Fatalf("a second barrier says %v", err)
	}
	if _, err := s.Admit(t.Context(), w.readAdmission()); !errs.Is(err, errs.NotDurable) {
		t.Fatalf("a read says %v", err)
	}
	if s.Health().Durable {
		t.Error("the store says that it is durable")
	}
	if got := s.HighWater(); got != before {
		t.Errorf("the high water %+v rose after %+v without a sync", got, before)
	}
	if _, err := s.Call(t.Context(), c.ID); err != nil {
		t.Errorf("reading: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}

	// A fresh process reads what is there and goes on; the call that was not dispatched is nobody's to send.
	opts.fsync = nil
	s = openTest(t, opts)
	got, err := s.Call(t.Context(), other.ID)
	if err != nil || got.State != journal.Approved {
		t.Fatalf("%v %v", got.State, err)
	}
	if s.Health().Quarantine != "" {
		t.Error("a failed fsync alone is no restored backup")
	}
}

func TestAReadWaitsForNoDisk(t *testing.T) {
	opts := testOptions(t, t.TempDir())
	syncs := make(chan chan error)
	var slow atomic.Bool
	opts.fsync = func(next func() error) func() error {
		return func() error {
			if !slow.Load() {
				return next()
			}
			answer := make(chan error)
			syncs <- answer
			return <-answer
		}
	}
	w := newWorld(t, openTest(t, opts))
	c, q := w.approved()
	slow.Store(true)
	done := make(chan error, 1)
	go func() {
		r, err := w.Commit(t.Context(), w.barrier(c, q))
		if err == nil && r != call.Done {
			err = errors.New(string(r))
		}
		done <- err
	}()
	answer := <-syncs // the disk works on the barrier
	for range 10 {
		if err := w.oneRead(); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-done:
		t.Fatalf("the barrier did not wait for the disk: %v", err)
	default:
	}
	slow.Store(false)
	answer <- nil
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestAFullDiskStopsAdmissionFirst(t *testing.T) {
	d, name := newDisk(t)
	opts := testOptions(t, t.TempDir())
	opts.vfs = name
	free := atomic.Int64{}
	free.Store(1 << 40)
	opts.free = func() (int64, error) { return free.Load(), nil }
	s := openTest(t, opts)
	w := newWorld(t, s)
	var out []*control.Call
	for range 5 {
		c, q := w.approved()
		if r, err := s.Commit(t.Context(), w.barrier(c, q)); err != nil || r != call.Done {
			t.Fatal(r, err)
		}
		c.Attempt = 1
		out = append(out, c)
	}
	waiting, waitingQ := w.approved()

	// The disk runs full: the first write that meets it gives the reserve back. Nobody looked in between, however slow this machine is.
	s.writing.Lock()
	s.room.looked = time.Now()
	s.writing.Unlock()
	d.left.Store(0)
	free.Store(0)
	_, err := s.Admit(t.Context(), w.readAdmission())
	if !errs.Is(err, errs.StoreFull) {
		t.Fatalf("an admission on a full disk says %v", err)
	}
	if info, err := os.Stat(s.path("reserve")); err != nil || info.Size() != 0 {
		t.Fatalf("the reserve was not given back: %v", err)
	}
	d.left.Store(opts.Reserve) // what the reserve had
	free.Store(opts.Reserve)

	// What is out settles; nothing new comes in.
	w.advance(settle(out[0], true))
	if _, err := s.Admit(t.Context(), w.readAdmission()); !errs.Is(err, errs.StoreFull) {
		t.Fatalf("an admission says %v", err)
	}
	// When the reserve runs low nothing is sent either.
	free.Store(opts.Reserve / 4)
	s.writing.Lock()
	s.room.looked = time.Time{}
	s.writing.Unlock()
	if _, err := s.Commit(t.Context(), w.barrier(waiting, waitingQ)); !errs.Is(err, errs.StoreFull) {
		t.Fatalf("a barrier says %v", err)
	}
	for _, c := range out[1:] {
		w.advance(settle(c, true))
	}
	if _, err := s.Health(), s.sync.failure(); err != nil {
		t.Fatalf("a full disk is no failed disk: %v", err)
	}

	// Somebody makes room.
	d.left.Store(1 << 40)
	free.Store(1 << 40)
	s.writing.Lock()
	s.room.looked = time.Time{}
	s.writing.Unlock()
	w.admit(w.readAdmission())
	if r, err := s.Commit(t.Context(), w.barrier(waiting, waitingQ)); err != nil || r != call.Done {
		t.Fatal(r, err)
	}
	if info, err := os.Stat(s.path("reserve")); err != nil || info.Size() != opts.Reserve {
		t.Fatalf("the reserve is not back: %v", err)
	}
	for _, c := range out {
		if got, err := s.Call(t.Context(), c.ID); err != nil || got.State != journal.Answered || string(got.Body) != string(answer) {
			t.Fatalf("a call that was out when the disk ran full: %v %v", got.State, err)
		}
	}
}

func TestADiskThatIsFullBelowEverything(t *testing.T) {
	d, name := newDisk(t)
	opts := testOptions(t, t.TempDir())
	opts.vfs = name
	s := openTest(t, opts)
	w := newWorld(t, s)
	c, q := w.approved()
	if r, err := s.Commit(t.Context(), w.barrier(c, q)); err != nil || r != call.Done {
		t.Fatal(r, err)
	}
	c.Attempt = 1
	d.left.Store(0)
	if _, err := s.Advance(t.Context(), settle(c, true)); !errs.Is(err, errs.StoreFull) {
		t.Fatalf("a settle without any room says %v", err)
	}
	got, err := s.Call(t.Context(), c.ID)
	if err != nil || got.State != journal.Dispatching {
		t.Fatalf("%v %v", got.State, err)
	}
	d.left.Store(1 << 40)
	w.advance(settle(c, true))
}

func TestACheckpointThatTheDiskDoesNotConfirm(t *testing.T) {
	d, name := newDisk(t)
	opts := testOptions(t, t.TempDir())
	opts.vfs = name
	s := openTest(t, opts)
	w := newWorld(t, s)
	if err := w.oneRead(); err != nil {
		t.Fatal(err)
	}
	d.badSync.Store(true)
	err := s.checkpoints.once()
	if err == nil {
		t.Fatal("a checkpoint without a sync passes")
	}
	s.checkpoints.failed(err)
	if _, err := s.Admit(t.Context(), w.readAdmission()); !errs.Is(err, errs.NotDurable) {
		t.Fatalf("an admission says %v", err)
	}
	d.badSync.Store(false)
}

func TestAStoreIsHeldByOneProcess(t *testing.T) {
	opts := testOptions(t, t.TempDir())
	openTest(t, opts)
	_, err := Open(t.Context(), opts)
	if !errs.Is(err, errs.Conflict) || !strings.Contains(errs.Message(err), "process "+strconv.Itoa(os.Getpid())) {
		t.Fatalf("a second one says %v", err)
	}
}

func TestAnotherProgramLocksTheDatabase(t *testing.T) {
	opts := testOptions(t, t.TempDir())
	opts.busy = time.Millisecond
	s := openTest(t, opts)
	w := newWorld(t, s)
	other, err := sqlite3.Open("file:" + s.path("store.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Exec("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Admit(t.Context(), w.readAdmission())
	if !errs.Is(err, errs.Unavailable) || !strings.Contains(errs.Message(err), "another program") {
		t.Fatalf("an admission says %v", err)
	}
	if err := other.Exec("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	w.admit(w.readAdmission())
}

func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, o *Options)
		want    errs.Code
	}{
		"no directory": {func(_ *testing.T, o *Options) { o.Dir = "" }, errs.Invalid},
		"no key":       {func(_ *testing.T, o *Options) { o.Key = nil }, errs.Invalid},
		"no audit key": {func(_ *testing.T, o *Options) { o.Audit = nil }, errs.Invalid},
		"a bad disk": {func(_ *testing.T, o *Options) {
			o.fsync = func(func() error) func() error { return func() error { return syscall.EIO } }
		}, errs.NotDurable},
		"no database":   {func(t *testing.T, o *Options) { writeFile(t, o.Dir, "store.db", strings.Repeat("no database ", 1000)) }, errs.Internal},
		"a directory":   {func(t *testing.T, o *Options) { mkdir(t, o.Dir, "store.db") }, errs.Unavailable},
		"a newer store": {newer, errs.TooOld},
	} {
		t.Run(name, func(t *testing.T) {
			opts := testOptions(t, t.TempDir())
			c.prepare(t, &opts)
			s, err := Open(t.Context(), opts)
			if !errs.Is(err, c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if err == nil {
				s.Close()
			}
			if opts.Dir == "" {
				return
			}
			l, err := lockStore(filepath.Join(opts.Dir, "store.lock")) // nothing stays locked
			if err != nil {
				t.Fatal(err)
			}
			l.release()
		})
	}
}

func writeFile(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
		t.Fatal(err)
	}
}

func newer(t *testing.T, o *Options) {
	s, err := Open(t.Context(), *o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.do(t.Context(), durable, func(t *tx) error {
		_, err := t.exec("INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, 1)")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFilesAreTheOwnersAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "control")
	s := openTest(t, testOptions(t, dir))
	newWorld(t, s)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v %v", e.Name(), info.Mode(), err)
		}
	}
}

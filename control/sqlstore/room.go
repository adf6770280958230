package sqlstore

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
)

// room keeps a reserve on the disk, so that what is under way can be settled when the disk is full. It has three levels: plenty; full, where
// nothing new is admitted; tight, where nothing more is dispatched either, because its settle might find no room.
//
// Who writes alone uses it.
type room struct {
	path    string // of the reserve
	size    int64  // of the reserve
	free    func() (int64, error)
	looked  time.Time
	held    bool // the reserve is in place
	full    bool
	said    bool // the log says that it is full
	tight   bool
	unknown error // why the free space is not known
}

const lookEvery = 200 * time.Millisecond

func newRoom(path string, size int64, free func() (int64, error)) *room {
	r := &room{path: path, size: size, free: free}
	if info, err := os.Stat(path); err == nil && info.Size() == size {
		r.held = true
	}
	return r
}

// freeBytes says what a plain user may still write beside path.
func freeBytes(dir string) func() (int64, error) {
	return func() (int64, error) {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return 0, err
		}
		return int64(st.Bavail) * st.Bsize, nil
	}
}

// look reads the free space, at most every 200 ms.
func (r *room) look(now time.Time) {
	if since := now.Sub(r.looked); since >= 0 && since < lookEvery {
		return
	}
	r.looked = now
	free, err := r.free()
	if r.unknown = err; err != nil {
		r.full, r.tight = true, true
		return
	}
	if !r.held && free >= 2*r.size {
		r.held = r.fill() == nil
		free -= r.size
	}
	r.full = !r.held || free < r.size
	r.tight = !r.held && free < r.size/2
}

// exhausted gives the reserve back: a write found no room.
func (r *room) exhausted() {
	if r.held {
		r.held = false
		if err := os.Truncate(r.path, 0); err != nil {
			r.unknown = err
		}
	}
	r.full = true
	if free, err := r.free(); err != nil || free < r.size/2 {
		r.tight = true
	}
}

// fill allocates the reserve, in blocks that are really there.
func (r *room) fill() error {
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, r.size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = writeZeros(f, r.size)
	}
	if err != nil {
		err = errors.Join(err, f.Truncate(0))
	}
	return errors.Join(err, f.Close())
}

func writeZeros(f *os.File, n int64) error {
	zeros := make([]byte, 64<<10)
	for off := int64(0); off < n; off += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), n-off)], off); err != nil {
			return err
		}
	}
	return f.Sync()
}

// refusal says why a write of this class may not run now, or nil.
func (r *room) refusal(c class) error {
	switch {
	case c&grows != 0 && r.full:
		return errs.Wrap(errs.StoreFull, "the disk of the store is full, so nothing new is admitted; make room", r.unknown)
	case c&dispatch != 0 && r.tight:
		return errs.Wrap(errs.StoreFull, "the disk of the store is full, so nothing is sent any more; make room", r.unknown)
	}
	return nil
}

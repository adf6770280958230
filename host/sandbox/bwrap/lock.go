package bwrap

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
)

// workspaceLock is held, shared, by every sandbox of one workspace; whoever can take it alone is the last and may tidy up. It lies in
// Sallyport's state, because a lock on the workspace itself could be taken by the agent.
type workspaceLock struct {
	path string
	file *os.File
}

// lockWorkspace takes the lock of the workspace that st describes.
func lockWorkspace(state string, st unix.Stat_t) (*workspaceLock, error) {
	dir := filepath.Join(state, "host", "workspaces")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, errs.Wrap(errs.Unavailable, "the state folder cannot be written", err)
	}
	name := fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%d:%d", st.Dev, st.Ino)))[:32]
	l := &workspaceLock{path: filepath.Join(dir, name)}
	for {
		f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, errs.Wrap(errs.Unavailable, "the state folder cannot be written", err)
		}
		// Only the tidying holds it alone, and for a moment.
		if err := flock(f, unix.LOCK_SH); err != nil {
			f.Close()
			return nil, errs.Wrap(errs.Unavailable, "the workspace could not be locked", err)
		}
		if same(f, l.path) {
			l.file = f
			return l, nil
		}
		f.Close() // its last holder removed it in between
	}
}

// alone runs fn if nobody else holds the lock, removes the lock then, and lets go in either case.
func (l *workspaceLock) alone(fn func() error) error {
	defer l.release()
	if err := flock(l.file, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // somebody else's sandbox still runs here
	}
	err := fn()
	_ = os.Remove(l.path)
	return err
}

func (l *workspaceLock) release() { _ = l.file.Close() }

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func same(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

package sqlstore

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
)

// processLock is held for as long as a process holds the store. The kernel lets go of it when the process dies, however it dies.
type processLock struct{ f *os.File }

// lockStore takes the lock at path. Errors: [errs.Conflict] when another process has it, with its process id.
func lockStore(path string) (*processLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, "the store's lock file cannot be opened; look at the directory's owner", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := holderOf(f)
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errs.Newf(errs.Conflict, "the store is held by another control process%s; stop it, or start this one with another --state", holder)
		}
		return nil, errs.Wrap(errs.NotDurable, "the file system of the store has no file locks; put --state on a local disk", err)
	}
	pid := strconv.Itoa(os.Getpid()) + "\n"
	if err := errors.Join(f.Truncate(0), writeAt(f, pid)); err != nil {
		f.Close()
		return nil, storeError(err)
	}
	return &processLock{f}, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

func holderOf(f *os.File) string {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0)
	if pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n]))); err == nil {
		return " (process " + strconv.Itoa(pid) + ")"
	}
	return ""
}

func (l *processLock) release() { l.f.Close() }

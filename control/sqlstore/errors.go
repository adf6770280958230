package sqlstore

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/ncruces/go-sqlite3"

	"sallyport.dev/errs"
)

// isFull reports whether the disk has no room: for the log, for its index in shared memory, or for a file of ours.
func isFull(err error) bool {
	return errors.Is(err, sqlite3.FULL) || errors.Is(err, sqlite3.IOERR_SHMSIZE) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// isIO reports a failure after which SQLite may have rolled the whole transaction back.
func isIO(err error) bool {
	return errors.Is(err, sqlite3.IOERR) || errors.Is(err, sqlite3.CORRUPT) || errors.Is(err, sqlite3.NOMEM) || errors.Is(err, sqlite3.FULL)
}

// isSync reports that the disk did not confirm a sync.
func isSync(err error) bool {
	return errors.Is(err, sqlite3.IOERR_FSYNC) || errors.Is(err, sqlite3.IOERR_DIR_FSYNC)
}

// storeError gives a failure of the database a code and says what to do.
func storeError(err error) error {
	var e *errs.Error
	var path *fs.PathError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return e
	case isFull(err):
		return errs.Wrap(errs.StoreFull, "the disk of the store is full; make room, then try again", err)
	case errors.Is(err, sqlite3.BUSY), errors.Is(err, sqlite3.LOCKED):
		return errs.Wrap(errs.Unavailable, "another program holds the store's database locked; close it, then try again", err)
	case errors.Is(err, sqlite3.CORRUPT), errors.Is(err, sqlite3.NOTADB):
		return errs.Wrap(errs.Internal, "the store's database is damaged; stop control and restore a backup", err)
	case errors.As(err, &path), errors.Is(err, sqlite3.IOERR), errors.Is(err, sqlite3.CANTOPEN), errors.Is(err, sqlite3.READONLY), errors.Is(err, sqlite3.PERM):
		return errs.Wrap(errs.Unavailable, "the store's database cannot be read or written; look at the disk and the file's owner", err)
	}
	return errs.Wrap(errs.Internal, "the store failed in a way that is a defect; the log has the detail", err)
}

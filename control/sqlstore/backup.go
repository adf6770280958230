package sqlstore

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/errs"
)

// Backup writes a whole, compact copy of the database to a new file while the store runs. The copy holds no key: bodies stay sealed to the
// journal key, credentials to the pools' keys. A store that is started from it enters quarantine when anybody remembers more. Errors:
// [errs.Conflict] when the file exists.
func (s *Store) Backup(ctx context.Context, path string, by control.Person) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return errs.Newf(errs.Conflict, "%s is there already; a backup never replaces a file", path)
	}
	tmp := path + ".partial"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errs.Wrap(errs.Unavailable, "the backup cannot be written", err)
	}
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return errs.Wrap(errs.Unavailable, "the backup cannot be written", err)
	}
	defer f.Close()
	if err := s.vacuumInto(tmp); err != nil {
		os.Remove(tmp)
		return err
	}
	if err := errors.Join(f.Sync(), os.Rename(tmp, path), syncDir(filepath.Dir(path))); err != nil {
		return errs.Wrap(errs.Unavailable, "the backup cannot be written", err)
	}
	return s.do(ctx, durable, func(t *tx) error {
		t.record(audit.KindStore, t.head.incarnation, "", "backup", "", string(by), "")
		return nil
	})
}

// vacuumInto copies one consistent state on a connection of its own. The target file is there and empty: SQLite keeps its mode.
func (s *Store) vacuumInto(path string) error {
	c, err := s.opts.connect(s.path("store.db"), false, 4<<10)
	if err != nil {
		return storeError(err)
	}
	defer c.close()
	_, err = c.exec("VACUUM INTO ?", path)
	return storeError(err)
}

package sqlstore

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	"sallyport.dev/errs"
)

// Mark is the newest history that somebody has seen of the store.
type Mark struct {
	Incarnation string
	Counter     int64 // durable commits
}

// highwater is the file beside the database that remembers the newest durable commit, so that a database that was put back is found out even
// when no host or worker is connected. It is written after the commit is on stable storage and before anybody is answered, and never synced:
// it may be behind the truth after a power failure, and is never ahead of it.
type highwater struct{ f *os.File }

// One line of fixed length, written in place: shorter than any sector.
const highwaterFormat = "sallyport highwater v1 %-40s %20d"

func (m Mark) line() []byte {
	s := fmt.Sprintf(highwaterFormat, m.Incarnation, m.Counter)
	return fmt.Appendf(nil, "%s %08x\n", s, crc32.ChecksumIEEE([]byte(s)))
}

// readHighwater returns what the file remembers; the zero Mark when there is none. Errors: [errs.Invalid] when it is damaged.
func readHighwater(path string) (Mark, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Mark{}, nil
	}
	if err != nil {
		return Mark{}, errs.Wrap(errs.Unavailable, "the highwater file beside the store cannot be read", err)
	}
	var m Mark
	if _, err := fmt.Sscanf(string(b), "sallyport highwater v1 %s %d", &m.Incarnation, &m.Counter); err != nil || string(m.line()) != string(b) {
		return Mark{}, errs.New(errs.Invalid, "the highwater file beside the store is damaged")
	}
	return m, nil
}

// openHighwater makes the file anew with m in it and keeps it open.
func openHighwater(path string, m Mark) (*highwater, error) {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, storeError(err)
	}
	_, err = f.WriteAt(m.line(), 0)
	err = errors.Join(err, f.Sync(), os.Rename(tmp, path), syncDir(filepath.Dir(path)))
	if err != nil {
		f.Close()
		return nil, storeError(err)
	}
	return &highwater{f}, nil
}

// write notes a durable commit.
func (h *highwater) write(m Mark) error {
	_, err := h.f.WriteAt(m.line(), 0)
	return err
}

func (h *highwater) close() { h.f.Close() }

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

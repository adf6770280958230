// Package statefile reads and writes the private files of one process: keys, certificates, enrolment. A directory is 0700 and a private file
// 0600, both owned by the process's user; anything wider is refused with the command that repairs it, because a key that others could read is
// not a key.
package statefile

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"sallyport.dev/errs"
)

// MaxFile bounds a file that is read whole.
const MaxFile = 1 << 20

// Dir is one private directory. Safe for concurrent use; two writers of one name end with one of both contents, whole.
type Dir struct {
	path string
	root *os.Root
}

// Open opens the directory at path and makes it (0700) when it is missing; its parent must exist. Errors: [errs.NotAllowed] for a wrong owner or
// mode, [errs.Invalid] for something that is no directory, [errs.Unavailable] otherwise.
func Open(path string) (*Dir, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, errs.Wrap(errs.Unavailable, "cannot make "+path+"; check its parent directory", err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, "cannot open the directory "+path, err)
	}
	d := &Dir{path: path, root: root}
	info, err := root.Stat(".")
	if err == nil {
		err = check(path, info, 0o700)
	}
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	return d, nil
}

// Close releases the directory.
func (d *Dir) Close() error { return d.root.Close() }

// Path returns where name lies, for messages and for programs that take a path.
func (d *Dir) Path(name string) string { return filepath.Join(d.path, name) }

// Sub opens a directory below d, and makes it when it is missing. Errors: as [Open].
func (d *Dir) Sub(name string) (*Dir, error) { return Open(d.Path(name)) }

// Read returns the content of a private file. Errors: [errs.NotFound], [errs.NotAllowed] for a wrong owner or mode, [errs.Invalid] for what is not
// a regular file, [errs.Oversize], [errs.Unavailable].
func (d *Dir) Read(name string) ([]byte, error) {
	// O_NOFOLLOW: a link could point at a file with other rights. O_NONBLOCK: a FIFO must not hang the start.
	f, err := d.root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errs.Wrap(errs.NotFound, "there is no "+d.Path(name), err)
	}
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, "cannot open "+d.Path(name), err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, "cannot read "+d.Path(name), err)
	}
	if !info.Mode().IsRegular() {
		return nil, errs.Newf(errs.Invalid, "%s is not a regular file; move it away", d.Path(name))
	}
	if err := check(d.Path(name), info, 0o600); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, "cannot read "+d.Path(name), err)
	}
	if len(b) > MaxFile {
		return nil, errs.Newf(errs.Oversize, "%s has more than %d bytes", d.Path(name), MaxFile)
	}
	return b, nil
}

// Write puts data under name with mode 0600: whole or not at all, and on disk when it returns. Errors: [errs.Unavailable].
func (d *Dir) Write(name string, data []byte) error {
	var r [8]byte
	if _, err := rand.Read(r[:]); err != nil {
		return errs.Wrap(errs.Internal, "no randomness for a file name", err)
	}
	tmp := "." + name + "." + hex.EncodeToString(r[:])
	err := d.writeTemp(tmp, data)
	if err == nil {
		err = d.root.Rename(tmp, name)
	}
	if err != nil {
		_ = d.root.Remove(tmp)
		return errs.Wrap(errs.Unavailable, "cannot write "+d.Path(name)+"; check the room and the rights of its directory", err)
	}
	return d.sync()
}

func (d *Dir) writeTemp(tmp string, data []byte) error {
	f, err := d.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Rename moves a file within the directory, on disk when it returns. Errors: [errs.NotFound], [errs.Unavailable].
func (d *Dir) Rename(from, to string) error {
	err := d.root.Rename(from, to)
	if errors.Is(err, fs.ErrNotExist) {
		return errs.Wrap(errs.NotFound, "there is no "+d.Path(from), err)
	}
	if err != nil {
		return errs.Wrap(errs.Unavailable, "cannot rename "+d.Path(from), err)
	}
	return d.sync()
}

// Remove deletes a file; one that is missing is no error. Errors: [errs.Unavailable].
func (d *Dir) Remove(name string) error {
	if err := d.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errs.Wrap(errs.Unavailable, "cannot remove "+d.Path(name), err)
	}
	return d.sync()
}

// Empty cuts a file to nothing where it lies, so that a process that has it open writes into the same file; one that is missing is no error. Errors:
// [errs.Unavailable].
func (d *Dir) Empty(name string) error {
	f, err := d.root.OpenFile(name, os.O_WRONLY|os.O_TRUNC|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errs.Wrap(errs.Unavailable, "cannot empty "+d.Path(name), err)
	}
	err = f.Sync()
	if err = errors.Join(err, f.Close()); err != nil {
		return errs.Wrap(errs.Unavailable, "cannot empty "+d.Path(name), err)
	}
	return nil
}

// Lock takes an exclusive lock on name, which it makes when it is missing, until the file returned is closed or the process ends. Errors:
// [errs.Conflict] when another process has it, [errs.NotAllowed], [errs.Unavailable].
func (d *Dir) Lock(name string) (*os.File, error) {
	f, err := d.OpenSlot(name)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errs.Newf(errs.Conflict, "another process works with %s; end it first, or use another --state", d.path)
	}
	return nil, errs.Wrap(errs.Unavailable, "cannot lock "+d.Path(name), err)
}

// OpenSlot opens name for writing in place, and makes it (0600) when it is missing: for a process that may open no file later. Errors:
// [errs.NotAllowed], [errs.Unavailable].
func (d *Dir) OpenSlot(name string) (*os.File, error) {
	f, err := d.root.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, "cannot open "+d.Path(name)+" for writing", err)
	}
	info, err := f.Stat()
	if err == nil {
		err = check(d.Path(name), info, 0o600)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (d *Dir) sync() error {
	f, err := d.root.Open(".")
	if err != nil {
		return errs.Wrap(errs.Unavailable, "cannot open the directory "+d.path, err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return errs.Wrap(errs.Unavailable, "cannot write the directory "+d.path+" to disk", err)
	}
	return nil
}

func check(path string, info fs.FileInfo, want fs.FileMode) error {
	if info.Mode().Perm()&^want != 0 {
		return errs.Newf(errs.NotAllowed, "%s has mode %04o, so others may reach it; type: chmod %04o %s", path, info.Mode().Perm(), want, path)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return errs.Newf(errs.NotAllowed, "%s belongs to uid %d, not to this process (uid %d); run as that user, or type: chown %d %s", path, st.Uid, os.Geteuid(), os.Geteuid(), path)
	}
	return nil
}

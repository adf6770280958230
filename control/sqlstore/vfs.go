package sqlstore

import (
	"errors"
	"sync"
	"syscall"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"
)

// walVFS is the default file system of SQLite with two changes to the write-ahead log. A frame (a header of 24 bytes and the page after it, which
// SQLite writes one after the other) is one system call: order, content and offsets of what reaches the file stay the same. And a disk without
// room reads as that: the default says I/O error, and the cause is lost.
type walVFS struct{ vfs.VFSFilename }

const vfsName = "sallyport-wal"

var registerVFS = sync.OnceFunc(func() {
	if under, ok := vfs.Find("").(vfs.VFSFilename); ok {
		vfs.Register(vfsName, walVFS{under})
	}
})

// OpenFilename implements vfs.VFSFilename.
func (v walVFS) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	f, out, err := v.VFSFilename.OpenFilename(name, flags)
	if err != nil || flags&vfs.OPEN_WAL == 0 {
		return f, out, err
	}
	return &walFile{File: f}, out, nil
}

const frameHeader = 24

// walFile holds a frame's header back until the page that follows it. One connection uses it; others see a frame only after the index of the log
// names it, which SQLite does after the page.
type walFile struct {
	vfs.File
	held  bool
	at    int64
	frame []byte
}

// WriteAt implements io.WriterAt: a frame is one write.
func (f *walFile) WriteAt(p []byte, off int64) (int, error) {
	if f.held && off == f.at+frameHeader {
		f.held = false
		f.frame = append(f.frame[:frameHeader], p...)
		n, err := f.File.WriteAt(f.frame, f.at)
		return max(n-frameHeader, 0), full(err)
	}
	if err := f.flush(); err != nil {
		return 0, err
	}
	if len(p) == frameHeader {
		f.held, f.at = true, off
		f.frame = append(f.frame[:0], p...)
		return len(p), nil
	}
	n, err := f.File.WriteAt(p, off)
	return n, full(err)
}

func (f *walFile) flush() error {
	if !f.held {
		return nil
	}
	f.held = false
	_, err := f.File.WriteAt(f.frame[:frameHeader], f.at)
	return full(err)
}

func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return vfs.SystemError(err, sqlite3.FULL)
	}
	return err
}

// ReadAt implements io.ReaderAt.
func (f *walFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.flush(); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

// Truncate implements vfs.File.
func (f *walFile) Truncate(size int64) error {
	if err := f.flush(); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

// Sync implements vfs.File.
func (f *walFile) Sync(flags vfs.SyncFlag) error {
	if err := f.flush(); err != nil {
		return err
	}
	return f.File.Sync(flags)
}

// Size implements vfs.File.
func (f *walFile) Size() (int64, error) {
	if err := f.flush(); err != nil {
		return 0, err
	}
	return f.File.Size()
}

// Close implements io.Closer.
func (f *walFile) Close() error {
	err := f.flush()
	if cerr := f.File.Close(); err == nil {
		err = cerr
	}
	return err
}

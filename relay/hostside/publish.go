package hostside

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

// PublishResult gives a result record its name in results/, whole or not at all, and never over an existing one. Errors: [errs.Conflict] where
// the id has a result, [errs.Oversize] where in/ is full, [errs.Unavailable].
func (b *Box) PublishResult(id string, record []byte) error {
	if err := b.use(); err != nil {
		return err
	}
	defer b.unuse()
	name := relay.ResultName(id)
	tmp := inTmpDir + "/" + name
	if err := b.write(tmp, record); err != nil {
		return publishError(err)
	}
	final := resultsDir + "/" + name
	err := unix.Renameat2(b.root, tmp, b.root, final, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // a file system without the flag
		err = unix.Linkat(b.root, tmp, b.root, final, 0)
		_ = unix.Unlinkat(b.root, tmp, 0)
		return publishError(err)
	}
	if err != nil {
		_ = unix.Unlinkat(b.root, tmp, 0)
	}
	return publishError(err)
}

// PublishProgress replaces the progress record of a call. Errors: [errs.Oversize], [errs.Unavailable].
func (b *Box) PublishProgress(id string, record []byte) error {
	if err := b.use(); err != nil {
		return err
	}
	defer b.unuse()
	name := relay.ResultName(id)
	tmp := inTmpDir + "/" + id + ".progress"
	if err := b.write(tmp, record); err != nil {
		return publishError(err)
	}
	return publishError(unix.Renameat(b.root, tmp, b.root, progressDir+"/"+name))
}

// Retract removes the result of a call: the guest has read it. Errors: [errs.Unavailable].
func (b *Box) Retract(id string) error {
	if err := b.use(); err != nil {
		return err
	}
	defer b.unuse()
	if err := unix.Unlinkat(b.root, resultsDir+"/"+relay.ResultName(id), 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return unavailable(err)
	}
	return nil
}

// RetractProgress removes the progress of a call. Errors: [errs.Unavailable].
func (b *Box) RetractProgress(id string) error {
	if err := b.use(); err != nil {
		return err
	}
	defer b.unuse()
	if err := unix.Unlinkat(b.root, progressDir+"/"+relay.ResultName(id), 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return unavailable(err)
	}
	return nil
}

// File is a result file that is being written. It is for one caller at a time.
type File struct {
	box  *Box
	fd   int
	tmp  string
	name string
}

// CreateFile begins a result file of that name, the hex form of its digest. Several of one name may be on their way. Errors: [errs.Invalid],
// [errs.Oversize], [errs.Unavailable].
func (b *Box) CreateFile(name string) (*File, error) {
	if _, err := relay.ParseDigest(name); err != nil {
		return nil, err
	}
	if err := b.use(); err != nil {
		return nil, err
	}
	defer b.unuse()
	f := &File{box: b, tmp: inTmpDir + "/" + name + "." + strconv.FormatUint(b.files.Add(1), 10), name: name}
	fd, err := b.create(f.tmp)
	if err != nil {
		return nil, publishError(err)
	}
	f.fd = fd
	return f, nil
}

// Append adds to the file. Errors: [errs.Oversize] where in/ is full, [errs.Unavailable].
func (f *File) Append(data []byte) error { return publishError(writeAll(f.fd, data)) }

// Publish gives the file its name in files/, and ends it. A file of that name has the same bytes and is replaced. Errors: [errs.Unavailable].
func (f *File) Publish() error {
	_ = unix.Close(f.fd)
	if err := f.box.use(); err != nil {
		return err
	}
	defer f.box.unuse()
	err := unix.Renameat(f.box.root, f.tmp, f.box.root, filesDir+"/"+f.name)
	if err != nil {
		_ = unix.Unlinkat(f.box.root, f.tmp, 0)
	}
	return publishError(err)
}

// Discard gives the file up.
func (f *File) Discard() {
	_ = unix.Close(f.fd)
	if f.box.use() != nil {
		return // it goes with the folder
	}
	defer f.box.unuse()
	_ = unix.Unlinkat(f.box.root, f.tmp, 0)
}

// write makes path, over what an interrupted process may have left there: nobody but this host writes in in/tmp/.
func (b *Box) write(path string, data []byte) error {
	fd, err := b.create(path)
	if err != nil {
		return err
	}
	err = writeAll(fd, data)
	if closeErr := unix.Close(fd); err == nil && !errors.Is(closeErr, unix.EINTR) { // Linux has closed it
		err = closeErr
	}
	if err != nil {
		_ = unix.Unlinkat(b.root, path, 0)
	}
	return err
}

// create makes path so that a guest of another user may read it.
func (b *Box) create(path string) (int, error) {
	fd, err := unix.Openat(b.root, path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil || !narrowUmask() {
		return fd, err
	}
	if err := unix.Fchmod(fd, 0o644); err != nil {
		_ = unix.Close(fd)
		_ = unix.Unlinkat(b.root, path, 0)
		return -1, err
	}
	return fd, nil
}

func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := ignoringEINTR(func() (int, error) { return unix.Write(fd, data) })
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func publishError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EEXIST):
		return errs.Wrap(errs.Conflict, "the call has a result already", err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return errs.Wrap(errs.Oversize, "the sandbox's directory for results is full", err)
	default:
		return unavailable(err)
	}
}

package relay

import (
	"errors"
	"syscall"

	"sallyport.dev/errs"
)

// Publish writes data to tmp and links it to final, a path on the same file system: a reader sees the whole file or none. An existing final
// name is an error ([errs.Conflict]) and is left as it is; so is an existing tmp, which is not ours to remove. Other errors: [errs.Oversize]
// where there is no room, [errs.Unavailable] where the directory cannot be written. Nothing is synced: the relay does not outlive the machine.
func Publish(tmp, final string, data []byte) error {
	if err := writeNew(tmp, data); err != nil {
		return publishError(err)
	}
	err := retry(func() error { return syscall.Link(tmp, final) })
	// The file has its name, or never gets it: the temporary name goes in both cases. A failure to remove it costs an entry, nothing else.
	_ = retry(func() error { return syscall.Unlink(tmp) })
	return publishError(err)
}

// writeNew creates path and writes data. On an error after the creation the file is removed.
func writeNew(path string, data []byte) error {
	var fd int
	err := retry(func() (err error) {
		fd, err = syscall.Open(path, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, fileMode)
		return err
	})
	if err != nil {
		return err
	}
	for len(data) > 0 && err == nil {
		var n int
		err = retry(func() (err error) {
			n, err = syscall.Write(fd, data)
			return err
		})
		data = data[max(n, 0):]
	}
	if closeErr := syscall.Close(fd); err == nil && !errors.Is(closeErr, syscall.EINTR) { // Linux has closed it
		err = closeErr
	}
	if err != nil {
		_ = retry(func() error { return syscall.Unlink(path) })
	}
	return err
}

// retry repeats a system call that a signal interrupted (the Go runtime preempts with signals).
func retry(call func() error) error {
	for {
		err := call()
		if err != syscall.EINTR { //nolint:errorlint // a bare errno of package syscall
			return err
		}
	}
}

func publishError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EEXIST):
		return errs.Wrap(errs.Conflict, "a record of this name was published before", err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EMLINK):
		return errs.Wrap(errs.Oversize, "the relay directory is full; wait for open calls to end", err)
	default:
		return errs.Wrap(errs.Unavailable, "the relay directory cannot be written", err)
	}
}

// Read reads a regular file of at most most bytes without following a link or waiting for a writer. Errors: [errs.NotFound], [errs.Oversize],
// [errs.Invalid] for what is not a regular file, [errs.Unavailable].
func Read(path string, most int) ([]byte, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = syscall.Open(path, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, readError(err)
	}
	defer syscall.Close(fd) //nolint:errcheck // nothing was written
	var st syscall.Stat_t
	if err := retry(func() error { return syscall.Fstat(fd, &st) }); err != nil {
		return nil, readError(err)
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return nil, errs.New(errs.Invalid, "not a regular file")
	}
	if st.Size > int64(most) {
		return nil, errs.Newf(errs.Oversize, "the file has %d bytes, at most %d are read", st.Size, most)
	}
	data := make([]byte, st.Size)
	for read := 0; read < len(data); {
		var n int
		err := retry(func() (err error) {
			n, err = syscall.Read(fd, data[read:])
			return err
		})
		if err != nil {
			return nil, readError(err)
		}
		if n == 0 {
			return nil, errs.New(errs.Invalid, "the file shrank while it was read")
		}
		read += n
	}
	return data, nil
}

func readError(err error) error {
	switch {
	case errors.Is(err, syscall.ENOENT):
		return errs.Wrap(errs.NotFound, "no such file", err)
	case errors.Is(err, syscall.ELOOP):
		return errs.Wrap(errs.Invalid, "not a regular file", err)
	default:
		return errs.Wrap(errs.Unavailable, "the file cannot be read", err)
	}
}

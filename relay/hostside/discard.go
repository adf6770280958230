package hostside

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// discard deletes the named children of root, whatever a guest made of them. It does not recurse: a directory that is not empty is moved into a
// pit beside it and emptied from there, so a tree of any depth takes three descriptors and no stack. It never follows a link.
func discard(root string, names ...string) error {
	const pit = ".discard"
	top, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", root, err)
	}
	defer unix.Close(top) //nolint:errcheck // nothing was written
	if err := unix.Mkdirat(top, pit, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make a pit: %w", err)
	}
	p, err := unix.Openat(top, pit, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the pit: %w", err)
	}
	defer unix.Close(p) //nolint:errcheck // nothing was written
	d := discarder{pit: p}
	for _, name := range names {
		if err := d.drop(top, name); err != nil {
			return err
		}
	}
	for {
		dirs, err := entries(p)
		if err != nil {
			return err
		}
		if len(dirs) == 0 {
			break
		}
		for _, dir := range dirs {
			if err := d.empty(dir); err != nil {
				return err
			}
		}
	}
	if err := unix.Unlinkat(top, pit, unix.AT_REMOVEDIR); err != nil {
		return fmt.Errorf("remove the pit: %w", err)
	}
	return nil
}

type discarder struct {
	pit  int
	next int
}

// drop removes name from dir, or moves it into the pit where it is a directory that is not empty.
func (d *discarder) drop(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	}
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		for {
			d.next++
			err = unix.Renameat2(dir, name, d.pit, strconv.Itoa(d.next), unix.RENAME_NOREPLACE)
			if errors.Is(err, unix.EACCES) && unix.Fchmodat(dir, name, 0o700, 0) == nil { // to move it, its ".." is written
				err = unix.Renameat2(dir, name, d.pit, strconv.Itoa(d.next), unix.RENAME_NOREPLACE)
			}
			if !errors.Is(err, unix.EEXIST) { // left by an earlier, interrupted discard
				break
			}
		}
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("discard an entry: %w", err)
	}
	return nil
}

// empty empties and removes a directory of the pit.
func (d *discarder) empty(name string) error {
	// A guest of the same user may have taken our permissions away; the pit is out of its reach.
	fd, err := unix.Openat(d.pit, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) {
		if err := unix.Fchmodat(d.pit, name, 0o700, 0); err != nil {
			return fmt.Errorf("open up a directory: %w", err)
		}
		fd, err = unix.Openat(d.pit, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return fmt.Errorf("open a directory: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	_ = unix.Fchmod(fd, 0o700)
	for {
		names, err := entries(fd)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			break
		}
		for _, n := range names {
			if err := d.drop(fd, n); err != nil {
				return err
			}
		}
	}
	if err := unix.Unlinkat(d.pit, name, unix.AT_REMOVEDIR); err != nil {
		return fmt.Errorf("remove a directory: %w", err)
	}
	return nil
}

// entries returns some of the names in dir, all of them where there are few; none means that it is empty.
func entries(dir int) ([]string, error) {
	if _, err := unix.Seek(dir, 0, 0); err != nil {
		return nil, fmt.Errorf("rewind a directory: %w", err)
	}
	buffer := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(dir, buffer)
		if err != nil {
			return nil, os.NewSyscallError("getdents64", err)
		}
		if n == 0 {
			return nil, nil
		}
		// "." and ".." alone may fill the first read of a file system that returns few at a time.
		if _, _, names := unix.ParseDirent(buffer[:n], -1, nil); len(names) > 0 {
			return names, nil
		}
	}
}

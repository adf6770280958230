package hostside

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

// SweepAge is how old a file in the guest's tmp/ is before it is taken for the leaving of a process that died between writing and publishing.
const SweepAge = 10 * time.Minute

// Sweep removes what dead processes of the guest left in its tmp/: files older than [SweepAge] by now, at most [relay.MaxEntries] of them.
// Directories are the guest's own affair and count against it. Errors: [errs.Unavailable].
func (b *Box) Sweep(now time.Time) (removed int, err error) {
	if err := b.use(); err != nil {
		return 0, err
	}
	defer b.unuse()
	fd, err := unix.Openat(b.root, "relay/out/"+relay.TmpDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, errs.Wrap(errs.Unavailable, "the guest's tmp/ cannot be listed", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	names, err := namesIn(fd, relay.MaxEntries)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
			continue
		}
		if now.Sub(time.Unix(st.Mtim.Unix())) < SweepAge {
			continue
		}
		if err := unix.Unlinkat(fd, name, 0); err == nil {
			removed++
		}
	}
	return removed, nil
}

// MakeRoom removes the oldest result files until size more bytes stay within [relay.FileBytes]. Errors: [errs.Oversize] where size alone does
// not, [errs.Unavailable].
func (b *Box) MakeRoom(size int64) error {
	if size > relay.MaxFile {
		return errs.Newf(errs.Oversize, "a result file has at most %d bytes", relay.MaxFile)
	}
	if err := b.use(); err != nil {
		return err
	}
	defer b.unuse()
	fd, err := unix.Openat(b.root, filesDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return unavailable(err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	names, err := namesIn(fd, inInodes)
	if err != nil {
		return err
	}
	type file struct {
		name  string
		size  int64
		since int64
	}
	var all []file
	total := size
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
			all = append(all, file{name, st.Size, st.Mtim.Nano()})
			total += st.Size
		}
	}
	slices.SortFunc(all, func(x, y file) int { return cmp.Compare(x.since, y.since) })
	for _, f := range all {
		if total <= relay.FileBytes {
			return nil
		}
		if err := unix.Unlinkat(fd, f.name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return unavailable(err)
		}
		total -= f.size
	}
	return nil
}

// namesIn lists an open directory, up to a number of names.
func namesIn(fd, most int) (names []string, err error) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := ignoringEINTR(func() (int, error) { return unix.Getdents(fd, buffer) })
		if err != nil {
			return nil, unavailable(err)
		}
		if n == 0 {
			return names, nil
		}
		for rest := buffer[:n]; len(rest) > 0; {
			var name []byte
			if name, rest = nextName(rest); name == nil {
				continue
			}
			if len(names) == most {
				return names, nil
			}
			names = append(names, string(name))
		}
	}
}

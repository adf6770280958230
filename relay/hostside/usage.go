package hostside

import (
	"errors"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

// Usage is what a guest's half takes on a file system that it shares with others.
type Usage struct {
	Bytes    int64
	Entries  int64
	Exceeded string // which bound, for people; "" within all
}

// usageDepth is how deep a guest may nest directories below out/: it has no business making any.
const usageDepth = 8

// Usage measures out/ where no tmpfs bounds it. It looks at no more than [relay.OutInodes] entries and follows nothing; it is for a slow
// background pass, never for the serving path. Errors: [errs.Unavailable].
func (b *Box) Usage() (Usage, error) {
	if err := b.use(); err != nil {
		return Usage{}, err
	}
	defer b.unuse()
	w := usageWalk{}
	root, err := unix.Openat(b.root, "relay", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return Usage{}, unavailable(err)
	}
	defer unix.Close(root) //nolint:errcheck // nothing was written
	if err := w.dir(root, 0); err != nil {
		return Usage{}, err
	}
	return w.total, nil
}

type usageWalk struct {
	total  Usage
	buffer [8 << 10]byte
}

// dir adds up the entries of an open directory. Its depth is bounded, and so are the descriptors that it holds.
func (w *usageWalk) dir(fd, depth int) error {
	names, err := w.names(fd)
	if err != nil {
		return err
	}
	for _, name := range names {
		if w.total.Exceeded != "" {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			return unavailable(err)
		}
		w.total.Bytes += st.Blocks * 512
		if w.total.Bytes > relay.OutBytes {
			w.total.Exceeded = "more than 32 MiB in the relay directory"
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		if depth == usageDepth {
			w.total.Exceeded = "directories nested in the relay directory"
			return nil
		}
		sub, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EACCES) {
			continue // it changed under us, or hides: its entries count when they show
		}
		if err != nil {
			return unavailable(err)
		}
		err = w.dir(sub, depth+1)
		_ = unix.Close(sub)
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *usageWalk) names(fd int) ([]string, error) {
	var names []string
	for {
		n, err := ignoringEINTR(func() (int, error) { return unix.Getdents(fd, w.buffer[:]) })
		if err != nil {
			return nil, unavailable(err)
		}
		if n == 0 {
			return names, nil
		}
		for rest := w.buffer[:n]; len(rest) > 0; {
			var name []byte
			if name, rest = nextName(rest); name == nil {
				continue
			}
			if w.total.Entries++; w.total.Entries > relay.OutInodes {
				w.total.Exceeded = "more than 8,192 entries in the relay directory"
				return names, nil
			}
			names = append(names, string(name))
		}
	}
}

// Full is the error of a session that exceeds a bound of its directory: it ends, because what it asks for would be paid for by others.
func Full(what string) error {
	return errs.Newf(errs.Oversize, "the sandbox exceeded its relay directory: %s; it was ended", what)
}

package hostside

import (
	"errors"
	"hash/maphash"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

// Box is one session's relay directory as the host serves it. It holds two descriptors. [Box.List], [Box.Claim], [Box.Fresh] and [Box.Recover]
// are for one caller at a time; publishing and removing may happen beside them. After [Box.Close] every method fails.
type Box struct {
	folder Folder
	owners []uint32
	root   int // sessions/ID

	mu     sync.RWMutex // new is replaced where the guest replaced new/
	new    int
	device uint64
	inode  uint64
	closed bool

	seq     atomic.Uint64     // makes names in claimed/
	files   atomic.Uint64     // distinguishes files on their way
	refused map[uint64]uint64 // names that were looked at and left, by their hash: the listing that saw them last
	listing uint64
	counts  [refusals]atomic.Int64
}

// Open opens the tree that [Folder.Create] made. Owners are the user ids, as this host sees them, whose files are taken: those that may run in
// the sandbox. Errors: [errs.Unavailable].
func Open(folder Folder, owners ...uint32) (*Box, error) {
	root, err := unix.Open(folder.Root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, "the session's relay directory cannot be opened", err)
	}
	b := &Box{folder: folder, owners: owners, root: root, new: -1}
	if _, err := b.Fresh(); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Folder returns where the box lies.
func (b *Box) Folder() Folder { return b.folder }

// Close gives the descriptors back.
func (b *Box) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.closed = true
	_ = unix.Close(b.root)
	if b.new >= 0 {
		_ = unix.Close(b.new)
	}
}

// Fresh opens new/ again where it is not the directory that it was: a guest of the same user can replace it. It reports whether it did; a watch
// must then be armed again. Errors: [errs.Unavailable] while there is no directory of that name.
func (b *Box) Fresh() (changed bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false, unavailable(os.ErrClosed)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(b.root, newDir, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, errs.Wrap(errs.Unavailable, "the guest removed its relay directory", err)
	}
	if b.new >= 0 && st.Dev == b.device && st.Ino == b.inode {
		return false, nil
	}
	fd, err := unix.Openat(b.root, newDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, errs.Wrap(errs.Unavailable, "the guest replaced its relay directory with something else", err)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return false, errs.Wrap(errs.Unavailable, "the guest's relay directory cannot be read", err)
	}
	if b.new >= 0 {
		_ = unix.Close(b.new)
	}
	b.new, b.device, b.inode = fd, st.Dev, st.Ino
	clear(b.refused)
	return true, nil
}

// use keeps the descriptors open until [Box.unuse]. A number that was closed may mean another file by now.
func (b *Box) use() error {
	b.mu.RLock()
	if b.closed {
		b.mu.RUnlock()
		return unavailable(os.ErrClosed)
	}
	return nil
}

func (b *Box) unuse() { b.mu.RUnlock() }

// watchPath names exactly the directory that is listed, whatever lies at its path by now.
func (b *Box) watchPath() string { return "/proc/self/fd/" + strconv.Itoa(b.new) }

// Refusal says why an entry of new/ was not taken.
type Refusal int

// Reasons of a refusal. All but Taken leave the entry where it is.
const (
	Taken        Refusal = iota // it was
	Gone                        // somebody else moved it first
	RefusedName                 // not a name of the relay
	RefusedType                 // not a regular file
	RefusedOwner                // not the guest's
	RefusedSize                 // over the bound of its kind
	RefusedLinks                // it has links beyond the one that publishing makes
	refusals
)

func (r Refusal) String() string {
	return [...]string{"taken", "gone", "name", "type", "owner", "size", "links"}[r]
}

// Counts says how often each refusal happened in a box.
type Counts [refusals]int64

// Counts returns what was counted so far.
func (b *Box) Counts() (c Counts) {
	for i := range c {
		c[i] = b.counts[i].Load()
	}
	return c
}

var nameSeed = maphash.MakeSeed()

// List yields the names of records in new/ that were not refused before, at most [relay.MaxEntries], and returns how many entries there were
// that are not such names. Full says that there are more entries than a guest may have: it does not stop at its bound by itself. Yield returns
// false to end the listing early. Errors: [errs.Unavailable].
func (b *Box) List(buffer []byte, yield func(kind relay.Kind, name, id string) bool) (junk int, full bool, err error) {
	b.listing++
	total := 0
	for rewind := true; ; rewind = false {
		n, err := b.entries(buffer, rewind)
		if err != nil {
			return junk, false, errs.Wrap(errs.Unavailable, "the guest's relay directory cannot be listed", err)
		}
		if n == 0 {
			b.forget(junk)
			return junk, false, nil
		}
		for rest := buffer[:n]; len(rest) > 0; {
			var name []byte
			name, rest = nextName(rest)
			if name == nil {
				continue
			}
			if total++; total > relay.MaxEntries {
				return junk, true, nil
			}
			if len(b.refused) > 0 {
				h := maphash.Bytes(nameSeed, name)
				if _, known := b.refused[h]; known {
					b.refused[h] = b.listing
					junk++
					continue
				}
			}
			kind, id := relay.ParseName(string(name))
			if kind == relay.KindNone {
				junk++
				b.refuse(string(name), RefusedName)
				continue
			}
			if !yield(kind, string(name), id) {
				return junk, false, nil
			}
		}
	}
}

// entries reads the next entries of new/.
func (b *Box) entries(buffer []byte, rewind bool) (int, error) {
	if err := b.use(); err != nil {
		return 0, err
	}
	defer b.unuse()
	if rewind {
		if _, err := unix.Seek(b.new, 0, 0); err != nil {
			return 0, err
		}
	}
	return ignoringEINTR(func() (int, error) { return unix.Getdents(b.new, buffer) })
}

// forget drops refused names that the last whole listing did not see.
func (b *Box) forget(seen int) {
	if len(b.refused) <= seen {
		return
	}
	for h, at := range b.refused {
		if at != b.listing {
			delete(b.refused, h)
		}
	}
}

func (b *Box) refuse(name string, why Refusal) {
	b.counts[why].Add(1)
	if why == Gone {
		return
	}
	if b.refused == nil {
		b.refused = make(map[uint64]uint64)
	}
	if len(b.refused) < relay.MaxEntries {
		b.refused[maphash.String(nameSeed, name)] = b.listing
	}
}

// nextName cuts the first entry off a getdents64 buffer: its name (nil for "." and ".."), and the rest.
func nextName(entries []byte) (name, rest []byte) {
	const header = 19 // ino 8, off 8, reclen 2, type 1
	if len(entries) < header {
		return nil, nil
	}
	length := int(entries[16]) | int(entries[17])<<8
	if length < header || length > len(entries) {
		return nil, nil
	}
	name, rest = entries[header:length], entries[length:]
	for i, c := range name {
		if c == 0 {
			name = name[:i]
			break
		}
	}
	if s := string(name); s == "." || s == ".." || s == "" {
		return nil, rest
	}
	return name, rest
}

func ignoringEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

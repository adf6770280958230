package bwrap

import (
	"errors"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
)

// As root, each session gets a user of its own, from a range that no system hands out (systemd's containers end below it). It owns the
// session's home, which keeps it over stops and restarts. A plain user's sandboxes run as that user: a user namespace of an unprivileged
// process can hold no other.
const (
	firstUID = 0x70000000
	countUID = 1 << 20
)

// ownerOf returns the user and group of the sandbox in dir, and hands its folders to them.
func ownerOf(dir, session string) (uid, gid int, err error) {
	if os.Geteuid() != 0 {
		return os.Geteuid(), os.Getegid(), nil
	}
	sessions, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return 0, 0, errs.Wrap(errs.Internal, "the sessions' folder cannot be read", err)
	}
	defer sessions.Close()
	if err := flock(sessions, unix.LOCK_EX); err != nil { // until the home is the new user's, nobody else may choose
		return 0, 0, errs.Wrap(errs.Internal, "the sessions' folder could not be locked", err)
	}
	home := filepath.Join(dir, "home")
	if own, ok := owns(home); ok {
		return own, own, handOver(dir, own)
	}
	names, err := sessions.Readdirnames(-1)
	if err != nil {
		return 0, 0, errs.Wrap(errs.Internal, "the sessions' folder cannot be read", err)
	}
	var taken []int
	for _, name := range names {
		if other, ok := owns(filepath.Join(filepath.Dir(dir), name, "home")); ok {
			taken = append(taken, other)
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(session))
	for i := range countUID {
		candidate := firstUID + (int(h.Sum32()%countUID)+i)%countUID
		if !slices.Contains(taken, candidate) {
			return candidate, candidate, handOver(dir, candidate)
		}
	}
	return 0, 0, errs.New(errs.Unavailable, "no user is left for this sandbox; close old sessions")
}

func owns(home string) (int, bool) {
	var st unix.Stat_t
	if unix.Lstat(home, &st) != nil {
		return 0, false
	}
	return int(st.Uid), st.Uid >= firstUID && st.Uid < firstUID+countUID
}

// handOver gives the writable folders to the sandbox's user and lets it read what the host writes. The state folder above stays closed to
// all: the sandbox gets these folders by mounts.
func handOver(dir string, uid int) error {
	for _, name := range []string{"home", "out", "out/tmp", "out/new"} {
		if err := os.Lchown(filepath.Join(dir, name), uid, uid); err != nil && !(name != "home" && errors.Is(err, fs.ErrNotExist)) {
			return errs.Wrap(errs.Internal, "the session's folders could not be handed over", err)
		}
	}
	for _, name := range []string{"in", "in/bin", "in/results", "in/progress", "in/files"} {
		if err := os.Chmod(filepath.Join(dir, name), 0o755); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errs.Wrap(errs.Internal, "the session's folders could not be handed over", err)
		}
	}
	return nil
}

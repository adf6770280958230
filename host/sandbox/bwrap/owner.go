package bwrap

import (
	"hash/fnv"
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

// Owner implements [sandbox.Driver].
func (*Driver) Owner(dir string) (uid, gid int, err error) {
	home := filepath.Join(dir, homeName)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return 0, 0, errs.Wrap(errs.Unavailable, "the session's folder cannot be made", err)
	}
	if os.Geteuid() != 0 {
		return os.Geteuid(), os.Getegid(), nil
	}
	sessions, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return 0, 0, errs.Wrap(errs.Unavailable, "the sessions' folder cannot be read", err)
	}
	defer sessions.Close()
	if err := flock(sessions, unix.LOCK_EX); err != nil { // until the home is the new user's, nobody else may choose
		return 0, 0, errs.Wrap(errs.Unavailable, "the sessions' folder could not be locked", err)
	}
	if own, ok := owns(home); ok {
		return own, own, nil
	}
	names, err := sessions.Readdirnames(-1)
	if err != nil {
		return 0, 0, errs.Wrap(errs.Unavailable, "the sessions' folder cannot be read", err)
	}
	var taken []int
	for _, name := range names {
		if other, ok := owns(filepath.Join(filepath.Dir(dir), name, homeName)); ok {
			taken = append(taken, other)
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(filepath.Base(dir)))
	for i := range countUID {
		candidate := firstUID + (int(h.Sum32()%countUID)+i)%countUID
		if slices.Contains(taken, candidate) {
			continue
		}
		if err := os.Lchown(home, candidate, candidate); err != nil {
			return 0, 0, errs.Wrap(errs.Unavailable, "the session's home could not be handed over", err)
		}
		return candidate, candidate, nil
	}
	return 0, 0, errs.New(errs.Unavailable, "no user is left for this sandbox; close old sessions")
}

// homeName is HOME's folder below the session's.
const homeName = "home"

func owns(home string) (int, bool) {
	var st unix.Stat_t
	if unix.Lstat(home, &st) != nil {
		return 0, false
	}
	return int(st.Uid), st.Uid >= firstUID && st.Uid < firstUID+countUID
}

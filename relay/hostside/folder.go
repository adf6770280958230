package hostside

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

// Folder is a session's folder on the host:
//
//	in/                 the guest's /run/sallyport/in, read-only there
//	relay/out/          the guest's /run/sallyport/out
//	relay/claimed/      records that the host is responsible for, out of the guest's reach
//
// out/ and claimed/ lie on one mount, because a claim is a rename. Where the host is root each of relay/ and in/ is a tmpfs of its own.
type Folder struct {
	Root string // sessions/ID
}

// In is what the driver mounts at [relay.GuestIn], read-only.
func (f Folder) In() string { return filepath.Join(f.Root, "in") }

// Out is what the driver mounts at [relay.GuestOut], writable.
func (f Folder) Out() string { return filepath.Join(f.Root, "relay", "out") }

// Bin is where the guest's binaries go.
func (f Folder) Bin() string { return filepath.Join(f.In(), relay.BinDir) }

func (f Folder) relay() string   { return filepath.Join(f.Root, "relay") }
func (f Folder) claimed() string { return filepath.Join(f.Root, claimedDir) }

// Names below Root, as they are used relative to its descriptor.
const (
	newDir      = "relay/out/" + relay.NewDir
	claimedDir  = "relay/claimed"
	resultsDir  = "in/" + relay.ResultsDir
	progressDir = "in/" + relay.ProgressDir
	filesDir    = "in/" + relay.FilesDir
	inTmpDir    = "in/" + relay.TmpDir
)

// Create makes an empty tree for a new epoch of a session; whatever an earlier one left below relay/ and in/ is gone afterwards. The guest's
// two directories belong to uid and gid; everything else to the host, so that a guest of another user cannot replace them. With tmpfs both
// halves become file systems of bounded size, which needs root ([MayMount]). No sandbox may have the tree mounted. Errors: [errs.Unavailable].
func (f Folder) Create(uid, gid int, tmpfs bool) error {
	if err := f.create(uid, gid, tmpfs); err != nil {
		return errs.Wrap(errs.Unavailable, "the session's relay directory cannot be made", err)
	}
	return nil
}

func (f Folder) create(uid, gid int, tmpfs bool) error {
	if err := f.remove(); err != nil {
		return err
	}
	for _, dir := range []struct {
		path  string
		bytes int64
		nodes int64
		flags uintptr
	}{
		{f.relay(), relay.OutBytes, relay.OutInodes, unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{f.In(), relay.InBytes, inInodes, unix.MS_NOSUID | unix.MS_NODEV}, // binaries run from it
	} {
		if err := os.MkdirAll(f.Root, 0o700); err != nil {
			return err
		}
		if err := makeDir(dir.path, 0o755); err != nil {
			return err
		}
		if tmpfs {
			if err := mountTmpfs(dir.path, dir.bytes, dir.nodes, dir.flags); err != nil {
				return err
			}
		}
	}
	if err := makeDir(f.claimed(), 0o700); err != nil {
		return err
	}
	for _, dir := range []string{f.Out(), f.Bin(), filepath.Join(f.Root, resultsDir), filepath.Join(f.Root, progressDir), filepath.Join(f.Root, filesDir), filepath.Join(f.Root, inTmpDir)} {
		if err := makeDir(dir, 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{relay.TmpDir, relay.NewDir} {
		dir = filepath.Join(f.Out(), dir)
		if err := makeDir(dir, 0o700); err != nil {
			return err
		}
		if uid != os.Getuid() || gid != os.Getgid() {
			if err := os.Chown(dir, uid, gid); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeDir makes a directory of exactly these permissions, whatever the umask.
func makeDir(path string, perm os.FileMode) error {
	if err := os.Mkdir(path, perm); err != nil {
		return err
	}
	return os.Chmod(path, perm)
}

// Remove unmounts and deletes relay/ and in/, of any shape that a guest gave them; what else the session's folder holds (home) stays. A tree
// that is not there is removed already. Errors: [errs.Unavailable].
func (f Folder) Remove() error {
	if err := f.remove(); err != nil {
		return errs.Wrap(errs.Unavailable, "the session's relay directory cannot be removed", err)
	}
	return nil
}

func (f Folder) remove() error {
	for _, dir := range []string{f.relay(), f.In()} {
		if err := unmountAll(dir); err != nil {
			return err
		}
	}
	return discard(f.Root, "relay", "in")
}

// Exists reports whether the tree was made.
func (f Folder) Exists() bool {
	_, err := os.Lstat(f.claimed())
	return err == nil
}

// Tmpfs reports whether the guest's half is a file system of its own, so that its size is bounded by the kernel.
func (f Folder) Tmpfs() bool {
	var st unix.Statfs_t
	err := unix.Statfs(f.relay(), &st)
	return err == nil && st.Type == unix.TMPFS_MAGIC && isMount(f.relay())
}

// Publish writes a file of the host's own (session.json, tools.json, open, a binary) to its name in in/, replacing an older one at once. Perm
// is 0644, or 0755 for a binary. Errors: [errs.Unavailable].
func (f Folder) Publish(name string, data []byte, perm os.FileMode) error {
	tmp := filepath.Join(f.Root, inTmpDir, filepath.Base(name))
	err := os.WriteFile(tmp, data, perm)
	if err == nil {
		err = os.Chmod(tmp, perm) // whatever the umask
	}
	if err == nil {
		err = os.Rename(tmp, filepath.Join(f.In(), name))
	}
	if err != nil {
		return errs.Wrap(errs.Unavailable, "a file for the sandbox cannot be written", errors.Join(err, os.Remove(tmp)))
	}
	return nil
}

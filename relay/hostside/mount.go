package hostside

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// inInodes bounds the host's own half: results, progress and files, and what lies around them.
const inInodes = 8192

// MayMount reports whether this process may mount a tmpfs: root with CAP_SYS_ADMIN in the namespace that owns the mounts. A container's
// root often may not; the host then counts bytes and entries instead ([Usage]).
func MayMount() bool {
	if os.Geteuid() != 0 {
		return false
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

func mountTmpfs(dir string, bytes, inodes int64, flags uintptr) error {
	options := fmt.Sprintf("size=%d,nr_inodes=%d,mode=0755", bytes, inodes)
	if err := unix.Mount("sallyport", dir, "tmpfs", flags, options); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
	}
	// In the machine's own mount namespace, and visible to supervisors, which are started from it.
	return nil
}

// unmountAll takes away every mount on dir itself. A mount that a dying sandbox still holds is detached; it ends with its last user.
func unmountAll(dir string) error {
	for isMount(dir) {
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	return nil
}

// isMount reports whether dir lies on another mount than its parent. A bind mount of the same file system has a mount id of its own too.
func isMount(dir string) bool {
	id, err := mountID(dir)
	if err != nil {
		return false
	}
	parent, err := mountID(filepath.Dir(dir))
	return err == nil && id != parent
}

func mountID(path string) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &st); err != nil {
		return 0, err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, errors.New("statx gives no mount id: Linux 5.8 or newer is needed")
	}
	return st.Mnt_id, nil
}

package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// stage shows the mounts below Stage in this process's own mount namespace. Root's folders are closed to the unprivileged user that the
// driver's program becomes; a mount needs no permission on the way to it, so only what is listed opens.
//
// All sources are taken by descriptor before Stage is covered: one of them may lie below it.
func stage(mounts []Mount, uid, gid int) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("make mounts private", err)
	}
	trees := make([]int, len(mounts))
	for i, m := range mounts {
		fd, err := unix.OpenTree(unix.AT_FDCWD, m.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
		if err != nil {
			return fmt.Errorf("show %s: %w", m.Source, err)
		}
		trees[i] = fd
		if m.OwnerUID >= 0 && (m.OwnerUID != uid || m.OwnerGID != gid) {
			if err := mapOwner(fd, m, uid, gid); err != nil {
				return fmt.Errorf("show %s with another owner: %w", m.Source, err)
			}
		}
	}
	if err := unix.Mount("sallyport", Stage, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=1m"); err != nil {
		return os.NewSyscallError("mount "+Stage, err)
	}
	for i, m := range mounts {
		target := filepath.Join(Stage, m.Name)
		var st unix.Stat_t
		if err := unix.Fstat(trees[i], &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			if err := os.Mkdir(target, 0o755); err != nil {
				return err
			}
		} else if err := os.WriteFile(target, nil, 0o644); err != nil {
			return err
		}
		if err := unix.MoveMount(trees[i], "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("show %s: %w", m.Source, err)
		}
		_ = unix.Close(trees[i])
	}
	return nil
}

// ErrNoOwnerMapping says that a file system cannot show its files with another owner.
var ErrNoOwnerMapping = errors.New("this file system cannot map owners")

// CheckOwner tries, without showing anything to anybody, whether a mount's owner can be mapped to the child's user. Errors:
// [ErrNoOwnerMapping].
func CheckOwner(m Mount, uid, gid int) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, m.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("open a tree of %s: %w", m.Source, err)
	}
	defer func() { _ = unix.Close(fd) }()
	return mapOwner(fd, m, uid, gid)
}

// mapOwner makes a tree show the files of one owner as those of the child's user: what the agent writes belongs to that owner on disk. It
// needs Linux 5.12 and a file system that takes part (ext4, xfs, btrfs, overlay since 5.19, tmpfs since 6.3; not NFS).
func mapOwner(tree int, m Mount, uid, gid int) error {
	ns, err := userNamespace(m.OwnerUID, uid, m.OwnerGID, gid)
	if err != nil {
		return err
	}
	defer ns.Close()
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%w: %w", ErrNoOwnerMapping, err)
	}
	return err
}

// userNamespace returns a user namespace that maps one user and one group. A process must be in it for a moment to make it: one that never
// runs, because it is traced and killed at its first instruction.
func userNamespace(diskUID, shownUID, diskGID, shownGID int) (*os.File, error) {
	runtime.LockOSThread() // a traced process belongs to the thread that started it
	defer runtime.UnlockOSThread()
	p, err := os.StartProcess("/proc/self/exe", []string{"sallyport", "__never"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: diskUID, HostID: shownUID, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: diskGID, HostID: shownGID, Size: 1}},
			Ptrace:      true,
			Pdeathsig:   syscall.SIGKILL,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	defer func() {
		_ = p.Kill()
		_, _ = p.Wait()
	}()
	return os.Open("/proc/" + strconv.Itoa(p.Pid) + "/ns/user")
}

package bwrap

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// verdict runs the filter in an interpreter. It reads words in network order, so the struct is laid out that way, low halves first.
func verdict(t *testing.T, nested bool, arch, number uint32, args ...uint32) uint32 {
	t.Helper()
	raw, err := filter(nested)
	if err != nil {
		t.Fatal(err)
	}
	prog, all := bpf.Disassemble(raw)
	if !all {
		t.Fatal("the filter holds an unknown instruction")
	}
	vm, err := bpf.NewVM(prog)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[offNumber:], number)
	binary.BigEndian.PutUint32(data[offArch:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[offArgs+8*i:], a)
	}
	got, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(got)
}

func TestFilter(t *testing.T) {
	const (
		allow = uint32(unix.SECCOMP_RET_ALLOW)
		eperm = uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.EPERM)
		nosys = uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.ENOSYS)
		noaf  = uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.EAFNOSUPPORT)
	)
	cases := []struct {
		name   string
		number uint32
		args   []uint32
		plain  uint32
		nested uint32
	}{
		{"read", unix.SYS_READ, nil, allow, allow},
		{"clone", unix.SYS_CLONE, nil, allow, allow},
		{"ptrace", unix.SYS_PTRACE, nil, allow, allow},
		{"first of the list", unix.SYS_KEXEC_LOAD, nil, eperm, eperm},
		{"bpf", unix.SYS_BPF, nil, eperm, eperm},
		{"keyring", unix.SYS_KEYCTL, nil, eperm, eperm},
		{"io_uring", unix.SYS_IO_URING_SETUP, nil, nosys, nosys},
		{"openat2", unix.SYS_OPENAT2, nil, nosys, nosys},
		{"mount", unix.SYS_MOUNT, nil, eperm, allow},
		{"unshare", unix.SYS_UNSHARE, nil, eperm, allow},
		{"last of the list", unix.SYS_MOUNT_SETATTR, nil, eperm, allow},
		{"newest", newest, nil, allow, allow},
		{"unknown", newest + 1, nil, nosys, nosys},
		{"x32", 0x40000000 | unix.SYS_READ, nil, nosys, nosys},
		{"TIOCSTI", unix.SYS_IOCTL, []uint32{0, unix.TIOCSTI}, eperm, eperm},
		{"TIOCLINUX", unix.SYS_IOCTL, []uint32{0, tioclinux}, eperm, eperm},
		{"TIOCGWINSZ", unix.SYS_IOCTL, []uint32{0, unix.TIOCGWINSZ}, allow, allow},
		{"unix socket", unix.SYS_SOCKET, []uint32{unix.AF_UNIX}, allow, allow},
		{"inet socket", unix.SYS_SOCKET, []uint32{unix.AF_INET}, allow, allow},
		{"inet6 socket", unix.SYS_SOCKET, []uint32{unix.AF_INET6}, allow, allow},
		{"netlink socket", unix.SYS_SOCKET, []uint32{unix.AF_NETLINK}, allow, allow},
		{"vsock", unix.SYS_SOCKET, []uint32{unix.AF_VSOCK}, noaf, noaf},
		{"packet socket", unix.SYS_SOCKET, []uint32{unix.AF_PACKET}, noaf, noaf},
		{"family 0", unix.SYS_SOCKET, []uint32{0}, noaf, noaf},
		{"fchmodat", unix.SYS_FCHMODAT, []uint32{0, 0, 0o755}, allow, allow},
		{"fchmodat setuid", unix.SYS_FCHMODAT, []uint32{0, 0, 0o4755}, eperm, eperm},
		{"fchmodat2 setgid", unix.SYS_FCHMODAT2, []uint32{0, 0, 0o2755}, eperm, eperm},
		{"fchmod setuid", unix.SYS_FCHMOD, []uint32{3, 0o4000}, eperm, eperm},
		{"mknodat setuid", unix.SYS_MKNODAT, []uint32{0, 0, unix.S_IFREG | 0o4755}, eperm, eperm},
		{"openat", unix.SYS_OPENAT, []uint32{0, 0, unix.O_CREAT | unix.O_WRONLY, 0o644}, allow, allow},
		{"openat setuid", unix.SYS_OPENAT, []uint32{0, 0, unix.O_CREAT | unix.O_WRONLY, 0o4755}, eperm, eperm},
		{"openat tmpfile setuid", unix.SYS_OPENAT, []uint32{0, 0, unix.O_TMPFILE | unix.O_RDWR, 0o4755}, eperm, eperm},
		{"openat with a stray mode", unix.SYS_OPENAT, []uint32{0, 0, unix.O_RDONLY, 0o4755}, allow, allow},
		{"openat of a folder with a stray mode", unix.SYS_OPENAT, []uint32{0, 0, unix.O_DIRECTORY, 0o4755}, allow, allow},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := verdict(t, false, auditArch, c.number, c.args...); got != c.plain {
				t.Errorf("verdict %#x, want %#x", got, c.plain)
			}
			if got := verdict(t, true, auditArch, c.number, c.args...); got != c.nested {
				t.Errorf("verdict of a nested sandbox %#x, want %#x", got, c.nested)
			}
		})
	}
	if got := verdict(t, false, unix.AUDIT_ARCH_I386, unix.SYS_READ); got != unix.SECCOMP_RET_KILL_PROCESS {
		t.Errorf("another architecture: %#x", got)
	}
}

package bwrap

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The filter refuses what no agent needs and what has broken namespaces before. It is a list of refusals, not of permissions: agents run
// compilers, debuggers and browsers that nobody can enumerate, and the namespaces are the wall; this is the second one.
//
// Written by hand in the kernel's own instructions, because tables of syscall names lag behind the kernel: a name that a table does not know
// would be let through.

// newest is the highest syscall number that was looked at when the list was written. What is younger answers "not implemented", and
// programs fall back. (Numbers above 423 are the same on all machines.)
const newest = unix.SYS_RSEQ_SLICE_YIELD

// Offsets in the kernel's struct seccomp_data. Arguments are 64 bits; what is compared here is their lower half, which is all that the
// kernel reads of these arguments.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// test is a condition on one argument. All tests of a rule must hold.
type test struct {
	arg  uint32
	mask uint32 // 0: all bits
	// in: the masked argument is one of these. anyBit: it is not 0.
	in     []uint32
	not    bool // negates in
	anyBit bool
}

type rule struct {
	number uint32
	errno  unix.Errno
	when   []test // none: always
}

// never is refused in every sandbox.
func never() []rule {
	rules := refuse(unix.EPERM,
		// the kernel itself
		unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_REBOOT,
		unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_SYSLOG, unix.SYS_BPF,
		unix.SYS_PERF_EVENT_OPEN, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_NFSSERVCTL, unix.SYS_VHANGUP,
		// the machine's time and name
		unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
		// keyrings belong to a user, not to a namespace: two sandboxes of one user would share theirs
		unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
		// files by handle pass by the view
		unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
		// holding the kernel at a chosen point is half of many exploits
		unix.SYS_USERFAULTFD,
	)
	// Answered like an old kernel, so that libraries fall back: requests in a ring cannot be filtered, nor can openat2's struct.
	rules = append(rules, refuse(unix.ENOSYS, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_OPENAT2)...)

	// Pushing characters into a terminal's input.
	ioctl := func(cmd uint32) rule {
		return rule{unix.SYS_IOCTL, unix.EPERM, []test{{arg: 1, in: []uint32{cmd}}}}
	}
	rules = append(rules, ioctl(unix.TIOCSTI), ioctl(tioclinux))

	// Families that a network namespace does not hold back (AF_VSOCK reaches the machine around a virtual one), or that nobody needs.
	rules = append(rules, rule{unix.SYS_SOCKET, unix.EAFNOSUPPORT, []test{
		{arg: 0, in: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}, not: true},
	}})

	// Set-user-id files in a workspace would give their owner's rights to anybody outside who runs them.
	const set = unix.S_ISUID | unix.S_ISGID
	mode := func(number, arg uint32) rule {
		return rule{number, unix.EPERM, []test{{arg: arg, mask: set, anyBit: true}}}
	}
	rules = append(rules, mode(unix.SYS_FCHMOD, 1), mode(unix.SYS_FCHMODAT, 2), mode(unix.SYS_FCHMODAT2, 2), mode(unix.SYS_MKNODAT, 2))
	rules = append(rules, rule{unix.SYS_OPENAT, unix.EPERM, []test{
		{arg: 2, mask: unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY, anyBit: true}, {arg: 3, mask: set, anyBit: true},
	}})
	return append(rules, neverHere(set)...)
}

// unlessNested is refused too where the harness makes no sandbox of its own.
func unlessNested() []rule {
	return refuse(unix.EPERM,
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_SETNS, unix.SYS_UNSHARE,
		unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT,
		unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	)
}

const tioclinux = 0x541C // console selection and paste; x/sys has no name for it

func refuse(errno unix.Errno, numbers ...uint32) []rule {
	rules := make([]rule, len(numbers))
	for i, n := range numbers {
		rules[i] = rule{number: n, errno: errno}
	}
	return rules
}

// filter assembles the program. nested leaves user namespaces and mounts to the harness.
func filter(nested bool) ([]bpf.RawInstruction, error) {
	rules := never()
	if !nested {
		rules = append(rules, unlessNested()...)
	}
	allow := bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	prog := []bpf.Instruction{
		// Another architecture's table would turn every number into another call (32-bit programs on a 64-bit kernel).
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
		// Above the newest: unknown calls, and on amd64 the x32 table.
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: newest, SkipTrue: 1},
		errno(unix.ENOSYS),
	}
	for _, r := range rules {
		block := r.tests()
		if len(block) > 250 {
			return nil, fmt.Errorf("seccomp: the rule for syscall %d is too long", r.number)
		}
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpEqual, Val: r.number, SkipFalse: uint8(len(block))})
		prog = append(prog, block...)
	}
	return bpf.Assemble(append(prog, allow))
}

// tests ends in the refusal. A test that fails reloads the number and goes on behind the block, to the next rule for the same call.
func (r rule) tests() []bpf.Instruction {
	var out []bpf.Instruction
	if len(r.when) == 0 {
		return []bpf.Instruction{errno(r.errno)}
	}
	// Built from the end: the tail is the refusal, a jump over the reload, and the reload.
	tail := []bpf.Instruction{errno(r.errno), bpf.LoadAbsolute{Off: offNumber, Size: 4}}
	for i := len(r.when) - 1; i >= 0; i-- {
		t := r.when[i]
		rest := append(out, tail...)
		miss := uint8(len(rest) - 1) // over everything but the reload
		block := []bpf.Instruction{bpf.LoadAbsolute{Off: offArgs + 8*t.arg, Size: 4}}
		if t.mask != 0 {
			block = append(block, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: t.mask})
		}
		switch {
		case t.anyBit:
			block = append(block, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipFalse: miss})
		default:
			for j, v := range t.in {
				left := uint8(len(t.in) - 1 - j)
				if t.not {
					block = append(block, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: left + miss})
				} else if left > 0 {
					block = append(block, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: left})
				} else {
					block = append(block, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipFalse: miss})
				}
			}
		}
		out = append(block, out...)
	}
	return append(out, tail...)
}

func errno(e unix.Errno) bpf.Instruction {
	return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(e)}
}

// program is the filter as bubblewrap's --seccomp and the kernel read it: struct sock_filter in the machine's byte order.
func program(nested bool) ([]byte, error) {
	raw, err := filter(nested)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, 8*len(raw))
	for _, i := range raw {
		out = binary.NativeEndian.AppendUint16(out, i.Op)
		out = append(out, i.Jt, i.Jf)
		out = binary.NativeEndian.AppendUint32(out, i.K)
	}
	return out, nil
}

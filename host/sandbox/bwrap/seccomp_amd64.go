package bwrap

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// neverHere is what only this machine has: calls without an "at" form elsewhere, and its own ways to the hardware.
func neverHere(set uint32) []rule {
	rules := refuse(unix.EPERM, unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS__SYSCTL, unix.SYS_USTAT, unix.SYS_SYSFS)
	return append(rules,
		rule{unix.SYS_CHMOD, unix.EPERM, []test{{arg: 1, mask: set, anyBit: true}}},
		rule{unix.SYS_MKNOD, unix.EPERM, []test{{arg: 1, mask: set, anyBit: true}}},
		rule{unix.SYS_CREAT, unix.EPERM, []test{{arg: 1, mask: set, anyBit: true}}},
		rule{unix.SYS_OPEN, unix.EPERM, []test{{arg: 1, mask: unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY, anyBit: true}, {arg: 2, mask: set, anyBit: true}}},
	)
}

package confine

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// allowed are the system calls of Go's runtime and of a network client, by name; what an architecture does not have is left out. Everything else is
// refused with EPERM: starting programs, listening, binding, tracing, mounting, keys, io_uring, bpf, user namespaces, and what kernels add later.
var allowed = []string{
	// memory and threads of the runtime
	"brk", "munmap", "madvise", "mincore", "mremap", "futex", "sched_yield", "sched_getaffinity", "set_robust_list", "rseq", "membarrier",
	"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall", "exit", "exit_group", "arch_prctl", "getrandom",
	// time
	"nanosleep", "clock_nanosleep", "clock_gettime", "clock_getres", "gettimeofday", "time", "timer_create", "timer_settime", "timer_delete", "setitimer",
	// who and where we are
	"getpid", "getppid", "gettid", "getuid", "geteuid", "getgid", "getegid", "getgroups", "getrusage", "getrlimit", "prlimit64", "uname", "sysinfo", "getcwd",
	// open files: reading, the pipes of the log, polling
	"read", "readv", "pread64", "preadv", "write", "writev", "pwrite64", "close", "lseek", "fstat", "newfstatat", "stat", "lstat", "statx", "fstatfs", "fcntl",
	"readlink", "readlinkat", "getdents64", "faccessat", "faccessat2", "ftruncate", "fsync", "fdatasync", "flock", "dup", "dup3", "pipe2",
	"epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd2", "poll", "ppoll", "select", "pselect6",
	// sockets of a client
	"connect", "getsockname", "getpeername", "setsockopt", "getsockopt", "sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg", "recvmmsg", "shutdown",
	"sendfile", "splice",
}

const (
	ipprotoMPTCP = 262        // Landlock does not see ports of Multipath TCP
	prSetVMA     = 0x53564d41 // the runtime names its memory
	maxProtocol  = 256
)

// filter applies seccomp to all threads.
func filter(cfg Config) error {
	info, err := arch.GetInfo("")
	if err != nil {
		return fmt.Errorf("no filter for %s: %w", runtimeArch, err)
	}
	group := seccomp.SyscallGroup{Action: seccomp.ActionAllow}
	for _, name := range allowed {
		if _, ok := info.SyscallNames[name]; ok {
			group.Names = append(group.Names, name)
		}
	}
	when := func(name string, conditions ...seccomp.Condition) {
		if _, ok := info.SyscallNames[name]; ok {
			group.NamesWithCondtions = append(group.NamesWithCondtions, seccomp.NameWithConditions{Name: name, Conditions: conditions})
		}
	}
	is := func(argument uint32, op seccomp.Operation, value uint64) seccomp.Condition {
		return seccomp.Condition{Argument: argument, Operation: op, Value: value}
	}
	const writing = unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC | unix.O_APPEND
	when("open", is(1, seccomp.BitsNotSet, writing))
	when("openat", is(2, seccomp.BitsNotSet, writing))
	when("mmap", is(2, seccomp.BitsNotSet, unix.PROT_EXEC))
	when("mprotect", is(2, seccomp.BitsNotSet, unix.PROT_EXEC))
	when("clone", is(0, seccomp.BitsSet, unix.CLONE_THREAD))
	when("tgkill", is(0, seccomp.Equal, uint64(os.Getpid())))
	when("prctl", is(0, seccomp.Equal, prSetVMA))
	when("prctl", is(0, seccomp.Equal, unix.PR_SET_NAME))
	when("prctl", is(0, seccomp.Equal, unix.PR_GET_DUMPABLE))
	families := []uint64{unix.AF_INET, unix.AF_INET6}
	if cfg.UnixDir != "" {
		families = append(families, unix.AF_UNIX)
	}
	for _, family := range families {
		for _, kind := range []uint64{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			when("socket", is(0, seccomp.Equal, family), is(1, seccomp.Equal, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK), is(2, seccomp.LessThan, maxProtocol))
		}
	}
	// clone3 hides its flags from a filter. A C library, which a build with cgo makes its threads with, takes ENOSYS for an old kernel and uses clone.
	groups := []seccomp.SyscallGroup{group}
	if _, ok := info.SyscallNames["clone3"]; ok {
		groups = append(groups, seccomp.SyscallGroup{Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS), Names: []string{"clone3"}})
	}
	policy := seccomp.Policy{DefaultAction: seccomp.ActionErrno, Syscalls: groups}
	program, err := policy.Assemble()
	if err != nil {
		return err
	}
	raw, err := bpf.Assemble(program)
	if err != nil {
		return err
	}
	filters := make([]unix.SockFilter, len(raw))
	for i, ins := range raw {
		filters[i] = unix.SockFilter{Code: ins.Op, Jt: ins.Jt, Jf: ins.Jf, K: ins.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	return nil
}

package confine

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// try does each forbidden thing, in its harmless form, and says whether the kernel refused it. A refusal is EPERM or EACCES: anything else means that
// the kernel would have done it.
func try(cfg Config) []Finding {
	out := []Finding{
		found("write files", tryWrite()),
		found("start programs", tryExec()),
		found("fork", tryFork()),
		found("listen", tryListen()),
		found("trace others", tryTrace()),
		found("map code", tryMap()),
		found("open raw or netlink sockets", trySocket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC)),
		{What: "be dumped", Denied: notDumpable()},
		found("read other files", tryRead()),
	}
	if cfg.UnixDir == "" {
		out = append(out, found("use Unix sockets", trySocket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)))
	} else {
		out = append(out, tryUnix())
	}
	if len(cfg.Ports) > 0 {
		out = append(out, found("connect to other ports", tryPort(cfg.Ports)))
	} else {
		out = append(out, Finding{What: "connect to other ports", Note: "no ports were given"})
	}
	return out
}

func found(what string, err error) Finding {
	f := Finding{What: what, Denied: errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)}
	if !f.Denied && err != nil {
		f.Note = err.Error()
	}
	return f
}

func tryWrite() error {
	fd, err := unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// tryExec starts nothing: no program has an empty path.
func tryExec() error { return unix.Exec("", nil, nil) }

// tryFork asks for a child with flags that the kernel refuses (a thread's signal handlers without its memory): EINVAL means that it looked.
func tryFork() error {
	_, _, errno := unix.RawSyscall(unix.SYS_CLONE, unix.CLONE_SIGHAND, 0, 0)
	return errno
}

func tryListen() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Listen(fd, 1)
}

// tryTrace looks into a process that does not exist: ESRCH means that it looked.
func tryTrace() error {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_PEEKDATA, ^uintptr(0)>>33, 0, 0, 0, 0)
	return errno
}

func tryMap() error {
	b, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil {
		_ = unix.Munmap(b)
	}
	return err
}

func trySocket(family, kind int) error {
	fd, err := unix.Socket(family, kind, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func notDumpable() bool {
	var core unix.Rlimit
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	return err == nil && dumpable == 0 && unix.Getrlimit(unix.RLIMIT_CORE, &core) == nil && core.Max == 0
}

// tryUnix connects to a socket that does not exist outside of control's directory: ENOENT means that the kernel looked.
func tryUnix() Finding {
	f := Finding{What: "connect to other Unix sockets", Note: "this kernel's landlock does not tell them apart; reach control over TCP to forbid them"}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return Finding{What: f.What, Denied: true}
	}
	defer func() { _ = unix.Close(fd) }()
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: "/sallyport-no-such-socket"})
	f.Denied = errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
	return f
}

func tryRead() error {
	fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// tryPort connects on the loopback to the first port that is not allowed.
func tryPort(ports []uint16) error {
	known := map[uint16]bool{}
	for _, p := range ports {
		known[p] = true
	}
	port := uint16(1)
	for known[port] {
		port++
	}
	c, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port).String())
	if err == nil {
		c.Close()
		return errors.New("port " + strconv.Itoa(int(port)) + " answered")
	}
	return err
}

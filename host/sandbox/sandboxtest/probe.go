package sandboxtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// probeArg makes the test's own binary try one thing inside a sandbox: "ok", or the error, is what it prints.
const probeArg = "test-probe"

// Probe is the command that tries something inside.
func Probe(args ...string) []string {
	return append([]string{"/run/sallyport/in/bin/sallyport-guest", probeArg}, args...)
}

func probe(args []string) int {
	name := args[0]
	fn, ok := probes[name]
	if !ok {
		fmt.Println(name, "is unknown")
		return 2
	}
	if err := fn(args[1:]); err != nil {
		fmt.Printf("%s: %v\n", name, err)
		return 1
	}
	fmt.Printf("%s: ok\n", name)
	return 0
}

var probes = map[string]func(args []string) error{
	"tiocsti": func([]string) error {
		c := byte('x')
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&c)))
		return text(errno)
	},
	"dev-tty": func([]string) error {
		f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
		if err == nil {
			f.Close()
		}
		return err
	},
	"unix": func(args []string) error { return dial(&unix.SockaddrUnix{Name: args[0]}, unix.AF_UNIX) },
	"inet": func(args []string) error {
		port, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		return dial(&unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}, unix.AF_INET)
	},
	"outside": func([]string) error {
		return dial(&unix.SockaddrInet4{Port: 80, Addr: [4]byte{192, 0, 2, 1}}, unix.AF_INET)
	},
	"vsock": func([]string) error {
		fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	},
	"userns": func([]string) error {
		cmd := exec.Command("/proc/self/exe", "__never")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
		return cmd.Run()
	},
	"mount": func([]string) error { return unix.Mount("none", "/tmp", "tmpfs", 0, "") },
	"keyctl": func([]string) error {
		_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, false)
		return err
	},
	"setuid-file": func([]string) error {
		if err := os.WriteFile("bit", []byte("#!/bin/sh\n"), 0o755); err != nil {
			return err
		}
		return unix.Chmod("bit", 0o4755)
	},
	"setuid-open": func([]string) error {
		fd, err := unix.Open("bit2", unix.O_CREAT|unix.O_WRONLY, 0o4755)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	},
	"status": func([]string) error {
		data, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(line, "Cap") || strings.HasPrefix(line, "NoNewPrivs") || strings.HasPrefix(line, "Seccomp:") || strings.HasPrefix(line, "Uid") || strings.HasPrefix(line, "Gid") || strings.HasPrefix(line, "Groups") {
				fmt.Print(line)
			}
		}
		return nil
	},
	"descriptors": func([]string) error {
		entries, err := os.ReadDir("/proc/self/fd")
		for _, e := range entries {
			target, _ := os.Readlink("/proc/self/fd/" + e.Name())
			if target != "" && !strings.HasPrefix(target, "anon_inode:") && !strings.HasPrefix(target, "/proc/") {
				fmt.Println("fd", e.Name(), strings.SplitN(target, ":", 2)[0])
			}
		}
		return err
	},
	// grep looks for a text in every file that can be read.
	"grep": func(args []string) error {
		found := errors.New("not found")
		for _, root := range []string{"/etc", "/run", "/home", "/root", "/var", "/opt", "/tmp", "/dev"} {
			_ = filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
				if err != nil || strings.HasPrefix(p, "/run/sallyport/in/bin") {
					return nil
				}
				if strings.Contains(d.Name(), args[0]) {
					found = nil
					fmt.Println("name", p)
				}
				// A mount's kind is not in its folder's list, so the entry is looked at.
				if info, err := os.Lstat(p); err == nil && info.Mode().IsRegular() {
					if data, err := os.ReadFile(p); err == nil && strings.Contains(string(data), args[0]) {
						found = nil
						fmt.Println("content", p)
					}
				}
				return nil
			})
		}
		return found
	},
	"fork": func(args []string) error {
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		for i := range n {
			cmd := exec.Command("/bin/sleep", "30")
			if err := cmd.Start(); err != nil {
				fmt.Println("started", i)
				return err
			}
		}
		return nil
	},
	"hog": func(args []string) error {
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		data, err := unix.Mmap(-1, 0, n<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return err
		}
		for i := 0; i < len(data); i += 4096 {
			data[i] = 1
		}
		return nil
	},
	// ignore sits through every polite signal, with a child of its own.
	"ignore": func([]string) error {
		if err := exec.Command("/bin/sh", "-c", "trap '' TERM INT HUP; (trap '' TERM; sleep 300) & touch \"$HOME/ready\"; while :; do sleep 300; done").Run(); err != nil {
			return err
		}
		return nil
	},
}

func dial(to unix.Sockaddr, family int) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Connect(fd, to)
}

func text(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

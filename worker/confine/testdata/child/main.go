// Command child confines itself and then does what its arguments say, one line of result each. It stands for code that somebody made a worker run.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/worker/confine"
)

func main() {
	var cfg confine.Config
	slot, err := os.OpenFile(os.Getenv("SLOT"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		fmt.Println("slot", err)
		os.Exit(1)
	}
	for p := range strings.SplitSeq(os.Getenv("PORTS"), ",") {
		if n, err := strconv.ParseUint(p, 10, 16); err == nil {
			cfg.Ports = append(cfg.Ports, uint16(n))
		}
	}
	cfg.UnixDir = os.Getenv("UNIX_DIR")
	if os.Getenv("CONFINE") == "no" {
		fmt.Println("report", confine.None("asked not to"))
	} else {
		r := confine.Apply(cfg)
		fmt.Println("whole", r.Whole())
		fmt.Println("report", r)
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		verb, arg, _ := strings.Cut(in.Text(), " ")
		do, ok := verbs[verb]
		if !ok {
			fmt.Println(verb, "unknown verb")
			continue
		}
		fmt.Println(verb, result(do(arg, slot)))
	}
}

// errAbsent says that this kernel has no such thing.
var errAbsent = errors.New("absent")

func result(err error) string {
	switch {
	case errors.Is(err, errAbsent):
		return "absent"
	case err == nil:
		return "done"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return "denied"
	default:
		return "failed: " + err.Error()
	}
}

func raw(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := syscall.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

var verbs = map[string]func(arg string, slot *os.File) error{
	"write": func(path string, _ *os.File) error { return os.WriteFile(path, []byte("x"), 0o600) },
	"append": func(path string, _ *os.File) error {
		_, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		return err
	},
	"truncate": func(path string, _ *os.File) error { return os.Truncate(path, 0) },
	"mkdir":    func(path string, _ *os.File) error { return os.Mkdir(path, 0o700) },
	"remove":   func(path string, _ *os.File) error { return os.Remove(path) },
	"rename":   func(path string, _ *os.File) error { return os.Rename(path, path+".moved") },
	"link":     func(path string, _ *os.File) error { return os.Link(path, path+".link") },
	"symlink":  func(path string, _ *os.File) error { return os.Symlink(path, path+".symlink") },
	"chmod":    func(path string, _ *os.File) error { return os.Chmod(path, 0o777) },
	"read":     func(path string, _ *os.File) error { _, err := os.ReadFile(path); return err },
	"exec":     func(path string, _ *os.File) error { return exec.CommandContext(context.Background(), path).Run() },
	"replace":  func(path string, _ *os.File) error { return syscall.Exec(path, []string{path}, nil) },
	"fork": func(string, *os.File) error {
		return raw(unix.SYS_CLONE, uintptr(unix.SIGCHLD)|unix.CLONE_VM|unix.CLONE_VFORK|unix.CLONE_SIGHAND, 1)
	},
	"listen":    func(addr string, _ *os.File) error { return closed(net.Listen("tcp", addr)) },
	"listenudp": func(addr string, _ *os.File) error { return closed(net.ListenPacket("udp", addr)) },
	"ptrace":    func(string, *os.File) error { return raw(unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(os.Getppid())) },
	"readmem":   func(string, *os.File) error { return raw(unix.SYS_PROCESS_VM_READV, uintptr(os.Getppid())) },
	"kill":      func(string, *os.File) error { return syscall.Kill(os.Getppid(), 0) },
	"mount":     func(path string, _ *os.File) error { return unix.Mount("none", path, "tmpfs", 0, "") },
	"unshare":   func(string, *os.File) error { return raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER) },
	"iouring":   func(string, *os.File) error { return raw(unix.SYS_IO_URING_SETUP, 1) },
	"bpf":       func(string, *os.File) error { return raw(unix.SYS_BPF, 0) },
	"keyctl":    func(string, *os.File) error { return raw(unix.SYS_KEYCTL, 0) },
	"memfd":     func(string, *os.File) error { _, err := unix.MemfdCreate("x", 0); return err },
	"dumpable":  func(string, *os.File) error { return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) },
	"core": func(string, *os.File) error {
		return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20})
	},
	"code": func(string, *os.File) error {
		_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
		return err
	},
	"mptcp": func(string, *os.File) error {
		_, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 262)
		return err
	},
	"rawsocket": func(string, *os.File) error {
		_, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 1)
		return err
	},
	"packet": func(string, *os.File) error {
		_, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	},
	"compat":  compat,
	"tcp":     func(addr string, _ *os.File) error { return closed(net.DialTimeout("tcp", addr, 5*time.Second)) },
	"unix":    func(path string, _ *os.File) error { return closed(net.Dial("unix", path)) },
	"https":   https,
	"slot":    keep,
	"threads": threads,
	"resolve": func(string, *os.File) error {
		_, err := net.DefaultResolver.LookupHost(context.Background(), "localhost")
		return err
	},
	"stress": stress,
}

func closed(c io.Closer, err error) error {
	if err == nil {
		c.Close()
	}
	return err
}

// https makes a whole request, as a dispatch does.
func https(url string, _ *os.File) error {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: 10 * time.Second}
	res, err := client.Get(url)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return err
}

// keep writes the file that was opened before.
func keep(_ string, slot *os.File) error {
	if err := slot.Truncate(0); err != nil {
		return err
	}
	if _, err := slot.WriteAt([]byte("kept"), 0); err != nil {
		return err
	}
	return slot.Sync()
}

// threads asks on many threads: confinement must hold on each.
func threads(path string, _ *os.File) error {
	const n = 16
	results := make(chan error, n)
	for range n {
		go func() {
			runtime.LockOSThread()
			results <- os.WriteFile(path, []byte("x"), 0o600)
		}()
	}
	var last error
	for range n {
		if last = <-results; last == nil {
			return errors.New("a thread wrote")
		}
	}
	return last
}

// stress does what the runtime does over a long life: it collects, starts threads, and uses timers.
func stress(string, *os.File) error {
	done := make(chan struct{})
	for range 64 {
		go func() {
			var keep [][]byte
			for i := range 200 {
				keep = append(keep, make([]byte, 64<<10))
				if i%50 == 0 {
					runtime.GC()
					keep = nil
				}
			}
			_ = keep
			<-time.After(time.Millisecond)
			done <- struct{}{}
		}()
	}
	for range 64 {
		<-done
	}
	return nil
}

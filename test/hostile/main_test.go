// Package hostile_test proves what hostile guests, hostile servers, and names that turn private, cost: themselves. It is all tests, over the real programs;
// make hostile prints a row for each case. It runs in a network namespace of its own in which every address of the world is this machine, so that a
// connection that goes where it must not is seen.
package hostile_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"sallyport.dev/test/rig"
)

// inside tells the test process in its own namespaces from the one that made them: it names the folder of the built programs.
const inside = "SALLYPORT_HOSTILE_PROGRAMS"

var programs rig.Programs

// all plays every case on every server, with its memory; without it each case is played on one, and those that take long are left out.
var all = flag.Bool("all", false, "every case, on every server")

func TestMain(m *testing.M) {
	flag.Parse()
	if dir := os.Getenv(inside); dir != "" {
		programs = rig.Programs{Dir: dir}
		if err := everywhere(); err != nil {
			fmt.Fprintln(os.Stderr, "hostile:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	code, err := enter()
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		code = 1
	}
	os.Exit(code)
}

// enter builds the programs and runs this test binary again in namespaces of its own.
func enter() (int, error) {
	dir, err := os.MkdirTemp("", "hostile-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	if _, err := rig.Build(context.Background(), dir); err != nil {
		return 1, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return 1, err
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...) //nolint:noctx // it ends with its tests
	cmd.Env = append(os.Environ(), inside+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// everywhere brings lo up, makes every address this machine's own, and names this process as the one that knows names.
func everywhere() error {
	// Mounts of ours must not reach outside.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	dir, err := os.MkdirTemp("", "hostile-etc-")
	if err != nil {
		return err
	}
	for name, text := range map[string]string{"resolv.conf": "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n", "hosts": "127.0.0.1 localhost\n"} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
		target, err := filepath.EvalSymlinks("/etc/" + name)
		if err != nil {
			return err
		}
		if err := unix.Mount(file, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount over %s: %w", target, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := loUp(); err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if err := localRoute(family); err != nil {
			return fmt.Errorf("route of family %d: %w", family, err)
		}
	}
	return nil
}

func loUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // it was asked
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// localRoute is ip route add local default dev lo: every address is delivered here.
func localRoute(family byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // it was asked
	const lo = 1         // its index, in every network namespace
	m := make([]byte, unix.SizeofNlMsghdr+unix.SizeofRtMsg+unix.SizeofRtAttr+4)
	head := (*unix.NlMsghdr)(unsafe.Pointer(&m[0]))
	*head = unix.NlMsghdr{Len: uint32(len(m)), Type: unix.RTM_NEWROUTE, Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK | unix.NLM_F_CREATE, Seq: 1}
	*(*unix.RtMsg)(unsafe.Pointer(&m[unix.SizeofNlMsghdr])) = unix.RtMsg{
		Family: family, Table: unix.RT_TABLE_LOCAL, Protocol: unix.RTPROT_BOOT, Scope: unix.RT_SCOPE_HOST, Type: unix.RTN_LOCAL,
	}
	attr := m[unix.SizeofNlMsghdr+unix.SizeofRtMsg:]
	binary.NativeEndian.PutUint16(attr, uint16(len(attr)))
	binary.NativeEndian.PutUint16(attr[2:], unix.RTA_OIF)
	binary.NativeEndian.PutUint32(attr[4:], lo)
	if err := unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 {
		return errors.New("a short answer of the kernel")
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

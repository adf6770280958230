package sqlstore

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

const mountEnv = "SALLYPORT_STORE_MOUNT"

// TestFullFileSystem fills a real file system of 32 MiB under a running store. It runs in a process with its own mounts.
func TestFullFileSystem(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestFullFileSystemChild$", "-test.v")
	cmd.Env = append(os.Environ(), mountEnv+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if errors.Is(err, syscall.EPERM) || strings.Contains(out.String(), "cannot mount here") {
		t.Skip("this machine lets us make no mounts of our own")
	}
	if err != nil || !strings.Contains(out.String(), "PASS: TestFullFileSystemChild") {
		t.Fatalf("%v\n%s", err, out.String())
	}
}

func TestFullFileSystemChild(t *testing.T) {
	dir := os.Getenv(mountEnv)
	if dir == "" {
		t.Skip("this is the other process of TestFullFileSystem")
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Skip("cannot mount here: ", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32m"); err != nil {
		t.Skip("cannot mount here: ", err)
	}
	opts := testOptions(t, filepath.Join(dir, "control"))
	opts.Reserve = 4 << 20
	s := openTest(t, opts)
	w := newWorld(t, s)
	var out []*control.Call
	for range 20 {
		a := w.readAdmission()
		w.admit(a)
		out = append(out, a.Call)
	}
	c, q := w.approved()
	if r, err := s.Commit(t.Context(), w.barrier(c, q)); err != nil || r != call.Done {
		t.Fatal(r, err)
	}
	c.Attempt = 1
	out = append(out, c)

	ballast, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 4096)
	for err == nil {
		_, err = ballast.Write(block)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}

	// Admission stops, by the reserve at the latest.
	admitted := 0
	for err = nil; err == nil; admitted++ {
		_, err = s.Admit(t.Context(), w.readAdmission())
	}
	if !errs.Is(err, errs.StoreFull) {
		t.Fatalf("after %d admissions: %v", admitted, err)
	}
	// What is out settles, whole.
	for _, c := range out {
		w.advance(settle(c, true))
	}
	for _, c := range out {
		if got, err := s.Call(t.Context(), c.ID); err != nil || got.State != journal.Answered || !bytes.Equal(got.Body, answer) {
			t.Fatalf("%v %v", got, err)
		}
	}
	// Somebody makes room, and the store notices by itself.
	if err := errors.Join(ballast.Close(), os.Remove(ballast.Name())); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := s.Admit(t.Context(), w.readAdmission())
		if err == nil {
			break
		}
		if !errs.Is(err, errs.StoreFull) {
			t.Fatal(err)
		}
		runtime.Gosched() // until the test's own deadline
	}
	verified(t, s)
}

package bwrap_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	sandboxtest.Main()
	goleak.VerifyTestMain(m)
}

// TestPlainUser runs every TestSandbox again without rights; run by a plain user, the tests below are that already.
func TestPlainUser(t *testing.T) { sandboxtest.AsPlainUser(t, "^TestSandbox") }

// probe runs one attempt inside a sandbox and returns what it printed.
func probe(t *testing.T, s *sandboxtest.Session, args ...string) sandboxtest.Result {
	t.Helper()
	s.Plan.Args = sandboxtest.Probe(args...)
	return s.Run(t, sandboxtest.Driver(t))
}

func TestSandboxIsNobody(t *testing.T) {
	r := probe(t, sandboxtest.New(t), "status")
	for _, want := range []string{
		"Uid:\t1000\t1000\t1000\t1000\n", "Gid:\t1000\t1000\t1000\t1000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n",
		"CapInh:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "CapAmb:\t0000000000000000\n",
	} {
		if !strings.Contains(r.Out, want) {
			t.Errorf("status has no %q:\n%s%s", want, r.Out, r.Err)
		}
	}
	if os.Geteuid() == 0 && (r.Facts.GuestUID < 0x70000000 || r.Facts.GuestUID != r.Facts.GuestGID) {
		t.Errorf("run by root, the sandbox is user %d outside", r.Facts.GuestUID)
	}
	if os.Geteuid() != 0 && r.Facts.GuestUID != os.Geteuid() {
		t.Errorf("run by a plain user, the sandbox is user %d outside", r.Facts.GuestUID)
	}
}

func TestSandboxHasNoNetwork(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	if r := probe(t, sandboxtest.New(t), "inet", port); r.Out != "inet: connection refused\n" {
		t.Errorf("the host's loopback: %s", r.Out)
	}
	if r := probe(t, sandboxtest.New(t), "outside"); r.Out != "outside: network is unreachable\n" {
		t.Errorf("an address outside: %s", r.Out)
	}
	if r := probe(t, sandboxtest.New(t), "vsock"); r.Out != "vsock: address family not supported by protocol\n" {
		t.Errorf("vsock: %s", r.Out)
	}
	s := sandboxtest.New(t, "/bin/sh", "-c", "tail -n +3 /proc/net/dev | cut -d: -f1; ls /sys/class/net 2>&1")
	if r := s.Run(t, sandboxtest.Driver(t)); strings.TrimSpace(strings.Split(r.Out, "\n")[0]) != "lo" || !strings.Contains(r.Out, "No such file") {
		t.Errorf("interfaces: %s%s", r.Out, r.Err)
	}
}

func TestSandboxSocketsOfTheHost(t *testing.T) {
	dir := sandboxtest.Dir(t)
	file := filepath.Join(dir, "host.sock")
	abstract := "@sallyport-test-" + filepath.Base(dir)
	for _, name := range []string{file, abstract} {
		ln, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
	}
	if r := probe(t, sandboxtest.New(t), "unix", file); r.Out != "unix: no such file or directory\n" {
		t.Errorf("a socket in /tmp: %s", r.Out)
	}
	if r := probe(t, sandboxtest.New(t), "unix", abstract); r.Out != "unix: connection refused\n" {
		t.Errorf("an abstract socket: %s", r.Out)
	}
}

func TestSandboxSecrets(t *testing.T) {
	const canary = "canary-5d1e"
	t.Setenv("PLANTED_TOKEN", canary)
	home := sandboxtest.Dir(t)
	t.Setenv("HOME", home)
	s := sandboxtest.New(t)
	for _, p := range []string{
		filepath.Join(home, "."+canary), filepath.Join(s.Where.State, canary), filepath.Join(s.Where.Run, canary),
		filepath.Join(filepath.Dir(s.Dir), canary), filepath.Join(s.Dir, "relay", "claimed", canary), filepath.Join(s.Dir, canary), filepath.Join(filepath.Dir(s.Work), canary),
	} {
		if err := os.WriteFile(p, []byte(canary), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	other := filepath.Join(s.Where.State, "host", "sessions", sandboxtest.NewID(t), "in")
	if err := os.MkdirAll(filepath.Join(other, canary), 0o755); err != nil {
		t.Fatal(err)
	}
	if r := probe(t, s, "grep", canary); r.Out != "grep: not found\n" {
		t.Errorf("found: %s", r.Out)
	}
	// The probe itself can find: what is shown on purpose.
	s.Write(t, "own", canary)
	s.Plan.Workspace.Path = s.Work
	s.Plan.Epoch++
	if r := probe(t, s, "grep", canary); !strings.Contains(r.Out, "content "+s.Work+"/own") {
		t.Errorf("the probe finds nothing: %s", r.Out)
	}
	s.Plan.Args = []string{"/bin/sh", "-c", "env; cat /proc/1/environ"}
	if r := s.Run(t, sandboxtest.Driver(t)); strings.Contains(r.Out, "PLANTED_TOKEN") || !strings.Contains(r.Out, "HOME=/home/agent") {
		t.Errorf("environment: %s", r.Out)
	}
}

func TestSandboxProcesses(t *testing.T) {
	s := sandboxtest.New(t, "/bin/sh", "-c", "for p in /proc/[0-9]*; do echo ${p#/proc/}; done; echo x > /proc/sys/kernel/core_pattern; echo x > /proc/sys/kernel/hostname")
	r := s.Run(t, sandboxtest.Driver(t))
	if n := len(strings.Fields(r.Out)); n < 2 || n > 4 || !strings.HasPrefix(r.Out, "1\n") {
		t.Errorf("processes: %q", r.Out)
	}
	if strings.Count(r.Err, "Read-only file system")+strings.Count(r.Err, "Permission denied") != 2 {
		t.Errorf("the kernel's settings can be written: %q", r.Err)
	}
}

func TestSandboxDescriptors(t *testing.T) {
	// Somebody's descriptor without close-on-exec, as a shell leaves them.
	fd, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r := probe(t, sandboxtest.New(t), "descriptors")
	if r.Out != "fd 0 /dev/null\nfd 1 pipe\nfd 2 pipe\ndescriptors: ok\n" {
		t.Errorf("descriptors inside: %s", r.Out)
	}
}

func TestSandboxTerminal(t *testing.T) {
	if r := probe(t, sandboxtest.New(t), "tiocsti"); r.Out != "tiocsti: operation not permitted\n" {
		t.Errorf("TIOCSTI: %s", r.Out)
	}
	if r := probe(t, sandboxtest.New(t), "dev-tty"); !strings.Contains(r.Out, "no such device") {
		t.Errorf("a controlling terminal: %s", r.Out)
	}
}

func TestSandboxCannotNest(t *testing.T) {
	s := sandboxtest.New(t)
	if r := probe(t, s, "userns"); !strings.Contains(r.Out, "no space left on device") {
		t.Errorf("a user namespace inside: %s", r.Out)
	}
	if r := probe(t, s, "mount"); r.Out != "mount: operation not permitted\n" {
		t.Errorf("a mount inside: %s", r.Out)
	}
	if r := probe(t, s, "keyctl"); r.Out != "keyctl: operation not permitted\n" {
		t.Errorf("a keyring: %s", r.Out)
	}
	s.Plan.Nested = true
	if r := probe(t, s, "userns"); r.Out != "userns: ok\n" {
		t.Errorf("a harness that makes its own sandbox: %s%s", r.Out, r.Err)
	}
}

func TestSandboxSetuidFiles(t *testing.T) {
	s := sandboxtest.New(t)
	for _, name := range []string{"setuid-file", "setuid-open"} {
		if r := probe(t, s, name); r.Out != name+": operation not permitted\n" {
			t.Errorf("%s: %s", name, r.Out)
		}
	}
}

func TestSandboxWritable(t *testing.T) {
	s := sandboxtest.New(t, "/bin/sh", "-c", `
for p in / /usr /etc /run /run/sallyport /run/sallyport/in /run/sallyport/in/bin /home /root /var /opt /proc /sys /dev /dev/pts; do
	touch $p/x 2>/dev/null && echo "$p is writable"
done
for p in /tmp /var/tmp /home/agent /run/sallyport/out/tmp /run/sallyport/out/new . /dev/shm; do
	touch $p/x || echo "$p is not writable"
done
stat -c %u:%g x`)
	r := s.Run(t, sandboxtest.Driver(t))
	if r.Out != "1000:1000\n" {
		t.Errorf("%s%s", r.Out, r.Err)
	}
	// What the agent made in the workspace belongs to the workspace's owner; what it published, to the owner that the driver names.
	for p, uid := range map[string]int{filepath.Join(s.Work, "x"): os.Geteuid(), filepath.Join(s.Dir, "relay/out/new/x"): r.Facts.GuestUID, filepath.Join(s.Dir, "home/x"): r.Facts.GuestUID} {
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil || int(st.Uid) != uid {
			t.Errorf("%s belongs to %d (%v), want %d", p, st.Uid, err, uid)
		}
	}
}

func TestSandboxWorkspaceModes(t *testing.T) {
	s := sandboxtest.New(t, "/bin/sh", "-c", "pwd; cat file; touch x")
	s.Write(t, "file", "content\n")
	s.Plan.Workspace.Mode = sandbox.ReadOnly
	if r := s.Run(t, sandboxtest.Driver(t)); r.Out != s.Work+"\ncontent\n" || !strings.Contains(r.Err, "Read-only file system") {
		t.Errorf("read-only: %s%s", r.Out, r.Err)
	}
	s.Plan.Workspace.Mode = sandbox.NoWorkspace
	s.Plan.Args = []string{"/bin/sh", "-c", "pwd; ls " + s.Work}
	if r := s.Run(t, sandboxtest.Driver(t)); r.Out != "/home/agent\n" || !strings.Contains(r.Err, "No such file") {
		t.Errorf("none: %s%s", r.Out, r.Err)
	}
}

func TestSandboxInstall(t *testing.T) {
	s := sandboxtest.New(t)
	install := filepath.Join(sandboxtest.Dir(t), "tool")
	if err := os.MkdirAll(install, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(install, "run"), []byte("#!/bin/sh\necho ran; touch $0.x\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(install), "beside"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	// Root's own folders are closed to the sandbox's user; what is listed is shown all the same.
	if err := os.Chmod(filepath.Dir(install), 0o700); err != nil {
		t.Fatal(err)
	}
	s.Plan.Installs = []string{install}
	s.Plan.Args = []string{"/bin/sh", "-c", install + "/run; ls -A " + filepath.Dir(install)}
	if r := s.Run(t, sandboxtest.Driver(t)); r.Out != "ran\ntool\n" || !strings.Contains(r.Err, "Read-only file system") {
		t.Errorf("%s%s", r.Out, r.Err)
	}
}

// A harness that is installed in the workspace itself is read-only there, like any other.
func TestSandboxInstallInTheWorkspace(t *testing.T) {
	s := sandboxtest.New(t, "/bin/sh", "-c", "touch node_modules/x; touch y && ls node_modules")
	s.Write(t, "node_modules/tool", "")
	s.Plan.Installs = []string{filepath.Join(s.Work, "node_modules")}
	if r := s.Run(t, sandboxtest.Driver(t)); r.Out != "tool\n" || !strings.Contains(r.Err, "Read-only file system") {
		t.Errorf("%s%s", r.Out, r.Err)
	}
}

// What lies in memory is bounded, also where no control group counts it.
func TestSandboxScratch(t *testing.T) {
	s := sandboxtest.New(t, "/bin/sh", "-c", "for p in /tmp /var/tmp /dev/shm; do head -c 70000000 /dev/zero > $p/x; rm $p/x; done 2>&1 | grep -c 'No space left'")
	s.Plan.Bounds.Memory = 128 << 20
	if r := s.Run(t, sandboxtest.Driver(t)); r.Out != "3\n" {
		t.Errorf("%s%s", r.Out, r.Err)
	}
}

//go:build linux

package confine_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"sallyport.dev/worker/confine"
)

// childPath is the child, built once as the worker ships: without cgo.
var childPath string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "confine")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	childPath = filepath.Join(dir, "child")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-o", childPath, "./testdata/child")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err == nil {
		err = os.Chmod(dir, 0o777) // a plain user must reach it, and make directories in it
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return m.Run()
}

type child struct {
	path    string
	dir     string // its own, writable without confinement
	uid     uint32
	confine string
	ports   string
	unixDir string
}

// run gives the child its lines and returns what it said, by verb.
func (c child) run(t *testing.T, lines ...string) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), c.path)
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	cmd.Env = []string{"SLOT=" + filepath.Join(c.dir, "slot"), "PORTS=" + c.ports, "UNIX_DIR=" + c.unixDir, "CONFINE=" + c.confine, "PATH=/usr/bin:/bin"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if c.uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.uid, Gid: c.uid}}
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, stderr.String())
	}
	said := map[string]string{}
	for line := range strings.Lines(string(out)) {
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		said[verb] = rest
	}
	if len(said) < len(lines) {
		t.Fatalf("%d answers to %d lines:\n%s\n%s", len(said), len(lines), out, stderr.String())
	}
	return said
}

// needLandlock skips what an old kernel cannot enforce. That Apply says so there is tested without it.
func needLandlock(t *testing.T) {
	t.Helper()
	if abi, err := ll.LandlockGetABIVersion(); err != nil || abi < 4 {
		t.Skipf("this kernel's landlock is too old (%d, %v): what Apply reports there is tested by TestReport", abi, err)
	}
}

func TestConfined(t *testing.T) {
	needLandlock(t)
	path := childPath
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 1<<20)) }))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	users := map[string]uint32{"as this user": 0}
	if os.Geteuid() == 0 {
		users["as a plain user"] = 65534
	}
	for name, uid := range users {
		t.Run(name, func(t *testing.T) {
			c := child{path: path, dir: filepath.Join(filepath.Dir(path), fmt.Sprint("u", uid)), uid: uid, ports: port}
			if err := os.Mkdir(c.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chown(c.dir, int(uid), int(uid)); err != nil && uid != 0 {
				t.Fatal(err)
			}
			file := filepath.Join(c.dir, "slot") // the child owns it: only confinement keeps it from these
			free := []string{"https " + server.URL, "slot", "resolve", "stress", "read /etc/hosts"}
			denied := []string{
				"write " + filepath.Join(c.dir, "new"), "append " + file, "truncate " + file, "mkdir " + filepath.Join(c.dir, "d"), "rename " + file, "link " + file,
				"symlink " + file, "chmod " + file, "remove " + file, "threads " + filepath.Join(c.dir, "thread"),
				"exec /bin/true", "replace /bin/true", "fork", "memfd", "code", "listen 127.0.0.1:0", "listenudp 127.0.0.1:0",
				"ptrace", "readmem", "kill", "mount " + c.dir, "unshare", "iouring", "bpf", "keyctl", "dumpable", "core", "mptcp", "rawsocket", "packet", "compat",
				"tcp " + other.Addr().String(), "unix /run/any.sock",
			}
			said := c.run(t, append(append([]string{}, free...), denied...)...)
			t.Log(said["report"])
			if said["whole"] != "true" {
				t.Errorf("the report does not say that everything is denied: %s", said["report"])
			}
			for _, line := range free {
				verb, _, _ := strings.Cut(line, " ")
				if said[verb] != "done" {
					t.Errorf("%s: %s", line, said[verb])
				}
			}
			for _, line := range denied {
				verb, _, _ := strings.Cut(line, " ")
				if said[verb] != "denied" && (verb != "compat" || said[verb] != "absent") {
					t.Errorf("%s: %s", line, said[verb])
				}
			}
			compat := "done"
			if said["compat"] == "absent" {
				compat = "absent" // there is no 32-bit door in this kernel; then there is none without confinement either
			}
			if b, err := os.ReadFile(file); err != nil || string(b) != "kept" {
				t.Errorf("the slot holds %q: %v", b, err)
			}
			// The same without confinement: the test can fail.
			c.confine = "no"
			said = c.run(t, "write "+filepath.Join(c.dir, "new"), "exec /bin/true", "listen 127.0.0.1:0", "tcp "+other.Addr().String(), "code", "compat", "memfd")
			for verb, got := range said {
				want := "done"
				if verb == "compat" {
					want = compat
				}
				if verb != "report" && got != want {
					t.Errorf("unconfined, %s: %s", verb, got)
				}
			}
			if !strings.HasPrefix(said["report"], "NOT confined") {
				t.Errorf("the report says %q", said["report"])
			}
		})
	}
}

func TestSecretFilesAreNotReadable(t *testing.T) {
	needLandlock(t)
	path := childPath
	c := child{path: path, dir: filepath.Dir(path)}
	secret := filepath.Join(c.dir, "pool.key")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := c.run(t, "read "+secret); said["read"] != "denied" {
		t.Errorf("the key's file can be read again: %s", said["read"])
	}
	if os.Geteuid() == 0 {
		if said := c.run(t, "read /etc/shadow"); said["read"] != "denied" {
			t.Errorf("/etc/shadow: %s", said["read"])
		}
	}
}

// A worker whose control is reached by a Unix socket may use it, and says that the kernel does not tell sockets apart where it does not.
func TestUnixSocketOfControl(t *testing.T) {
	needLandlock(t)
	path := childPath
	sock := filepath.Join(filepath.Dir(path), "link.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := child{path: path, dir: filepath.Dir(path), unixDir: filepath.Dir(path), ports: "443"}
	said := c.run(t, "unix "+sock)
	if said["unix"] != "done" {
		t.Errorf("control's socket: %s (%s)", said["unix"], said["report"])
	}
	abi, err := ll.LandlockGetABIVersion()
	if err != nil {
		t.Fatal(err)
	}
	if open := strings.Contains(said["report"], "still can connect to other Unix sockets"); open != (abi < 9) {
		t.Errorf("with landlock %d the report says %s", abi, said["report"])
	}
}

// Without ports every port is open, and the report says so.
func TestReport(t *testing.T) {
	path := childPath
	c := child{path: path, dir: filepath.Dir(path)}
	said := c.run(t, "resolve")
	if said["whole"] != "false" || !strings.Contains(said["report"], "still can connect to other ports (no ports were given)") {
		t.Errorf("whole %s, report %q", said["whole"], said["report"])
	}
	for _, c := range []struct {
		r    confine.Report
		want string
	}{
		{confine.Report{}, "NOT confined"},
		{confine.None("asked not to"), "NOT confined; asked not to"},
		{confine.Report{Findings: []confine.Finding{{What: "a", Denied: true}, {What: "b", Denied: true}}}, "cannot a, b"},
		{confine.Report{Findings: []confine.Finding{{What: "a"}}, Notes: []string{"n"}}, "NOT confined; still can a; n"},
		{confine.Report{Findings: []confine.Finding{{What: "a", Denied: true}, {What: "b", Note: "why"}}, Notes: []string{"n"}}, "cannot a; still can b (why); n"},
	} {
		if got := c.r.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	if (confine.Report{}).Whole() {
		t.Error("an empty report is not whole")
	}
}

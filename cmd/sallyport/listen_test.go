package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport.dev/errs"
)

// shortDir is a directory whose name leaves room for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestListenUnix(t *testing.T) {
	path := filepath.Join(shortDir(t), "run", "x.sock")
	l, err := listenUnix(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v", p, info.Mode(), err)
		}
	}
	if _, err := listenUnix(t.Context(), path); !errs.Is(err, errs.Conflict) {
		t.Error("a socket that is served was taken away:", err)
	}
	l.Close()
	// As a killed process leaves it: the file, and nobody behind it.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	again, err := listenUnix(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Error("the socket stays behind:", err)
	}
	if err := os.Chmod(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(t.Context(), path); !errs.Is(err, errs.NotAllowed) || !strings.Contains(errs.Message(err), "chmod 700 "+filepath.Dir(path)) {
		t.Error(err)
	}
}

// After a first failure nothing more is opened, and close ends what was.
func TestListenersEndTogether(t *testing.T) {
	dir := shortDir(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var o listeners
	a := filepath.Join(dir, "run", "a.sock")
	o.unix(t.Context(), a)
	if o.metrics(t.Context(), "") != nil || o.err != nil {
		t.Fatal("metrics without an address:", o.err)
	}
	if o.tcp(t.Context(), taken.Addr().String()) != nil || !errs.Is(o.err, errs.Unavailable) {
		t.Fatal(o.err)
	}
	b := filepath.Join(dir, "run", "b.sock")
	if o.unix(t.Context(), b) != nil || o.metrics(t.Context(), "127.0.0.1:0") != nil || o.tcp(t.Context(), "127.0.0.1:0") != nil {
		t.Error("it goes on after a failure")
	}
	o.close()
	for _, p := range []string{a, b} {
		if _, err := os.Lstat(p); !os.IsNotExist(err) {
			t.Errorf("%s: %v", p, err)
		}
	}
}

func TestDialedAddress(t *testing.T) {
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ address, bound, want string }{
		{"", "127.0.0.1:7443", "127.0.0.1:7443"},
		{"", "0.0.0.0:7443", net.JoinHostPort(name, "7443")},
		{"", "[::]:7443", net.JoinHostPort(name, "7443")},
		{"", "[fd00::1]:7443", "[fd00::1]:7443"},
		{"control.example.org:443", "[::]:7443", "control.example.org:443"},
	} {
		bound, err := net.ResolveTCPAddr("tcp", c.bound)
		if err != nil {
			t.Fatal(err)
		}
		if got := (listenFlags{Address: c.address}).dialed(bound); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	if got := strings.Join(listenFlags{Listen: ":1", Address: "a:2"}.args(), " "); got != "--listen :1 --address a:2" {
		t.Error(got)
	}
}

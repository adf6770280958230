package unixsock_test

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport.dev/identity/unixsock"
)

// A socket is served and dialed at a path of any length, and is gone after Close.
func TestPaths(t *testing.T) {
	for name, dir := range map[string]string{"short": "d", "at the kernel's bound": "", "long": strings.Repeat("a", 200), "deep": strings.Repeat("abcdefghi/", 60)} {
		t.Run(name, func(t *testing.T) {
			root, err := os.MkdirTemp("", "us")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(root)
			if dir == "" {
				dir = strings.Repeat("b", 107-len(root)-len("//s.sock"))
			}
			path := filepath.Join(root, dir, "s.sock")
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			l, err := unixsock.Listen(path)
			if err != nil {
				t.Fatal(err)
			}
			if l.Addr().String() != path {
				t.Errorf("it says that it lies at %s", l.Addr())
			}
			if _, err := unixsock.Listen(path); err == nil {
				t.Error("a socket was bound over another")
			}
			served := make(chan error, 1)
			go func() {
				c, err := l.Accept()
				if err == nil {
					_, err = c.Write([]byte("here"))
					c.Close()
				}
				served <- err
			}()
			c, err := unixsock.Dial(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(c); string(got) != "here" || err != nil {
				t.Errorf("%q %v", got, err)
			}
			c.Close()
			if err := <-served; err != nil {
				t.Error(err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Error("the socket stays behind:", err)
			}
			if _, err := unixsock.Dial(t.Context(), path); !errors.Is(err, os.ErrNotExist) {
				t.Error("what is not there was dialed:", err)
			}
			// The next owner of the name is not harmed by a second Close of the last.
			again, err := unixsock.Listen(path)
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if err := l.Close(); !errors.Is(err, net.ErrClosed) {
				t.Error("a second Close:", err)
			}
			if _, err := os.Lstat(path); err != nil {
				t.Error("a second Close took another's socket:", err)
			}
		})
	}
}

// Errors are the kernel's own, whatever the length: callers tell one that is not there from one that nobody serves.
func TestErrors(t *testing.T) {
	for _, path := range []string{"/nowhere/s.sock", "/nowhere/" + strings.Repeat("a", 200) + "/s.sock"} {
		if _, err := unixsock.Dial(t.Context(), path); !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		if _, err := unixsock.Listen(path); !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("c", 150))
	if _, err := unixsock.Listen(long); err == nil {
		t.Error("a name of 150 bytes was bound") // no directory makes a name shorter
	}
}

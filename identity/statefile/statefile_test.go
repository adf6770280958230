package statefile

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport.dev/errs"
)

func open(t *testing.T) *Dir {
	t.Helper()
	d, err := Open(filepath.Join(t.TempDir(), "worker"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestWriteRead(t *testing.T) {
	d := open(t)
	if _, err := d.Read("a.key"); !errs.Is(err, errs.NotFound) {
		t.Fatal(err)
	}
	for _, content := range []string{"first", "second", ""} {
		if err := d.Write("a.key", []byte(content)); err != nil {
			t.Fatal(err)
		}
		b, err := d.Read("a.key")
		if err != nil || string(b) != content {
			t.Fatalf("%q %v", b, err)
		}
	}
	info, err := os.Stat(d.Path("a.key"))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	info, err = os.Stat(d.Path("."))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	names, err := os.ReadDir(d.Path("."))
	if err != nil || len(names) != 1 {
		t.Errorf("temporary files stay: %v %v", names, err)
	}
	if err := d.Rename("a.key", "b.key"); err != nil {
		t.Fatal(err)
	}
	if err := d.Rename("a.key", "b.key"); !errs.Is(err, errs.NotFound) {
		t.Errorf("%v", err)
	}
	for range 2 {
		if err := d.Remove("b.key"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRefusesWhatOthersCanReach(t *testing.T) {
	d := open(t)
	if err := d.Write("a.key", []byte("x")); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666, 0o777} {
		if err := os.Chmod(d.Path("a.key"), mode); err != nil {
			t.Fatal(err)
		}
		_, err := d.Read("a.key")
		if !errs.Is(err, errs.NotAllowed) || !strings.Contains(errs.Message(err), "type: chmod 0600 "+d.Path("a.key")) {
			t.Errorf("mode %o: %v", mode, err)
		}
		if f, err := d.OpenSlot("a.key"); !errs.Is(err, errs.NotAllowed) {
			t.Errorf("slot of mode %o: %v", mode, err)
			f.Close()
		}
	}
	for _, mode := range []os.FileMode{0o400, 0o600} {
		if err := os.Chmod(d.Path("a.key"), mode); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Read("a.key"); err != nil {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	for _, mode := range []os.FileMode{0o755, 0o750, 0o701} {
		if err := os.Chmod(d.Path("."), mode); err != nil {
			t.Fatal(err)
		}
		_, err := Open(d.Path("."))
		if !errs.Is(err, errs.NotAllowed) || !strings.Contains(errs.Message(err), "type: chmod 0700 ") {
			t.Errorf("directory of mode %o: %v", mode, err)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chmod(d.Path("."), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(d.Path("a.key"), 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Read("a.key"); !errs.Is(err, errs.NotAllowed) || !strings.Contains(errs.Message(err), "type: chown 0 ") {
			t.Errorf("another owner: %v", err)
		}
	}
}

func TestEmptyKeepsTheFile(t *testing.T) {
	d := open(t)
	if err := d.Empty("slot"); err != nil {
		t.Fatalf("a missing file: %v", err)
	}
	f, err := d.OpenSlot("slot")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("old"), 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Empty("slot"); err != nil {
		t.Fatal(err)
	}
	if b, err := d.Read("slot"); err != nil || len(b) != 0 {
		t.Fatalf("%q %v", b, err)
	}
	if _, err := f.WriteAt([]byte("new"), 0); err != nil {
		t.Fatal(err)
	}
	if b, err := d.Read("slot"); err != nil || string(b) != "new" {
		t.Errorf("who had it open writes elsewhere: %q %v", b, err)
	}
}

func TestLock(t *testing.T) {
	d := open(t)
	first, err := d.Lock("lock")
	if err != nil {
		t.Fatal(err)
	}
	if f, err := d.Lock("lock"); !errs.Is(err, errs.Conflict) || !strings.Contains(errs.Message(err), "another process works with "+d.Path("")) {
		t.Errorf("a second lock: %v %v", f, err)
	}
	first.Close()
	second, err := d.Lock("lock")
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}

func TestRefusesWhatIsNoFile(t *testing.T) {
	d := open(t)
	secret := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, d.Path("link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(d.Path("dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(d.Path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Path("big"), make([]byte, MaxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]errs.Code{"link": errs.Unavailable, "dir": errs.Invalid, "fifo": errs.Invalid, "big": errs.Oversize, "../elsewhere": errs.Unavailable} {
		if b, err := d.Read(name); !errs.Is(err, want) {
			t.Errorf("%s: %q %v", name, b, err)
		}
	}
	if _, err := d.OpenSlot("link"); err == nil {
		t.Error("a slot follows a link")
	}
	if _, err := Open(filepath.Join(d.Path("."), "big")); err == nil {
		t.Error("a file opens as a directory")
	}
	if _, err := Open(filepath.Join(d.Path("."), "missing", "deeper")); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a missing parent: %v", err)
	}
}

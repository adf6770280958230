package main

import (
	"bytes"
	"crypto/sha256"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"sallyport.dev/errs"
	"sallyport.dev/identity"
)

// files are the digests of all files below a directory, and their modes.
func files(t *testing.T, dir string) map[string][sha256.Size]byte {
	t.Helper()
	out := map[string][sha256.Size]byte{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		out[path] = sha256.Sum256(b)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestOpenKeys(t *testing.T) {
	state := filepath.Join(t.TempDir(), "s")
	first, err := openKeys(state, identity.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	defer first.dir.Close()
	made := files(t, state)
	again, err := openKeys(state, identity.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	defer again.dir.Close()
	if first.ca.KeyHash() != again.ca.KeyHash() || !bytes.Equal(first.root.Public(), again.root.Public()) || !bytes.Equal(first.node.Public(), again.node.Public()) || !first.audit.Equal(again.audit) {
		t.Error("a second start has other keys")
	}
	if bytes.Equal(first.root.Public(), first.node.Public()) {
		t.Error("root and node have one key")
	}
	now := files(t, state)
	for path, sum := range made {
		if now[path] != sum {
			t.Errorf("%s was written again", path)
		}
		private := filepath.Ext(path) == ".key"
		if info, err := os.Stat(path); private && (err != nil || info.Mode().Perm() != 0o600) {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
}

// A key that is damaged, of another domain, or open to others is refused and left as it is: a fresh one in its place would cut everybody off.
func TestOpenKeysRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		file  string
		spoil func(path string) error
		want  errs.Code
	}{
		"a damaged intent root":  {"control/intent/root.key", truncate, errs.Invalid},
		"a damaged node key":     {"control/intent/node.key", truncate, errs.Invalid},
		"an open intent root":    {"control/intent/root.key", open, errs.NotAllowed},
		"a damaged CA":           {"control/ca/root.key", truncate, errs.Invalid},
		"an open CA":             {"control/ca/root.key", open, errs.NotAllowed},
		"a damaged journal key":  {"control/journal.key", truncate, errs.Invalid},
		"an open journal key":    {"control/journal.key", open, errs.Invalid},
		"a damaged audit key":    {"control/audit/audit.key", truncate, errs.Invalid},
		"an open directory":      {"control", openDir, errs.NotAllowed},
		"a directory for a file": {"control/intent/root.key", directory, errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			state := filepath.Join(t.TempDir(), "s")
			k, err := openKeys(state, identity.DefaultDomain)
			if err != nil {
				t.Fatal(err)
			}
			k.dir.Close()
			if err := c.spoil(filepath.Join(state, c.file)); err != nil {
				t.Fatal(err)
			}
			before := files(t, state)
			if _, err := openKeys(state, identity.DefaultDomain); errs.CodeOf(err) != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
			after := files(t, state)
			for path, sum := range before {
				if after[path] != sum {
					t.Errorf("%s was changed", path)
				}
			}
			if len(after) != len(before) {
				t.Errorf("%d files, before %d", len(after), len(before))
			}
		})
	}
	state := filepath.Join(t.TempDir(), "s")
	k, err := openKeys(state, identity.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	k.dir.Close()
	if _, err := openKeys(state, "other.example.org"); !errs.Is(err, errs.Conflict) {
		t.Error("another domain:", err)
	}
}

func truncate(path string) error { return os.WriteFile(path, []byte("-----BEGIN"), 0o600) }

func open(path string) error { return os.Chmod(path, 0o644) }

func openDir(path string) error { return os.Chmod(path, 0o755) }

func directory(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Mkdir(path, 0o700)
}

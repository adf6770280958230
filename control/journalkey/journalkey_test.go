package journalkey

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sallyport.dev/errs"
)

func fresh(t *testing.T) *Ring {
	t.Helper()
	r, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSealOpen(t *testing.T) {
	r := fresh(t)
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.SliceOf(rapid.Byte()).Draw(t, "body")
		about := rapid.String().Draw(t, "about")
		sealed := r.Seal(body, about)
		if len(sealed) != len(body)+Overhead {
			t.Fatalf("%d bytes for %d", len(sealed), len(body))
		}
		back, err := r.Open(sealed, about)
		if err != nil || !bytes.Equal(back, body) {
			t.Fatalf("%v", err)
		}
		if _, err := r.Open(sealed, about+"x"); !errs.Is(err, errs.Internal) {
			t.Fatalf("it opens as another's: %v", err)
		}
		i := rapid.IntRange(0, len(sealed)-1).Draw(t, "changed")
		sealed[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "by"))
		if _, err := r.Open(sealed, about); !errs.Is(err, errs.Internal) {
			t.Fatalf("it opens changed: %v", err)
		}
		if _, err := r.Open(sealed[:i], about); !errs.Is(err, errs.Internal) {
			t.Fatalf("it opens cut: %v", err)
		}
	})
}

func TestAnEmptyBodyIsNotNone(t *testing.T) {
	r := fresh(t)
	b, err := r.Open(r.Seal(nil, "a"), "a")
	if err != nil || b == nil || len(b) != 0 {
		t.Fatalf("%v %v", b, err)
	}
}

func TestRotate(t *testing.T) {
	old := fresh(t)
	before := old.Seal([]byte("a"), "x")
	next, err := old.Rotate()
	if err != nil {
		t.Fatal(err)
	}
	after := next.Seal([]byte("b"), "x")
	if b, err := next.Open(before, "x"); err != nil || string(b) != "a" {
		t.Fatal(err)
	}
	if b, err := next.Open(after, "x"); err != nil || string(b) != "b" {
		t.Fatal(err)
	}
	if _, err := old.Open(after, "x"); !errs.Is(err, errs.Internal) {
		t.Fatal(err)
	}
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.key")
	if _, err := Read(path); !errs.Is(err, errs.NotFound) {
		t.Fatal(err)
	}
	r, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Fatal(info.Mode())
	}
	if _, err := Create(path); !errs.Is(err, errs.Conflict) {
		t.Fatal(err)
	}
	next, err := r.Rotate()
	if err == nil {
		err = next.Write(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	back, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := back.Open(r.Seal([]byte("kept"), "x"), "x"); err != nil || string(b) != "kept" {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o604); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); !errs.Is(err, errs.Invalid) {
		t.Fatal(err)
	}
}

func TestBadFile(t *testing.T) {
	good := "1 " + base64.StdEncoding.EncodeToString(make([]byte, 32))
	for name, in := range map[string]string{
		"empty": "", "no key": header + "\n", "other header": "x\n" + good, "short key": header + "\n1 AAAA\n", "no number": header + "\nx " + good[2:] + "\n",
		"twice": header + "\n" + good + "\n" + good + "\n", "blank line": header + "\n" + good + "\n\n", "no base64": header + "\n1 !!!\n",
	} {
		path := filepath.Join(t.TempDir(), "k")
		if err := os.WriteFile(path, []byte(in), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); !errs.Is(err, errs.Invalid) || strings.Contains(err.Error(), good[2:]) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestARingNeverPrintsItself(t *testing.T) {
	r := fresh(t)
	secret := base64.StdEncoding.EncodeToString(r.keys[0].raw[:])
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "key", r)
	j, err := json.Marshal(map[string]any{"key": r})
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{fmt.Sprintf("%v %+v %#v %s", r, r, r, r), log.String(), string(j)} {
		if strings.Contains(out, secret) || strings.Contains(out, fmt.Sprint(r.keys[0].raw)) || !strings.Contains(out, "1 versions") {
			t.Errorf("printed: %s", out)
		}
	}
}

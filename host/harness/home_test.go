package harness

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWrite(t *testing.T) {
	home := t.TempDir()
	uid, gid := os.Geteuid(), os.Getegid()
	files := []File{
		{Path: ".claude/settings.json", Content: []byte(`{"a":1}`)},
		{Path: ".claude.json", Content: []byte(`{"ours":true,"projects":{"/w":{"trusted":true}},"list":[1]}`), Merge: true},
	}
	if err := Write(home, files, uid, gid); err != nil {
		t.Fatal(err)
	}
	// The harness adds to it; the next run keeps that.
	kept := `{"ours":false,"theirs":12345678901234567890,"projects":{"/w":{"trusted":false,"cost":1.10},"/x":{}},"list":[2,3]}`
	if err := os.WriteFile(filepath.Join(home, ".claude.json"), []byte(kept), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(home, files, uid, gid); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(home, ".claude.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Ours     bool
		Theirs   json.Number
		Projects map[string]struct {
			Trusted bool
			Cost    json.Number
		}
		List []int
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if !got.Ours || got.Theirs != "12345678901234567890" || !got.Projects["/w"].Trusted || got.Projects["/w"].Cost != "1.10" || len(got.Projects) != 2 || len(got.List) != 1 {
		t.Errorf("%s", data)
	}
}

// What an agent may have left in its home must neither be followed nor stop the next run.
func TestWriteIntoHostileHome(t *testing.T) {
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte(`{"secret":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]func(t *testing.T, home string){
		"link to a file":    func(t *testing.T, home string) { ok(t, os.Symlink(victim, filepath.Join(home, "f"))) },
		"link in the way":   func(t *testing.T, home string) { ok(t, os.Symlink(outside, filepath.Join(home, "d"))) },
		"relative link":     func(t *testing.T, home string) { ok(t, os.Symlink("../../../../"+victim, filepath.Join(home, "f"))) },
		"hard link":         func(t *testing.T, home string) { ok(t, os.Link(victim, filepath.Join(home, "f"))) },
		"pipe":              func(t *testing.T, home string) { ok(t, unix.Mkfifo(filepath.Join(home, "f"), 0o600)) },
		"folder":            func(t *testing.T, home string) { ok(t, os.MkdirAll(filepath.Join(home, "f", "g"), 0o700)) },
		"file in the way":   func(t *testing.T, home string) { ok(t, os.WriteFile(filepath.Join(home, "d"), nil, 0o600)) },
		"temporary name is": func(t *testing.T, home string) { ok(t, os.Symlink(victim, filepath.Join(home, "f.sallyport"))) },
		"temporary folder":  func(t *testing.T, home string) { ok(t, os.MkdirAll(filepath.Join(home, "f.sallyport", "g"), 0o700)) },
		"not JSON":          func(t *testing.T, home string) { ok(t, os.WriteFile(filepath.Join(home, "f"), []byte("{{{"), 0o600)) },
		"a list":            func(t *testing.T, home string) { ok(t, os.WriteFile(filepath.Join(home, "f"), []byte("[1]"), 0o600)) },
		"too large to be kept": func(t *testing.T, home string) {
			ok(t, os.WriteFile(filepath.Join(home, "f"), make([]byte, maxKept+1), 0o600))
		},
		"nothing":               func(*testing.T, string) {},
		"unreadable without us": func(t *testing.T, home string) { ok(t, os.WriteFile(filepath.Join(home, "f"), nil, 0)) },
	}
	for name, plant := range cases {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			plant(t, home)
			files := []File{{Path: "f", Content: []byte(`{"x":1}`), Merge: true}, {Path: "d/e/f", Content: []byte("y")}}
			if err := Write(home, files, os.Geteuid(), os.Getegid()); err != nil {
				t.Fatal(err)
			}
			for p, want := range map[string]string{"f": `{"x":1}`, "d/e/f": "y"} {
				info, err := os.Lstat(filepath.Join(home, p))
				if err != nil || !info.Mode().IsRegular() {
					t.Fatalf("%s: %v %v", p, info, err)
				}
				if data, err := os.ReadFile(filepath.Join(home, p)); err != nil || strings.TrimSpace(string(data)) != want && !strings.Contains(string(data), `"x": 1`) {
					t.Errorf("%s: %s %v", p, data, err)
				}
			}
			if data, err := os.ReadFile(victim); err != nil || string(data) != `{"secret":1}` {
				t.Errorf("outside: %s %v", data, err)
			}
			if entries, _ := os.ReadDir(outside); len(entries) != 1 {
				t.Errorf("outside: %v", entries)
			}
		})
	}
	for _, p := range []string{"../x", "/etc/x", ""} {
		if err := Write(t.TempDir(), []File{{Path: p}}, os.Geteuid(), os.Getegid()); err == nil {
			t.Errorf("%q was written", p)
		}
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

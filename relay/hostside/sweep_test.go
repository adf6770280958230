package hostside

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

func TestSweep(t *testing.T) {
	b := newBox(t)
	tmp := filepath.Join(b.folder.Out(), relay.TmpDir)
	outside := filepath.Join(t.TempDir(), "outside")
	for _, path := range []string{tmp + "/old", tmp + "/young", outside} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, tmp+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(tmp+"/dir/dir", 0o700); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if err := os.Chtimes(tmp+"/old", now, now.Add(-SweepAge-time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Sweep(now); err != nil || n != 1 {
		t.Errorf("removed %d, %v", n, err)
	}
	if _, err := os.Lstat(tmp + "/young"); err != nil {
		t.Error(err)
	}
	if n, err := b.Sweep(now.Add(time.Hour)); err != nil || n != 2 { // the young one, and the link itself
		t.Errorf("removed %d, %v", n, err)
	}
	if _, err := os.Lstat(outside); err != nil {
		t.Error(err)
	}
	// A guest's acks go on: they are links of a file in tmp/.
	g := relay.NewGuest(b.folder.In(), b.folder.Out())
	defer g.Close()
	for range 2 {
		if err := g.Ack(relay.NewID()); err != nil {
			t.Fatal(err)
		}
		if n, err := b.Sweep(now.Add(time.Hour)); err != nil || n != 1 {
			t.Errorf("removed %d, %v", n, err)
		}
	}
	if err := os.RemoveAll(tmp); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(outside), tmp); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Sweep(now.Add(time.Hour)); !errs.Is(err, errs.Unavailable) {
		t.Errorf("tmp/ is a link: %v", err)
	}
	if _, err := os.Lstat(outside); err != nil {
		t.Error(err)
	}
}

func TestMakeRoom(t *testing.T) {
	b := newBox(t)
	var names []string
	for i := range 4 { // of 48 MiB, sparse
		name := relay.Sum([]byte{byte(i)}).String()
		names = append(names, name)
		f, err := b.CreateFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Append([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := f.Publish(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(b.folder.Root, filesDir, name)
		if err := os.Truncate(path, relay.FileBytes/4); err != nil {
			t.Fatal(err)
		}
		if at := time.Unix(int64(1000+i), 0); os.Chtimes(path, at, at) != nil {
			t.Fatal("its time cannot be set")
		}
	}
	left := func() string {
		entries, err := os.ReadDir(filepath.Join(b.folder.Root, filesDir))
		if err != nil {
			t.Fatal(err)
		}
		var s []string
		for i, name := range names {
			for _, e := range entries {
				if e.Name() == name {
					s = append(s, string(rune('0'+i)))
				}
			}
		}
		return strings.Join(s, "")
	}
	for _, tc := range []struct {
		size int64
		want string
	}{{0, "0123"}, {1, "123"}, {relay.FileBytes / 4, "123"}, {relay.FileBytes/4 + 1, "23"}} {
		if err := b.MakeRoom(tc.size); err != nil || left() != tc.want {
			t.Errorf("%d more bytes: left %s, want %s (%v)", tc.size, left(), tc.want, err)
		}
	}
	if err := b.MakeRoom(relay.MaxFile + 1); !errs.Is(err, errs.Oversize) {
		t.Errorf("got %v", err)
	}
}

package hostside

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

func TestPublishResultNeverOverwrites(t *testing.T) {
	b := newBox(t)
	id := relay.NewID()
	if err := b.PublishResult(id, []byte(`first`)); err != nil {
		t.Fatal(err)
	}
	if err := b.PublishResult(id, []byte(`second`)); !errs.Is(err, errs.Conflict) {
		t.Errorf("got %v", err)
	}
	data, err := os.ReadFile(filepath.Join(b.folder.Root, resultsDir, relay.ResultName(id)))
	if err != nil || string(data) != "first" {
		t.Errorf("%q, %v", data, err)
	}
	info, err := os.Stat(filepath.Join(b.folder.Root, resultsDir, relay.ResultName(id)))
	if err != nil || info.Mode().Perm() != 0o644 || info.Sys().(*syscall.Stat_t).Nlink != 1 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for n := range 3 {
		if err := b.PublishProgress(id, fmt.Append(nil, n)); err != nil {
			t.Fatal(err)
		}
	}
	if data, err := os.ReadFile(filepath.Join(b.folder.Root, progressDir, relay.ResultName(id))); err != nil || string(data) != "2" {
		t.Errorf("progress %q, %v", data, err)
	}
	if left, _ := os.ReadDir(filepath.Join(b.folder.Root, inTmpDir)); len(left) != 0 {
		t.Errorf("left in tmp: %v", left)
	}
}

func TestFiles(t *testing.T) {
	b := newBox(t)
	name := relay.Sum([]byte("body")).String()
	one, err := b.CreateFile(name)
	if err != nil {
		t.Fatal(err)
	}
	two, err := b.CreateFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*File{one, two, one, two} {
		if err := f.Append([]byte("bo")); err != nil {
			t.Fatal(err)
		}
	}
	if err := one.Publish(); err != nil {
		t.Fatal(err)
	}
	two.Discard()
	if data, err := os.ReadFile(filepath.Join(b.folder.Root, filesDir, name)); err != nil || string(data) != "bobo" {
		t.Errorf("%q, %v", data, err)
	}
	for _, bad := range []string{"", "../x", strings.ToUpper(name), name + "0"} {
		if _, err := b.CreateFile(bad); !errs.Is(err, errs.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(b.folder.Root, inTmpDir)); len(left) != 0 {
		t.Errorf("left in tmp: %v", left)
	}
}

package hostside

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newBox makes a session's folder and opens it.
func newBox(t *testing.T) *Box {
	t.Helper()
	return newBoxIn(t, t.TempDir())
}

func newBoxIn(t *testing.T, dir string) *Box {
	t.Helper()
	folder := Folder{Root: filepath.Join(dir, "session")}
	if err := folder.Create(os.Getuid(), os.Getgid(), false); err != nil {
		t.Fatal(err)
	}
	b, err := Open(folder, uint32(os.Getuid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func (b *Box) testNew(name string) string {
	return filepath.Join(b.folder.Out(), relay.NewDir, name)
}

func testRecord(t *testing.T, id string) []byte {
	t.Helper()
	record, err := relay.AppendCall(nil, &relay.Call{Session: relay.NewID(), Epoch: 1, Shim: relay.NewID(), ID: id, Tool: "echo", Arguments: []byte(`{}`), TimeoutMS: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return record
}

func (b *Box) testPublish(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := relay.Publish(filepath.Join(b.folder.Out(), relay.TmpDir, name), b.testNew(name), data); err != nil {
		t.Fatal(err)
	}
}

type listed struct {
	kind     relay.Kind
	name, id string
}

func testList(t *testing.T, b *Box) (all []listed, junk int, full bool) {
	t.Helper()
	junk, full, err := b.List(make([]byte, 32<<10), func(kind relay.Kind, name, id string) bool {
		all = append(all, listed{kind, name, id})
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, junk, full
}

func (b *Box) testClaimed(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(b.folder.claimed())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Names are the guest's: they are compared with what a name may be before anything is done with them.
func TestListNames(t *testing.T) {
	b := newBox(t)
	id := relay.NewID()
	b.testPublish(t, relay.CallName(id), testRecord(t, id))
	for _, name := range []string{
		"x.call", id + ".call.bak", id + ".CALL", strings.ToUpper(id) + ".call", id + ".call\n", "\xff\xfe.call", ".hidden", id,
		strings.Repeat("a", 255), "gate.json ", "-rf", "$(reboot).call", id + ".json",
	} {
		if err := os.WriteFile(b.testNew(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, junk, full := testList(t, b)
	if len(all) != 1 || all[0].id != id || junk != 13 || full {
		t.Errorf("listed %v, %d junk, full %v", all, junk, full)
	}
	if n := b.Counts()[RefusedName]; n != 13 {
		t.Errorf("counted %d", n)
	}
	testList(t, b)
	if n := b.Counts()[RefusedName]; n != 13 {
		t.Errorf("counted again: %d", n)
	}
	if err := os.Remove(b.testNew("x.call")); err != nil {
		t.Fatal(err)
	}
	if _, junk, _ := testList(t, b); junk != 12 {
		t.Errorf("%d junk", junk)
	}
	if len(b.refused) != 12 {
		t.Errorf("remembers %d", len(b.refused))
	}
}

// A guest that does not stop at its bound: the listing does.
func TestListOfAHundredThousand(t *testing.T) {
	dir := t.TempDir()
	if shm, err := os.MkdirTemp("/dev/shm", "hostside"); err == nil { // a tmpfs makes files faster
		defer os.RemoveAll(shm)
		dir = shm
	}
	b := newBoxIn(t, dir)
	first := b.testNew("x0")
	if err := os.WriteFile(first, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < 100_000; i++ {
		if i%30_000 == 0 { // file systems bound the links of one file
			first = b.testNew(fmt.Sprintf("y%d", i))
			if err := os.WriteFile(first, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Link(first, b.testNew(fmt.Sprintf("x%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	seen := 0
	junk, full, err := b.List(make([]byte, 32<<10), func(relay.Kind, string, string) bool { seen++; return true })
	if err != nil || !full || seen != 0 || junk > relay.MaxEntries {
		t.Errorf("%d junk, full %v, %v", junk, full, err)
	}
	if len(b.refused) > relay.MaxEntries {
		t.Errorf("remembers %d names", len(b.refused))
	}
	usage, err := b.Usage()
	if err != nil || usage.Exceeded == "" || usage.Entries > relay.OutInodes+1 {
		t.Errorf("%+v, %v", usage, err)
	}
	b.Close()
	if err := b.folder.Remove(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(b.folder.Root); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestListStopsWhenAsked(t *testing.T) {
	b := newBox(t)
	for range 10 {
		id := relay.NewID()
		b.testPublish(t, relay.CallName(id), testRecord(t, id))
	}
	n := 0
	if _, _, err := b.List(make([]byte, 32<<10), func(relay.Kind, string, string) bool { n++; return n < 3 }); err != nil || n != 3 {
		t.Errorf("%d, %v", n, err)
	}
	if all, _, _ := testList(t, b); len(all) != 10 {
		t.Errorf("listed %d", len(all))
	}
}

// What a guest of the same user can do to the directory itself.
func TestFresh(t *testing.T) {
	b := newBox(t)
	dir := filepath.Join(b.folder.Out(), relay.NewDir)
	if changed, err := b.Fresh(); err != nil || changed {
		t.Fatal(changed, err)
	}
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Fresh(); !errs.Is(err, errs.Unavailable) {
		t.Errorf("without a directory: %v", err)
	}
	secret := t.TempDir()
	if err := os.Symlink(secret, dir); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Fresh(); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a link to another directory: %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Fresh(); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a file: %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if changed, err := b.Fresh(); err != nil || !changed {
		t.Errorf("a new directory: %v, %v", changed, err)
	}
	id := relay.NewID()
	b.testPublish(t, relay.CallName(id), testRecord(t, id))
	if all, _, _ := testList(t, b); len(all) != 1 {
		t.Errorf("listed %v", all)
	}
}

func TestUsage(t *testing.T) {
	b := newBox(t)
	tmp := filepath.Join(b.folder.Out(), relay.TmpDir)
	if u, err := b.Usage(); err != nil || u.Exceeded != "" {
		t.Fatalf("%+v, %v", u, err)
	}
	if err := os.Symlink("/", filepath.Join(tmp, "root")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(tmp, "a/b"), 0o700); err != nil {
		t.Fatal(err)
	}
	before, err := b.Usage()
	if err != nil || before.Exceeded != "" {
		t.Fatalf("a link and two directories: %+v, %v", before, err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "a/b/c"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	after, err := b.Usage()
	if err != nil || after.Bytes < before.Bytes+1<<20 || after.Entries != before.Entries+1 {
		t.Errorf("%+v, then %+v, %v", before, after, err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "big"), make([]byte, relay.OutBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if u, err := b.Usage(); err != nil || u.Exceeded == "" {
		t.Errorf("32 MiB and more: %+v, %v", u, err)
	}
	if err := os.Remove(filepath.Join(tmp, "big")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(tmp, strings.Repeat("d/", 12)), 0o700); err != nil {
		t.Fatal(err)
	}
	if u, err := b.Usage(); err != nil || u.Exceeded == "" {
		t.Errorf("deep directories: %+v, %v", u, err)
	}
}

func TestClosedBox(t *testing.T) {
	b := newBox(t)
	f, err := b.CreateFile(relay.Sum(nil).String())
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	b.Close()
	id := relay.NewID()
	for name, err := range map[string]error{
		"fresh":    second(b.Fresh()),
		"publish":  b.PublishResult(id, nil),
		"progress": b.PublishProgress(id, nil),
		"retract":  b.Retract(id),
		"journal":  b.Journal(&Claimed{ID: id, name: "x"}, time.Second),
		"settle":   b.Settle(&Claimed{ID: id, name: "x"}),
		"usage":    second(b.Usage()),
		"recover":  second(b.Recover()),
		"create":   second(b.CreateFile(relay.Sum(nil).String())),
		"file":     f.Publish(),
	} {
		if !errs.Is(err, errs.Unavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

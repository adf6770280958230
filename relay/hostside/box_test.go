package hostside

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

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

func TestClaim(t *testing.T) {
	b := newBox(t)
	id := relay.NewID()
	record := testRecord(t, id)
	b.testPublish(t, relay.CallName(id), record)
	all, junk, full := testList(t, b)
	if len(all) != 1 || all[0].id != id || junk != 0 || full {
		t.Fatalf("listed %v, %d junk, full %v", all, junk, full)
	}
	c, why, err := b.Claim(relay.KindCall, all[0].name, id)
	if err != nil || why != Taken {
		t.Fatal(why, err)
	}
	if !bytes.Equal(c.Record, record) || c.Digest != relay.Sum(record) || c.ID != id {
		t.Errorf("claimed %+v", c)
	}
	if all, _, _ := testList(t, b); len(all) != 0 {
		t.Errorf("still listed: %v", all)
	}
	if left := b.testClaimed(t); len(left) != 1 {
		t.Errorf("claimed/ has %v", left)
	}
	if _, why, err := b.Claim(relay.KindCall, relay.CallName(id), id); err != nil || why != Gone {
		t.Errorf("a second claim: %v, %v", why, err)
	}
	if err := b.Settle(&c); err != nil {
		t.Fatal(err)
	}
	if left := b.testClaimed(t); len(left) != 0 {
		t.Errorf("claimed/ has %v", left)
	}
	if err := b.Settle(&c); err != nil {
		t.Errorf("settled again: %v", err)
	}
}

// A guest may put anything into new/. What is not a small regular file of its own stays there, is counted once, and never stops the host.
func TestClaimRefuses(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		root bool // needs root to set up
		make func(b *Box, path string) error
		want Refusal
	}{
		{"symlink", false, func(_ *Box, path string) error { return os.Symlink(secret, path) }, RefusedType},
		{"dangling symlink", false, func(_ *Box, path string) error { return os.Symlink("nowhere", path) }, RefusedType},
		{"fifo", false, func(_ *Box, path string) error { return unix.Mkfifo(path, 0o600) }, RefusedType},
		{"socket", false, func(_ *Box, path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) }, RefusedType},
		{"directory", false, func(_ *Box, path string) error { return os.Mkdir(path, 0o700) }, RefusedType},
		{"directory with a record in it", false, func(_ *Box, path string) error {
			return os.MkdirAll(path+"/"+filepath.Base(path), 0o700)
		}, RefusedType},
		{"device", true, func(_ *Box, path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))) }, RefusedType},
		{"foreign owner", true, func(_ *Box, path string) error {
			if err := os.WriteFile(path, []byte(`{}`), 0o644); err != nil {
				return err
			}
			return os.Chown(path, 12345, 12345)
		}, RefusedOwner},
		{"oversize", false, func(_ *Box, path string) error {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
			return os.Truncate(path, relay.MaxCall+1)
		}, RefusedSize},
		{"sparse and huge", false, func(_ *Box, path string) error {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
			return os.Truncate(path, 1<<30)
		}, RefusedSize},
		{"three links", false, func(b *Box, path string) error {
			if err := os.WriteFile(path, []byte(`{}`), 0o600); err != nil {
				return err
			}
			for i := range 2 {
				if err := os.Link(path, fmt.Sprintf("%s/%s/link%d", b.folder.Out(), relay.TmpDir, i)); err != nil {
					return err
				}
			}
			return nil
		}, RefusedLinks},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.root && os.Getuid() != 0 {
				t.Skip("only root can make one")
			}
			b := newBox(t)
			id := relay.NewID()
			name := relay.CallName(id)
			if err := tc.make(b, b.testNew(name)); err != nil {
				t.Fatal(err)
			}
			all, _, _ := testList(t, b)
			if len(all) != 1 {
				t.Fatalf("listed %v", all)
			}
			c, why, err := b.Claim(relay.KindCall, name, id)
			if err != nil || why != tc.want || c.Record != nil {
				t.Errorf("%v, %v, record %q", why, err, c.Record)
			}
			if _, err := os.Lstat(b.testNew(name)); err != nil {
				t.Errorf("it is gone: %v", err)
			}
			if left := b.testClaimed(t); len(left) != 0 {
				t.Errorf("claimed/ has %v", left)
			}
			if all, junk, _ := testList(t, b); len(all) != 0 || junk != 1 {
				t.Errorf("listed again: %v, %d junk", all, junk)
			}
			if n := b.Counts()[tc.want]; n != 1 {
				t.Errorf("counted %d times", n)
			}
			// The session goes on.
			good := relay.NewID()
			b.testPublish(t, relay.CallName(good), testRecord(t, good))
			if all, _, _ := testList(t, b); len(all) != 1 || all[0].id != good {
				t.Errorf("a good record beside it: %v", all)
			}
			// And its folder can be removed.
			b.Close()
			if err := b.folder.Remove(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A publisher's file has two links for a moment: that is no reason to refuse it.
func TestClaimBetweenLinkAndUnlink(t *testing.T) {
	b := newBox(t)
	id := relay.NewID()
	tmp := filepath.Join(b.folder.Out(), relay.TmpDir, "x")
	if err := os.WriteFile(tmp, testRecord(t, id), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(tmp, b.testNew(relay.CallName(id))); err != nil {
		t.Fatal(err)
	}
	if _, why, err := b.Claim(relay.KindCall, relay.CallName(id), id); err != nil || why != Taken {
		t.Errorf("%v, %v", why, err)
	}
}

// The guest may swap the file between the host's look and its move: whatever is moved is judged again.
func TestReadJudgesWhatWasMoved(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"symlink":        func(path string) error { return os.Symlink("/etc/passwd", path) },
		"fifo":           func(path string) error { return unix.Mkfifo(path, 0o600) },
		"directory":      func(path string) error { return os.Mkdir(path, 0o700) },
		"full directory": func(path string) error { return os.MkdirAll(path+"/a/b", 0o700) },
		"socket":         func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) },
		"oversize":       func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("x"), relay.MaxCall+1), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			c := Claimed{Kind: relay.KindCall, ID: relay.NewID(), name: "moved"}
			if err := make(filepath.Join(b.folder.claimed(), c.name)); err != nil {
				t.Fatal(err)
			}
			if why, err := b.read(&c); err != nil || why == Taken || c.Record != nil {
				t.Errorf("%v, %v, %q", why, err, c.Record)
			}
			if err := b.throwAway(c.name); err != nil {
				t.Error(err)
			}
			if left := b.testClaimed(t); len(left) != 0 && name != "full directory" {
				t.Errorf("claimed/ has %v", left)
			}
		})
	}
}

func TestClaimUnderARace(t *testing.T) {
	b := newBox(t)
	id := relay.NewID()
	name := relay.CallName(id)
	record := testRecord(t, id)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() { // a guest that replaces its record as fast as it can
		defer close(done)
		kinds := []func(path string){
			func(path string) { os.Symlink("/etc/passwd", path) },
			func(path string) { unix.Mkfifo(path, 0o600) },
			func(path string) { os.Mkdir(path, 0o700) },
			func(path string) { os.WriteFile(path, record, 0o600) },
		}
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			tmp := filepath.Join(b.folder.Out(), relay.TmpDir, "swap")
			os.RemoveAll(tmp)
			kinds[i%len(kinds)](tmp)
			os.RemoveAll(b.testNew(name))
			os.Rename(tmp, b.testNew(name))
		}
	}()
	for range 3000 {
		c, why, err := b.Claim(relay.KindCall, name, id)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case why != Taken:
		case bytes.Equal(c.Record, record), len(c.Record) == 0: // empty: caught between its creation and its writing
			if err := b.Settle(&c); err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatalf("took %q", c.Record)
		}
	}
	close(stop)
	<-done
	if left := b.testClaimed(t); len(left) != 0 {
		t.Errorf("claimed/ has %v", left)
	}
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

func TestAck(t *testing.T) {
	b := newBox(t)
	id := relay.NewID()
	g := relay.NewGuest(b.folder.In(), b.folder.Out())
	defer g.Close()
	if err := b.PublishResult(id, []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	if err := g.Ack(id); err != nil {
		t.Fatal(err)
	}
	if _, why, err := b.Claim(relay.KindAck, relay.AckName(id), id); err != nil || why != Taken {
		t.Fatal(why, err)
	}
	if err := b.Retract(id); err != nil {
		t.Fatal(err)
	}
	if err := b.Retract(id); err != nil {
		t.Errorf("retracted again: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(b.folder.Root, resultsDir, relay.ResultName(id))); !os.IsNotExist(err) {
		t.Errorf("the result is there: %v", err)
	}
	// An ack that is a directory is no ack.
	if err := os.Mkdir(b.testNew(relay.AckName(id)), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, why, err := b.Claim(relay.KindAck, relay.AckName(id), id); err != nil || why != RefusedType {
		t.Errorf("%v, %v", why, err)
	}
}

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
	if err != nil || info.Mode().Perm() != 0o644 || links(info) != 1 {
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

func TestRecover(t *testing.T) {
	b := newBox(t)
	claim := func() Claimed {
		t.Helper()
		id := relay.NewID()
		b.testPublish(t, relay.CallName(id), testRecord(t, id))
		c, why, err := b.Claim(relay.KindCall, relay.CallName(id), id)
		if err != nil || why != Taken {
			t.Fatal(why, err)
		}
		return c
	}
	fresh, journaled, answered := claim(), claim(), claim()
	if err := b.Journal(&journaled, 90*time.Second); err != nil {
		t.Fatal(err)
	}
	record, err := relay.AppendResult(nil, &relay.Result{ID: answered.ID, State: "answered", Result: []byte(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.PublishResult(answered.ID, record); err != nil {
		t.Fatal(err)
	}
	local, err := relay.AppendResult(nil, &relay.Result{ID: relay.NewID(), State: relay.StateHost, Result: []byte(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	localID := relay.NewID()
	if err := b.PublishResult(localID, local); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"note.7", "strange", relay.NewID() + ".1.2.3.4"} {
		if err := os.WriteFile(filepath.Join(b.folder.claimed(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.Close()
	again, err := Open(b.folder, uint32(os.Getuid()))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	got, err := again.Recover()
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Calls) != 2 || got.Calls[0].ID != fresh.ID || got.Calls[1].ID != journaled.ID {
		t.Fatalf("%+v", got.Calls)
	}
	if c := got.Calls[0]; c.Journaled() || !bytes.Equal(c.Record, fresh.Record) || c.Digest != fresh.Digest || c.Waited <= 0 {
		t.Errorf("fresh: %+v", c)
	}
	if c := got.Calls[1]; !c.Journaled() || c.Digest != journaled.Digest || got.Timeouts[c.ID] != 90*time.Second || c.Waited <= 0 {
		t.Errorf("journaled: %+v, %v", c, got.Timeouts)
	}
	slices.SortFunc(got.Published, func(x, y Published) int { return strings.Compare(x.ID, y.ID) })
	want := []Published{{ID: answered.ID}, {ID: localID, Local: true}}
	slices.SortFunc(want, func(x, y Published) int { return strings.Compare(x.ID, y.ID) })
	if !slices.Equal(got.Published, want) {
		t.Errorf("published %v, want %v", got.Published, want)
	}
	if left := again.testClaimed(t); len(left) != 2 {
		t.Errorf("claimed/ has %v", left)
	}
	if err := again.Settle(&got.Calls[1]); err != nil {
		t.Error(err)
	}
}

// The bytes of a large journaled record are not kept: they count against the guest's 32 MiB.
func TestJournalGivesUpLargeRecords(t *testing.T) {
	b := newBox(t)
	id := relay.NewID()
	b.testPublish(t, relay.CallName(id), bytes.Repeat([]byte(" "), relay.MaxArguments))
	c, why, err := b.Claim(relay.KindCall, relay.CallName(id), id)
	if err != nil || why != Taken {
		t.Fatal(why, err)
	}
	if err := b.Journal(&c, time.Second); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(b.folder.claimed(), c.name))
	if err != nil || info.Size() != 0 {
		t.Errorf("%d bytes, %v", info.Size(), err)
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

func links(info os.FileInfo) uint64 {
	return uint64(info.Sys().(*syscall.Stat_t).Nlink)
}

package hostside

import (
	"bytes"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/relay"
)

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

// The bytes of a large journaled record are not kept: they count against the guest's 32 MiB. A host that dies in between leaves both, and
// the next one knows which counts.
func TestJournalGivesUpLargeRecords(t *testing.T) {
	b := newBox(t)
	id := relay.NewID()
	b.testPublish(t, relay.CallName(id), bytes.Repeat([]byte(" "), relay.MaxArguments))
	c, why, err := b.Claim(relay.KindCall, relay.CallName(id), id)
	if err != nil || why != Taken {
		t.Fatal(why, err)
	}
	old := c.name
	if err := b.Journal(&c, time.Second); err != nil {
		t.Fatal(err)
	}
	if left := b.testClaimed(t); len(left) != 1 || left[0] != c.name {
		t.Fatalf("claimed/ has %v", left)
	}
	info, err := os.Stat(filepath.Join(b.folder.claimed(), c.name))
	if err != nil || info.Size() != 0 {
		t.Errorf("%d bytes, %v", info.Size(), err)
	}
	if err := os.WriteFile(filepath.Join(b.folder.claimed(), old), c.Record, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := b.Recover()
	if err != nil || len(r.Calls) != 1 || !r.Calls[0].Journaled() || r.Calls[0].Digest != c.Digest {
		t.Errorf("%+v, %v", r.Calls, err)
	}
	if left := b.testClaimed(t); len(left) != 1 {
		t.Errorf("claimed/ has %v", left)
	}
}

// A guest that holds a lease on its record would make an open wait.
func TestLeasesMakeNobodyWait(t *testing.T) {
	b := newBox(t)
	id := relay.NewID()
	b.testPublish(t, relay.CallName(id), testRecord(t, id))
	f, err := os.OpenFile(b.testNew(relay.CallName(id)), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("this file system has no leases: ", err)
	}
	signal.Ignore(syscall.SIGIO)
	defer signal.Reset(syscall.SIGIO)
	if _, why, err := b.Claim(relay.KindCall, relay.CallName(id), id); err != nil || why != RefusedType {
		t.Errorf("%v, %v", why, err)
	}
	if left := b.testClaimed(t); len(left) != 0 {
		t.Errorf("claimed/ has %v", left)
	}
}

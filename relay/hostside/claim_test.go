package hostside

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport.dev/relay"
)

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

package hostside

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/relay"
)

// looker lists a box whenever its watch wakes it, as a host does.
type looker struct {
	box    *Box
	watch  *Watch
	wakes  chan Wake
	found  chan listed
	listed atomic.Int64
	missed atomic.Int64 // directories that were not there
	stop   chan struct{}
	done   chan struct{}
}

func look(t *testing.T, w *Watcher, b *Box, active bool) *looker {
	t.Helper()
	l := &looker{box: b, wakes: make(chan Wake, 1024), found: make(chan listed, 1024), stop: make(chan struct{}), done: make(chan struct{})}
	l.watch = w.Add(b, func(r Wake) {
		select {
		case l.wakes <- r:
		default:
		}
	})
	go func() {
		defer close(l.done)
		buffer := make([]byte, 32<<10)
		for {
			select {
			case <-l.stop:
				return
			case r := <-l.wakes:
				if err := l.watch.Before(r); err != nil {
					l.missed.Add(1)
					continue
				}
				useful := 0
				junk, _, _ := b.List(buffer, func(kind relay.Kind, name, id string) bool {
					if _, why, err := b.Claim(kind, name, id); err == nil && why == Taken {
						useful++
						select {
						case l.found <- listed{kind, name, id}:
						default:
						}
					}
					return true
				})
				l.listed.Add(1)
				l.watch.After(Listing{Useful: useful, Junk: junk, Active: active})
			}
		}
	}()
	t.Cleanup(l.end)
	return l
}

func (l *looker) end() {
	select {
	case <-l.done:
		return
	default:
	}
	close(l.stop)
	<-l.done
	l.watch.Close()
}

func TestWatcherWakes(t *testing.T) {
	w := NewWatcher()
	t.Cleanup(w.Close)
	early := newBox(t)
	id := relay.NewID()
	early.testPublish(t, relay.CallName(id), testRecord(t, id))
	l := look(t, w, early, false)
	if got := <-l.found; got.id != id {
		t.Errorf("what lay there before: %v", got)
	}
	if !l.watch.Armed() {
		t.Fatal("no watch")
	}
	for range 100 {
		id := relay.NewID()
		early.testPublish(t, relay.CallName(id), testRecord(t, id))
		if got := <-l.found; got.id != id {
			t.Fatalf("got %v", got)
		}
	}
	// By rename, as another implementation may publish.
	id = relay.NewID()
	tmp := filepath.Join(early.folder.Out(), relay.TmpDir, "x")
	if err := os.WriteFile(tmp, testRecord(t, id), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, early.testNew(relay.CallName(id))); err != nil {
		t.Fatal(err)
	}
	if got := <-l.found; got.id != id {
		t.Errorf("got %v", got)
	}
}

// Sessions share inotify instances, 64 to one, and never each other's events.
func TestWatcherShards(t *testing.T) {
	w := NewWatcher()
	t.Cleanup(w.Close)
	var all []*looker
	for range perShard + 2 {
		all = append(all, look(t, w, newBox(t), false))
	}
	for _, l := range all {
		id := relay.NewID()
		l.box.testPublish(t, relay.CallName(id), testRecord(t, id))
		if got := <-l.found; got.id != id {
			t.Fatalf("got %v", got)
		}
	}
	if len(w.shards) != 2 {
		t.Errorf("%d shards", len(w.shards))
	}
	for _, l := range all {
		if n := len(l.found); n != 0 {
			t.Errorf("%d records of others", n)
		}
	}
	// A session that ends makes room.
	all[0].end()
	look(t, w, newBox(t), false)
	if len(w.shards) != 2 {
		t.Errorf("%d shards", len(w.shards))
	}
}

// A guest that replaces its directory is heard in the new one.
func TestWatcherFollowsAReplacedDirectory(t *testing.T) {
	w := NewWatcher()
	t.Cleanup(w.Close)
	b := newBox(t)
	l := look(t, w, b, false)
	dir := filepath.Join(b.folder.Out(), relay.NewDir)
	id := relay.NewID()
	b.testPublish(t, relay.CallName(id), testRecord(t, id))
	<-l.found
	for i := range 3 {
		if i == 2 {
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
		} else if err := os.Rename(dir, fmt.Sprintf("%s.old%d", dir, i)); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		id := relay.NewID()
		b.testPublish(t, relay.CallName(id), testRecord(t, id))
		if got := <-l.found; got.id != id {
			t.Fatalf("got %v", got)
		}
	}
}

// The events of a guest that publishes nothing with them run dry; it is polled, and what it does publish is found all the same.
func TestWatcherStorm(t *testing.T) {
	w := NewWatcher()
	t.Cleanup(w.Close)
	noisy, quiet := look(t, w, newBox(t), false), look(t, w, newBox(t), false)
	id := relay.NewID()
	noisy.box.testPublish(t, relay.CallName(id), testRecord(t, id))
	<-noisy.found
	tmp := filepath.Join(noisy.box.folder.Out(), relay.TmpDir, "x")
	if err := os.WriteFile(tmp, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := 0; noisy.watch.Armed(); i++ {
		if i > 1_000_000 {
			t.Fatal("a million events, and it has its watch")
		}
		name := noisy.box.testNew("junk")
		if err := os.Link(tmp, name); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	id = relay.NewID()
	noisy.box.testPublish(t, relay.CallName(id), testRecord(t, id))
	if got := <-noisy.found; got.id != id {
		t.Errorf("got %v", got)
	}
	id = relay.NewID()
	quiet.box.testPublish(t, relay.CallName(id), testRecord(t, id))
	if got := <-quiet.found; got.id != id || !quiet.watch.Armed() {
		t.Errorf("the other session: %v, armed %v", got, quiet.watch.Armed())
	}
}

// Useful records pay for their events: a busy session keeps its watch.
func TestWatcherBusySession(t *testing.T) {
	w := NewWatcher()
	t.Cleanup(w.Close)
	l := look(t, w, newBox(t), true)
	for range 3 * wakesBurst {
		id := relay.NewID()
		l.box.testPublish(t, relay.CallName(id), testRecord(t, id))
		<-l.found
	}
	if !l.watch.Armed() {
		t.Error("a busy session lost its watch")
	}
}

// With no watch to be had, only the session that got none is polled. The limit is that of a user namespace of the test's own.
func TestWatcherWithoutInotify(t *testing.T) {
	const child, limit = "SALLYPORT_TEST_NO_INOTIFY", "/proc/sys/user/max_inotify_watches"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWatcherWithoutInotify$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
			t.Skip("no user namespaces here: ", err)
		}
		if err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	w := NewWatcher()
	t.Cleanup(w.Close)
	armed := look(t, w, newBox(t), false)
	id := relay.NewID()
	armed.box.testPublish(t, relay.CallName(id), testRecord(t, id))
	<-armed.found
	if err := os.WriteFile(limit, []byte("0"), 0o644); err != nil {
		t.Fatal(err)
	}
	polled := look(t, w, newBox(t), false)
	for _, l := range []*looker{polled, armed} {
		id := relay.NewID()
		l.box.testPublish(t, relay.CallName(id), testRecord(t, id))
		if got := <-l.found; got.id != id {
			t.Errorf("got %v", got)
		}
	}
	if polled.watch.Armed() || !armed.watch.Armed() {
		t.Errorf("armed: %v and %v", polled.watch.Armed(), armed.watch.Armed())
	}
}

// An overflow says that something was lost: every session of the instance is listed.
func TestOverflowListsAll(t *testing.T) {
	w := NewWatcher()
	t.Cleanup(w.Close)
	one, two := look(t, w, newBox(t), false), look(t, w, newBox(t), false)
	for _, l := range []*looker{one, two} {
		id := relay.NewID()
		l.box.testPublish(t, relay.CallName(id), testRecord(t, id))
		<-l.found
	}
	event := make([]byte, unix.SizeofInotifyEvent)
	event[4+1] = unix.IN_Q_OVERFLOW >> 8
	event[0], event[1], event[2], event[3] = 0xff, 0xff, 0xff, 0xff
	all := w.shards[0].sort(event, nil)
	if len(all) != 2 || all[0].reason != WakeEvent|WakeCheck || all[0].watch == all[1].watch {
		t.Errorf("got %+v", all)
	}
}

// How often a session is listed when nothing happens in it.
func TestPauses(t *testing.T) {
	b := newBox(t)
	synctest.Test(t, func(t *testing.T) {
		w := NewPoller()
		l := look(t, w, b, false)
		synctest.Wait()
		before := l.listed.Load()
		<-time.After(10 * time.Second)
		synctest.Wait()
		if n := l.listed.Load() - before; n != int64(10*time.Second/listPolled) {
			t.Errorf("polled %d times in 10 s", n)
		}
		// As if it had a watch.
		l.watch.mu.Lock()
		l.watch.shard = &shard{watches: map[int32]*Watch{}}
		l.watch.until = time.Now().Add(time.Hour)
		l.watch.mu.Unlock()
		<-time.After(listIdle)
		before = l.listed.Load()
		<-time.After(time.Hour)
		synctest.Wait()
		if n := l.listed.Load() - before; n < 45 || n > 80 {
			t.Errorf("an idle session was listed %d times in an hour", n)
		}
		l.watch.After(Listing{Active: true})
		<-time.After(listActive)
		synctest.Wait()
		before = l.listed.Load()
		l.watch.After(Listing{Active: true})
		<-time.After(listActive)
		synctest.Wait()
		if n := l.listed.Load() - before; n != 1 {
			t.Errorf("a session with a call in flight was listed %d times in a second", n)
		}
		l.watch.mu.Lock()
		l.watch.shard = nil
		l.watch.mu.Unlock()
		l.end()
		w.Close()
	})
}

// Entries that have to be skipped are paid for with time.
func TestJunkIsPaidFor(t *testing.T) {
	b := newBox(t)
	synctest.Test(t, func(t *testing.T) {
		w := NewPoller()
		var wakes atomic.Int64
		watch := w.Add(b, func(Wake) { wakes.Add(1) })
		if watch.After(Listing{Junk: 4000, More: true}) {
			t.Error("the next listing may follow at once")
		}
		wakes.Store(0)
		for range 100 {
			watch.events(1, WakeEvent)
		}
		if n := wakes.Load(); n != 0 {
			t.Errorf("woke %d times at once", n)
		}
		<-time.After(4000*junkPause - time.Millisecond)
		synctest.Wait()
		if n := wakes.Load(); n != 0 {
			t.Errorf("woke %d times too early", n)
		}
		<-time.After(2 * time.Millisecond)
		synctest.Wait()
		if n := wakes.Load(); n != 1 {
			t.Errorf("woke %d times", n)
		}
		if !watch.After(Listing{Useful: 100, More: true}) {
			t.Error("a listing that found much may not go on")
		}
		wakes.Store(0)
		if watch.After(Listing{Useful: 1, Wasted: 30, More: true}) {
			t.Error("a listing that took much for nothing may go on")
		}
		<-time.After(30*wastedPause - time.Millisecond)
		synctest.Wait()
		if n := wakes.Load(); n != 0 {
			t.Errorf("woke %d times too early", n)
		}
		<-time.After(2 * time.Millisecond)
		synctest.Wait()
		if n := wakes.Load(); n != 1 {
			t.Errorf("woke %d times", n)
		}
		watch.Close()
		w.Close()
	})
}

func TestStormsLastLonger(t *testing.T) {
	b := newBox(t)
	synctest.Test(t, func(t *testing.T) {
		w := NewPoller()
		watch := w.Add(b, func(Wake) {})
		storm := func() time.Duration {
			now := time.Now()
			watch.mu.Lock()
			defer watch.mu.Unlock()
			watch.storm(now)
			return watch.until.Sub(now)
		}
		for _, want := range []time.Duration{stormLeast, 2 * stormLeast, 4 * stormLeast} {
			if got := storm(); got != want {
				t.Errorf("a storm costs the watch for %v, want %v", got, want)
			}
			<-time.After(want + time.Second)
		}
		<-time.After(time.Hour)
		if got := storm(); got != stormLeast {
			t.Errorf("after a calm hour %v", got)
		}
		for range 20 {
			storm()
		}
		if got := storm(); got != stormMost {
			t.Errorf("at most %v", got)
		}
		watch.Close()
		w.Close()
	})
}

package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"sallyport.dev/host/link/linktest"
	"sallyport.dev/relay"
)

// A queue never gives a session to two at once, never loses one that was pushed, and gives each its turn.
func TestQueueModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue()
		var all [4]*session
		for i := range all {
			all[i] = new(session)
		}
		line := []*session{} // the order in which they are to be taken
		taken := map[*session]bool{}
		again := map[*session]bool{}
		in := func(s *session) bool {
			for _, x := range line {
				if x == s {
					return true
				}
			}
			return false
		}
		pick := rapid.Map(rapid.IntRange(0, len(all)-1), func(i int) *session { return all[i] })
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				s := pick.Draw(t, "session")
				q.push(s)
				if taken[s] {
					again[s] = true
				} else if !in(s) {
					line = append(line, s)
				}
			},
			"take": func(t *rapid.T) {
				got := q.tryTake()
				if len(line) == 0 {
					if got != nil {
						t.Fatal("took what nobody pushed")
					}
					return
				}
				if got != line[0] || taken[got] {
					t.Fatal("took another's turn")
				}
				taken[got] = true
				line = line[1:]
			},
			"done": func(t *rapid.T) {
				s := pick.Draw(t, "session")
				if !taken[s] {
					t.Skip("not taken")
				}
				more := rapid.Bool().Draw(t, "more")
				q.done(s, more)
				taken[s] = false
				if more || again[s] {
					line = append(line, s)
				}
				again[s] = false
			},
			"": func(t *rapid.T) {
				if q.length() != len(line) {
					t.Fatalf("%d wait, want %d", q.length(), len(line))
				}
			},
		})
	})
}

func TestQueueWakesTakers(t *testing.T) {
	q := newQueue()
	var takers sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan *session, 1000)
	for range 4 {
		takers.Go(func() {
			for {
				s, err := q.take(ctx)
				if err != nil {
					return
				}
				served <- s
				q.done(s, false)
			}
		})
	}
	seen := make(map[*session]bool)
	for range 500 {
		s := new(session)
		q.push(s)
		seen[s] = true
	}
	for range 500 {
		s := <-served
		if !seen[s] {
			t.Fatal("served twice")
		}
		delete(seen, s)
	}
	cancel()
	takers.Wait()
	if len(q.states) != 0 {
		t.Errorf("remembers %d sessions", len(q.states))
	}
}

// A session that has much to send does not keep another one's call from the next batch.
func TestBatchesAreFair(t *testing.T) {
	x := newRig(t)
	x.away()
	flood, other := x.sandbox(), x.sandbox()
	for range relay.MaxInFlight {
		flood.call()
	}
	x.eventually("claimed", func() bool { return len(flood.names("relay/claimed")) == relay.MaxInFlight })
	one := other.call()
	x.eventually("claimed", func() bool { return len(other.names("relay/claimed")) == 1 })
	var order []string
	var mu sync.Mutex
	x.control.OnCall(func(k *linktest.Call) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, k.Session)
	})
	x.control.Mend()
	x.arrived(other.ID, one.ID())
	mu.Lock()
	defer mu.Unlock()
	at := strings.Index(strings.Join(order, " "), other.ID) / (relay.IDLength + 1)
	if at > 2*turnFrames {
		t.Errorf("the other session's call came after %d of the flood", at)
	}
}

// A session may hold only so much that control has not taken; the rest waits in its own directory, and others are not kept.
func TestHeldBytesAreBounded(t *testing.T) {
	x := newRig(t)
	x.away()
	b, other := x.sandbox(), x.sandbox()
	var all []*relay.Pending
	for i := range 24 {
		c := b.record()
		c.Arguments = []byte(fmt.Sprintf(`{"n":%d,"a":"%s"}`, i, strings.Repeat("x", relay.MaxArguments-100)))
		p, err := b.guest.Call(c)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	x.eventually("holds as much as it may", func() bool { return x.runner.held.Load() >= sessionHeld })
	one := other.call()
	x.eventually("the other session's call is taken", func() bool { return len(other.names("relay/claimed")) == 1 })
	if held := x.runner.held.Load(); held > sessionHeld+2*relay.MaxCall {
		t.Errorf("holds %d bytes", held)
	}
	if waiting := len(b.names("relay/out/new")); waiting < 24-10 {
		t.Errorf("%d wait in new/", waiting)
	}
	x.echo()
	x.control.Mend()
	for _, p := range append(all, one) {
		if _, err := p.Wait(x.context()); err != nil {
			t.Fatal(err)
		}
	}
	x.eventually("bytes are held", func() bool { return x.runner.held.Load() == 0 })
}

// What all sessions hold together is bounded too; each goes on once there is room.
func TestStarvedSessionsGoOn(t *testing.T) {
	x := newRig(t)
	x.runner.held.Add(totalHeld)
	b := x.sandbox()
	x.echo()
	p := b.call()
	x.eventually("starved", func() bool {
		x.runner.mu.RLock()
		defer x.runner.mu.RUnlock()
		return len(x.runner.starved) == 1
	})
	x.runner.release(totalHeld)
	b.text(p)
}

// Hostile guests beside a good one: whatever they do, its calls are answered and nothing of theirs reaches control.
func TestHostileNeighbours(t *testing.T) {
	x := newRig(t)
	x.echo()
	stop := make(chan struct{})
	var guests sync.WaitGroup
	for n := range 3 {
		b := x.sandbox()
		newDir := filepath.Join(b.Folder.Out(), "new")
		guests.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				name := filepath.Join(newDir, relay.CallName(relay.NewID()))
				switch (i + n) % 6 {
				case 0:
					os.Symlink("/etc/passwd", name)
				case 1:
					os.WriteFile(name, []byte(`{"v":1,"v":1}`), 0o600)
				case 2:
					os.Mkdir(name, 0o700)
					os.Remove(name)
				case 3:
					os.Rename(newDir, newDir+relay.NewID())
					os.Mkdir(newDir, 0o700)
				case 4:
					os.WriteFile(filepath.Join(newDir, relay.AckName(relay.NewID())), nil, 0o600)
				case 5:
					os.Remove(name)
				}
			}
		})
	}
	good := x.sandbox()
	for range 100 {
		p := good.call()
		if got := good.text(p); got != answer("done") {
			t.Fatalf("got %s", got)
		}
		if err := good.guest.Ack(p.ID()); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	guests.Wait()
	x.await("", func(v *linktest.View) bool {
		if v.Calls() != 100 {
			t.Errorf("control got %d calls", v.Calls())
		}
		return true
	})
}

package relay

import (
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// deaf gives the guest a watch that hears nothing, as in a sandbox whose file system hides the host's writes.
func deaf(g *Guest) {
	done := make(chan struct{})
	close(done)
	g.watch = &watch{resultsWatch: -1, progressWatch: -1, done: done}
}

func TestGuestPollsWhereTheWatchIsDeaf(t *testing.T) {
	x := newTree(t)
	synctest.Test(t, func(t *testing.T) {
		g := NewGuest(x.in, x.out)
		deaf(g)
		p, err := g.Call(guestCall())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		time.AfterFunc(time.Millisecond, func() { x.answer(p.ID(), `{}`) })
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != pollLeast {
			t.Errorf("a quick answer was found after %v", took)
		}
		if p, err = g.Call(guestCall()); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(10*time.Second, func() { x.answer(p.ID(), `{}`) })
		start = time.Now()
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 10*time.Second || took > 10*time.Second+pollMost {
			t.Errorf("a slow answer was found after %v", took)
		}
		synctest.Wait()
		<-time.After(time.Hour) // nobody waits, so nothing runs
		if g.poll.Stop() {
			t.Error("an idle guest polls")
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Once the watch announced a result, polling is slow; once polling finds what the watch did not announce, it is quick again.
func TestGuestTrustsAWatchThatWorks(t *testing.T) {
	x := newTree(t)
	g := x.guest()
	call := func() *Pending {
		t.Helper()
		p, err := g.Call(guestCall())
		if err != nil {
			t.Fatal(err)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.poll.Stop()
		return p
	}
	p := call()
	x.answer(p.ID(), `{}`)
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !g.trusted {
		t.Error("a watch that announced a result is not trusted")
	}
	p = call()
	if g.interval != pollMost {
		t.Errorf("polls after %v beside a watch that works", g.interval)
	}
	if err := g.watch.close(); err != nil {
		t.Fatal(err)
	}
	deaf(g)
	x.answer(p.ID(), `{}`)
	g.polled()
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if g.trusted {
		t.Error("a deaf watch is trusted")
	}
}

func TestGuestProgress(t *testing.T) {
	x := newTree(t)
	synctest.Test(t, func(t *testing.T) {
		g := NewGuest(x.in, x.out)
		deaf(g)
		c := guestCall()
		c.Progress = true
		p, err := g.Call(c)
		if err != nil {
			t.Fatal(err)
		}
		say := func(n int64, message string) {
			data, err := AppendProgress(nil, &Progress{ID: p.ID(), N: n, Progress: float64(n), Message: message})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(x.in+"/tmp/p", data, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(x.in+"/tmp/p", x.in+"/progress/"+ResultName(p.ID())); err != nil {
				t.Fatal(err)
			}
			<-time.After(pollMost)
		}
		say(1, "one")
		say(2, "two") // replaces one, which nobody took
		if got := <-p.Progress(); got.N != 2 || got.Message != "two" {
			t.Errorf("got %+v", got)
		}
		say(2, "two again")
		say(1, "one again")
		select {
		case got := <-p.Progress():
			t.Errorf("old progress came again: %+v", got)
		default:
		}
		p.Close()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestGuestHearsProgressAndReplacedDirectories(t *testing.T) {
	x := newTree(t)
	g := x.guest()
	c := guestCall()
	c.Progress = true
	p, err := g.Call(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"results", "progress"} {
		if err := os.Remove(x.in + "/" + dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(x.in+"/"+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	data, err := AppendProgress(nil, &Progress{ID: p.ID(), N: 1, Progress: 1})
	if err != nil {
		t.Fatal(err)
	}
	x.publish("progress/"+ResultName(p.ID()), data)
	if got := <-p.Progress(); got.N != 1 {
		t.Errorf("got %+v", got)
	}
	x.answer(p.ID(), `{}`)
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

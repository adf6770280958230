package runner

import (
	"testing"
	"time"

	"sallyport.dev/host/link/linktest"
	"sallyport.dev/relay"
)

// A session alone is never held back; beside another one it keeps a few calls in flight, and starts a burst and then so many a second beyond them.
func TestPace(t *testing.T) {
	r := New(Config{})
	of := func() *session { return &session{runner: r, pace: newPace(), calls: map[string]*call{}} }
	a, b := of(), of()
	now := time.Now()
	take := func(s *session, wanted int) (taken int) {
		for range wanted {
			if !s.mayCall(now) {
				return taken
			}
			s.calls[relay.NewID()] = nil
			taken++
		}
		return taken
	}
	steps := []struct {
		what         string
		s            *session
		after        time.Duration
		wanted, want int
	}{
		{"alone", a, 0, 1000, 1000},
		{"beside one that has many in flight", b, 0, 64, paceInFlight + paceBurst},
		{"the other, now beside it", a, 0, 64, paceBurst},
		{"a tenth of a second later", a, 100 * time.Millisecond, 64, pacePerSec / 10},
		{"the one that waited has its own bucket", b, 0, 64, pacePerSec / 10},
		{"the other did not call for a while", b, paceBeside, 200, 200},
	}
	for _, step := range steps {
		now = now.Add(step.after)
		if got := take(step.s, step.wanted); got != step.want {
			t.Errorf("%s: %d calls, want %d", step.what, got, step.want)
		}
	}
	if clear(b.calls); take(b, 500) != 500 {
		t.Error("alone again, and held back")
	}
	r.callers.forget(b)
	if r.callers.forget(a); r.callers.last != nil || r.callers.before != nil {
		t.Error("remembers sessions that ended")
	}
}

// A call that waits in its directory, because its session has many in flight beside another one, is cancelled there: control never hears of it.
func TestCancelOfACallThatWaits(t *testing.T) {
	x := newRig(t)
	flood, other := x.sandbox(), x.sandbox()
	other.call()
	x.eventually("claimed", func() bool { return len(other.names("relay/claimed")) == 1 })
	for range paceInFlight + paceBurst {
		flood.call()
	}
	x.eventually("claimed", func() bool { return len(flood.names("relay/claimed")) >= paceInFlight+paceBurst })
	// Whether these are taken before their cancels come is the clock's affair. Either way a cancel is never taken before its call.
	var waiting []*relay.Pending
	for range 30 {
		p := flood.call()
		if err := p.Cancel(relay.WhyHarness); err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, p)
	}
	x.eventually("everything is taken", func() bool { return len(flood.names("relay/out/new")) == 0 })
	x.await("cancels", func(v *linktest.View) bool {
		for _, p := range waiting {
			if k := v.Call(flood.ID, p.ID()); k != nil && len(v.State(k).Cancels) == 0 {
				return false
			}
		}
		return true
	})
}

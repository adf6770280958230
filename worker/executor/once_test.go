package executor

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/intent"
	"sallyport.dev/worker/upstream"
)

// I5, I6: whatever comes in whatever order (intents, Go, Attest, Close, acknowledgments, each repeated, lost Links, time), no intent is ever sent
// twice, and what a run said of an intent stays true.
func TestNeverTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(noDeadline{t}, func(rt *rapid.T) { never(t, rt) })
	})
}

// noDeadline hides Deadline, which may not be asked for inside a bubble.
type noDeadline struct{ rapid.TB }

// world is one run of the property: a few intents, held at random points.
type world struct {
	rt    *rapid.T
	r     *rig
	ins   []intent.Intent
	links []*fakeLink
	read  []int // frames of each link that were checked

	mu    sync.Mutex
	holds map[string]chan struct{} // "open ID", "answer ID"

	denied  map[string]bool // said: not started, or not sent
	outcome map[string]sallyportv1.Transport
	acked   map[string]bool
}

func never(t *testing.T, rt *rapid.T) {
	w := &world{
		rt: rt, r: newRig(t, rapid.IntRange(1, 3).Draw(rt, "capacity")), holds: map[string]chan struct{}{},
		denied: map[string]bool{}, outcome: map[string]sallyportv1.Transport{}, acked: map[string]bool{},
	}
	w.r.up.t = rt
	w.r.up.holdOpen = func(ctx context.Context, id string) { w.hold(ctx, "open "+id) }
	w.r.up.answer = func(ctx context.Context, id string) upstream.Outcome {
		w.hold(ctx, "answer "+id)
		if ctx.Err() != nil {
			return upstream.Outcome{Transport: upstream.Sent, Bytes: 100, Failure: upstream.FailCancelled}
		}
		return good(id)
	}
	w.r.up.prepareErr = func(id string) error {
		if id[len("intent")+5] == 'w' { // some cannot be prepared
			return fmt.Errorf("no connection")
		}
		return nil
	}
	for range rapid.IntRange(1, 4).Draw(rt, "intents") {
		w.ins = append(w.ins, w.r.intent(rapid.SampledFrom([]string{intent.Read, intent.Write}).Draw(rt, "effect")))
	}
	w.connect()
	rt.Repeat(map[string]func(*rapid.T){
		"intent": func(rt *rapid.T) { w.r.x.Intent(w.link(rt), w.r.job(w.in(rt), rapid.Bool().Draw(rt, "go"))) },
		"go":     func(rt *rapid.T) { w.r.x.Go(w.link(rt), w.in(rt).ID) },
		"attest": func(rt *rapid.T) { w.r.x.Attest(w.link(rt), w.in(rt).ID) },
		"close":  func(rt *rapid.T) { w.r.x.CloseIntent(w.link(rt), w.in(rt).ID, "test") },
		"ack":    func(rt *rapid.T) { id := w.in(rt).ID; w.acked[id] = w.acked[id] || w.finished(id); w.r.x.Ack(id) },
		"opened": func(rt *rapid.T) { w.letGo("open " + w.in(rt).ID) },
		"answer": func(rt *rapid.T) { w.letGo("answer " + w.in(rt).ID) },
		"time": func(rt *rapid.T) {
			<-time.After(time.Duration(rapid.IntRange(1, 20).Draw(rt, "seconds")) * time.Second)
		},
		"lose":    func(rt *rapid.T) { w.lose(w.link(rt)) },
		"connect": func(*rapid.T) { w.connect() },
		"":        func(*rapid.T) { w.check() },
	})
	// In the end everything is let go: what was held must still obey.
	w.mu.Lock()
	for _, c := range w.holds {
		select {
		case <-c:
		default:
			close(c)
		}
	}
	w.mu.Unlock()
	w.check()
	w.r.x.Close()
	w.check()
	w.r.keys.Close()
}

func (w *world) in(rt *rapid.T) intent.Intent { return rapid.SampledFrom(w.ins).Draw(rt, "which") }

func (w *world) link(rt *rapid.T) *fakeLink { return rapid.SampledFrom(w.links).Draw(rt, "link") }

func (w *world) connect() {
	l := &fakeLink{}
	w.links, w.read = append(w.links, l), append(w.read, 0)
	w.r.x.Attach(l)
}

func (w *world) lose(l *fakeLink) {
	l.mu.Lock()
	l.gone = true
	l.mu.Unlock()
	w.r.x.Detach(l)
}

func (w *world) finished(id string) bool { return w.r.stateOf(id) == finished }

func (w *world) channel(name string) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holds[name] == nil {
		w.holds[name] = make(chan struct{})
	}
	return w.holds[name]
}

func (w *world) hold(ctx context.Context, name string) {
	select {
	case <-w.channel(name):
	case <-ctx.Done():
	}
}

func (w *world) letGo(name string) {
	c := w.channel(name)
	select {
	case <-c:
	default:
		close(c)
	}
}

// check compares what was said, on any Link, with what was sent.
func (w *world) check() {
	synctest.Wait()
	for i, l := range w.links {
		l.mu.Lock()
		frames := l.frames[w.read[i]:]
		w.read[i] = len(l.frames)
		l.mu.Unlock()
		for _, f := range frames {
			w.heard(f)
		}
	}
	running := 0
	for _, in := range w.ins {
		sends := w.r.up.count(w.r.up.sends, in.ID)
		if sends > 1 {
			w.rt.Fatalf("%s was sent %d times", in.ID, sends)
		}
		if w.denied[in.ID] && sends != 0 {
			w.rt.Fatalf("%s was denied, and was sent", in.ID)
		}
		if p := w.r.up.count(w.r.up.prepared, in.ID); p > 1 {
			w.rt.Fatalf("%s was prepared %d times", in.ID, p)
		}
		switch w.r.stateOf(in.ID) {
		case preparing, armed, ready, sending:
			running++
		}
	}
	if running > w.r.x.Capacity() {
		w.rt.Fatalf("%d intents run in a worker of %d", running, w.r.x.Capacity())
	}
	if n := w.r.x.Counters()["intents_running"]; n != int64(running) {
		w.rt.Fatalf("%d intents run, and %d are counted", running, n)
	}
}

func (w *world) heard(f *sallyportv1.WorkerFrame) {
	switch f := f.GetFrame().(type) {
	case *sallyportv1.WorkerFrame_Attested:
		if f.Attested.GetState() == sallyportv1.AttestState_ATTEST_STATE_NOT_STARTED {
			w.denied[f.Attested.GetIntent()] = true
		}
	case *sallyportv1.WorkerFrame_Outcome:
		id, tr := f.Outcome.GetIntent(), f.Outcome.GetTransport()
		if tr == sallyportv1.Transport_TRANSPORT_NOT_SENT {
			w.denied[id] = true
		}
		if f.Outcome.GetFailure() == "forgotten" {
			if !w.acked[id] {
				w.rt.Fatalf("%s is forgotten, and was never acknowledged", id)
			}
			return
		}
		if before, ok := w.outcome[id]; ok && before != tr {
			w.rt.Fatalf("%s had the outcome %s, now %s", id, before, tr)
		}
		w.outcome[id] = tr
	}
}

package link

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func frame(name string) *sallyportv1.WorkerFrame {
	return &sallyportv1.WorkerFrame{Frame: &sallyportv1.WorkerFrame_Sent{Sent: &sallyportv1.Sent{Intent: name}}}
}

func chunk(name string, n int) *sallyportv1.WorkerFrame {
	return &sallyportv1.WorkerFrame{Frame: &sallyportv1.WorkerFrame_Chunk{Chunk: &sallyportv1.WorkerChunk{Digest: []byte(name), Data: make([]byte, n)}}}
}

func names(frames []*sallyportv1.WorkerFrame) []string {
	var out []string
	for _, f := range frames {
		if c := f.GetChunk(); c != nil {
			out = append(out, string(c.GetDigest()))
		} else {
			out = append(out, f.GetSent().GetIntent())
		}
	}
	return out
}

func next(t *testing.T, o *outbox) []string {
	t.Helper()
	frames, ok := o.next(t.Context())
	if !ok {
		t.Fatal("the outbox is closed")
	}
	return names(frames)
}

func TestCoalesce(t *testing.T) {
	o := newOutbox()
	var want []string
	for i := range batchFrames + 10 {
		want = append(want, fmt.Sprint(i))
		if !o.push(frame(want[i])) {
			t.Fatal("not queued")
		}
	}
	if got := next(t, o); !slices.Equal(got, want[:batchFrames]) {
		t.Errorf("first batch: %d frames", len(got))
	}
	if got := next(t, o); !slices.Equal(got, want[batchFrames:]) {
		t.Errorf("second batch: %q", got)
	}
	if o.count != 0 || o.bytes != 0 {
		t.Errorf("%d frames and %d bytes remain", o.count, o.bytes)
	}
}

// That a call was sent wakes control with its outcome, or by itself after a while.
func TestSentRides(t *testing.T) {
	outcome := &sallyportv1.WorkerFrame{Frame: &sallyportv1.WorkerFrame_Outcome{Outcome: &sallyportv1.Outcome{Intent: "a"}}}
	for name, c := range map[string]struct {
		then []*sallyportv1.WorkerFrame
		took time.Duration
	}{"alone": {nil, rideFor}, "with its outcome": {[]*sallyportv1.WorkerFrame{outcome}, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOutbox()
				began := time.Now()
				done := make(chan struct{})
				go func() {
					defer close(done)
					frames, _ := o.next(t.Context())
					if took := time.Since(began); len(frames) != 1+len(c.then) || took != c.took {
						t.Errorf("%d frames after %v", len(frames), took)
					}
				}()
				synctest.Wait() // the sender waits
				o.push(frame("a"))
				for _, f := range c.then {
					o.push(f)
				}
				<-done
			})
		})
	}
}

// A large answer delays no small one, and two large ones share.
func TestLanesTakeTurns(t *testing.T) {
	o := newOutbox()
	const big = 400 << 10
	o.pushLane(chunk("a1", big), chunk("a2", big), chunk("a3", big), frame("a-outcome"))
	o.pushLane(chunk("b1", big), frame("b-outcome"))
	o.push(frame("x"))
	var got []string
	for range 3 {
		got = append(got, next(t, o)...)
		o.push(frame("y"))
	}
	want := []string{"x", "a1", "b1", "y", "a2", "b-outcome", "a3", "a-outcome", "y"}
	if !slices.Equal(got, want) {
		t.Errorf("order %q, want %q", got, want)
	}
}

func TestOutboxBounds(t *testing.T) {
	o := newOutbox()
	for i := 0; o.push(chunk("x", 1<<20)); i++ {
		if i > 300 {
			t.Fatal("no bound of bytes")
		}
	}
	if _, ok := o.next(t.Context()); ok {
		t.Error("a full outbox goes on")
	}
	o = newOutbox()
	for i := 0; o.push(frame("x")); i++ {
		if i > outboxFrames {
			t.Fatal("no bound of frames")
		}
	}
	if o.push(frame("x")) || o.pushLane(frame("x")) {
		t.Error("a closed outbox takes frames")
	}
	o = newOutbox()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok := o.next(ctx); ok {
		t.Error("next outlives its context")
	}
	// One frame over a message's size goes alone.
	o.push(chunk("huge", 2*batchBytes), frame("x"))
	if got := next(t, o); !slices.Equal(got, []string{"huge"}) {
		t.Errorf("batch %q", got)
	}
}

func TestChunks(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789"), 60_000)
	key := sha256.Sum256(body)
	var c chunks
	at := 0
	for part := range slices.Chunk(body, chunkSize) {
		if err := c.add(key[:], int64(at), part); err != nil {
			t.Fatal(err)
		}
		at += len(part)
	}
	got, err := c.take(key)
	if err != nil || !bytes.Equal(got, body) || c.held != 0 {
		t.Fatalf("%d bytes, %v, %d held", len(got), err, c.held)
	}
	if again, err := c.take(key); again != nil || err != nil {
		t.Errorf("taken twice: %d bytes, %v", len(again), err)
	}
	for name, add := range map[string]func(c *chunks) error{
		"no digest":  func(c *chunks) error { return c.add(nil, 0, []byte("x")) },
		"no data":    func(c *chunks) error { return c.add(key[:], 0, nil) },
		"long":       func(c *chunks) error { return c.add(key[:], 0, make([]byte, chunkSize+1)) },
		"late start": func(c *chunks) error { return c.add(key[:], 1, []byte("x")) },
		"gap": func(c *chunks) error {
			_ = c.add(key[:], 0, []byte("x"))
			return c.add(key[:], 2, []byte("x"))
		},
		"overlap": func(c *chunks) error {
			_ = c.add(key[:], 0, []byte("xx"))
			return c.add(key[:], 1, []byte("x"))
		},
	} {
		if err := add(&chunks{}); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	wrong := chunks{}
	if err := wrong.add(key[:], 0, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := wrong.take(key); !errs.Is(err, errs.Invalid) {
		t.Errorf("another body: %v", err)
	}
	many := chunks{}
	for i := range maxBodies + 1 {
		k := sha256.Sum256([]byte{byte(i)})
		err := many.add(k[:], 0, []byte("x"))
		if (i < maxBodies) != (err == nil) {
			t.Errorf("body %d: %v", i, err)
		}
	}
	long := chunks{}
	for i := 0; ; i++ {
		err := long.add(key[:], int64(i)*chunkSize, make([]byte, chunkSize))
		if err != nil {
			if !errs.Is(err, errs.Oversize) || i != maxChunked/chunkSize {
				t.Errorf("chunk %d: %v", i, err)
			}
			break
		}
	}
}

func TestHighWater(t *testing.T) {
	var h HighWater
	see := func(incarnation string, counter int64) {
		h.See(&sallyportv1.HighWater{Incarnation: incarnation, Counter: counter})
	}
	if h.Seen() != nil {
		t.Error("something was seen")
	}
	for _, c := range []struct {
		incarnation string
		counter     int64
		want        int64
	}{{"a", 5, 5}, {"a", 4, 5}, {"a", 6, 6}, {"", 99, 6}, {"b", 1, 1}, {"b", 0, 1}} {
		see(c.incarnation, c.counter)
		if got := h.Seen().GetCounter(); got != c.want {
			t.Errorf("after %s %d: %d", c.incarnation, c.counter, got)
		}
	}
}

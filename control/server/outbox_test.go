package server

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// waiting is a Link's sender: it takes the next message and says when it came.
func waiting(t *testing.T, o *outbox[string]) func() ([]string, time.Duration) {
	began := time.Now()
	var got []string
	var took time.Duration
	done := make(chan struct{})
	go func() {
		defer close(done)
		got, _ = o.next(t.Context())
		took = time.Since(began)
	}()
	synctest.Wait() // it waits
	return func() ([]string, time.Duration) {
		<-done
		return got, took
	}
}

// A frame that nobody waits for wakes the peer with the next one, in order, or by itself after a while.
func TestRide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutbox[string]()
		message := waiting(t, o)
		o.ride(1, "journaled")
		if got, took := message(); !slices.Equal(got, []string{"journaled"}) || took != rideFor {
			t.Errorf("alone: %q after %v", got, took)
		}
		message = waiting(t, o)
		o.ride(1, "journaled")
		o.ride(1, "ack")
		o.push(1, "result")
		if got, took := message(); !slices.Equal(got, []string{"journaled", "ack", "result"}) || took != 0 {
			t.Errorf("with another: %q after %v", got, took)
		}
		message = waiting(t, o)
		<-time.After(2 * rideFor) // the bubble's time: the timer of the frames that left finds nothing, and wakes nobody
		o.ride(1, "late")
		if got, took := message(); !slices.Equal(got, []string{"late"}) || took != 3*rideFor {
			t.Errorf("after an empty timer: %q after %v", got, took)
		}
		o.close()
		if o.ride(1, "none") {
			t.Error("a closed outbox takes frames")
		}
	})
}

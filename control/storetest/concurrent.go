package storetest

import (
	"sync"
	"testing"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
)

const racers = 16

// race runs f at once in many goroutines and counts what they return.
func race[R comparable](f func(i int) (R, error)) (map[R]int, error) {
	var mu sync.Mutex
	var first error
	counts := map[R]int{}
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range racers {
		wg.Go(func() {
			<-start
			r, err := f(i)
			mu.Lock()
			defer mu.Unlock()
			counts[r]++
			if err != nil {
				first = err
			}
		})
	}
	close(start)
	wg.Wait()
	return counts, first
}

func testConcurrentCounters(t *testing.T, f *fixture) {
	var barriers []*call.Barrier
	for i := range racers {
		// Five questions a session: the others' come from other sessions.
		if i%5 == 0 {
			f = newSessionOf(f)
		}
		c, q := f.approved()
		b := f.barrier(c, approvalOf(q))
		b.Guard.Takes = []call.Take{{Key: "shared", Calls: 3, ExpectUsed: -1}}
		barriers = append(barriers, b)
	}
	got, err := race(func(i int) (call.Result, error) { return f.Call.Commit(t.Context(), barriers[i]) })
	f.no(err)
	want(t, "commits", got[call.Done], 3)
	want(t, "refusals", got[call.Limited], racers-3)
	used, err := f.Call.Usage(t.Context(), []call.Take{{Key: "shared"}})
	f.no(err)
	want(t, "counter", used[0].Calls, int64(3))
}

func testConcurrentDecisions(t *testing.T, f *fixture) {
	_, q := f.admit(control.Write, journal.Asking)
	got, err := race(func(i int) (inbox.Outcome, error) {
		v := control.Approve
		if i%2 == 0 {
			v = control.Refuse
		}
		d, err := f.Inbox.Decide(t.Context(), decision(q, v))
		return d.Outcome, err
	})
	f.no(err)
	want(t, "closes", got[inbox.Closes], 1)
	want(t, "too late", got[inbox.Too], racers-1)
}

func testConcurrentCommit(t *testing.T, f *fixture) {
	c, q := f.approved()
	got, err := race(func(int) (call.Result, error) { return f.Call.Commit(t.Context(), f.barrier(c, approvalOf(q))) })
	f.no(err)
	want(t, "commits", got[call.Done], 1)
	want(t, "fenced", got[call.Fenced], racers-1)
}

package relay_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"sallyport.dev/relay"
)

func TestAllowance(t *testing.T) {
	now := time.Unix(1, 0)
	a := relay.NewAllowance(2, 10*time.Second)
	take := func(after time.Duration, n, missed int64, ok bool) {
		t.Helper()
		now = now.Add(after)
		if m, got := a.Take(now, n); m != missed || got != ok {
			t.Errorf("%v: %d %t, want %d %t", now.Sub(time.Unix(1, 0)), m, got, missed, ok)
		}
	}
	take(0, 0, 0, true)
	take(0, 3, 3, true)
	take(0, 0, 0, false)
	take(9*time.Second, 4, 0, false)
	take(time.Second, 0, 6, true) // 1 and 1 + 4
	take(time.Second, 0, 0, false)
	take(9*time.Second, 0, 1, true) // the time of the last one counts on
	take(time.Hour, 0, 0, true)     // no more than the burst comes together
	take(0, 0, 0, true)
	take(0, 0, 0, false)
}

// However it is asked: never more than the burst and one for each time that passed, and nothing is forgotten.
func TestAllowanceBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		burst := rapid.IntRange(1, 5).Draw(t, "burst")
		a := relay.NewAllowance(burst, time.Second)
		start := time.Unix(1, 0)
		now := start
		var asked, told, missed int64
		for range rapid.IntRange(1, 60).Draw(t, "n") {
			now = now.Add(time.Duration(rapid.IntRange(0, 1500).Draw(t, "ms")) * time.Millisecond)
			asked++
			if m, ok := a.Take(now, 0); ok {
				told++
				missed += m
			}
			if most := int64(burst) + int64(now.Sub(start)/time.Second); told > most {
				t.Fatalf("%d were told within %v, at most %d may be", told, now.Sub(start), most)
			}
			if told+missed > asked {
				t.Fatalf("%d told and %d missed of %d", told, missed, asked)
			}
		}
	})
}

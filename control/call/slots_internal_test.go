package call

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func newLive(session string, n int) *live {
	return &live{id: fmt.Sprint(n), session: session, box: newMailbox()}
}

func (l *live) told() (tickets []int64) {
	for m, ok := l.box.take(); ok; m, ok = l.box.take() {
		tickets = append(tickets, m.(toldSlot).ticket)
	}
	return tickets
}

// A session that floods a connection leaves a quarter of it, and each turn, to the others.
func TestSlotsAreShared(t *testing.T) {
	var s slots
	taken := 0
	for i := range 20 {
		if s.try("c", 16, newLive("hog", i)) {
			taken++
		}
	}
	if taken != 12 {
		t.Fatalf("one session took %d of 16", taken)
	}
	if !s.try("c", 16, newLive("other", 0)) {
		t.Fatal("nothing is left for another session")
	}
	var hogs, others []*live
	for i := range 8 {
		hogs = append(hogs, newLive("hog", i))
		s.line("c", 16, hogs[i])
	}
	for i := range 8 {
		others = append(others, newLive("other", i))
		s.line("c", 16, others[i])
	}
	served := func(all []*live) (n int) {
		for _, l := range all {
			n += len(l.told())
		}
		return n
	}
	if a, b := served(hogs), served(others); a != 0 || b != 3 {
		t.Fatalf("at once: %d and %d", a, b)
	}
	for range 4 {
		s.release("c", "hog")
	}
	if a, b := served(hogs), served(others); a != 2 || b != 2 {
		t.Fatalf("four more: %d and %d", a, b)
	}
}

// Whatever comes and goes in whatever order: no more slots are out than there are, nobody is told twice, and whoever waits is served when it can be.
func TestSlotsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s slots
		limit := rapid.IntRange(1, 6).Draw(t, "limit")
		type waiting struct {
			l      *live
			ticket int64
		}
		var held []*live
		var line []waiting
		collect := func() {
			var rest []waiting
			for _, w := range line {
				switch told := w.l.told(); {
				case len(told) == 0:
					rest = append(rest, w)
				case len(told) > 1 || told[0] != w.ticket:
					t.Fatalf("told %v of ticket %d", told, w.ticket)
				default:
					held = append(held, w.l)
				}
			}
			line = rest
		}
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				l := newLive(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "session"), i)
				if s.try("c", limit, l) {
					held = append(held, l)
				} else {
					line = append(line, waiting{l, s.line("c", limit, l)})
				}
			case 2:
				if len(held) > 0 {
					s.release("c", held[0].session)
					held = held[1:]
				}
			case 3:
				if len(line) > 0 {
					w := line[0]
					if s.leave("c", w.l, w.ticket) {
						line = line[1:]
					}
				}
			}
			collect()
			if len(held) > limit {
				t.Fatalf("%d of %d are out", len(held), limit)
			}
			of := map[string]int{}
			for _, l := range held {
				of[l.session]++
			}
			share := max(1, limit-limit/4)
			for _, w := range line {
				if len(held) < limit && of[w.l.session] < share {
					t.Fatalf("a slot is free and session %s waits", w.l.session)
				}
			}
		}
	})
}

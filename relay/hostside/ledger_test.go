package hostside

import (
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"sallyport.dev/relay"
)

// A ledger against the plainest model: what each id means, and how many are in each phase.
func TestLedgerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewLedger()
		type entry struct {
			digest relay.Digest
			phase  phase
		}
		model := make(map[string]entry)
		count := func(p phase) (n int) {
			for _, e := range model {
				if e.phase == p {
					n++
				}
			}
			return n
		}
		id := rapid.Map(rapid.IntRange(0, 80), strconv.Itoa)
		digest := rapid.Map(rapid.ByteRange(0, 1), func(b byte) relay.Digest { return relay.Digest{b} })
		t.Repeat(map[string]func(*rapid.T){
			"admit": func(t *rapid.T) {
				id, digest := id.Draw(t, "id"), digest.Draw(t, "digest")
				known, ok := model[id]
				want := Fresh
				switch {
				case ok && known.digest != digest:
					want = Conflicting
				case ok && known.phase == flying:
					want = Attached
				case ok && known.phase == unread:
					want = Answered
				case count(flying) >= relay.MaxInFlight:
					want = TooManyFlying
				case ok:
					want = Finished
				}
				if got := l.Admit(id, digest); got != want {
					t.Fatalf("%v, want %v", got, want)
				}
				if want == Fresh || want == Finished {
					model[id] = entry{digest, flying}
				}
			},
			"publish": func(t *rapid.T) {
				id := id.Draw(t, "id")
				e, ok := model[id]
				ok = ok && e.phase == flying
				if got := l.Published(id); got != ok {
					t.Fatalf("%v, want %v", got, ok)
				}
				if ok {
					model[id] = entry{e.digest, unread}
				}
			},
			"acknowledge": func(t *rapid.T) {
				id := id.Draw(t, "id")
				e, ok := model[id]
				ok = ok && e.phase == unread
				if got := l.Acknowledged(id); got != ok {
					t.Fatalf("%v, want %v", got, ok)
				}
				if ok {
					model[id] = entry{e.digest, finished}
				}
			},
			"refuse": func(t *rapid.T) {
				id, digest := id.Draw(t, "id"), digest.Draw(t, "digest")
				e, ok := model[id]
				may := !ok || e.phase == finished
				if got := l.MayRefuse(id); got != may {
					t.Fatalf("%v, want %v", got, may)
				}
				if may {
					l.Refused(id, digest)
					if ok {
						digest = e.digest
					}
					model[id] = entry{digest, unread}
				}
			},
			"": func(t *rapid.T) {
				if l.Flying() != count(flying) || l.Unread() != count(unread) {
					t.Fatalf("%d in flight, %d unread; want %d and %d", l.Flying(), l.Unread(), count(flying), count(unread))
				}
			},
		})
	})
}

func TestLedgerBounds(t *testing.T) {
	l := NewLedger()
	for i := range relay.MaxUnacknowledged {
		id := strconv.Itoa(i)
		if v := l.Admit(id, relay.Digest{}); v != Fresh {
			t.Fatal(v)
		}
		l.Published(id)
	}
	if v := l.Admit("one more", relay.Digest{}); v != TooManyUnread {
		t.Errorf("got %v", v)
	}
	for i := relay.MaxUnacknowledged; i < 2*relay.MaxUnacknowledged; i++ {
		if !l.MayRefuse(strconv.Itoa(i)) {
			t.Fatalf("refusal %d finds no room", i)
		}
		l.Refused(strconv.Itoa(i), relay.Digest{})
	}
	if l.MayRefuse("one more") {
		t.Error("refusals are not bounded")
	}
}

// What is finished is remembered, up to a bound; the oldest is forgotten first.
func TestLedgerForgetsTheOldest(t *testing.T) {
	l := NewLedger()
	for i := range tombstones + 10 {
		id := strconv.Itoa(i)
		l.Admit(id, relay.Digest{1})
		l.Published(id)
		l.Acknowledged(id)
	}
	if len(l.lines) != tombstones {
		t.Errorf("remembers %d", len(l.lines))
	}
	if v := l.Admit("9", relay.Digest{2}); v != Fresh {
		t.Errorf("the oldest: %v", v)
	}
	if v := l.Admit("10", relay.Digest{2}); v != Conflicting {
		t.Errorf("the oldest that is remembered: %v", v)
	}
	if v := l.Admit(strconv.Itoa(tombstones+9), relay.Digest{1}); v != Finished {
		t.Errorf("the newest: %v", v)
	}
}

func TestLedgerRecovers(t *testing.T) {
	l := NewLedger()
	l.Recover("a", relay.Digest{1})
	l.RecoverPublished("b")
	if v := l.Admit("a", relay.Digest{1}); v != Attached {
		t.Errorf("in flight: %v", v)
	}
	if v := l.Admit("a", relay.Digest{2}); v != Conflicting {
		t.Errorf("in flight, other bytes: %v", v)
	}
	if v := l.Admit("b", relay.Digest{2}); v != Answered {
		t.Errorf("published, its digest not known: %v", v)
	}
	if !l.Acknowledged("b") || l.Unread() != 0 {
		t.Error("a recovered result cannot be acknowledged")
	}
}

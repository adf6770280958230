package executor

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sallyport.dev/intent"
	"sallyport.dev/worker/upstream"
)

// The table's own rules: what must hold of every row, so that a new row cannot break at-most-once by accident.
func TestTableRules(t *testing.T) {
	reach := map[state]map[state]bool{}
	for s := absent; s < states; s++ {
		reach[s] = map[state]bool{}
		todo := []state{s}
		for len(todo) > 0 {
			from := todo[0]
			todo = todo[1:]
			for _, st := range table[from] {
				if !reach[s][st.to] {
					reach[s][st.to] = true
					todo = append(todo, st.to)
				}
			}
		}
	}
	for s := absent; s < states; s++ {
		for e := range events {
			st, ok := next(s, e)
			if !ok {
				continue
			}
			name := fmt.Sprintf("%s, %s", s, e)
			has := func(a action) bool { return slices.Contains(st.do, a) }
			if has(release) != (st.to == sending && s != sending) {
				t.Errorf("%s: release and the way into sending are one", name)
			}
			if has(release) && s != ready && s != armed {
				t.Errorf("%s: released without being prepared and allowed", name)
			}
			if has(begin) && s != absent {
				t.Errorf("%s: begun twice", name)
			}
			if has(attestNotStarted) && st.to != closed {
				t.Errorf("%s: attested not started, and could still start", name)
			}
			if has(drop) && (s == sending || st.to != closed && st.to != finished) {
				t.Errorf("%s: dropped, and not over", name)
			}
			if has(abort) && s != sending {
				t.Errorf("%s: aborts what was not released", name)
			}
			if has(announce) && st.to != ready || has(report) && st.to != finished {
				t.Errorf("%s: says what is not so", name)
			}
		}
	}
	for _, s := range []state{sending, finished, closed, forgotten} {
		for _, back := range []state{absent, preparing, armed, ready} {
			if reach[s][back] {
				t.Errorf("from %s there is a way back to %s", s, back)
			}
		}
		if s != sending && reach[s][sending] {
			t.Errorf("from %s there is a way to sending", s)
		}
	}
	for _, s := range []state{preparing, armed, ready, sending} {
		if !reach[s][finished] {
			t.Errorf("from %s no outcome can come", s)
		}
	}
	if reach[closed][finished] || reach[closed][forgotten] || reach[forgotten][closed] {
		t.Error("what ended changes its end")
	}
}

// Each state and each event that control can cause, at the real executor: the state after it, and the frames.
func TestEveryStateAndEvent(t *testing.T) {
	type want struct {
		to     state
		frames []string
	}
	same := func(s state, frames ...string) want { return want{s, frames} }
	notStarted := want{closed, []string{"attested not_started"}}
	lateOutcome := want{finished, []string{"outcome not_sent late"}}
	answered := []string{"outcome answered"}
	wants := map[state]map[event]want{
		absent: {
			onIntent: same(ready, "ready"), onIntentGo: want{finished, []string{"sent", "outcome answered"}},
			onGo: notStarted, onAttest: notStarted, onClose: notStarted, onAck: same(absent), onLate: same(absent),
		},
		preparing: {
			onIntent: same(preparing), onIntentGo: same(preparing), onGo: same(armed), onAttest: notStarted, onClose: notStarted, onAck: same(preparing), onLate: lateOutcome,
		},
		armed: {
			onIntent: same(armed), onIntentGo: same(armed), onGo: same(armed), onAttest: same(armed, "attested running"), onClose: notStarted, onAck: same(armed), onLate: lateOutcome,
		},
		ready: {
			onIntent: same(ready, "ready"), onIntentGo: same(ready, "ready"), onGo: want{finished, []string{"sent", "outcome answered"}},
			onAttest: notStarted, onClose: notStarted, onAck: same(ready), onLate: lateOutcome,
		},
		sending: {
			onIntent: same(sending), onIntentGo: same(sending), onGo: same(sending), onAttest: same(sending, "attested running"), onClose: same(sending, "attested running"),
			onAck: same(sending), onLate: same(sending),
		},
		finished: {
			onIntent: want{finished, answered}, onIntentGo: want{finished, answered}, onGo: want{finished, answered},
			onAttest: want{finished, []string{"attested finished", "outcome answered"}}, onClose: want{finished, []string{"attested finished", "outcome answered"}},
			onAck: same(forgotten), onLate: same(finished),
		},
		closed: {
			onIntent: notStarted, onIntentGo: notStarted, onGo: notStarted, onAttest: notStarted, onClose: notStarted, onAck: same(closed), onLate: same(closed),
		},
		forgotten: {
			onIntent: same(forgotten), onIntentGo: same(forgotten), onGo: same(forgotten), onAck: same(forgotten), onLate: same(forgotten),
			onAttest: want{forgotten, []string{"attested finished", "outcome sent forgotten"}}, onClose: want{forgotten, []string{"attested finished", "outcome sent forgotten"}},
		},
	}
	for s := absent; s < states; s++ {
		for _, e := range []event{onIntent, onIntentGo, onGo, onLate, onAttest, onClose, onAck} {
			w, ok := wants[s][e]
			if !ok {
				t.Fatalf("no expectation for %s, %s", s, e)
			}
			t.Run(fmt.Sprintf("%s/%s", s, e), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t, 8)
					in := r.intent(intent.Write)
					letGo := r.bring(in, s)
					defer letGo()
					r.link.take()
					if s == absent && e <= onIntentGo {
						r.up.holdOpen, r.up.answer = nil, nil
					}
					r.cause(in, e)
					synctest.Wait()
					if got := r.stateOf(in.ID); got != w.to {
						t.Errorf("state %s, want %s", got, w.to)
					}
					if got := r.link.take(); !slices.Equal(got, w.frames) {
						t.Errorf("frames %q, want %q", got, w.frames)
					}
					if n := r.up.count(r.up.sends, in.ID); n > 1 {
						t.Errorf("sent %d times", n)
					}
				})
			})
		}
	}
}

// bring brings an intent into a state, and returns what lets everything held go on.
func (r *rig) bring(in intent.Intent, s state) (letGo func()) {
	open, answer := make(chan struct{}), make(chan struct{})
	r.up.holdOpen = func(ctx context.Context, _ string) {
		select {
		case <-open:
		case <-ctx.Done():
		}
	}
	r.up.answer = func(_ context.Context, id string) upstream.Outcome {
		<-answer
		return good(id)
	}
	letGo = func() {
		for _, c := range []chan struct{}{open, answer} {
			select {
			case <-c:
			default:
				close(c)
			}
		}
		synctest.Wait()
	}
	switch s {
	case absent:
	case preparing:
		r.x.Intent(r.link, r.job(in, false))
	case armed:
		r.x.Intent(r.link, r.job(in, true))
	case closed:
		r.x.Attest(r.link, in.ID)
	default:
		r.x.Intent(r.link, r.job(in, false))
		close(open)
		synctest.Wait()
		if s == ready {
			close(answer)
			break
		}
		r.x.Go(r.link, in.ID)
		if s == sending {
			break
		}
		close(answer)
		synctest.Wait()
		if s == forgotten {
			r.x.Ack(in.ID)
		}
	}
	synctest.Wait()
	if got := r.stateOf(in.ID); got != s {
		r.t.Fatalf("brought to %s, wanted %s", got, s)
	}
	return letGo
}

// cause does what control, or time, does.
func (r *rig) cause(in intent.Intent, e event) {
	switch e {
	case onIntent:
		r.x.Intent(r.link, r.job(in, false))
	case onIntentGo:
		r.x.Intent(r.link, r.job(in, true))
	case onGo:
		r.x.Go(r.link, in.ID)
	case onLate:
		<-time.After(31 * time.Second)
	case onAttest:
		r.x.Attest(r.link, in.ID)
	case onClose:
		r.x.CloseIntent(r.link, in.ID, "test")
	case onAck:
		r.x.Ack(in.ID)
	}
}

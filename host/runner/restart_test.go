package runner

import (
	"errors"
	"testing"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/host/link/linktest"
	"sallyport.dev/relay"
)

var errAway = errors.New("away")

// away cuts the link and waits until the host knows.
func (x *rig) away() {
	x.control.Break(errAway)
	x.eventually("linked", func() bool { return !x.runner.Linked() })
}

func TestReconnect(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	journaled, sent := b.call(), b.call()
	k1, k2 := x.arrived(b.ID, journaled.ID()), x.arrived(b.ID, sent.ID())
	k1.Journal()
	x.eventually("journaled", func() bool { return x.runner.held.Load() == int64(len(mustRecord(t, k2))) })
	x.away()
	queued := b.call()
	x.eventually("claimed", func() bool { return len(b.names("relay/claimed")) == 3 })
	if err := sent.Cancel(relay.WhyClosed); err != nil {
		t.Fatal(err)
	}
	b.inside("relay/out/new/"+relay.CancelName(sent.ID()), false)
	x.control.Mend()
	k3 := x.arrived(b.ID, queued.ID())
	x.await("not said again", func(v *linktest.View) bool {
		return v.State(k1).Attached == 1 && v.State(k2).Sent == 2 && len(v.State(k2).Cancels) == 1
	})
	if k1.State().Sent != 1 || k3.State().Sent != 1 {
		t.Errorf("sent %d and %d times", k1.State().Sent, k3.State().Sent)
	}
	for p, k := range map[*relay.Pending]*linktest.Call{journaled: k1, sent: k2, queued: k3} {
		k.Answer("answered", answer("done"))
		b.text(p)
	}
}

func mustRecord(t *testing.T, k *linktest.Call) []byte {
	t.Helper()
	record, err := relay.AppendCall(nil, &k.Record)
	if err != nil {
		t.Fatal(err)
	}
	return record
}

// The answer came while the host was away, or was on its way when the stream was lost.
func TestResultsOverALostLink(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	for _, journaled := range []bool{false, true} {
		p := b.call()
		k := x.arrived(b.ID, p.ID())
		if journaled {
			k.Journal()
			x.eventually("journaled", func() bool { return x.runner.held.Load() == 0 })
		}
		x.away()
		if k.Answer("answered", answer("meanwhile")) {
			t.Error("there is a stream")
		}
		x.control.Mend()
		if got := b.text(p); got != answer("meanwhile") {
			t.Errorf("got %s", got)
		}
	}
}

// Acks that were sent on a stream that was lost are sent again: one more does nothing.
func TestAcksOverALostLink(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	p := b.call()
	k := x.arrived(b.ID, p.ID())
	k.Answer("answered", answer("done"))
	b.text(p)
	if err := b.guest.Ack(p.ID()); err != nil {
		t.Fatal(err)
	}
	x.await("no ack", func(v *linktest.View) bool { return v.State(k).Acked == 1 })
	q := b.call()
	l := x.arrived(b.ID, q.ID())
	l.Answer("answered", answer("done"))
	b.text(q)
	x.away()
	if err := b.guest.Ack(q.ID()); err != nil {
		t.Fatal(err)
	}
	b.inside("in/results/"+relay.ResultName(q.ID()), false)
	x.control.Mend()
	x.await("no ack", func(v *linktest.View) bool { return v.State(k).Acked == 2 && v.State(l).Acked == 1 })
}

func TestManyBrokenLinks(t *testing.T) {
	x := newRig(t)
	x.echo()
	b := x.sandbox()
	for range 40 {
		var all []*relay.Pending
		for range 8 {
			all = append(all, b.call())
		}
		x.control.Break(nil)
		for _, p := range all {
			if got := b.text(p); got != answer("done") {
				t.Fatalf("got %s", got)
			}
			if err := b.guest.Ack(p.ID()); err != nil {
				t.Fatal(err)
			}
		}
	}
	x.await("", func(v *linktest.View) bool {
		if v.Calls() != 40*8 {
			t.Errorf("control knows %d calls", v.Calls())
		}
		return true
	})
}

// The host's process ends and another takes its place, while the sandbox lives.
func TestRestart(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	fresh, journaled, answered, read := b.call(), b.call(), b.call(), b.call()
	for _, p := range []*relay.Pending{fresh, journaled, answered, read} {
		x.arrived(b.ID, p.ID())
	}
	kFresh, kJournaled, kAnswered, kRead := x.arrived(b.ID, fresh.ID()), x.arrived(b.ID, journaled.ID()), x.arrived(b.ID, answered.ID()), x.arrived(b.ID, read.ID())
	kJournaled.Journal()
	kAnswered.Answer("answered", answer("one"))
	kRead.Answer("answered", answer("two"))
	b.text(answered)
	b.text(read)
	x.eventually("finished", func() bool { return len(b.names("relay/claimed")) == 2 && x.runner.held.Load() > 0 })
	x.eventually("journaled", func() bool { return x.runner.held.Load() == int64(len(mustRecord(t, kFresh))) })
	x.stop()
	// While nobody serves: a result is read, a call is made.
	if err := b.guest.Ack(read.ID()); err != nil {
		t.Fatal(err)
	}
	meanwhile := b.call()
	x.control.Forget()
	x.begin(nil)
	if err := x.runner.Add(b.Session); err != nil {
		t.Fatal(err)
	}
	kMeanwhile := x.arrived(b.ID, meanwhile.ID())
	x.await("not taken up", func(v *linktest.View) bool {
		return v.State(kFresh).Sent == 2 && v.State(kJournaled).Attached == 1 && v.State(kRead).Acked == 1
	})
	if kJournaled.State().Sent != 1 || kMeanwhile.State().Sent != 1 || kAnswered.State().Sent != 1 || kAnswered.State().Attached != 0 {
		t.Error("sent again")
	}
	for p, k := range map[*relay.Pending]*linktest.Call{fresh: kFresh, journaled: kJournaled, meanwhile: kMeanwhile} {
		k.Answer("answered", answer("after"))
		if got := b.text(p); got != answer("after") {
			t.Errorf("got %s", got)
		}
	}
	if err := b.guest.Ack(answered.ID()); err != nil {
		t.Fatal(err)
	}
	x.await("no ack", func(v *linktest.View) bool { return v.State(kAnswered).Acked == 1 })
	b.inside("in/results/"+relay.ResultName(answered.ID()), false)
	x.eventually("claimed", func() bool { return len(b.names("relay/claimed")) == 0 })
}

// A result that the host wrote itself is none of control's business, also after a restart.
func TestRestartKeepsLocalResultsLocal(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	id := relay.NewID()
	b.publish(relay.CallName(id), []byte(`{}`))
	b.result(id)
	x.stop()
	x.begin(nil)
	if err := x.runner.Add(b.Session); err != nil {
		t.Fatal(err)
	}
	if err := b.guest.Ack(id); err != nil {
		t.Fatal(err)
	}
	b.inside("in/results/"+relay.ResultName(id), false)
	p := b.call()
	x.arrived(b.ID, p.ID()) // an ack would have been sent before; control would have refused it
}

func TestHello(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	hello := (*peer)(x.runner).Hello()
	if len(hello.GetSessions()) != 1 || hello.GetSessions()[0].GetSession() != b.ID || hello.GetSessions()[0].GetEpoch() != 1 {
		t.Errorf("got %v", hello)
	}
	r := New(Config{HighWater: func() *sallyportv1.HighWater { return &sallyportv1.HighWater{Counter: 7} }})
	if hello := (*peer)(r).Hello(); hello.GetHighWater().GetCounter() != 7 {
		t.Errorf("got %v", hello)
	}
}

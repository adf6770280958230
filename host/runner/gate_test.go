package runner

import (
	"context"
	"errors"
	"testing"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/host/link/linktest"
	"sallyport.dev/relay"
)

// shut is a sandbox whose gate is not open.
func (x *rig) shut() *sandbox {
	x.t.Helper()
	s := x.folder()
	s.Open = false
	if err := x.runner.Add(s); err != nil {
		x.t.Fatal(err)
	}
	b := &sandbox{rig: x, Session: s, guest: relay.NewGuest(s.Folder.In(), s.Folder.Out())}
	x.t.Cleanup(func() { b.guest.Close() })
	return b
}

func (b *sandbox) gateRecord() *relay.Gate {
	return &relay.Gate{Session: b.ID, Epoch: 1, Build: "b", NetNS: "4:1", Probe: []byte(`{"tcp":"unreachable"}`)}
}

func answerGate(b *sandbox, open bool, reason string) *sallyportv1.ControlFrame {
	return &sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Gate{Gate: &sallyportv1.GateAnswer{Session: b.ID, Epoch: 1, Open: open, Reason: reason}}}
}

func TestGate(t *testing.T) {
	x := newRig(t)
	b := x.shut()
	early := b.call() // nothing of a sandbox runs before its gate is open; what it publishes waits
	if err := b.guest.Gate(b.gateRecord()); err != nil {
		t.Fatal(err)
	}
	record, raw, err := x.runner.Gate(x.context(), b.ID)
	if err != nil || record.Build != "b" || string(record.Probe) != `{"tcp":"unreachable"}` || len(raw) == 0 {
		t.Fatalf("%+v, %v", record, err)
	}
	// A second record changes nothing.
	second := b.gateRecord()
	second.Build = "another"
	b.inside("relay/out/new/gate.json", false)
	if err := b.guest.Gate(second); err != nil {
		t.Fatal(err)
	}
	b.inside("relay/out/new/gate.json", false)
	if again, _, err := x.runner.Gate(x.context(), b.ID); err != nil || again.Build != "b" {
		t.Errorf("%+v, %v", again, err)
	}
	x.control.Push(answerGate(b, true, ""), &sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_HighWater{}}) // before it was asked: ignored
	for f := range x.frames {
		if f.GetWelcome() == nil {
			break // the answer was handled before it
		}
	}
	asked := make(chan error, 1)
	go func() { asked <- x.runner.AskGate(context.Background(), b.ID, "parent", "digest", raw) }()
	x.await("not asked", func(v *linktest.View) bool { return v.Gate(b.ID) != nil })
	x.away() // the question is asked again on the next stream
	x.control.Mend()
	x.await("not linked", func(v *linktest.View) bool { return v.Linked() && v.Streams() == 2 })
	x.control.Push(answerGate(b, true, ""))
	if err := <-asked; err != nil {
		t.Error(err)
	}
	x.await("", func(v *linktest.View) bool {
		if g := v.Gate(b.ID); g.GetParent() != "parent" || g.GetPolicyDigest() != "digest" || string(g.GetProbe()) != string(raw) {
			t.Errorf("asked %v", g)
		}
		if v.Calls() != 0 {
			t.Error("a call of a shut sandbox was taken")
		}
		return true
	})
	if err := x.runner.AskGate(x.context(), b.ID, "parent", "digest", raw); !errs.Is(err, errs.Conflict) {
		t.Errorf("asked twice: %v", err)
	}
	if err := x.runner.Open(b.ID); err != nil {
		t.Fatal(err)
	}
	k := x.arrived(b.ID, early.ID())
	k.Answer("answered", answer("done"))
	b.text(early)
	if err := b.guest.Gate(second); err != nil { // after the gate: ignored, and gone
		t.Fatal(err)
	}
	b.inside("relay/out/new/gate.json", false)
}

func TestGateStaysShut(t *testing.T) {
	x := newRig(t)
	b := x.shut()
	asked := make(chan error, 1)
	go func() { asked <- x.runner.AskGate(context.Background(), b.ID, "parent", "digest", nil) }()
	x.await("not asked", func(v *linktest.View) bool { return v.Gate(b.ID) != nil })
	x.control.Push(answerGate(b, false, "the policy changed"))
	if err := <-asked; !errs.Is(err, errs.NotAllowed) || errs.Message(err) != "the gate stays shut: the policy changed" {
		t.Errorf("got %v", err)
	}
}

// A record of another session or another start of this one is none.
func TestGateRecordsThatAreNotUsed(t *testing.T) {
	x := newRig(t)
	b := x.shut()
	for _, change := range []func(*relay.Gate){
		func(g *relay.Gate) { g.Session = relay.NewID() },
		func(g *relay.Gate) { g.Epoch = 2 },
	} {
		g := b.gateRecord()
		change(g)
		if err := b.guest.Gate(g); err != nil {
			t.Fatal(err)
		}
		b.inside("relay/out/new/gate.json", false)
	}
	b.publish(relay.GateName, []byte(`{"v":1`))
	b.inside("relay/out/new/gate.json", false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := x.runner.Gate(ctx, b.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := b.guest.Gate(b.gateRecord()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := x.runner.Gate(x.context(), b.ID); err != nil {
		t.Error(err)
	}
}

func TestGateOfASessionThatEnds(t *testing.T) {
	x := newRig(t)
	b := x.shut()
	waits := make(chan error, 2)
	go func() {
		_, _, err := x.runner.Gate(context.Background(), b.ID)
		waits <- err
	}()
	go func() { waits <- x.runner.AskGate(context.Background(), b.ID, "p", "d", nil) }()
	x.await("not asked", func(v *linktest.View) bool { return v.Gate(b.ID) != nil })
	x.runner.Remove(b.ID)
	for range 2 {
		if err := <-waits; !errs.Is(err, errs.NotFound) {
			t.Errorf("got %v", err)
		}
	}
	if _, _, err := x.runner.Gate(x.context(), b.ID); !errs.Is(err, errs.NotFound) {
		t.Errorf("got %v", err)
	}
	if err := x.runner.AskGate(x.context(), b.ID, "p", "d", nil); !errs.Is(err, errs.NotFound) {
		t.Errorf("got %v", err)
	}
	c := x.shut()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := x.runner.AskGate(ctx, c.ID, "p", "d", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

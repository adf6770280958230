package runner

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/host/link/linktest"
	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

func TestCall(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	p := b.call()
	k := x.arrived(b.ID, p.ID())
	if want := string(b.record().Arguments); string(k.Record.Arguments) != want || k.Record.Tool != "echo" || k.State().Sent != 1 {
		t.Errorf("control got %+v", k.Record)
	}
	if !k.Journal() {
		t.Fatal("no stream")
	}
	if !k.Answer("answered", answer("done")) {
		t.Fatal("no stream")
	}
	if got := b.text(p); got != answer("done") {
		t.Errorf("the guest got %s", got)
	}
	if err := b.guest.Ack(p.ID()); err != nil {
		t.Fatal(err)
	}
	x.await("no ack", func(v *linktest.View) bool { return v.State(k).Acked == 1 })
	for _, dir := range []string{"relay/claimed", "relay/out/new", "relay/out/tmp", "in/results", "in/progress", "in/tmp"} {
		if left := b.names(dir); len(left) != 0 && dir != "relay/out/tmp" {
			t.Errorf("left in %s: %v", dir, left)
		}
	}
}

func TestManySessionsAtOnce(t *testing.T) {
	x := newRig(t)
	x.echo()
	var all sync.WaitGroup
	for range 8 {
		b := x.sandbox()
		for range 8 {
			all.Go(func() {
				for range 20 {
					p, err := b.guest.Call(b.record())
					if err != nil {
						t.Error(err)
						return
					}
					r, err := p.Wait(x.context())
					if err != nil || string(r.Result) != answer("done") {
						t.Errorf("%s, %v", r.Result, err)
						return
					}
					if err := b.guest.Ack(p.ID()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	x.await("not every ack came", func(v *linktest.View) bool {
		acks := 0
		for _, f := range v.Frames() {
			if f.GetAck() != nil {
				acks++
			}
		}
		return v.Calls() == 8*8*20 && acks >= 8*8*20
	})
}

func TestJournaledRecordsAreGivenUp(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	c := b.record()
	c.Arguments = []byte(`{"a":"` + strings.Repeat("x", 100_000) + `"}`)
	p, err := b.guest.Call(c)
	if err != nil {
		t.Fatal(err)
	}
	k := x.arrived(b.ID, p.ID())
	if held := x.runner.Health().Counters["held_bytes"]; held < 100_000 {
		t.Errorf("holds %d bytes", held)
	}
	k.Journal()
	x.eventually("bytes are held", func() bool { return x.runner.held.Load() == 0 })
	names := b.names("relay/claimed")
	if len(names) != 1 || !strings.HasSuffix(names[0], "."+k.Digest.String()) {
		t.Fatalf("claimed/ has %v", names)
	}
	if info, err := os.Stat(filepath.Join(b.Folder.Root, "relay/claimed", names[0])); err != nil || info.Size() != 0 {
		t.Errorf("%d bytes, %v", info.Size(), err)
	}
	k.Answer("answered", answer("done"))
	b.text(p)
	b.inside("relay/claimed/"+names[0], false)
}

func TestCancel(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	for why, want := range map[relay.Why]sallyportv1.CancelWhy{
		relay.WhyHarness: sallyportv1.CancelWhy_CANCEL_WHY_HARNESS, relay.WhyClosed: sallyportv1.CancelWhy_CANCEL_WHY_CLOSED,
	} {
		p := b.call()
		k := x.arrived(b.ID, p.ID())
		if err := p.Cancel(why); err != nil {
			t.Fatal(err)
		}
		x.await("no cancel", func(v *linktest.View) bool { return v.State(k).Cancelled(want) })
		k.Answer("cancelled", answer("cancelled"))
		b.text(p)
	}
	// Published together, in whatever order they are listed.
	for range 50 {
		p := b.call()
		if err := p.Cancel(relay.WhyClosed); err != nil {
			t.Fatal(err)
		}
		k := x.arrived(b.ID, p.ID())
		x.await("no cancel", func(v *linktest.View) bool { return len(v.State(k).Cancels) == 1 })
		k.Answer("cancelled", answer("cancelled"))
		b.text(p)
	}
	// Of a call that never was, and of another session.
	for _, session := range []string{b.ID, relay.NewID()} {
		id := relay.NewID()
		record, err := relay.AppendCancel(nil, &relay.Cancel{Session: session, Epoch: 1, ID: id, Why: relay.WhyHarness})
		if err != nil {
			t.Fatal(err)
		}
		b.publish(relay.CancelName(id), record)
		b.inside("relay/out/new/"+relay.CancelName(id), false)
	}
}

func TestFramesOfThePast(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	p := b.call()
	k := x.arrived(b.ID, p.ID())
	record, err := relay.AppendResult(nil, &relay.Result{ID: p.ID(), Call: k.Digest, State: "answered", Result: []byte(answer("old"))})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*sallyportv1.CallResult{
		{Session: b.ID, Epoch: 2, RecordId: p.ID(), Record: record},
		{Session: relay.NewID(), Epoch: 1, RecordId: p.ID(), Record: record},
		{Session: b.ID, Epoch: 1, RecordId: "../../../x", Record: record},
		{Session: b.ID, Epoch: 1, RecordId: relay.NewID(), Record: record},
	} {
		x.control.Push(&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Result{Result: f}})
	}
	k.Answer("answered", answer("new"))
	if got := b.text(p); got != answer("new") {
		t.Errorf("got %s", got)
	}
	if late := x.runner.Health().Counters["late_results"]; late != 4 {
		t.Errorf("%d late results", late)
	}
}

func TestFramesOfOthers(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	if f := <-x.frames; f.GetWelcome() == nil {
		t.Errorf("first %v", f)
	}
	x.control.Push(&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Origins{Origins: &sallyportv1.Origins{DenyHosts: []string{"example.org"}}}})
	if f := <-x.frames; f.GetOrigins() == nil {
		t.Errorf("got %v", f)
	}
	x.control.Push(&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Session{Session: &sallyportv1.SessionChange{Session: b.ID, Epoch: 1, Change: "close"}}})
	if c := <-x.changes; c.GetSession() != b.ID {
		t.Errorf("got %v", c)
	}
	if err := x.runner.Send(&sallyportv1.HostFrame{Frame: &sallyportv1.HostFrame_Egress{Egress: &sallyportv1.EgressDecisions{}}}); err != nil {
		t.Fatal(err)
	}
	x.await("the frame did not arrive", func(v *linktest.View) bool {
		for _, f := range v.Frames() {
			if f.GetEgress() != nil {
				return true
			}
		}
		return false
	})
	x.control.Break(errors.New("away"))
	for range maxOther {
		if err := x.runner.Send(&sallyportv1.HostFrame{}); err != nil {
			break
		}
	}
	x.runner.otherMu.Lock()
	x.runner.other = nil
	x.runner.otherMu.Unlock()
}

func TestAddAndRemove(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	if err := x.runner.Add(b.Session); !errs.Is(err, errs.Conflict) {
		t.Errorf("added twice: %v", err)
	}
	if err := x.runner.Add(Session{ID: "x", Folder: b.Folder}); !errs.Is(err, errs.Invalid) {
		t.Errorf("an id that is none: %v", err)
	}
	if err := x.runner.Add(Session{ID: relay.NewID(), Folder: hostside.Folder{Root: t.TempDir()}}); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a folder that was not made: %v", err)
	}
	p := b.call()
	k := x.arrived(b.ID, p.ID())
	x.away()
	x.runner.Remove(b.ID)
	x.runner.Remove(b.ID)
	k.Answer("answered", answer("meanwhile"))
	if err := x.runner.Open(b.ID); !errs.Is(err, errs.NotFound) {
		t.Errorf("got %v", err)
	}
	// Served again, as after a restart: the call goes on.
	if err := x.runner.Add(b.Session); err != nil {
		t.Fatal(err)
	}
	x.control.Mend()
	if got := b.text(p); got != answer("meanwhile") {
		t.Errorf("got %s", got)
	}
	x.eventually("bytes are held", func() bool { return x.runner.held.Load() == 0 })
}

// A frame that a Link cannot carry is refused where it is made: sent, it would end the Link of every session.
func TestSendRefusesWhatCannotBeSent(t *testing.T) {
	x := newRig(t)
	decision := func(target string) *sallyportv1.HostFrame {
		return &sallyportv1.HostFrame{Frame: &sallyportv1.HostFrame_Egress{Egress: &sallyportv1.EgressDecisions{
			Decisions: []*sallyportv1.EgressDecision{{Target: target}},
		}}}
	}
	for target, want := range map[string]errs.Code{"GET /\xff": errs.Invalid, strings.Repeat("x", maxOtherBytes): errs.Oversize, "GET /": ""} {
		if err := x.runner.Send(decision(target)); errs.CodeOf(err) != want {
			t.Errorf("%.20q: %v, want %s", target, err, want)
		}
	}
}

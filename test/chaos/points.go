package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"sallyport.dev/control/journal"
	"sallyport.dev/test/fixture/fault"
	"sallyport.dev/test/rig"
)

// point is one place at which one part is stopped, in one way, while one approved write goes through everything.
type point struct {
	name   string
	part   string        // whose breakpoint at is
	at     []string      // breakpoints of that part, in turn
	step   step          // or a step on the wire
	hold   fault.Where   // or a place in the upstream
	victim string        // who is stopped there
	stop   time.Duration // SIGSTOP, and SIGCONT after so long; 0: SIGKILL
	then   []later       // or nothing but times: a random schedule
	lost   bool          // the worker's word, or the server's, can be lost with the victim: uncertain is the truth then
}

func (p *point) signal() string {
	if p.stop > 0 {
		return "STOP " + p.stop.String()
	}
	return "KILL"
}

// mayBeLost reports whether a write may end uncertain here. What a worker that lives can attest must be known; an upstream that dies may take a request
// along that it never read.
func (p *point) mayBeLost() bool { return p.lost || p.victim == server && p.stop == 0 }

// later is a strike so long after the one before it, or after the call began.
type later struct {
	victim string
	after  time.Duration
	stop   time.Duration
}

// schedules are n random ones: one to three parts are killed, or stopped, at any time from the call's beginning.
func schedules(seed uint64, n int) []*point {
	random := rand.New(rand.NewPCG(seed, 0))
	var all []*point
	for i := range n {
		p := &point{name: fmt.Sprintf("random %d", i)}
		for range 1 + random.IntN(3) {
			l := later{victim: everybody[2+random.IntN(len(everybody)-2)], after: time.Duration(random.IntN(300)) * time.Millisecond}
			if random.IntN(3) == 0 {
				l.stop = time.Duration(random.IntN(4000)) * time.Millisecond
			}
			// Any time may be that of the dispatch.
			p.lost = p.lost || l.victim == rig.Worker || l.victim == server
			p.then = append(p.then, l)
			p.name += fmt.Sprintf(", %s %s after %s", l.victim, map[bool]string{true: "STOP", false: "KILL"}[l.stop > 0], l.after)
		}
		all = append(all, p)
	}
	return all
}

// Times of a SIGSTOP: short is longer than a worker may take from Go to its first byte, long longer than a worker may be out of reach.
const (
	short = 3 * time.Second
	long  = 18 * time.Second
)

// place is a place in a part's own code.
type place struct {
	name string
	part string
	at   []string
	sent bool // something may have left by then
}

// places are the steps of the relay and of the dispatch, in order.
var places = []place{
	{"before publish", guest, []string{"sallyport.dev/relay.Publish"}, false},
	{"after publish", guest, []string{"sallyport.dev/relay.(*Pending).Wait"}, false},
	{"before the claim", rig.Host, []string{"sallyport.dev/relay/hostside.(*Box).Claim"}, false},
	{"claimed", rig.Host, []string{"sallyport.dev/host/runner.(*session).admit"}, false},
	{"before it is handed to control", rig.Host, []string{"sallyport.dev/host/runner.(*session).frame"}, false},
	{"before admission", rig.Control, []string{"sallyport.dev/control/sqlstore.(*Store).Admit"}, false},
	{"journaled", rig.Host, []string{"sallyport.dev/relay/hostside.(*Box).Journal"}, false},
	{"before Prepare", rig.Control, []string{"sallyport.dev/control/server.(*workers).Submit"}, false},
	{"intent received", rig.Worker, []string{"sallyport.dev/worker/executor.(*Executor).Intent"}, false},
	{"prepared", rig.Control, []string{"sallyport.dev/control/sqlstore.(*Store).Commit"}, false},
	{"barrier committed, before the sync", rig.Control, []string{stepOf(journal.Approved, journal.OnCommit, journal.Dispatching), committed}, false},
	{"before Go is sent", rig.Control, []string{"sallyport.dev/control/server.(*workers).Go"}, false},
	{"Go received", rig.Worker, []string{"sallyport.dev/worker/executor.(*Executor).Go"}, false},
	{"before the first byte", rig.Worker, []string{"sallyport.dev/worker/executor.(*Executor).Go", "sallyport.dev/worker/upstream.(*conn).write"}, false},
	{"the answer begins", rig.Worker, []string{"sallyport.dev/worker/executor.(*Executor).Go", "sallyport.dev/worker/upstream.(*conn).readAnswer"}, true},
	{"answered", rig.Worker, []string{"sallyport.dev/worker/executor.(*Executor).Go", "sallyport.dev/worker/executor.(*Executor).outcome"}, true},
	{"before the outcome is told", rig.Worker, []string{"sallyport.dev/worker/executor.(*Executor).Go", "sallyport.dev/worker/executor.(*Executor).settle"}, true},
	{"settled, before the worker may forget", rig.Control, []string{stepOf(journal.Dispatching, journal.OnAnswer, journal.Answered), "sallyport.dev/control/server.(*workers).Acknowledge"}, true},
	{"the worker forgets", rig.Worker, []string{"sallyport.dev/worker/executor.(*Executor).Ack"}, true},
	{"before the result is published", rig.Host, []string{"sallyport.dev/relay/hostside.(*Box).PublishResult"}, true},
	{"result published", rig.Host, []string{"sallyport.dev/relay/hostside.(*Box).PublishResult", "sallyport.dev/relay/hostside.(*Box).Settle"}, true},
	{"before stdout", guest, []string{"sallyport.dev/guest/shim.(*lineWriter).answer"}, true},
	{"before the acknowledgment", guest, []string{"sallyport.dev/relay.(*Guest).Ack"}, true},
	{"acknowledged", rig.Host, []string{"sallyport.dev/relay/hostside.(*Box).Retract"}, true},
}

const committed = "sallyport.dev/control/sqlstore.(*Store).committed"

// stepOf is a breakpoint at one transition: in the store's transaction, before its commit.
func stepOf(from journal.State, event journal.Event, to journal.State) string {
	return "sallyport.dev/control/sqlstore.(*tx).step:" + string(from) + ":" + string(event) + ":" + string(to)
}

// transition is one of an approved write.
type transition struct {
	from  journal.State
	event journal.Event
	to    journal.State
	sent  bool // something may be on its way when it happens
}

var transitions = []transition{
	{journal.None, journal.OnRecord, journal.Admitted, false},
	{journal.Admitted, journal.OnAsk, journal.Asking, false},
	{journal.Asking, journal.OnApprove, journal.Approved, false},
	{journal.Approved, journal.OnCommit, journal.Dispatching, false},
	{journal.Dispatching, journal.OnAnswer, journal.Answered, true},
}

var everybody = []string{guest, supervisor, rig.Host, rig.Control, rig.Worker, server}

// points are all of them: each place of a part with that part killed and stopped; each transition, before and after its commit, with each part killed
// there; each step on the wire, and the upstream's own, with each part killed and stopped.
func points() []*point {
	var all []*point
	add := func(p point) { all = append(all, &p) }
	for _, pl := range places {
		for _, d := range []time.Duration{0, short} {
			// A worker that is dead attests nothing. Its run is asked from the barrier on.
			lost := pl.part == rig.Worker && d == 0
			add(point{name: pl.name, part: pl.part, at: pl.at, victim: pl.part, stop: d, lost: lost})
		}
	}
	for _, t := range transitions {
		before := []string{stepOf(t.from, t.event, t.to)}
		name := string(t.from) + " " + string(t.event)
		if t.from == journal.None {
			name = string(t.event)
		}
		for _, victim := range everybody {
			lost := t.from == journal.Dispatching && victim == rig.Worker || t.to == journal.Dispatching && victim == rig.Worker
			add(point{name: name + ", before its commit", part: rig.Control, at: before, victim: victim, lost: lost})
			add(point{name: name + ", after its commit", part: rig.Control, at: append(before[:1:1], committed), victim: victim, lost: lost})
		}
		add(point{name: name + ", before its commit", part: rig.Control, at: before, victim: rig.Control, stop: short})
		add(point{name: name + ", before its commit", part: rig.Control, at: before, victim: rig.Control, stop: long})
	}
	for _, s := range []step{firstByte, halfRequest, wholeRequest, halfAnswer, wholeAnswer} {
		for _, victim := range everybody {
			add(point{name: string(s), step: s, victim: victim, lost: victim == rig.Worker})
		}
		for _, victim := range []string{rig.Worker, rig.Control, rig.Host, server} {
			add(point{name: string(s), step: s, victim: victim, stop: short})
		}
		add(point{name: string(s), step: s, victim: rig.Worker, stop: long})
	}
	for _, h := range []fault.Where{fault.BeforeEffect, fault.AfterEffect} {
		for _, victim := range everybody {
			add(point{name: "upstream, " + string(h), hold: h, victim: victim, lost: victim == rig.Worker})
			add(point{name: "upstream, " + string(h), hold: h, victim: victim, stop: short})
		}
	}
	return all
}

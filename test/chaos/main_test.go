package main

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/control/journal"
	"sallyport.dev/test/rig"
)

func TestMain(m *testing.M) {
	// The rig's thread that starts programs lives as long as the process.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("sallyport.dev/test/rig.init.func1.1"))
}

// TestChaos is a short part of make chaos: one installation, each part stopped once where it hurts most.
func TestChaos(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" || os.Getuid() != 0 {
		t.Skip("processes are stopped at their functions by root on Linux on x86-64 only")
	}
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Fatal("install bubblewrap (make prepare): ", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	programs, err := rig.Build(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	short := map[string]string{
		"after publish": guest, "claimed": rig.Host, "barrier committed, before the sync": rig.Control, "Go received": rig.Worker,
		"whole request": rig.Control, "upstream, after-effect": supervisor, "result published": rig.Host,
	}
	var chosen []*point
	for _, p := range points() {
		if short[p.name] == p.victim && p.stop == 0 {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) != len(short) {
		t.Fatalf("%d of %d points were found", len(chosen), len(short))
	}
	tally := &tally{verbose: true}
	if err := tally.tryAll(ctx, programs, chosen, 2); err != nil {
		t.Fatal(err)
	}
	if tally.bad > 0 || tally.points != len(short) {
		t.Errorf("%d of %d points failed", tally.bad, tally.points)
	}
}

// TestEveryTransitionIsStopped compares the points with the journal's table: each of its rows is either stopped here, in a real installation, or stands
// in apart with a reason. A new state, or a new way between states, without its crash test is red here. In the store alone every row is stopped at each
// write and sync, without a list: control/sqlstore, TestKilledAtEveryTransition.
func TestEveryTransitionIsStopped(t *testing.T) {
	stopped := map[transition]bool{}
	for _, tr := range transitions {
		tr.sent = false
		stopped[tr] = true
	}
	for _, row := range journal.Table {
		tr := transition{from: row.From, event: row.Event, to: row.To}
		if _, listed := apart[row.Event]; stopped[tr] == listed && !others[tr] {
			t.Errorf("%s, %s, %s: stopped %v, listed apart %v", row.From, row.Event, row.To, stopped[tr], listed)
		}
		delete(stopped, tr)
	}
	for tr := range stopped {
		t.Errorf("the table has no %s, %s, %s", tr.from, tr.event, tr.to)
	}
}

// apart are the events that one approved write does not pass, and why stopping the store in them is enough: before a barrier nothing can have left,
// after an outcome nothing more does, and all of them are one transaction that is there or not.
var apart = map[journal.Event]string{
	journal.OnRefuse:         "nothing was or will be sent",
	journal.OnDeny:           "nothing was or will be sent",
	journal.OnCancel:         "nothing was or will be sent",
	journal.OnExpire:         "nothing was or will be sent",
	journal.OnVoid:           "nothing was or will be sent",
	journal.OnPrepareFailed:  "nothing was or will be sent",
	journal.OnReject:         "the server's word, settled as an answer is",
	journal.OnUnsent:         "the worker's word, settled as an answer is",
	journal.OnRetry:          "the worker's word, settled as an answer is; the next attempt passes the barrier as the first does",
	journal.OnLost:           "written after 15 s without a worker, whose death is a point of its own",
	journal.OnInput:          "settled as an answer is",
	journal.OnTask:           "settled as an answer is",
	journal.OnPersonAnswer:   "a person's word, as an approval is",
	journal.OnAbandon:        "nothing more will be sent",
	journal.OnResolveDone:    "a person's word about what is over",
	journal.OnResolveNotDone: "a person's word about what is over",
	journal.OnResolveRetry:   "a person's word about what is over; the new call begins as any does",
	journal.OnQuarantine:     "nothing runs while it is written",
}

// others are ways into a state by an event that is stopped on another way.
var others = map[transition]bool{
	{from: journal.Admitted, event: journal.OnCommit, to: journal.Dispatching}: true,
	{from: journal.Retrying, event: journal.OnCommit, to: journal.Dispatching}: true,
	{from: journal.Working, event: journal.OnAnswer, to: journal.Answered}:     true,
	{from: journal.Uncertain, event: journal.OnAnswer, to: journal.Answered}:   true,
}

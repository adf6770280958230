package call_test

import (
	"strings"
	"testing"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// lines are the lines of a call's journal that say why, as EVENT: REASON.
func (r *rig) lines(c *record) []string {
	r.t.Helper()
	steps, err := r.db.Steps(r.t.Context(), id(c))
	r.no(err)
	var out []string
	for _, s := range steps {
		if s.Reason != "" {
			out = append(out, string(s.Event)+": "+s.Reason)
		}
	}
	return out
}

// whys looks at what the row and the last line say.
func (r *rig) whys(c *record, want string) {
	r.t.Helper()
	row, lines := r.row(c), r.lines(c)
	if row.Reason != want || len(lines) == 0 || !strings.HasSuffix(lines[len(lines)-1], ": "+want) {
		r.t.Fatalf("the row says %q, the lines %q; want %q", row.Reason, lines, want)
	}
}

// The journal says what failed, of reads and writes, and whether or not anything was sent. The model reads no address.
func TestTheJournalSaysWhatFailed(t *testing.T) {
	bubble(t, "a write that was lost", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: call.Outcome{Transport: journal.TransportSent, Bytes: 100, Failure: journal.FailJSON, Detail: `the name "id" stands twice`}})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.state(c, journal.Uncertain)
		r.whys(c, `json: what came is not one strict JSON-RPC answer: the name "id" stands twice`)
	})
	bubble(t, "a rejection", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: call.Outcome{Transport: journal.TransportAnswered, Bytes: 100, Status: 403, Failure: journal.FailStatus}})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.state(c, journal.Rejected)
		r.whys(c, "status: the server answered with a status (HTTP 403)")
	})
	bubble(t, "a write that was not prepared", func(t *testing.T, r *rig) {
		refused := unsent(journal.FailAddress)
		refused.Detail = "the address 10.1.2.3 is private"
		r.plan(plan{prepare: refused})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.state(c, journal.Failed)
		r.whys(c, "address: the address may not be reached: the address 10.1.2.3 is private")
		if row := r.row(c); row.Failure != journal.FailAddress || row.Transport != journal.TransportNotSent {
			t.Fatalf("%+v", row.Facts)
		}
		if said := r.do("await_call", `{"call":"`+id(c)+`"}`); strings.Contains(r.result(said), "10.1.2.3") {
			t.Fatalf("the model reads an address: %s", r.result(said))
		}
	})
	bubble(t, "each Prepare in vain has its line", func(t *testing.T, r *rig) {
		r.plan(plan{prepare: unsent(journal.FailTLS)})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.later(time.Second)
		r.state(c, journal.Failed)
		got := strings.Join(r.lines(c), "\n")
		if want := "not_prepared: tls: the TLS handshake failed\nprepare_failed: tls: the TLS handshake failed"; got != want {
			t.Fatalf("the journal says\n%s\nwant\n%s", got, want)
		}
	})
	bubble(t, "late evidence takes the reason away", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: make(chan struct{})})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.workers.cut()
		r.later(time.Minute)
		r.state(c, journal.Uncertain)
		r.whys(c, "run_gone: the worker that had it did not come back")
		r.endHolds()
		r.workers.join()
		r.later(time.Second)
		r.state(c, journal.Answered)
		if row := r.row(c); row.Reason != "" {
			t.Fatalf("an answered call says %q", row.Reason)
		}
	})
}

// A task that the server made is the run's last word of the call: a person may say at once what became of it.
func TestATaskIsTheRunsLastWord(t *testing.T) {
	bubble(t, "a task", func(t *testing.T, r *rig) {
		r.asTask(answered(ofTask + `"status":"cancelled"}`))
		c := r.do("create_issue", issue)
		r.approve(c)
		r.later(time.Minute)
		r.state(c, journal.Uncertain)
		r.whys(c, "task: what became of the server's task is not known: the server ended it before it was complete, and part of it may have happened")
		if err := r.resolve(c, control.NotDone, false); err != nil {
			t.Fatalf("%s: %v", errs.CodeOf(err), err)
		}
		r.state(c, journal.ResolvedNotDone)
	})
}

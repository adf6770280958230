package call_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
)

const (
	madeTask = `{"resultType":"task","taskId":"t\u00e9/1","status":"working","createdAt":"2026-07-28T10:00:00Z","lastUpdatedAt":"2026-07-28T10:00:00Z","ttlMs":3600000,"pollIntervalMs":5000}`
	ofTask   = `{"resultType":"complete","taskId":"t\u00e9/1","createdAt":"2026-07-28T10:00:00Z","lastUpdatedAt":"2026-07-28T10:00:00Z","ttlMs":3600000,"pollIntervalMs":5000,`
	goesOn   = ofTask + `"status":"working"}`
)

// asTask answers calls with a task, and the questions about it in turn; the last answer stays.
func (r *rig) asTask(answers ...call.Outcome) {
	n := 0
	r.workers.mu.Lock()
	defer r.workers.mu.Unlock()
	r.workers.plan = func(in *intent.Intent) plan {
		if in.Kind == intent.Call {
			return plan{outcome: answered(madeTask)}
		}
		o := answers[min(n, len(answers)-1)]
		n++
		return plan{outcome: o}
	}
}

// polls returns the questions about tasks, and what travelled beside each.
func (r *rig) polls() (ins []intent.Intent, beside []string) {
	r.workers.mu.Lock()
	defer r.workers.mu.Unlock()
	for _, in := range r.workers.polls {
		beside = append(beside, string(r.workers.meta[in.ID]))
	}
	return slices.Clone(r.workers.polls), beside
}

func TestTask(t *testing.T) {
	done := ofTask + `"status":"completed","result":{"content":[{"type":"text","text":"caf\u00e9"}],"structuredContent":{"n":12345678901234567890}}}`
	bubble(t, "is asked for until it is done, and its bytes come unchanged", func(t *testing.T, r *rig) {
		r.asTask(answered(goesOn), answered(goesOn), answered(done))
		c := r.do("create_issue", issue)
		r.approve(c)
		r.waits(c)
		r.state(c, journal.Working)
		r.later(9 * time.Second)
		r.state(c, journal.Working)
		r.later(6 * time.Second)
		if got := r.result(c); got != `{"content":[{"type":"text","text":"caf\u00e9"}],"structuredContent":{"n":12345678901234567890}}` {
			t.Fatalf("got %s", got)
		}
		r.state(c, journal.Answered)
		r.sends(c, 1)
		row := r.row(c)
		ins, beside := r.polls()
		if len(ins) != 3 || beside[0] != `{"task":"té/1"}` {
			t.Fatalf("%d questions, beside the first %q", len(ins), beside)
		}
		for _, in := range ins {
			if in.Kind != intent.Poll || in.Effect != intent.Read || in.Call != row.ID || in.Attempt != 1 || in.Binding != row.Binding.String() || in.Version != 1 || in.Arguments != "" {
				t.Fatalf("the intent of a question: %+v", in)
			}
		}
		if row.Bytes != 100 || row.ToolResult != journal.ToolOK {
			t.Fatalf("facts %+v", row.Facts)
		}
	})
	ends := map[string]struct {
		answer call.Outcome
		write  journal.State
		read   journal.State
		says   string
	}{
		"an error":              {answered(ofTask + `"status":"failed","error":{"code":-32603,"message":"the disk is full"}}`), journal.Answered, journal.Answered, "the disk is full"},
		"the tool's own error":  {answered(ofTask + `"status":"completed","result":{"content":[{"type":"text","text":"no such project"}],"isError":true}}`), journal.Answered, journal.Answered, "no such project"},
		"ended by the server":   {answered(ofTask + `"status":"cancelled"}`), journal.Uncertain, journal.Failed, ""},
		"wants something":       {answered(ofTask + `"status":"input_required","inputRequests":{}}`), journal.Uncertain, journal.Failed, ""},
		"done without a result": {answered(ofTask + `"status":"completed"}`), journal.Uncertain, journal.Failed, ""},
		"a task of a task":      {answered(ofTask + `"status":"completed","result":` + madeTask + `}`), journal.Uncertain, journal.Failed, ""},
		"of an old server":      {unsent(journal.FailRequest), journal.Uncertain, journal.Failed, ""},
		"forgotten":             {call.Outcome{Transport: journal.TransportAnswered, Status: 200, Body: []byte(`{"jsonrpc":"2.0","id":"x","error":{"code":-32602,"message":"no such task"}}`)}, journal.Uncertain, journal.Failed, ""},
	}
	for name, e := range ends {
		bubble(t, name, func(t *testing.T, r *rig) {
			r.asTask(e.answer)
			c, d := r.do("create_issue", issue), r.do("get_issue", `{"project":"web"}`)
			r.approve(c)
			r.later(time.Minute)
			r.state(c, e.write)
			r.state(d, e.read)
			r.sends(c, 1)
			if e.says != "" {
				r.says(c, e.says)
			}
			if asks := len(r.questions(control.AskUncertain)); (e.write == journal.Uncertain) != (asks == 1) {
				t.Fatalf("%d questions to a person", asks)
			}
		})
	}
	bubble(t, "without a usable id", func(t *testing.T, r *rig) {
		for _, bad := range []string{`{"resultType":"task","status":"working"}`, `{"resultType":"task","taskId":7}`, `{"resultType":"task","taskId":"` + strings.Repeat("x", 1025) + `"}`} {
			r.plan(plan{outcome: answered(bad)})
			d := r.do("get_issue", `{"project":"web","n":`+string(rune('0'+len(bad)%7))+`}`)
			r.says(d, string(errs.NoAnswer))
		}
		if ins, _ := r.polls(); len(ins) != 0 {
			t.Fatal("it was asked for")
		}
	})
	bubble(t, "outlives control", func(t *testing.T, r *rig) {
		r.asTask(answered(goesOn), answered(done))
		c := r.do("create_issue", issue)
		r.approve(c)
		r.state(c, journal.Working)
		for range 2 {
			r.crash(true)
			r.state(c, journal.Working)
		}
		r.later(time.Minute)
		r.state(c, journal.Answered)
		r.says(r.do("await_call", `{"call":"`+id(c)+`"}`), "caf\\u00e9")
		r.sends(c, 1)
	})
	bubble(t, "outlives its worker", func(t *testing.T, r *rig) {
		r.asTask(answered(goesOn), answered(done))
		c := r.do("create_issue", issue)
		r.approve(c)
		r.workers.cut()
		r.later(time.Minute)
		r.state(c, journal.Working)
		r.workers.restart()
		r.later(2 * time.Minute)
		r.state(c, journal.Answered)
		r.sends(c, 1)
	})
	bubble(t, "of a server that does not answer", func(t *testing.T, r *rig) {
		r.asTask(call.Outcome{Transport: journal.TransportAnswered, Status: 503, Failure: journal.FailStatus})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.later(14 * time.Minute)
		r.state(c, journal.Working)
		r.later(2 * time.Minute)
		r.state(c, journal.Uncertain)
		if ins, _ := r.polls(); len(ins) > 25 {
			t.Fatalf("it was asked for %d times in a quarter of an hour", len(ins))
		}
	})
	bubble(t, "that never ends", func(t *testing.T, r *rig) {
		r.asTask(answered(goesOn))
		c := r.do("create_issue", issue)
		r.approve(c)
		r.later(59 * time.Minute)
		r.state(c, journal.Working)
		r.later(2 * time.Minute)
		r.state(c, journal.Uncertain)
		if q := r.question(c); q.Kind != control.AskUncertain || !strings.Contains(q.Text, "did not end in its time") {
			t.Fatalf("question %+v", q)
		}
	})
	bubble(t, "of a connection that was switched off", func(t *testing.T, r *rig) {
		r.asTask(answered(goesOn))
		c := r.do("create_issue", issue)
		r.approve(c)
		r.later(11 * time.Second)
		r.throw(control.SwitchConnection, "tracker")
		before, _ := r.polls()
		r.later(time.Minute)
		r.state(c, journal.Uncertain)
		if after, _ := r.polls(); len(after) != len(before) {
			t.Fatalf("%d questions after the switch", len(after)-len(before))
		}
	})
	bubble(t, "a read that is cancelled is given up at the server too", func(t *testing.T, r *rig) {
		r.asTask(answered(goesOn), answered(`{"resultType":"complete"}`))
		c := r.do("get_issue", `{"project":"web"}`)
		r.later(6 * time.Second)
		r.p.Cancel(c.addr, call.CancelHarness)
		r.later(time.Second)
		r.state(c, journal.Failed)
		_, beside := r.polls()
		if len(beside) != 2 || beside[1] != `{"task":"té/1","give_up":true}` {
			t.Fatalf("questions %q", beside)
		}
	})
	bubble(t, "a write that is cancelled is awaited all the same", func(t *testing.T, r *rig) {
		r.asTask(answered(goesOn), answered(done))
		c := r.do("create_issue", issue)
		r.approve(c)
		r.p.Cancel(c.addr, call.CancelHarness)
		r.later(time.Minute)
		r.state(c, journal.Answered)
		if _, beside := r.polls(); slices.ContainsFunc(beside, func(b string) bool { return strings.Contains(b, "give_up") }) {
			t.Fatalf("questions %q", beside)
		}
	})
	bubble(t, "as late evidence", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(madeTask), hold: hold})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.workers.cut()
		r.later(time.Minute)
		r.state(c, journal.Uncertain)
		r.asTask(answered(done))
		close(hold)
		r.workers.join()
		r.later(time.Minute)
		r.state(c, journal.Answered)
		if len(r.questions()) != 0 {
			t.Fatal("its question is open")
		}
		r.sends(c, 1)
	})
}

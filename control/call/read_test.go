package call_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
)

// bubble runs a test with a rig inside a synctest bubble.
func bubble(t *testing.T, name string, test func(t *testing.T, r *rig), options ...option) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, options...)
			defer r.end()
			test(t, r)
		})
	})
}

func TestRead(t *testing.T) {
	bubble(t, "the server's bytes come unchanged", func(t *testing.T, r *rig) {
		exact := `{ "content" : [{"type":"text","text":"\u00e9\/"}],"structuredContent":{"n":12345678901234567890,"f":1.10},"x-unknown":[1e400],"_meta":{} }`
		r.plan(plan{outcome: answered(exact)})
		c := r.do("list_issues", `{"project":"web","n":12345678901234567890}`)
		if got := r.result(c); got != exact {
			t.Fatalf("got %s", got)
		}
		if kept := string(r.row(c).Body); !strings.Contains(kept, exact) {
			t.Fatalf("the journal keeps %s", kept)
		}
		r.state(c, journal.Answered)
		r.sends(c, 1)
		row := r.row(c)
		if row.Transport != journal.TransportAnswered || row.Protocol != journal.ProtocolResult || row.ToolResult != journal.ToolOK || row.HTTPStatus != 200 {
			t.Fatalf("facts: %+v", row.Facts)
		}
		if string(row.Arguments) != c.args {
			t.Fatalf("arguments %s", row.Arguments)
		}
		r.p.Acknowledge(c.addr)
		if got := r.row(c).Delivery; got != journal.DeliveryAcknowledged {
			t.Fatalf("delivery %s", got)
		}
	})
	bubble(t, "published and unread is seen, read costs one write", func(t *testing.T, r *rig) {
		a, b := r.do("get_issue", `{"project":"web"}`), r.do("get_issue", `{"project":"web"}`)
		r.p.Acknowledge(a.addr)
		r.later(500 * time.Millisecond)
		if d := r.row(b).Delivery; d != journal.DeliveryNone {
			t.Fatalf("delivery %s at once", d)
		}
		r.later(2 * time.Second)
		if d := r.row(b).Delivery; d != journal.DeliveryPublished {
			t.Fatalf("delivery %s", d)
		}
		c := r.do("get_issue", `{"project":"web"}`)
		r.p.Stop()
		if d := r.row(c).Delivery; d != journal.DeliveryPublished {
			t.Fatalf("delivery %s after the end", d)
		}
	})
	bubble(t, "an error of the tool is an answer", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: answered(`{"content":[],"isError":true}`)})
		c := r.do("get_issue", `{"project":"web"}`)
		r.says(c, `{"content":[],"isError":true}`)
		if row := r.row(c); row.State != journal.Answered || row.ToolResult != journal.ToolError {
			t.Fatalf("%s %+v", row.State, row.Facts)
		}
	})
	bubble(t, "a JSON-RPC error is an answer", func(t *testing.T, r *rig) {
		o := answered(`{}`)
		o.Body = []byte(`{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"no \"such\" issue"}}`)
		r.plan(plan{outcome: o})
		c := r.do("get_issue", `{"project":"web"}`)
		r.says(c, `error -32001: no \"such\" issue`, string(errs.UpstreamError), `"isError":true`)
		r.state(c, journal.Answered)
	})
	for name, o := range map[string]call.Outcome{
		"a status":      {Transport: journal.TransportAnswered, Status: 403, Failure: journal.FailStatus, Bytes: 9},
		"an error code": {Transport: journal.TransportAnswered, Status: 200, Bytes: 9, Body: []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"x"}}`)},
	} {
		bubble(t, "rejected by "+name, func(t *testing.T, r *rig) {
			r.plan(plan{outcome: o})
			c := r.do("list_issues", `{"project":"web"}`)
			r.says(c, "tracker refused list_issues", "says that it did not run", "(call "+control.CallID(r.s.ID, c.id)+", rejected)")
			r.state(c, journal.Rejected)
			r.sends(c, 1)
		})
	}
	bubble(t, "a lost read that may be repeated is asked again", func(t *testing.T, r *rig) {
		n := 0
		r.workers.plan = func(*intent.Intent) plan {
			if n++; n == 1 {
				return plan{outcome: lost()}
			}
			return plan{outcome: answered(`{"content":[]}`)}
		}
		c := r.do("list_issues", `{"project":"web"}`)
		r.waits(c)
		r.state(c, journal.Retrying)
		r.later(100 * time.Millisecond)
		r.says(c, `{"content":[]}`)
		r.sends(c, 2)
		if a := r.row(c).Attempt; a != 2 {
			t.Fatalf("attempt %d", a)
		}
	})
	bubble(t, "twice, and no more", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: lost()})
		c := r.do("list_issues", `{"project":"web"}`)
		r.later(time.Second)
		r.says(c, "tracker did not answer list_issues", string(errs.NoAnswer))
		r.state(c, journal.Failed)
		r.sends(c, 2)
	})
	bubble(t, "a lost read that may not be repeated is not", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: lost()})
		c := r.do("get_issue", `{"project":"web"}`)
		r.says(c, string(errs.NoAnswer))
		r.sends(c, 1)
	})
	bubble(t, "unsent, and again", func(t *testing.T, r *rig) {
		r.plan(plan{prepare: unsent(journal.FailConnect)})
		c := r.do("get_issue", `{"project":"web"}`)
		r.later(time.Second)
		r.says(c, "tracker could not be reached; nothing was sent (not_sent). It is safe to call get_issue again later.")
		r.state(c, journal.Failed)
		r.sends(c, 0)
		if row := r.row(c); row.Attempt != 2 || row.Transport != journal.TransportNotSent || row.Failure != journal.FailConnect {
			t.Fatalf("attempt %d, facts %+v", row.Attempt, row.Facts)
		}
	})
	bubble(t, "no worker lives", func(t *testing.T, r *rig) {
		r.workers.up = false
		c := r.do("get_issue", `{"project":"web"}`)
		r.says(c, string(errs.NotSent))
		if row := r.row(c); row.State != journal.Failed || row.Attempt != 0 {
			t.Fatalf("%s, attempt %d", row.State, row.Attempt)
		}
	})
	bubble(t, "a report that contradicts itself is no proof", func(t *testing.T, r *rig) {
		o := unsent(journal.FailConnect)
		o.Bytes = 1
		r.plan(plan{outcome: o})
		c := r.do("get_issue", `{"project":"web"}`)
		r.says(c, string(errs.NoAnswer))
	})
	bubble(t, "an answer that is no answer", func(t *testing.T, r *rig) {
		for _, body := range []string{``, `{}`, `{"result":[]}`, `{"result":{},"result":{}}`, `not json`, `{"error":{"code":"x"}}`} {
			o := answered(`{}`)
			o.Body = []byte(body)
			r.plan(plan{outcome: o})
			c := r.do("get_issue", `{"project":"web"}`)
			r.says(c, string(errs.NoAnswer))
			if f := r.row(c).Failure; f != journal.FailMalformed {
				t.Fatalf("%s: failure %q", body, f)
			}
		}
	})
}

func TestSameRecord(t *testing.T) {
	bubble(t, "while it runs", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
		c := r.do("get_issue", `{"project":"web"}`)
		r.submit(c)
		r.waits(c)
		close(hold)
		synctest.Wait()
		r.says(c, `{"content":[]}`)
		r.sends(c, 1)
	})
	bubble(t, "after its end", func(t *testing.T, r *rig) {
		c := r.do("get_issue", `{"project":"web"}`)
		r.submit(c)
		r.says(c, `"ok"`)
		if r.hosts.count[c.id] != 2 {
			t.Fatalf("%d results", r.hosts.count[c.id])
		}
		r.sends(c, 1)
	})
	bubble(t, "after its end, and a restart", func(t *testing.T, r *rig) {
		c := r.do("get_issue", `{"project":"web"}`)
		r.crash(false)
		r.submit(c)
		r.says(c, `"ok"`)
		r.sends(c, 1)
	})
	bubble(t, "attached after a restart", func(t *testing.T, r *rig) {
		r.hosts.up = false
		c := r.do("get_issue", `{"project":"web"}`)
		if d := r.row(c).Delivery; d != journal.DeliveryNone {
			t.Fatalf("delivery %s", d)
		}
		r.crash(false)
		r.hosts.up = true
		r.p.Attach(c.addr)
		synctest.Wait()
		r.says(c, `"ok"`)
		r.later(2 * time.Second)
		if d := r.row(c).Delivery; d != journal.DeliveryPublished {
			t.Fatalf("delivery %s", d)
		}
		r.p.Acknowledge(c.addr)
		synctest.Wait()
		if d := r.row(c).Delivery; d != journal.DeliveryAcknowledged {
			t.Fatalf("delivery %s", d)
		}
	})
	bubble(t, "other bytes", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
		c := r.do("get_issue", `{"project":"web"}`)
		other := r.rec("get_issue", `{"project":"api"}`, func(o *record) { o.id = c.id })
		r.submit(other)
		r.says(other, string(errs.Conflict))
		close(hold)
		synctest.Wait()
		steps, err := r.db.Steps(t.Context(), control.CallID(r.s.ID, c.id))
		r.no(err)
		found := false
		for _, s := range steps {
			found = found || s.Event == "conflict" && s.Digest == control.Sum(other.bytes)
		}
		if !found {
			t.Fatal("the conflict is not in the journal")
		}
		if got := string(r.row(c).Arguments); got != `{"project":"web"}` {
			t.Fatalf("arguments %s", got)
		}
		// And after its end.
		r.submit(other)
		r.says(other, string(errs.Conflict))
		r.sends(c, 1)
	})
	bubble(t, "an unknown record cannot be attached", func(t *testing.T, r *rig) {
		c := r.rec("get_issue", `{"project":"web"}`)
		a := c.addr
		a.Digest = control.Digest{}
		r.p.Attach(a)
		synctest.Wait()
		r.waits(c)
		r.p.Attach(c.addr)
		synctest.Wait()
		r.says(c, "its record was lost in a power failure (unavailable)")
	})
}

func TestHarnessSendsAgain(t *testing.T) {
	bubble(t, "while the first runs", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(`{"content":[]}`), hold: hold})
		id := func(c *record) { c.harness = "toolu_1" }
		a := r.do("get_issue", `{"project":"web"}`, id)
		b := r.do("get_issue", `{"project":"web"}`, id)
		r.waits(b)
		close(hold)
		synctest.Wait()
		r.says(a, `{"content":[]}`)
		r.says(b, `{"content":[]}`)
		r.sends(a, 1)
		r.sends(b, 0)
	})
	bubble(t, "answered and unread", func(t *testing.T, r *rig) {
		id := func(c *record) { c.harness = "toolu_1" }
		a := r.do("get_issue", `{"project":"web"}`, id)
		b := r.do("get_issue", `{"project":"web"}`, id)
		r.says(b, "This is the recorded answer of call "+control.CallID(r.s.ID, a.id), "was not run a second time (recorded_answer)", `{"type":"text","text":"ok"}`)
		r.sends(b, 0)
		// And after a restart, where only the journal remembers.
		r.crash(false)
		c := r.do("get_issue", `{"project":"web"}`, id)
		r.says(c, "recorded_answer")
		r.sends(c, 0)
		r.p.Acknowledge(a.addr)
		synctest.Wait()
		d := r.do("get_issue", `{"project":"web"}`, id)
		r.says(d, `{"content":[{"type":"text","text":"ok"}]}`)
		r.sends(d, 1)
	})
	bubble(t, "read", func(t *testing.T, r *rig) {
		id := func(c *record) { c.harness = "toolu_1" }
		a := r.do("get_issue", `{"project":"web"}`, id)
		r.p.Acknowledge(a.addr)
		b := r.do("get_issue", `{"project":"web"}`, id)
		r.sends(b, 1)
	})
	bubble(t, "at the very same time", func(t *testing.T, r *rig) {
		id := func(c *record) { c.harness = "toolu_1" }
		var all []*record
		for range 4 {
			c := r.rec("create_issue", issue, id)
			all = append(all, c)
			r.p.Submit(call.Submission{Host: host, Session: r.s.ID, Epoch: 1, Record: c.bytes})
		}
		r.later(time.Second)
		if n := len(r.questions()); n != 1 {
			t.Fatalf("%d questions", n)
		}
		r.no(r.decide(r.questions()[0], control.Approve))
		for _, c := range all {
			r.says(c, `"ok"`)
		}
	})
	bubble(t, "while the store is away: no call of its own", func(t *testing.T, r *rig) {
		id := func(c *record) { c.harness = "toolu_1" }
		a := r.do("create_issue", issue, id)
		r.fault("Attach", 1, false)
		b := r.do("create_issue", issue, id)
		r.says(b, "its store does not answer (unavailable)")
		if n := len(r.questions()); n != 1 {
			t.Fatalf("%d questions", n)
		}
		r.approve(a)
		r.sends(a, 1)
	})
	bubble(t, "another call of the same id", func(t *testing.T, r *rig) {
		id := func(c *record) { c.harness = "toolu_1" }
		a := r.do("get_issue", `{"project":"web"}`, id)
		b := r.do("get_issue", `{"project":"api"}`, id)
		r.sends(b, 1)
		steps, err := r.db.Steps(t.Context(), control.CallID(r.s.ID, a.id))
		r.no(err)
		if steps[len(steps)-1].Event != "same_id_mismatch" {
			t.Fatalf("the last line is %s", steps[len(steps)-1].Event)
		}
	})
}

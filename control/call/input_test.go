package call_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
)

func TestInputRequired(t *testing.T) {
	wants := `{"resultType":"input_required","inputRequests":{"size":{"method":"elicitation/create","params":{"message":"How big?","requestedSchema":{"type":"object","properties":{"size":{"type":"number"}},"required":["size"]}}}},"requestState":"opaque\u00e9"}`
	ask := func(r *rig, then string) func(*intent.Intent) plan {
		return func(in *intent.Intent) plan {
			if in.Attempt == 1 {
				return plan{outcome: answered(wants)}
			}
			return plan{outcome: answered(then)}
		}
	}
	bubble(t, "a person answers", func(t *testing.T, r *rig) {
		r.workers.plan = ask(r, `{"content":[]}`)
		c := r.do("create_issue", issue)
		r.approve(c)
		r.waits(c)
		r.state(c, journal.InputWanted)
		q := r.question(c)
		if q.Kind != control.AskInput || q.Text != "How big?" || !strings.Contains(string(q.Form), `"size":{"type":"number"}`) {
			t.Fatalf("question %s %q %s", q.Kind, q.Text, q.Form)
		}
		for name, bad := range map[string]string{"no JSON": `{`, "another type": `{"size":{"size":"x"}}`, "nothing": `{}`, "more": `{"size":{"size":1},"x":{}}`} {
			if err := r.decide(q, control.Answer, func(q *inbox.Request) { q.Answer = []byte(bad) }); errs.CodeOf(err) != errs.Invalid {
				t.Errorf("%s: %v", name, err)
			}
		}
		before := r.row(c).Binding
		r.no(r.decide(q, control.Answer, func(q *inbox.Request) { q.Answer = []byte(`{"size":{"size":1.10}}`) }))
		r.says(c, `{"content":[]}`)
		row := r.row(c)
		if row.Attempt != 2 || row.Rounds != 1 || row.Binding == before {
			t.Fatalf("attempt %d, rounds %d, binding changed %v", row.Attempt, row.Rounds, row.Binding != before)
		}
		if got := string(r.workers.meta[row.Intent]); got != `{"requestState":"opaque\u00e9","inputResponses":{"size":{"action":"accept","content":{"size":1.10}}}}` {
			t.Fatalf("the worker got %s", got)
		}
	})
	bubble(t, "what was asked with before is not sent again", func(t *testing.T, r *rig) {
		second := strings.Replace(wants, `,"requestState":"opaque\u00e9"`, "", 1)
		r.workers.plan = func(in *intent.Intent) plan {
			return plan{outcome: answered([]string{wants, second, `{"content":[]}`}[in.Attempt-1])}
		}
		c := r.do("create_issue", issue)
		r.approve(c)
		for range 2 {
			r.no(r.decide(r.question(c), control.Answer, func(q *inbox.Request) { q.Answer = []byte(`{"size":{"size":1}}`) }))
		}
		r.says(c, `{"content":[]}`)
		if got := string(r.workers.meta[r.row(c).Intent]); strings.Contains(got, "requestState") {
			t.Fatalf("the worker got %s", got)
		}
	})
	bubble(t, "at most three times", func(t *testing.T, r *rig) {
		r.plan(plan{outcome: answered(wants)})
		c := r.do("create_issue", issue)
		r.approve(c)
		for range 3 {
			r.state(c, journal.InputWanted)
			r.no(r.decide(r.question(c), control.Answer, func(q *inbox.Request) { q.Answer = []byte(`{"size":{"size":1}}`) }))
		}
		r.state(c, journal.Abandoned)
		r.says(c, "tracker asked a person for more before it could finish create_issue, and got no answer", "it asked too often")
	})
	bubble(t, "as late evidence", func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.plan(plan{outcome: answered(wants), hold: hold})
		c := r.do("create_issue", issue)
		r.approve(c)
		r.workers.cut()
		r.later(time.Minute)
		r.state(c, journal.Uncertain)
		r.crash(false)
		r.later(time.Minute)
		r.workers.plan = ask(r, `{"content":[]}`)
		close(hold)
		r.workers.join()
		synctest.Wait()
		r.state(c, journal.InputWanted)
		r.no(r.decide(r.question(c), control.Answer, func(q *inbox.Request) { q.Answer = []byte(`{"size":{"size":2}}`) }))
		r.state(c, journal.Answered)
		if a := r.row(c).Attempt; a != 2 {
			t.Fatalf("attempt %d", a)
		}
	})
	bubble(t, "a person declines", func(t *testing.T, r *rig) {
		r.workers.plan = ask(r, `{}`)
		c := r.do("create_issue", issue)
		r.approve(c)
		r.no(r.decide(r.question(c), control.Refuse, func(q *inbox.Request) { q.Reason = "ask somebody else" }))
		r.state(c, journal.Abandoned)
		r.says(c, "ask somebody else", string(errs.Abandoned))
		r.sends(c, 1)
	})
	bubble(t, "nobody answers", func(t *testing.T, r *rig) {
		r.workers.plan = ask(r, `{}`)
		c := r.do("create_issue", issue)
		r.approve(c)
		r.later(time.Hour + time.Minute)
		r.state(c, journal.Abandoned)
	})
	bubble(t, "revoked meanwhile", func(t *testing.T, r *rig) {
		r.workers.plan = ask(r, `{}`)
		c := r.do("create_issue", issue)
		r.approve(c)
		r.throw(control.SwitchTool, "tracker/create_issue")
		r.state(c, journal.Abandoned)
		r.sends(c, 1)
	})
	bubble(t, "the server is told as often as it may ask", func(t *testing.T, r *rig) {
		var told []bool
		r.workers.plan = func(in *intent.Intent) plan {
			if len(told) < in.Attempt { // a plan is asked for twice
				told = append(told, in.Attended)
			}
			return plan{outcome: answered(wants)}
		}
		c := r.do("create_issue", issue)
		r.approve(c)
		for range 3 {
			r.no(r.decide(r.question(c), control.Answer, func(q *inbox.Request) { q.Answer = []byte(`{"size":{"size":1}}`) }))
		}
		r.state(c, journal.Abandoned)
		if !slices.Equal(told, []bool{true, true, true, false}) {
			t.Fatalf("attended %v", told)
		}
	})
	bubble(t, "unattended", func(t *testing.T, r *rig) {
		r.workers.plan = func(in *intent.Intent) plan {
			if in.Attended {
				t.Error("the server is told that a person could answer")
			}
			return plan{outcome: answered(wants)} // it asks all the same
		}
		c := r.do("create_issue", issue)
		r.state(c, journal.Abandoned)
		r.says(c, "nobody attends this session")
	}, unattended, func(a *control.Apply) { a.Standing = append(a.Standing, standing("nightly", "", 50)) })
	for name, requests := range map[string]string{
		"a password":  `{"a":{"method":"elicitation/create","params":{"message":"m","requestedSchema":{"type":"object","properties":{"password":{"type":"string"}}}}}}`,
		"a token":     `{"a":{"method":"elicitation/create","params":{"message":"m","requestedSchema":{"type":"object","properties":{"x":{"type":"string","title":"Your API key"}}}}}}`,
		"sampling":    `{"a":{"method":"sampling/createMessage","params":{}}}`,
		"nothing":     `{}`,
		"no object":   `[1]`,
		"plain http":  `{"a":{"method":"elicitation/create","params":{"mode":"url","message":"m","url":"http://x"}}}`,
		"nested form": `{"a":{"method":"elicitation/create","params":{"message":"m","requestedSchema":{"type":"object","properties":{"x":{"type":"object"}}}}}}`,
	} {
		bubble(t, "asks for "+name, func(t *testing.T, r *rig) {
			r.plan(plan{outcome: answered(`{"resultType":"input_required","inputRequests":` + requests + `}`)})
			c := r.do("create_issue", issue)
			r.approve(c)
			r.state(c, journal.Abandoned)
			if len(r.questions()) != 0 {
				t.Fatal("a person was asked")
			}
		})
	}
}

func TestClientTool(t *testing.T) {
	client := func(a *control.Apply) {}
	bubble(t, "a person answers, and the answer is checked", func(t *testing.T, r *rig) {
		tool := control.Tool{
			Name: "ask_person", As: "ask_person", Effect: control.Write, Client: true,
			Raw: []byte(`{"name":"ask_person","inputSchema":{"type":"object"},"outputSchema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}}`),
		}
		r.no(r.db.Change(r.s.ID, func(s *control.Session) { s.Tools = append(s.Tools, control.BoundTool{Name: "ask_person", Tool: tool}) }))
		c := r.do("ask_person", `{"q":"how many?"}`)
		q := r.question(c)
		if q.Kind != control.AskClient {
			t.Fatalf("kind %s", q.Kind)
		}
		for _, bad := range []string{`{}`, `{"content":[]}`, `{"content":[],"structuredContent":{"n":"x"}}`} {
			if err := r.decide(q, control.Answer, func(q *inbox.Request) { q.Answer = []byte(bad) }); err == nil {
				t.Errorf("%s was taken", bad)
			}
		}
		exact := `{"content":[],"structuredContent":{"n":12345678901234567890}}`
		r.no(r.decide(q, control.Answer, func(q *inbox.Request) { q.Answer = []byte(exact) }))
		if got := r.result(c); got != exact {
			t.Fatalf("got %s", got)
		}
		if len(r.workers.sent) != 0 {
			t.Fatal("something was sent")
		}
	}, client)
}

func TestExplain(t *testing.T) {
	bubble(t, "says what admission would", func(t *testing.T, r *rig) {
		for _, c := range []struct {
			tool, args string
			unattended bool
			want       call.Ruling
			code       errs.Code
			words      string
		}{
			{"tracker/list_issues", `{"project":"web"}`, false, call.RulingAllow, "", "only reads"},
			{"create_issue", `{"project":"web"}`, false, call.RulingAsk, "", "wait for a person"},
			{"create_issue", `{"project":"ops"}`, false, call.RulingRefuse, errs.RuleDenied, `project "ops" is not allowed`},
			{"create_issue", `{"project":"web"}`, true, call.RulingRefuse, errs.RuleDenied, "unattended"},
			{"create_issue", `{}`, false, call.RulingRefuse, errs.InvalidArguments, "lack project"},
		} {
			e, err := r.p.Explain(t.Context(), call.ExplainRequest{Profile: "dev", Owner: ada, Tool: c.tool, Arguments: []byte(c.args), Unattended: c.unattended})
			r.no(err)
			if e.Verdict != c.want || e.Code != c.code || !strings.Contains(e.Message, c.words) || len(e.Steps) == 0 && c.code != errs.InvalidArguments {
				t.Errorf("%s %s: %+v", c.tool, c.args, e)
			}
		}
		for _, bad := range []call.ExplainRequest{
			{Profile: "nobody", Tool: "create_issue", Arguments: []byte(`{}`)},
			{Profile: "dev", Tool: "nothing", Arguments: []byte(`{}`)},
			{Profile: "dev", Tool: "nowhere/x", Arguments: []byte(`{}`)},
			{Profile: "dev", Tool: "create_issue", Arguments: []byte(`{"a":1,"a":2}`)},
			{Call: control.NewID()},
		} {
			if _, err := r.p.Explain(t.Context(), bad); err == nil {
				t.Errorf("%+v was explained", bad)
			}
		}
		c := r.do("create_issue", issue)
		e, err := r.p.Explain(t.Context(), call.ExplainRequest{Call: id(c)})
		r.no(err)
		if e.Verdict != call.RulingAsk {
			t.Errorf("of the journal: %+v", e)
		}
		if len(r.workers.sent) != 0 || r.row(c).State != journal.Asking {
			t.Error("explaining changed something")
		}
	})
}

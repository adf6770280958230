package acceptance

import (
	"strings"
	"testing"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/test/fixture/fault"
	"sallyport.dev/test/fixture/model"
	"sallyport.dev/test/harness"
)

// approvedWrite: nothing reaches the server before a person agrees; then it is done once, with the bytes that the person was shown.
func approvedWrite(t *testing.T, w *world, a agent) {
	const arguments = `{"project":"web","title":"TOKEN: the button is blue","labels":["ui","Größe 🙂"]}`
	s := w.run(t, a, "dev", tool("modern_json_create_issue", arguments), model.Say("done: {{0}}"))
	q := s.question("approval", "the button is blue")
	if got := string(q.GetArguments()); got != s.fill(arguments) {
		t.Errorf("a person is shown %s", got)
	}
	if a := q.GetApproval(); a.GetClosed() != "proven" || a.GetEffect() != "write" || a.GetConnection() != "modern-json" || a.GetTool() != "create_issue" {
		t.Errorf("a person is shown %+v", a)
	}
	s.effects("modern-json", "create_issue", arguments, 0, 0)
	s.approve(q)
	transcript := s.end(`done: `)
	s.effects("modern-json", "create_issue", arguments, 1, 1)
	c := s.state(arguments, "answered")
	if c.GetApprovedBy() == "" || c.GetBindingDigest() != q.GetApproval().GetDigest() || c.GetCall().GetDelivery() != "acknowledged" {
		t.Errorf("the journal has %+v, approved by %q, digest %s; the question had %s", c.GetCall(), c.GetApprovedBy(), c.GetBindingDigest(), q.GetApproval().GetDigest())
	}
	if got := s.got(0); got.IsError || !strings.Contains(got.Text, s.fill(`"title":"TOKEN: the button is blue"`)) || !strings.Contains(transcript.Final, s.token) {
		t.Errorf("the model was sent %+v, and said %q", got, transcript.Final)
	}
}

// deniedWrite: it has no effect, and the model reads why.
func deniedWrite(t *testing.T, w *world, a agent) {
	const arguments = `{"project":"web","title":"TOKEN: delete everything"}`
	s := w.run(t, a, "dev", tool("legacy_sse_create_issue", arguments), model.Say("told: {{0}}"))
	s.deny(s.question("approval", "delete everything"), `we "keep" everything`)
	s.end("told: ")
	s.failed(0, `A person declined legacy_sse_create_issue: "we \"keep\" everything" (approval_denied). Do not repeat it.`)
	s.effects("legacy-sse", "create_issue", arguments, 0, 0)
	s.state(arguments, "denied")
}

// expiredWrite: nobody decides in time; it has no effect, and the model reads that.
func expiredWrite(t *testing.T, w *world, a agent) {
	const arguments = `{"project":"web","title":"TOKEN: nobody looks"}`
	s := w.run(t, a, "brief", tool("modern_sse_create_issue", arguments), model.Say("told: {{0}}"))
	s.end("told: ")
	s.failed(0, `Nobody decided modern_sse_create_issue within 2 s; it did not run (approval_expired).`)
	s.effects("modern-sse", "create_issue", arguments, 0, 0)
	s.state(arguments, "expired")
}

// pendingWrite: nothing is held. The model gets the call's id at once, asks again while the person thinks, and gets the answer once the person agreed.
func pendingWrite(t *testing.T, w *world, a agent) {
	const arguments = `{"project":"web","title":"TOKEN: think about it"}`
	const await = `{"call":"{{0~call ([a-z2-7]{26})}}"}`
	later := tool("await_call", await)
	later.Pause = "TOKEN"
	s := w.run(t, a, "later", tool("legacy_json_create_issue", arguments), tool("await_call", await), later, model.Say("got: {{last}}"))
	q := s.question("approval", "think about it")
	must(t, w.model.Paused(s.ctx, s.token))
	for n := range 2 {
		if got := s.got(n); got.IsError || !strings.Contains(got.Text, "legacy_json_create_issue waits for a person (call "+q.GetApproval().GetCall()+", approval_pending). It has not run.") {
			t.Errorf("the model was sent %+v", got)
		}
	}
	s.effects("legacy-json", "create_issue", arguments, 0, 0)
	s.approve(q)
	until(s.ctx, t, "the answer", func() bool { return s.journaled(arguments).GetCall().GetState() == "answered" })
	w.model.Release(s.token)
	s.end("got: ")
	if got := s.got(2); got.IsError || !strings.Contains(got.Text, s.fill(`"title":"TOKEN: think about it"`)) {
		t.Errorf("the model was sent %+v", got)
	}
	s.effects("legacy-json", "create_issue", arguments, 1, 1)
}

// awaitedWrite: the model waits with await_call while the person agrees.
func awaitedWrite(t *testing.T, w *world, a agent) {
	const arguments = `{"project":"web","title":"TOKEN: in a moment"}`
	s := w.run(t, a, "soon", tool("legacy_json_create_issue", arguments), tool("await_call", `{"call":"{{0~call ([a-z2-7]{26})}}"}`), model.Say("got: {{last}}"))
	q := s.question("approval", "in a moment")
	must(t, s.Until(s.ctx, func(t *harness.Transcript) bool { return len(t.Calls) == 2 }))
	s.approve(q)
	s.end("got: ")
	if got := s.got(1); got.IsError || !strings.Contains(got.Text, s.fill(`"title":"TOKEN: in a moment"`)) {
		t.Errorf("the model was sent %+v", got)
	}
	s.effects("legacy-json", "create_issue", arguments, 1, 1)
}

// unattendedWrite: without a person, only what an administrator granted runs, within the grant's bounds; all else is refused at once.
func unattendedWrite(t *testing.T, w *world, a agent) {
	const granted, beyond, never = `{"project":"web","title":"TOKEN: the bot may"}`, `{"project":"ops","title":"TOKEN: the bot may not"}`, `{"project":"web","number":1,"text":"TOKEN: no grant"}`
	s := w.run(t, a, "bot", tool("modern_json_create_issue", granted), tool("modern_json_create_issue", beyond), tool("modern_json_add_comment", never), model.Say("told: {{2}}"))
	s.end("told: ")
	if got := s.got(0); got.IsError || !strings.Contains(got.Text, s.fill(`"title":"TOKEN: the bot may"`)) {
		t.Errorf("the model was sent %+v", got)
	}
	s.failed(1, "Sallyport did not run modern_json_create_issue: ")
	s.failed(2, "Sallyport did not run modern_json_add_comment: ")
	s.effects("modern-json", "create_issue", granted, 1, 1)
	s.effects("modern-json", "create_issue", beyond, 0, 0)
	s.effects("modern-json", "add_comment", never, 0, 0)
	if c := s.state(granted, "answered"); c.GetGrant() == "" || c.GetApprovedBy() != "" {
		t.Errorf("the journal names the grant %q and the person %q", c.GetGrant(), c.GetApprovedBy())
	}
	for _, refused := range []string{beyond, never} {
		if c := s.state(refused, "refused"); c.GetCall().GetUpdatedMs()-c.GetCall().GetCreatedMs() > time.Minute.Milliseconds() {
			t.Errorf("it was refused only after %d ms", c.GetCall().GetUpdatedMs()-c.GetCall().GetCreatedMs())
		}
	}
	s.unasked()
}

// leftAlone: an attended profile, started without a person, asks nobody either.
func leftAlone(t *testing.T, w *world, a agent) {
	const arguments = `{"project":"web","title":"TOKEN: nobody is there"}`
	s := w.runWith(t, a, []string{"--unattended"}, "dev", tool("modern_json_create_issue", arguments), model.Say("told: {{0}}"))
	s.end("told: ")
	s.failed(0, "Sallyport did not run modern_json_create_issue: ")
	s.effects("modern-json", "create_issue", arguments, 0, 0)
	s.state(arguments, "refused")
	s.unasked()
}

// unasked: no person was asked anything in this session, ever.
func (s *session) unasked() {
	s.t.Helper()
	for _, state := range []string{"", "approved", "used", "denied", "expired", "closed"} {
		list, err := s.w.rig.Operator().ListApprovals(s.ctx, &sallyportv1.ListApprovalsRequest{Session: s.id(), State: state})
		must(s.t, err)
		if n := len(list.GetApprovals()); n != 0 {
			s.t.Errorf("%d questions were asked: %+v", n, list.GetApprovals())
		}
	}
}

// id is the session's, as the journal has it.
func (s *session) id() string {
	s.t.Helper()
	calls := s.journal()
	if len(calls) == 0 {
		s.t.Fatal("the journal has no call of this session")
	}
	return calls[0].GetCall().GetSession()
}

// uncertainWrite: the server does it, and its answer is lost. The model reads that, nothing is sent again, a person resolves it, and the same request
// again is a question of its own that names the first.
func uncertainWrite(t *testing.T, w *world, a agent) {
	for _, lost := range []struct {
		connection string
		rule       fault.Rule
	}{
		{"modern-sse", fault.Rule{Kind: fault.CutSSE}},
		{"legacy-json", fault.Rule{Kind: fault.Drop, Abrupt: true}},
	} {
		t.Run(lost.connection, func(t *testing.T) {
			const arguments = `{"project":"web","number":7,"text":"TOKEN: pay the invoice"}`
			name := folded(lost.connection, "add_comment")
			again := tool(name, arguments)
			again.Pause = "TOKEN"
			s := w.prepare(t, a, nil, "dev", tool(name, arguments), again, model.Say("told: {{1}}"))
			lost.rule.Tool, lost.rule.Contains, lost.rule.Times = "add_comment", s.token, 1
			w.servers[lost.connection].Fault(lost.rule)
			s.start()
			s.approve(s.question("approval", "pay the invoice"))
			must(t, w.model.Paused(s.ctx, s.token))
			first := s.state(arguments, "uncertain").GetCall().GetId()
			s.failed(0, name+" was sent to "+lost.connection+", but the answer was lost: it may or may not have happened (call "+first+", outcome_uncertain). Do not repeat it.")
			s.effects(lost.connection, "add_comment", arguments, 1, 1)
			s.question("uncertain", "pay the invoice")

			w.model.Release(s.token)
			q := s.question("approval", "pay the invoice")
			if len(q.GetTwins()) != 1 || q.GetTwins()[0].GetId() != first || q.GetTwins()[0].GetState() != "uncertain" {
				t.Errorf("the second question names the twins %+v, want %s", q.GetTwins(), first)
			}
			s.effects(lost.connection, "add_comment", arguments, 1, 1)
			s.deny(q, "it was paid")
			s.end("told: ")
			s.failed(1, `A person declined `+name+`: "it was paid" (approval_denied).`)

			w.cli(t, "calls", "resolve", first, "done", "--note", "found at the server")
			for _, c := range s.journal() {
				want := map[bool]string{true: "resolved_done", false: "denied"}[c.GetCall().GetId() == first]
				if c.GetCall().GetState() != want {
					t.Errorf("the journal says %s of %s, want %s", c.GetCall().GetState(), c.GetCall().GetId(), want)
				}
			}
			s.effects(lost.connection, "add_comment", arguments, 1, 1)
		})
	}
}

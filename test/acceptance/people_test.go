package acceptance

import (
	"slices"
	"strings"
	"testing"

	"sallyport.dev/api/sallyport/v1"
)

// question waits for an open question whose arguments hold the session's token and a text, and returns everything that a person is shown of it.
func (s *session) question(kind, text string) *sallyportv1.ShowApprovalResponse {
	s.t.Helper()
	var found *sallyportv1.ShowApprovalResponse
	api := s.w.rig.Operator()
	seen := map[string]bool{}
	until(s.ctx, s.t, "a question about "+text, func() bool {
		select {
		case <-s.ctx.Done():
			return false
		default:
		}
		list, err := api.ListApprovals(s.ctx, &sallyportv1.ListApprovalsRequest{})
		must(s.t, err)
		for _, row := range list.GetApprovals() {
			if row.GetKind() != kind || seen[row.GetId()] {
				continue
			}
			shown, err := api.ShowApproval(s.ctx, &sallyportv1.ShowApprovalRequest{Id: row.GetId()})
			must(s.t, err)
			if arguments := string(shown.GetArguments()); strings.Contains(arguments, s.token) && strings.Contains(arguments, text) {
				found = shown
				return true
			}
			seen[row.GetId()] = true
		}
		return false
	})
	return found
}

// approve decides by the command, with the digest that was shown.
func (s *session) approve(q *sallyportv1.ShowApprovalResponse) {
	s.t.Helper()
	s.w.cli(s.t, "approve", q.GetApproval().GetId(), "--digest", q.GetApproval().GetDigest(), "--yes")
}

// deny decides through the API.
func (s *session) deny(q *sallyportv1.ShowApprovalResponse, reason string) {
	s.t.Helper()
	_, err := s.w.rig.Operator().Decide(s.ctx, &sallyportv1.DecideRequest{
		Approval: q.GetApproval().GetId(), Digest: q.GetApproval().GetDigest(), Decision: "deny", Reason: reason,
	})
	must(s.t, err)
}

// journal is every call of the session whose arguments hold its token, oldest first, with its bodies.
func (s *session) journal() []*sallyportv1.ShowCallResponse {
	s.t.Helper()
	api := s.w.rig.Operator()
	list, err := api.ListCalls(s.ctx, &sallyportv1.ListCallsRequest{Limit: 1000})
	must(s.t, err)
	var out []*sallyportv1.ShowCallResponse
	for _, row := range list.GetCalls() {
		shown, err := api.ShowCall(s.ctx, &sallyportv1.ShowCallRequest{Id: row.GetId(), Bodies: true})
		must(s.t, err)
		if strings.Contains(string(shown.GetArguments()), s.token) {
			out = append(out, shown)
		}
	}
	slices.Reverse(out)
	return out
}

// journaled is the one call of the session with these arguments.
func (s *session) journaled(arguments string) *sallyportv1.ShowCallResponse {
	s.t.Helper()
	arguments = s.fill(arguments)
	var found *sallyportv1.ShowCallResponse
	for _, c := range s.journal() {
		if string(c.GetArguments()) != arguments {
			continue
		}
		if found != nil {
			s.t.Fatalf("the journal has two calls with %s", arguments)
		}
		found = c
	}
	if found == nil {
		s.t.Fatalf("the journal has no call with %s", arguments)
	}
	return found
}

// fill puts the session's token in.
func (s *session) fill(text string) string { return strings.ReplaceAll(text, "TOKEN", s.token) }

// effects compares what a server counted for exactly these arguments.
func (s *session) effects(connection, tool, arguments string, requests, effects int) {
	s.t.Helper()
	server, arguments := s.w.servers[connection], s.fill(arguments)
	if n := server.CallsWith(tool, arguments); n != requests {
		s.t.Errorf("%s saw %d requests of %s %s, want %d", connection, n, tool, arguments, requests)
	}
	if n := server.Effects().CountOf(tool, arguments); n != effects {
		s.t.Errorf("%s did %s %s %d times, want %d", connection, tool, arguments, n, effects)
	}
}

// state compares how a call ended.
func (s *session) state(arguments, state string) *sallyportv1.ShowCallResponse {
	s.t.Helper()
	c := s.journaled(arguments)
	if c.GetCall().GetState() != state {
		s.t.Errorf("the journal says %s of %s, want %s: %s", c.GetCall().GetState(), s.fill(arguments), state, c.GetCall().GetReason())
	}
	return c
}

// failed compares the nth result that the model was sent with the beginning of what a failed call must tell it.
func (s *session) failed(n int, begins string) {
	s.t.Helper()
	got := s.got(n)
	text, isError := s.agent.text(got.Text), got.IsError
	if !s.agent.marks {
		text, isError = strings.CutPrefix(text, "tool error: ")
	}
	if !isError || !strings.HasPrefix(text, begins) {
		s.t.Errorf("the model was sent %t %q, want a failure with %q", isError, text, begins)
	}
}

// counted compares how often a server saw a call of exactly these arguments.
func (w *world) counted(t *testing.T, connection, tool, arguments string, requests int) {
	t.Helper()
	if n := w.servers[connection].CallsWith(tool, arguments); n != requests {
		t.Errorf("%s saw %d requests of %s %s, want %d", connection, n, tool, arguments, requests)
	}
}

// sessionState is a session's state, as control has it.
func (w *world) sessionState(t *testing.T, id string) string {
	t.Helper()
	list, err := w.rig.Operator().ListSessions(t.Context(), &sallyportv1.ListSessionsRequest{All: true})
	must(t, err)
	for _, s := range list.GetSessions() {
		if s.GetId() == id {
			return s.GetState()
		}
	}
	return ""
}

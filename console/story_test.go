package console_test

import (
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"sallyport.dev/api/sallyport/v1"
)

func clone(q *sallyportv1.ShowApprovalResponse) *sallyportv1.ShowApprovalResponse {
	return proto.CloneOf(q)
}

const (
	callID     = "3f2kq3v5w2m7abcdefghijklmn"
	questionID = "q7v5w2m7abcdefghijklmnopqr"
	digest     = "d105351d51e7976cb078de813bda9c2b5dca5903de863ab7ae174cf819ea4a2b"
)

// asks is an ordinary question.
func asks() *sallyportv1.ShowApprovalResponse {
	return &sallyportv1.ShowApprovalResponse{
		Approval: &sallyportv1.ApprovalRow{
			Id: questionID, Call: callID, Kind: "approval", State: "open", Session: "kq3v5w2m7abcdefghijklmnopq", Owner: "ada", Profile: "dev", Connection: "tracker",
			Account: "sallyport-bot", Origin: "https://mcp.tracker.example.org/mcp", Tool: "create_issue", Effect: "write", Digest: digest,
			CreatedMs: ago(40 * time.Second), ExpiresMs: ago(-52 * time.Minute), Closed: "proven",
		},
		Arguments:     []byte(`{"project":"web","title":"Login fails with a 500 when the address has a plus sign","labels":["bug","auth"],"body":"Steps:\n1. open /login\n2. enter ada+test@example.org","priority":2,"estimate":1.10,"ref":9007199254740993}`),
		LastArguments: []byte(`{"project":"web","title":"Login page has no title","labels":["bug"],"body":"","priority":3,"estimate":1.10,"ref":9007199254740992}`),
		Description:   "Creates an issue in a project of the tracker.", SuggestedWhen: `args.project == "web"`,
		Before:    []*sallyportv1.ApprovalRow{{Call: "2a2kq3v5w2m7abcdefghijklmn", Connection: "tracker", Tool: "create_issue", State: "answered", CreatedMs: ago(12 * time.Minute)}},
		Uncertain: []*sallyportv1.CallRow{{Id: "9c2kq3v5w2m7abcdefghijklmn", Connection: "tracker", Tool: "create_issue", State: "uncertain", CreatedMs: ago(25 * time.Minute)}},
	}
}

// hostile has what a server or an agent controls in every field that one of them does.
func hostile() *sallyportv1.ShowApprovalResponse {
	q := asks()
	a := q.GetApproval()
	a.Id, a.Call, a.Kind = "h7v5w2m7abcdefghijklmnopqr", "h82kq3v5w2m7abcdefghijklmn", "elicitation"
	a.Connection, a.Tool, a.Owner, a.Profile, a.Account, a.Origin = "tr"+nasty, nasty, nasty, nasty, nasty, nasty
	q.Arguments, q.LastArguments = []byte("{\"a\":\"\u202e<b>\u200b\",\"<i>\":[true,null,{}]}"), []byte("{\"a\":\"<b>\"}")
	q.Description, q.Asks, q.SuggestedWhen = nasty, nasty, nasty
	q.Form = []byte(`{"type":"object","properties":{"<script>":{"title":"\u003cimg src=x\u003e"}}}`)
	return q
}

func event(at time.Duration, from, ev, to, actor, detail string) *sallyportv1.CallEvent {
	return &sallyportv1.CallEvent{AtMs: ago(at), From: from, Event: ev, To: to, Attempt: 1, Actor: actor, Detail: detail}
}

// history are calls of every kind.
func history() []*sallyportv1.ShowCallResponse {
	row := func(id, tool, effect, state string, at time.Duration) *sallyportv1.CallRow {
		return &sallyportv1.CallRow{
			Id: id + strings.Repeat("a", 26-len(id)), Session: "kq3v5w2m7abcdefghijklmnopq", Owner: "ada", Profile: "dev", Connection: "tracker", Tool: tool, Effect: effect, State: state,
			CreatedMs: ago(at), UpdatedMs: ago(at - 240*time.Millisecond), Attempt: 1, Delivery: "acknowledged",
		}
	}
	var out []*sallyportv1.ShowCallResponse
	add := func(r *sallyportv1.CallRow) *sallyportv1.ShowCallResponse {
		s := &sallyportv1.ShowCallResponse{Call: r, Events: []*sallyportv1.CallEvent{event(time.Since(time.UnixMilli(r.GetCreatedMs())), "", "admit", r.GetState(), "control:local", "")}}
		out = append(out, s)
		return s
	}
	asking := add(row("3f2kq3v5w2m7abcdefghijklmn", "create_issue", "write", "asking", 40*time.Second))
	asking.Call.Delivery = "none"
	for i := range 24 {
		r := row("b"+string(rune('a'+i)), []string{"list_issues", "get_issue", "search"}[i%3], "read", "answered", time.Duration(i*i+2)*20*time.Second)
		r.UpdatedMs = r.GetCreatedMs() + int64(90+i*37%800)
		if i == 5 {
			r.Delivery = "published"
		}
		add(r)
	}
	refused := add(row("d1", "deploy", "write", "refused", 9*time.Minute))
	refused.Call.Code, refused.Call.Reason, refused.Call.Connection = "rule_denied", `project "ops" is not allowed by the rule for this tool`, "deploys"
	u := add(row("9c2kq3v5w2m7abcdefghijklmn", "create_issue", "write", "uncertain", 25*time.Minute))
	u.Call.Transport, u.Call.Delivery, u.Call.Code, u.Call.Reason = "sent", "acknowledged", "outcome_uncertain", "the connection was reset after 412 bytes were sent"
	u.Arguments, u.ArgumentsDigest, u.BindingDigest, u.ApprovedBy = asks().GetArguments(), digest, digest, "bea"
	base := 25 * time.Minute
	u.Events = []*sallyportv1.CallEvent{
		event(base, "", "admit", "admitted", "host:build-1", ""), event(base-30*time.Millisecond, "admitted", "ask", "asking", "control:local", "tracker/create_issue asks a person"),
		event(base-48*time.Second, "asking", "approve", "approved", "bea", ""), event(base-48200*time.Millisecond, "approved", "commit", "dispatching", "control:local", ""),
		event(base-58*time.Second, "dispatching", "lost", "uncertain", "worker:edge-1", "the connection was reset after 412 bytes were sent"),
	}
	bad := add(row("h1", nasty, "write", "answered", 30*time.Minute))
	bad.Call.Owner, bad.Call.Profile, bad.Call.Connection, bad.Call.Reason, bad.Call.ToolOutcome = nasty, nasty, nasty, nasty, "is_error"
	bad.Arguments, bad.Result = []byte("{\"a\":\"\u202e\"}"), []byte(`{"content":[{"type":"text","text":"`+strings.ReplaceAll("<script>document.title='owned'</script>", `"`, `\"`)+`"}],"isError":true}`)
	bad.Events[0].Detail, bad.Events[0].Actor = nasty, nasty
	return out
}

// more is one more waiting question.
func more(id, tool string, waits time.Duration) *sallyportv1.ShowApprovalResponse {
	q := asks()
	q.Approval.Id, q.Approval.Tool, q.Approval.CreatedMs = id+questionID[2:], tool, ago(waits)
	return q
}

package inbox

import (
	"context"
	"time"
	"unicode/utf8"

	"sallyport.dev/control"
	"sallyport.dev/control/schema"
	"sallyport.dev/errs"
	"sallyport.dev/relay"
	"sallyport.dev/relay/strictjson"
)

// Bounds of what people say.
const (
	MaxReason      = 2000 // bytes of a reason
	MaxGrantCalls  = 20
	MaxGrantTime   = 30 * time.Minute
	grace          = time.Minute // an approved call may run at least this long
	maxClientReply = relay.MaxInline
)

// Request is a person's decision, as they made it.
type Request struct {
	Question string
	Verdict  control.Verdict
	Reason   string
	Binding  control.Digest // that was shown
	Actor    Actor
	Answer   []byte        // for [control.Answer]: a client tool's CallToolResult, or the form's JSON object
	Grant    *GrantRequest // with an approval
}

// GrantRequest asks for a session grant beside an approval: this tool, this session, a constraint, at most 20 calls and 30 minutes.
type GrantRequest struct {
	When  string
	Calls int64
	For   time.Duration
}

// Result is what became of a decision.
type Result struct {
	Call     string
	Question *control.Question
	Grant    string // the id of the session grant, or ""
}

// CheckCondition compiles a constraint against tools. The server passes the grants' own.
type CheckCondition func(when string, tools []control.Tool) error

// ToolOf finds the reviewed tool of a call as its session is bound to it.
type ToolOf func(ctx context.Context, c *control.Call) (control.Tool, error)

// DecideQuestion checks a decision and writes it. An unclear one changes nothing: the question stays open. Errors: [errs.Invalid] for what it says,
// [errs.Conflict] when somebody else was first or something else was shown, [errs.NotAllowed], [errs.ApprovalExpired], [errs.NotFound].
func DecideQuestion(ctx context.Context, store Store, check CheckCondition, toolOf ToolOf, r Request) (Result, error) {
	if len(r.Reason) > MaxReason || !utf8.ValidString(r.Reason) {
		return Result{}, errs.Newf(errs.Invalid, "a reason is text of at most %d bytes", MaxReason)
	}
	subject, err := store.QuestionSubject(ctx, r.Question)
	if err != nil {
		return Result{}, err
	}
	q, c := subject.Question, subject.Call
	d := &Decide{
		Question: q.ID, Actor: r.Actor, Grace: grace,
		Decision: control.Decision{Verdict: r.Verdict, By: r.Actor.Person, Reason: r.Reason, Binding: r.Binding},
	}
	if q.Kind == control.AskUncertain {
		return Result{}, errs.New(errs.Invalid, "resolve this call as done, not-done or retry: sallyport calls resolve")
	}
	if r.Grant != nil && r.Verdict != control.Approve {
		return Result{}, errs.New(errs.Invalid, "a session grant comes with an approval")
	}
	switch {
	case r.Verdict == control.Answer:
		if d.Answer, d.Bind, err = answer(q, c, r.Answer); err != nil {
			return Result{}, err
		}
	case len(r.Answer) > 0:
		return Result{}, errs.New(errs.Invalid, "only an answer has bytes of its own")
	case r.Grant != nil:
		if d.Grant, err = sessionGrant(ctx, store, check, toolOf, q, c, r); err != nil {
			return Result{}, err
		}
	}
	got, err := store.Decide(ctx, d)
	if err != nil {
		return Result{}, err
	}
	switch got.Outcome {
	case Closes:
		out := Result{Call: got.Call, Question: got.Question}
		if d.Grant != nil {
			out.Grant = d.Grant.ID
		}
		return out, nil
	case Counted:
		return Result{Call: got.Call, Question: got.Question}, nil
	}
	return Result{Call: got.Call, Question: got.Question}, refusal(got.Outcome, got.Question)
}

// refusal says why a decision changed nothing.
func refusal(o Outcome, q *control.Question) error {
	switch o {
	case Too:
		return errs.Newf(o.Code(), "this was decided already, or does not wait any more: it is %s", q.State)
	case Expired:
		return errs.New(o.Code(), "the time for this decision is over")
	case Mismatch:
		return errs.New(o.Code(), "what you looked at is not what would run now; look at it again")
	case Forbidden:
		return NotYours(q)
	case Twice:
		return errs.New(o.Code(), "the second approver must be another person")
	}
	return errs.New(o.Code(), "this kind of question takes another answer")
}

// NotYours says why somebody may not decide q. Errors: [errs.NotAllowed].
func NotYours(q *control.Question) error {
	if !q.Local {
		return errs.New(errs.NotAllowed, "this may not be decided from the machine's own socket, because the agent could do the same; use a browser, another account or another machine")
	}
	return errs.New(errs.NotAllowed, "you may not decide this one; its profile names who may")
}

// answer checks what a person answered, and says what the coming attempt is bound to.
func answer(q *control.Question, c *control.Call, raw []byte) ([]byte, control.Digest, error) {
	if len(raw) > maxClientReply {
		return nil, control.Digest{}, errs.Newf(errs.Oversize, "an answer has at most %d bytes", maxClientReply)
	}
	if err := strictjson.Check(raw); err != nil {
		return nil, control.Digest{}, errs.Wrap(errs.Invalid, "the answer is not strict JSON: "+errs.Message(err), err)
	}
	switch q.Kind {
	case control.AskClient:
		return raw, control.Digest{}, clientResult(q.Form, raw)
	case control.AskInput:
		responses, err := Responses(c.InputRequests, raw)
		if err != nil {
			return nil, control.Digest{}, err
		}
		next := *c
		next.Answer = responses
		return responses, control.BindingOf(&next).Digest(), nil
	}
	return nil, control.Digest{}, errs.New(errs.Invalid, "this question is approved or denied, not answered")
}

// clientResult checks the answer of a client tool: a CallToolResult, whose structuredContent fits the tool's output schema.
func clientResult(form, raw []byte) error {
	content, ok := strictjson.Lookup(raw, "content")
	if !ok || content[0] != '[' {
		return errs.New(errs.Invalid, `the answer of a client tool is a CallToolResult: {"content":[…]}`)
	}
	if len(form) == 0 {
		return nil
	}
	s, err := schema.Compile(form)
	if err != nil {
		return errs.Wrap(errs.Invalid, "the tool's output schema cannot be checked", err)
	}
	structured, ok := strictjson.Lookup(raw, "structuredContent")
	if !ok {
		return errs.New(errs.Invalid, "the tool promises structuredContent, and the answer has none")
	}
	if err := s.Validate(structured); err != nil {
		return errs.Wrap(errs.Invalid, "the answer breaks the tool's output schema: "+errs.Message(err), err)
	}
	return nil
}

// sessionGrant makes the grant that comes with an approval.
func sessionGrant(ctx context.Context, store Store, check CheckCondition, toolOf ToolOf, q *control.Question, c *control.Call, r Request) (*control.GivenGrant, error) {
	g := r.Grant
	if g.Calls == 0 {
		g.Calls = MaxGrantCalls
	}
	if g.For == 0 {
		g.For = MaxGrantTime
	}
	switch {
	case q.Kind != control.AskApproval || c.Connection == "":
		return nil, errs.New(errs.Invalid, "only the approval of a server's tool can carry a session grant")
	case g.Calls < 1 || g.Calls > MaxGrantCalls:
		return nil, errs.Newf(errs.Invalid, "a session grant is for 1 to %d calls", MaxGrantCalls)
	case g.For < time.Second || g.For > MaxGrantTime:
		return nil, errs.Newf(errs.Invalid, "a session grant is for at most %d minutes", MaxGrantTime/time.Minute)
	case q.Second:
		return nil, errs.New(errs.Invalid, "where two people must approve, one cannot give a grant")
	}
	if g.When != "" {
		tool, err := toolOf(ctx, c)
		if err != nil {
			return nil, err
		}
		if err := check(g.When, []control.Tool{tool}); err != nil {
			return nil, err
		}
	}
	reason := r.Reason
	if reason == "" {
		reason = "with the approval of call " + c.ID
	}
	return &control.GivenGrant{
		Org: c.Org, ID: control.NewID(), Kind: "session", Profile: c.Profile, Session: c.Session, Owner: c.Owner, Tools: []string{c.Connection + "/" + c.Tool},
		When: g.When, Limit: control.Limit{Calls: g.Calls}, Until: store.Now().Add(g.For), By: r.Actor.Person, Reason: reason,
	}, nil
}

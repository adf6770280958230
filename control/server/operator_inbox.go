package server

import (
	"context"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/catalog"
	"sallyport.dev/control/grant"
	"sallyport.dev/control/inbox"
	"sallyport.dev/errs"
)

func approvalRow(q *control.Question, c *control.Call) *sallyportv1.ApprovalRow {
	row := &sallyportv1.ApprovalRow{
		Id: q.ID, Call: q.Call, Kind: string(q.Kind), State: string(q.State), Session: q.Session, Owner: string(q.Owner), Profile: q.Profile,
		Digest: hexOrNone(q.Binding), CreatedMs: ms(q.OpenedAt), ExpiresMs: ms(q.ExpiresAt), Reason: q.Text,
	}
	for i, d := range q.Decisions {
		if i > 0 {
			row.DecidedBy += ", "
		}
		row.DecidedBy += string(d.By)
	}
	if c != nil {
		row.Connection, row.Account, row.Tool, row.Effect, row.AgentGone = c.Connection, c.Account, c.Tool, string(c.Effect), c.Gone
	}
	return row
}

// ListApprovals implements sallyport.v1.Operator.
func (o *operatorService) ListApprovals(ctx context.Context, r *sallyportv1.ListApprovalsRequest) (*sallyportv1.ListApprovalsResponse, error) {
	f := inbox.Filter{Org: control.Org, Session: r.GetSession(), Limit: maxList}
	if r.GetState() != "" {
		f.States = []control.QuestionState{control.QuestionState(r.GetState())}
	}
	questions, err := o.s.stores.Inbox.Questions(ctx, f)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.ListApprovalsResponse{}
	for _, q := range questions {
		c, err := o.s.stores.Calls.Call(ctx, q.Call)
		if err != nil {
			return nil, err
		}
		out.Approvals = append(out.Approvals, approvalRow(q, c))
	}
	return out, nil
}

// question finds a question by its id, its call's id, or a unique beginning of either.
func (o *operatorService) question(ctx context.Context, id string) (string, error) {
	if control.ValidID(id) {
		if _, err := o.s.stores.Inbox.Question(ctx, id); err == nil {
			return id, nil
		}
	}
	const enough = 4
	if len(id) < enough {
		return "", errs.Newf(errs.Invalid, "name an approval by its id, or by at least %d characters of its beginning", enough)
	}
	open, err := o.s.stores.Inbox.Questions(ctx, inbox.Filter{Org: control.Org, Limit: maxList})
	if err != nil {
		return "", err
	}
	found := ""
	for _, q := range open {
		if len(q.ID) < len(id) || q.ID[:len(id)] != id && (len(q.Call) < len(id) || q.Call[:len(id)] != id) {
			continue
		}
		if found != "" {
			return "", errs.Newf(errs.Invalid, "more than one approval begins with %s: write more of its id", id)
		}
		found = q.ID
	}
	if found == "" {
		return "", errs.Newf(errs.NotFound, "no open approval begins with %s; sallyport approvals list shows them", id)
	}
	return found, nil
}

// ShowApproval implements sallyport.v1.Operator: everything that a decision rests on, with the digest that it must name.
func (o *operatorService) ShowApproval(ctx context.Context, r *sallyportv1.ShowApprovalRequest) (*sallyportv1.ShowApprovalResponse, error) {
	id, err := o.question(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	subject, err := o.s.stores.Inbox.QuestionSubject(ctx, id)
	if err != nil {
		return nil, err
	}
	q, c := subject.Question, subject.Call
	out := &sallyportv1.ShowApprovalResponse{
		Approval: approvalRow(q, c), Arguments: c.Arguments, Twins: callRows(subject.Twins), Uncertain: callRows(subject.Uncertain), LocalDisabled: !q.Local,
	}
	for _, b := range subject.Before {
		out.Before = append(out.Before, &sallyportv1.ApprovalRow{
			Call: b.ID, Connection: b.Connection, Tool: b.Tool, Effect: string(b.Effect), State: string(b.State), CreatedMs: ms(b.AdmittedAt),
		})
	}
	if subject.Last != nil {
		out.LastArguments = subject.Last.Arguments
	}
	if s, err := o.s.stores.Sessions.Session(ctx, q.Session); err == nil {
		out.Approval.Closed = s.Closed
		for _, t := range s.Tools {
			if t.Name != c.Name {
				continue
			}
			out.CatalogDigest, out.ConnectionRevision = t.Catalog.String(), t.Revision
			if m, err := catalog.Members(t.Tool.Raw); err == nil {
				out.Description = string(m["description"])
			}
		}
	}
	if p, err := o.policy(ctx); err == nil {
		if conn := p.Connections[c.Connection]; conn != nil {
			out.Approval.Origin = conn.Origin + conn.Path
		}
	}
	out.Form, out.Asks = q.Form, q.Text
	if q.Kind == control.AskApproval {
		out.SuggestedWhen = grant.Suggest(c.Arguments)
	}
	return out, nil
}

// Decide implements sallyport.v1.Operator.
func (o *operatorService) Decide(ctx context.Context, r *sallyportv1.DecideRequest) (*sallyportv1.DecideResponse, error) {
	id, err := o.question(ctx, r.GetApproval())
	if err != nil {
		return nil, err
	}
	digest, err := control.ParseDigest(r.GetDigest())
	if err != nil {
		return nil, errs.New(errs.Invalid, "a decision names the digest that was shown with the approval")
	}
	verdicts := map[string]control.Verdict{"approve": control.Approve, "deny": control.Refuse, "answer": control.Answer}
	verdict, ok := verdicts[r.GetDecision()]
	if !ok {
		return nil, errs.New(errs.Invalid, "a decision is approve, deny or answer")
	}
	if verdict == control.Refuse && r.GetGrant() != nil {
		return nil, errs.New(errs.Invalid, "a session grant comes with an approval, not with a denial")
	}
	req := inbox.Request{Question: id, Verdict: verdict, Reason: r.GetReason(), Binding: digest, Actor: whoOf(ctx).Actor, Answer: r.GetAnswer()}
	if g := r.GetGrant(); g != nil {
		req.Grant = &inbox.GrantRequest{When: g.GetWhen(), Calls: int64(g.GetCalls()), For: time.Duration(g.GetSeconds()) * time.Second}
	}
	decided, err := inbox.DecideQuestion(ctx, o.s.stores.Inbox, grant.CheckCondition, o.toolOf, req)
	if err != nil {
		return nil, err
	}
	o.s.pipeline.Wake(decided.Call)
	if r.GetGrant() != nil {
		o.s.pipeline.PolicyChanged()
	}
	o.s.events.publish(Event{Kind: "question", ID: id, State: string(decided.Question.State), Session: decided.Question.Session, Call: decided.Call})
	return &sallyportv1.DecideResponse{Approval: approvalRow(decided.Question, nil), Grant: decided.Grant}, nil
}

// toolOf is the reviewed tool of a call, as its session is bound to it.
func (o *operatorService) toolOf(ctx context.Context, c *control.Call) (control.Tool, error) {
	in, err := o.s.stores.Sessions.Session(ctx, c.Session)
	if err != nil {
		return control.Tool{}, err
	}
	for _, t := range in.Tools {
		if t.Name == c.Name {
			return t.Tool, nil
		}
	}
	return control.Tool{}, errs.New(errs.NotFound, "the session has no such tool any more")
}

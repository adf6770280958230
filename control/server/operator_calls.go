package server

import (
	"cmp"
	"context"
	"slices"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

const (
	defaultList = 50
	maxList     = 500
)

func callRow(c *control.Call) *sallyportv1.CallRow {
	row := &sallyportv1.CallRow{
		Id: c.ID, Session: c.Session, Owner: string(c.Owner), Profile: c.Profile, Connection: c.Connection, Tool: cmp.Or(c.Tool, c.Name), Effect: string(c.Effect),
		State: string(c.State), Attempt: int32(c.Attempt), Transport: string(c.Transport), Protocol: string(c.Protocol), ToolOutcome: string(c.ToolResult),
		Delivery: string(c.Delivery), Code: string(c.Code), CreatedMs: ms(c.AdmittedAt), UpdatedMs: ms(c.AdmittedAt), Reason: c.Reason,
		RecordId: c.Record, Epoch: c.Epoch,
	}
	for _, t := range []int64{ms(c.DecidedAt), ms(c.StartedAt), ms(c.SettledAt)} {
		row.UpdatedMs = max(row.UpdatedMs, t)
	}
	return row
}

func callRows(calls []*control.Call) []*sallyportv1.CallRow {
	out := make([]*sallyportv1.CallRow, 0, len(calls))
	for _, c := range calls {
		out = append(out, callRow(c))
	}
	return out
}

// stretch is how many calls a bounded request looks at: some tens of milliseconds.
const stretch = 20_000

// ListCalls implements sallyport.v1.Operator.
func (o *operatorService) ListCalls(ctx context.Context, r *sallyportv1.ListCallsRequest) (*sallyportv1.ListCallsResponse, error) {
	f := call.Browse{
		Filter: call.Filter{
			Org: control.Org, Session: r.GetSession(), Owner: control.Person(r.GetOwner()), Connection: r.GetConnection(), Profile: r.GetProfile(),
			Tool: r.GetTool(), Since: timeOf(r.GetSinceMs()), Cursor: r.GetBefore(), Limit: defaultList,
		},
		Until: timeOf(r.GetUntilMs()), Unread: r.GetUnread(), Outcome: journal.ToolOutcome(r.GetOutcome()),
	}
	if r.GetLimit() > 0 {
		f.Limit = min(int(r.GetLimit()), maxList)
	}
	if r.GetBounded() {
		f.Scan = stretch
	}
	if r.GetState() != "" {
		s := journal.State(r.GetState())
		if !s.Valid() {
			return nil, errs.Newf(errs.Invalid, "no state is named %q", r.GetState())
		}
		f.States = []journal.State{s}
	}
	calls, next, err := o.s.stores.Journal.Browse(ctx, f)
	if err != nil {
		return nil, err
	}
	return &sallyportv1.ListCallsResponse{Calls: callRows(calls), Next: next}, nil
}

// timeOf is a time of a request; zero for 0.
func timeOf(ms int64) time.Time {
	if ms <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// find returns a call by its id or a unique beginning of it.
func (o *operatorService) find(ctx context.Context, id string) (*control.Call, error) {
	if control.ValidID(id) {
		return o.s.stores.Calls.Call(ctx, id)
	}
	const enough = 4
	if len(id) < enough || len(id) > control.IDLength {
		return nil, errs.Newf(errs.Invalid, "name a call by its id, or by at least %d characters of its beginning", enough)
	}
	calls, _, err := o.s.stores.Calls.ListCalls(ctx, call.Filter{Org: control.Org, IDPrefix: id, Limit: 2})
	switch {
	case err != nil:
		return nil, err
	case len(calls) == 0:
		return nil, errs.Newf(errs.NotFound, "no call begins with %s", id)
	case len(calls) > 1:
		return nil, errs.Newf(errs.Invalid, "more than one call begins with %s: write more of its id", id)
	}
	return o.s.stores.Calls.Call(ctx, calls[0].ID)
}

// ShowCall implements sallyport.v1.Operator.
func (o *operatorService) ShowCall(ctx context.Context, r *sallyportv1.ShowCallRequest) (*sallyportv1.ShowCallResponse, error) {
	c, err := o.find(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	steps, err := o.s.stores.Calls.Steps(ctx, c.ID)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.ShowCallResponse{
		Call: callRow(c), RecordDigest: hexOrNone(c.RecordDigest), ArgumentsDigest: hexOrNone(c.ArgsDigest), BindingDigest: hexOrNone(c.Binding),
		RetryOf: c.RetryOf, Hints: hints(c),
	}
	switch c.Authority.Kind {
	case control.ByGrant:
		out.Grant = c.Authority.ID
	case control.ByApproval:
		if q, err := o.s.stores.Inbox.Question(ctx, c.Authority.ID); err == nil {
			for i, d := range q.Decisions {
				if i > 0 {
					out.ApprovedBy += ", "
				}
				out.ApprovedBy += string(d.By)
			}
		}
	}
	out.ResultDigest, out.DeliveredDigest, out.Transformations = provenance(c, steps)
	if r.GetBodies() {
		out.Arguments, out.Result = c.Arguments, c.Body
	}
	if !c.Twin.IsZero() {
		twins, _, err := o.s.stores.Calls.Twins(ctx, c.Twin)
		if err != nil {
			return nil, err
		}
		for _, t := range twins {
			if t.ID != c.ID {
				out.Twins = append(out.Twins, t.ID)
			}
		}
	}
	for i, s := range steps {
		detail := s.Reason
		if detail == "" && s.Code != "" {
			detail = string(s.Code)
		}
		out.Events = append(out.Events, &sallyportv1.CallEvent{
			Seq: int64(i + 1), AtMs: ms(s.At), From: string(s.From), Event: string(s.Event), To: string(s.To), Attempt: int32(s.Attempt), Actor: s.Actor,
			Detail: detail,
		})
	}
	return out, nil
}

// provenance says what the server's answer was, what the model got where that is something else, and what was done between them, each with its words.
func provenance(c *control.Call, steps []control.Step) (server, delivered string, transformations []string) {
	if len(c.Body) > 0 {
		server = control.Sum(c.Body).String()
	} else if i := slices.IndexFunc(steps, settles); i >= 0 {
		server = hexOrNone(steps[i].Digest) // purged: the proof stays
	}
	kept := server
	for _, s := range steps {
		switch s.Event {
		case call.NoteRedacted: // its digest is that of what the worker read
			server, delivered = hexOrNone(s.Digest), kept
		case call.NoteCut: // its digest is that of what went into the sandbox
			delivered = hexOrNone(s.Digest)
		default:
			continue
		}
		transformations = append(transformations, string(s.Event)+": "+s.Reason)
	}
	return server, delivered, transformations
}

// settles reports whether a step came with the server's answer.
func settles(s control.Step) bool { return s.From == journal.Dispatching && !s.Digest.IsZero() }

func hexOrNone(d control.Digest) string {
	if d.IsZero() {
		return ""
	}
	return d.String()
}

// hints say what a person can do about a call.
func hints(c *control.Call) []string {
	switch c.State {
	case journal.Asking:
		return []string{"it waits for a decision: sallyport approvals show"}
	case journal.Uncertain:
		return []string{
			"it was sent and the answer was lost: look at " + c.Connection + " whether it happened, then",
			"sallyport calls resolve " + c.ID + " done|not-done|retry --note TEXT",
		}
	case journal.Answered:
		if c.Delivery != journal.DeliveryAcknowledged {
			return []string{"answered, and never read by the agent"}
		}
	}
	return nil
}

// Resolve implements sallyport.v1.Operator.
func (o *operatorService) Resolve(ctx context.Context, r *sallyportv1.ResolveRequest) (*sallyportv1.ResolveResponse, error) {
	c, err := o.find(ctx, r.GetCall())
	if err != nil {
		return nil, err
	}
	verdicts := map[string]control.Verdict{"done": control.Done, "not-done": control.NotDone, "retry": control.RunAgain}
	verdict, ok := verdicts[r.GetResolution()]
	if !ok {
		return nil, errs.New(errs.Invalid, "resolve a call as done, not-done or retry")
	}
	if r.GetNote() == "" {
		return nil, errs.New(errs.Invalid, "say with --note what was found: it stays in the journal")
	}
	who := whoOf(ctx)
	retry, err := o.s.pipeline.Resolve(ctx, call.ResolveRequest{
		Call: c.ID, Verdict: verdict, Actor: who.Actor, Note: r.GetNote(),
		Override: r.GetOverrideUnattested(),
	})
	if err != nil {
		return nil, err
	}
	if c, err = o.s.stores.Calls.Call(ctx, c.ID); err != nil {
		return nil, err
	}
	o.s.events.publish(Event{Kind: "call", ID: c.ID, State: string(c.State), Session: c.Session, Call: c.ID})
	return &sallyportv1.ResolveResponse{Call: callRow(c), Retry: retry}, nil
}

// Explain implements sallyport.v1.Operator.
func (o *operatorService) Explain(ctx context.Context, r *sallyportv1.ExplainRequest) (*sallyportv1.ExplainResponse, error) {
	if r.GetCall() != "" {
		c, err := o.find(ctx, r.GetCall())
		if err != nil {
			return nil, err
		}
		r.Call = c.ID
	}
	e, err := o.s.pipeline.Explain(ctx, call.ExplainRequest{
		Call: r.GetCall(), Profile: r.GetProfile(), Tool: r.GetTool(), Arguments: r.GetArguments(), Unattended: r.GetUnattended(), Owner: whoOf(ctx).Person,
	})
	if err != nil {
		return nil, err
	}
	return &sallyportv1.ExplainResponse{Verdict: string(e.Verdict), Code: string(e.Code), Message: e.Message, Steps: e.Steps}, nil
}

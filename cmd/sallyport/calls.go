package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
)

type callsCmd struct {
	List    callsListCmd    `cmd:"" default:"withargs" help:"List calls, newest first."`
	Show    callsShowCmd    `cmd:"" help:"Show one call: what happened, step by step."`
	Follow  callsFollowCmd  `cmd:"" help:"Print calls as they happen."`
	Resolve callsResolveCmd `cmd:"" help:"Say what became of an uncertain call."`
	Purge   notBuilt        `cmd:"" help:"Forget the bodies of a call."`
}

type callsListCmd struct {
	Session    string `help:"Of this session."`
	Status     string `help:"In this state, such as uncertain or asking." placeholder:"STATE"`
	Connection string `help:"Of this connection."`
	Owner      string `help:"Of this person's sessions."`
	Limit      int32  `help:"At most so many." default:"50"`
	Before     string `help:"Older than this call."`
}

// Run prints the journal's newest calls.
func (c *callsListCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListCalls(ctx, &sallyportv1.ListCallsRequest{
		Session: c.Session, State: c.Status, Connection: c.Connection, Owner: c.Owner, Limit: c.Limit, Before: c.Before,
	}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	rows := make([][]string, 0, len(r.GetCalls()))
	for _, k := range r.GetCalls() {
		rows = append(rows, []string{
			shortID(k.GetId()), k.GetConnection() + "/" + k.GetTool(), k.GetEffect(), k.GetState(), facts(k), k.GetDelivery(), k.GetOwner(), ago(k.GetCreatedMs()),
		})
	}
	g.table([]string{"CALL", "TOOL", "EFFECT", "STATE", "WIRE", "DELIVERY", "OWNER", "WHEN"}, rows)
	if len(rows) == 0 {
		g.note("No calls yet.")
	}
	if r.GetNext() != "" {
		g.note("More: sallyport calls list --before %s", r.GetNext())
	}
	return nil
}

// facts joins what is known from the wire: transport, protocol, tool. They are never collapsed into "success".
func facts(k *sallyportv1.CallRow) string {
	var parts []string
	for _, p := range []string{k.GetTransport(), k.GetProtocol(), k.GetToolOutcome()} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, " ")
}

type callsShowCmd struct {
	ID     string `arg:"" help:"The call, or a unique beginning of its id."`
	Bodies bool   `help:"Also print the exact arguments and the server's exact answer."`
}

// Run prints one call whole.
func (c *callsShowCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ShowCall(ctx, &sallyportv1.ShowCallRequest{Id: c.ID, Bodies: c.Bodies}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	k := r.GetCall()
	fmt.Fprintf(g.out, "call      %s\ntool      %s/%s (%s)\nstate     %s", k.GetId(), oneLine(k.GetConnection()), oneLine(k.GetTool()), k.GetEffect(), k.GetState())
	if k.GetCode() != "" {
		fmt.Fprintf(g.out, " (%s)", k.GetCode())
	}
	fmt.Fprintf(g.out, "\nwire      %s\ndelivery  %s\nsession   %s of %s, profile %s\n", facts(k), k.GetDelivery(), k.GetSession(), oneLine(k.GetOwner()), oneLine(k.GetProfile()))
	for _, p := range []struct{ name, value string }{
		{"approved", r.GetApprovedBy()}, {"grant", r.GetGrant()}, {"retry of", r.GetRetryOf()}, {"twins", strings.Join(r.GetTwins(), " ")},
		{"reason", k.GetReason()}, {"record", r.GetRecordDigest()}, {"arguments", r.GetArgumentsDigest()}, {"binding", r.GetBindingDigest()}, {"answer", r.GetResultDigest()},
	} {
		if p.value != "" {
			fmt.Fprintf(g.out, "%-9s %s\n", p.name, oneLine(p.value))
		}
	}
	fmt.Fprintln(g.out)
	var start int64
	for _, e := range r.GetEvents() {
		if start == 0 {
			start = e.GetAtMs()
		}
		from := e.GetFrom()
		if from == "" {
			from = "-"
		}
		fmt.Fprintf(g.out, "%s  %+6dms  %-12s %-22s %s", time.UnixMilli(e.GetAtMs()).Format("15:04:05.000"), e.GetAtMs()-start, from, e.GetEvent()+" ->", e.GetTo())
		if e.GetAttempt() > 0 {
			fmt.Fprintf(g.out, " #%d", e.GetAttempt())
		}
		if e.GetDetail() != "" {
			fmt.Fprintf(g.out, "  %s", oneLine(e.GetDetail()))
		}
		fmt.Fprintf(g.out, "  (%s)\n", oneLine(e.GetActor()))
	}
	if c.Bodies {
		fmt.Fprintf(g.out, "\narguments (%d bytes)\n%s\n\nanswer (%d bytes)\n%s\n", len(r.GetArguments()), visible(string(r.GetArguments())), len(r.GetResult()), visible(string(r.GetResult())))
	}
	for i, h := range r.GetHints() {
		if i == 0 {
			fmt.Fprintln(g.out)
		}
		fmt.Fprintln(g.out, oneLine(h))
	}
	if k.GetState() == "uncertain" {
		return exitError{code: exitUncertain}
	}
	return nil
}

type callsFollowCmd struct {
	Session string `help:"Of this session."`
}

// Run prints calls as their rows change, until interrupted.
func (c *callsFollowCmd) Run(ctx context.Context, g *Globals) error {
	return g.watch(ctx, &sallyportv1.WatchRequest{Kinds: []string{"call", "question"}, Session: c.Session}, func(e *sallyportv1.WatchResponse) error {
		if g.JSON {
			g.printJSON(e)
			return nil
		}
		fmt.Fprintf(g.out, "%s  %-9s %s  %s %s\n", time.UnixMilli(e.GetAtMs()).Format("15:04:05.000"), e.GetKind(), shortID(e.GetId()), e.GetState(), oneLine(e.GetDetail()))
		return nil
	})
}

// watch hands on events until ctx ends. A control that restarts is dialed again.
func (g *Globals) watch(ctx context.Context, r *sallyportv1.WatchRequest, handle func(*sallyportv1.WatchResponse) error) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	stream, err := api.Watch(ctx, r)
	if err != nil {
		return apiError(err)
	}
	defer stream.Close()
	for {
		e, err := stream.Receive()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return apiError(err)
		}
		if err := handle(e); err != nil {
			return err
		}
	}
}

type callsResolveCmd struct {
	ID         string `arg:"" help:"The call, or a unique beginning of its id."`
	Resolution string `arg:"" enum:"done,not-done,retry" help:"done: it happened. not-done: it did not. retry: ask for it again, as a new call with its own question."`
	Note       string `required:"" help:"What was found. It stays in the journal."`
	Override   bool   `name:"although-unproven" help:"The worker neither said that it is over nor is proven dead: resolve all the same."`
	Yes        bool   `help:"Do not ask."`
}

// Run resolves an uncertain call.
func (c *callsResolveCmd) Run(ctx context.Context, g *Globals) error {
	if c.Override {
		if err := g.confirm(c.Yes, "The request may still be on its way. Resolve all the same?"); err != nil {
			return err
		}
	}
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.Resolve(ctx, &sallyportv1.ResolveRequest{Call: c.ID, Resolution: c.Resolution, Note: c.Note, OverrideUnattested: c.Override}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	fmt.Fprintf(g.out, "%s is %s\n", shortID(r.GetCall().GetId()), r.GetCall().GetState())
	if r.GetRetry() != "" {
		fmt.Fprintf(g.out, "the new call is %s; it waits for a decision: sallyport approvals show %s\n", r.GetRetry(), shortID(r.GetRetry()))
	}
	return nil
}

// explainCodes says what every code means and what to do: for sallyport explain CODE.
var explainCodes = map[errs.Code]string{
	errs.RuleDenied:       "A grant of the profile, or its condition, refuses this call. sallyport profiles test PROFILE TOOL --args FILE shows which rule, for which arguments.",
	errs.UnknownTool:      "The session has no such tool. What is not granted is invisible; a session's tools are frozen when it opens.",
	errs.InvalidArguments: "The arguments break the schema that was reviewed. The message names the field and what was expected.",
	errs.LimitReached:     "A grant's count or rate is used up. sallyport grants list shows what is left.",
	errs.Busy:             "Too many open questions of one session, or too many calls in flight. Decide some, or wait.",
	errs.ApprovalDenied:   "A person declined the call. Their reason is in the journal and went to the agent.",
	errs.ApprovalPending:  "The call waits for a person. sallyport approvals list shows it.",
	errs.ApprovalExpired:  "Nobody decided in time; the call did not run. The profile's approval.expires sets the time.",
	errs.StillRunning:     "The call was sent and has no answer yet. It is never sent twice.",
	errs.Rejected:         "The server answered that it did not run the call. That is its word, not a proof, so it is not repeated by itself.",
	errs.OutcomeUncertain: "The call was sent and the answer was lost: it may or may not have happened. Look at the server, then sallyport calls resolve CALL done|not-done|retry --note TEXT.",
	errs.Revoked:          "A switch was thrown. sallyport revoke list shows what is withdrawn; sallyport restore gives it back.",
	errs.Voided:           "Something that the approval was bound to changed before the call ran: policy, connection, catalog, account. Ask again.",
	errs.NotConnected:     "The connection has no credential for this subject. sallyport credentials set NAME stores one.",
	errs.NotSent:          "Nothing left the worker, provably. It is safe to try again.",
	errs.RecordedAnswer:   "An equal call was answered before and the answer was not read; this is that answer. The call was not run a second time.",
	errs.Cancelled:        "The agent cancelled the call before anything was sent.",
	errs.Abandoned:        "The server asked for more and got no answer; nothing more was sent.",
	errs.DeadlineExceeded: "Control did not take the call within its time; it never ran.",
	errs.UnknownCall:      "await_call named a call that this session does not have.",
	errs.Invalid:          "The input is wrong; the message says where.",
	errs.NotFound:         "There is no such object.",
	errs.Conflict:         "Somebody else was first, or the object changed. Look again.",
	errs.NotAllowed:       "This identity may not do this.",
	errs.Unreachable:      "The other side does not answer. sallyport doctor looks for the reason.",
	errs.Unavailable:      "A part that is needed is down, or not built. It is safe to try again.",
	errs.Oversize:         "A bound of bytes or entries. The message names it.",
	errs.Fenced:           "A stale session epoch, lease or store: somebody else took over. Nothing was done.",
	errs.Quarantined:      "The store is older than what hosts or workers remember: it was restored from a copy. Nothing runs until sallyport store accept-restore.",
	errs.NotDurable:       "The store cannot promise durability, so nothing is dispatched. Move the state directory to a local disk.",
	errs.StoreFull:        "No room left for the store. Calls that were sent can still be settled; new ones are refused. Free some space.",
	errs.TooOld:           "A guest or peer is older than the one before this build. Upgrade it.",
	errs.ProtectedNumber:  "Both sides must have the same protected version: they are never negotiated down. Upgrade the older side.",
	errs.Uncertain:        "The outcome is uncertain: exit code 6.",
	errs.Internal:         "A defect of Sallyport. The log has the detail.",
}

type explainCmd struct {
	Code string `arg:"" help:"Such as outcome_uncertain."`
}

// Run explains a code.
func (c *explainCmd) Run(g *Globals) error {
	text, ok := explainCodes[errs.Code(c.Code)]
	if !ok {
		return errs.Newf(errs.NotFound, "no code is named %q", c.Code)
	}
	if g.JSON {
		g.printJSON(map[string]string{"code": c.Code, "text": text})
		return nil
	}
	fmt.Fprintln(g.out, text)
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/errs"
)

type callsCmd struct {
	List    callsListCmd    `cmd:"" default:"withargs" help:"List calls, newest first."`
	Show    callsShowCmd    `cmd:"" help:"Show one call: what happened, step by step."`
	Follow  callsFollowCmd  `cmd:"" help:"Print calls as they happen."`
	Resolve callsResolveCmd `cmd:"" help:"Say what became of an uncertain call."`
	Purge   callsPurgeCmd   `cmd:"" help:"Forget the bodies of an ended call: its arguments and its answer. Every digest stays."`
}

type callsListCmd struct {
	Session    string `help:"Of this session."`
	Status     string `help:"In this state, such as uncertain or asking." placeholder:"STATE"`
	Connection string `help:"Of this connection."`
	Owner      string `help:"Of this person's sessions."`
	Profile    string `help:"Of sessions of this profile."`
	Tool       string `help:"Of this tool, by the server's name."`
	Unread     bool   `help:"Answered, and the answer was never read by the agent."`
	Limit      int32  `help:"At most so many." default:"50"`
	Before     string `help:"The next page: what the former one named." placeholder:"CURSOR"`
}

// Run prints the journal's newest calls.
func (c *callsListCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	in, err := g.sessionID(ctx, c.Session)
	if err != nil {
		return err
	}
	r, err := answer(api.ListCalls(ctx, &sallyportv1.ListCallsRequest{
		Session: in, State: c.Status, Connection: c.Connection, Owner: c.Owner, Profile: c.Profile, Tool: c.Tool,
		Unread: c.Unread, Limit: c.Limit, Before: c.Before,
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
			shortID(k.GetId()), toolOf(k), k.GetEffect(), k.GetState(), facts(k), k.GetDelivery(), k.GetOwner(), ago(k.GetCreatedMs()),
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

// toolOf names a call's tool: connection/tool, or what the agent called where no connection has it.
func toolOf(k *sallyportv1.CallRow) string {
	switch {
	case k.GetConnection() != "":
		return k.GetConnection() + "/" + k.GetTool()
	case k.GetTool() != "":
		return k.GetTool()
	default:
		return "-" // a record that could not be read
	}
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
	fmt.Fprintf(g.out, "call      %s\ntool      %s (%s)\nstate     %s", k.GetId(), oneLine(toolOf(k)), k.GetEffect(), k.GetState())
	if k.GetCode() != "" {
		fmt.Fprintf(g.out, " (%s)", k.GetCode())
	}
	fmt.Fprintf(g.out, "\nwire      %s\ndelivery  %s\nsession   %s of %s, profile %s\n", facts(k), k.GetDelivery(), k.GetSession(), oneLine(k.GetOwner()), oneLine(k.GetProfile()))
	for _, p := range []struct{ name, value string }{
		{"approved", r.GetApprovedBy()},
		{"grant", r.GetGrant()},
		{"retry of", r.GetRetryOf()},
		{"twins", strings.Join(r.GetTwins(), " ")},
		{"reason", k.GetReason()},
		{"record", r.GetRecordDigest()},
		{"arguments", r.GetArgumentsDigest()},
		{"binding", r.GetBindingDigest()},
		{"answer", r.GetResultDigest()},
		{"delivered", r.GetDeliveredDigest()},
		{"changed", strings.Join(r.GetTransformations(), "; ")},
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
	in, err := g.sessionID(ctx, c.Session)
	if err != nil {
		return err
	}
	return g.watch(ctx, &sallyportv1.WatchRequest{Kinds: []string{"watching", "call", "question"}, Session: in}, func(e *sallyportv1.WatchResponse) error {
		switch {
		case g.JSON:
			g.printJSONLine(e) // "watching" too: what comes after it is not missed
			return nil
		case e.GetKind() == "watching":
			g.note("Following calls. Ctrl-C ends this.")
			return nil
		}
		fmt.Fprintf(g.out, "%s  %-9s %s  %s %s\n", time.UnixMilli(e.GetAtMs()).Format("15:04:05.000"), e.GetKind(), shortID(e.GetId()), e.GetState(), oneLine(e.GetDetail()))
		return nil
	})
}

// dialAgain is how long a watch waits before it looks for a control that went away.
const dialAgain = 500 * time.Millisecond

// watch hands on events until ctx ends. A control that was there and goes away, as for a restart, is dialed again: every time that a watch stands, its
// first event is of the kind "watching". A control that was never there is an error.
func (g *Globals) watch(ctx context.Context, r *sallyportv1.WatchRequest, handle func(*sallyportv1.WatchResponse) error) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	stood, lost := false, false
	for {
		err := g.watchOnce(ctx, api, r, func(e *sallyportv1.WatchResponse) error {
			if e.GetKind() == "watching" && stood {
				g.note("Control is back.")
			}
			stood, lost = true, false
			return handle(e)
		})
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it was told to end
		case !stood || !errs.Is(err, errs.Unreachable):
			return err
		case !lost:
			lost = true
			g.note("Control went away; waiting for it. Ctrl-C ends this.")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(dialAgain):
		}
	}
}

func (g *Globals) watchOnce(ctx context.Context, api sallyportv1connect.OperatorClient, r *sallyportv1.WatchRequest, handle func(*sallyportv1.WatchResponse) error) error {
	stream, err := api.Watch(ctx, r)
	if err != nil {
		return apiError(err)
	}
	defer stream.Close()
	for {
		e, err := stream.Receive()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errs.Wrap(errs.Unreachable, "control ended", err)
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
		if err := g.confirm(ctx, c.Yes, "The request may still be on its way. Resolve all the same?"); err != nil {
			return err
		}
	}
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.Resolve(ctx, &sallyportv1.ResolveRequest{Call: c.ID, Resolution: c.Resolution, Note: c.Note, OverrideUnattested: c.Override}))
	if err != nil {
		return decided(err)
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

type callsPurgeCmd struct {
	ID  string `arg:"" help:"The call, or a unique beginning of its id."`
	Yes bool   `help:"Do not ask."`
}

// Run forgets the bodies of a call.
func (c *callsPurgeCmd) Run(ctx context.Context, g *Globals) error {
	if err := g.confirm(ctx, c.Yes, "Its arguments and its answer are gone for good. Forget them?"); err != nil {
		return err
	}
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.PurgeCall(ctx, &sallyportv1.PurgeCallRequest{Id: c.ID}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	g.note("The bodies of %s are forgotten; its steps and digests stay.", shortID(r.GetCall().GetId()))
	return nil
}

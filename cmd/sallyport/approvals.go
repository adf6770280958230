package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/control/config"
	"sallyport.dev/errs"
)

type approvalsCmd struct {
	List    approvalsListCmd   `cmd:"" default:"withargs" help:"List open questions."`
	Show    approvalsShowCmd   `cmd:"" help:"Show everything that a decision rests on."`
	Watch   approvalsWatchCmd  `cmd:"" help:"Show questions as they come, and decide by key."`
	Approve approveCmd         `cmd:"" help:"Approve a waiting call, after reading it."`
	Deny    denyCmd            `cmd:"" help:"Deny a waiting call."`
	Answer  approvalsAnswerCmd `cmd:"" help:"Answer a server's question with a form."`
	Grant   approvalsGrantCmd  `cmd:"" help:"Approve, and let this session repeat calls like it for a while."`
}

type approvalsListCmd struct {
	Session string `help:"Of this session."`
	Status  string `help:"In this state: open, approved, used, denied, answered, resolved, expired or closed. Default: open." placeholder:"STATE" enum:",open,approved,used,denied,answered,resolved,expired,closed" default:""`
}

// Run prints open questions.
func (c *approvalsListCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	in, err := g.sessionID(ctx, c.Session)
	if err != nil {
		return err
	}
	r, err := answer(api.ListApprovals(ctx, &sallyportv1.ListApprovalsRequest{Session: in, State: c.Status}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	rows := make([][]string, 0, len(r.GetApprovals()))
	for _, a := range r.GetApprovals() {
		left := "-"
		if a.GetExpiresMs() > 0 {
			left = strings.TrimPrefix(ago(a.GetExpiresMs()), "in ")
		}
		rows = append(rows, []string{shortID(a.GetId()), a.GetKind(), a.GetConnection() + "/" + a.GetTool(), a.GetEffect(), a.GetOwner(), shortID(a.GetCall()), a.GetState(), left})
	}
	g.table([]string{"APPROVAL", "KIND", "TOOL", "EFFECT", "OWNER", "CALL", "STATE", "LEFT"}, rows)
	if len(rows) == 0 {
		g.note("Nothing waits for a person.")
	}
	return nil
}

type approvalsShowCmd struct {
	ID string `arg:"" help:"The approval or its call, or a unique beginning of either id."`
}

// Run prints one question whole.
func (c *approvalsShowCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ShowApproval(ctx, &sallyportv1.ShowApprovalRequest{Id: c.ID}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	g.showApproval(r)
	return nil
}

// showApproval prints what a person must see: every byte of the arguments, nothing elided, control characters made visible.
func (g *Globals) showApproval(r *sallyportv1.ShowApprovalResponse) {
	a := r.GetApproval()
	w := g.out
	b, reset := bold(), ""
	if !g.isTerminal(w) {
		b = ""
	}
	if b != "" {
		reset = "\x1b[0m"
	}
	fmt.Fprintf(w, "%s%s/%s%s  %s  asked by %s\n\n", b, oneLine(a.GetConnection()), oneLine(a.GetTool()), reset, a.GetEffect(), oneLine(a.GetOwner()))
	for _, p := range []struct{ name, value string }{
		{"goes to", a.GetOrigin()},
		{"account", a.GetAccount()},
		{"profile", a.GetProfile()},
		{"session", a.GetSession()},
		{"network", networkOf(a.GetClosed())},
		{"call", a.GetCall()},
		{"approval", a.GetId()},
		{"state", a.GetState()},
		{"digest", a.GetDigest()},
		{"note", a.GetReason()},
	} {
		if p.value != "" {
			fmt.Fprintf(w, "%-9s %s\n", p.name, oneLine(p.value))
		}
	}
	if a.GetExpiresMs() > 0 {
		fmt.Fprintf(w, "%-9s %s\n", "expires", ago(a.GetExpiresMs()))
	}
	if a.GetAgentGone() {
		fmt.Fprintln(w, "the agent that asked is gone; an approved call runs all the same")
	}
	fmt.Fprintf(w, "\narguments, exactly as they will be sent (%d bytes):\n%s\n", len(r.GetArguments()), visible(string(r.GetArguments())))
	if pretty := indented(r.GetArguments()); pretty != "" {
		fmt.Fprintf(w, "\nthe same, laid out:\n%s\n", visible(pretty))
	}
	if len(r.GetLastArguments()) > 0 {
		fmt.Fprintf(w, "\ncompared with the last call of this tool:\n%s", diffLines(indented(r.GetLastArguments()), indented(r.GetArguments())))
	}
	calls := func(title string, rows []*sallyportv1.CallRow) {
		for i, k := range rows {
			if i == 0 {
				fmt.Fprintf(w, "\n%s\n", title)
			}
			fmt.Fprintf(w, "  %s  %s/%s  %s  %s\n", shortID(k.GetId()), oneLine(k.GetConnection()), oneLine(k.GetTool()), k.GetState(), ago(k.GetCreatedMs()))
		}
	}
	calls("the same call stands elsewhere already:", r.GetTwins())
	calls("calls of this tool whose outcome nobody knows:", r.GetUncertain())
	for i, p := range r.GetBefore() {
		if i == 0 {
			fmt.Fprintf(w, "\nasked before in this session:\n")
		}
		fmt.Fprintf(w, "  %s  %s/%s  %s  %s\n", shortID(p.GetCall()), oneLine(p.GetConnection()), oneLine(p.GetTool()), p.GetState(), ago(p.GetCreatedMs()))
	}
	if r.GetLocalDisabled() {
		fmt.Fprintln(w, "\nthis machine may not decide it: the agent runs under the same user, without a sandbox")
	}
}

func networkOf(closed string) string {
	switch closed {
	case "proven":
		return "off (proven from inside)"
	case "asserted":
		return "off (the provider says so)"
	case "":
		return ""
	}
	return "not verified"
}

// indented lays JSON out without changing a literal. It returns "" for what is not JSON.
func indented(raw []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "  ") != nil {
		return ""
	}
	return b.String()
}

// diffLines is a small line diff (longest common subsequence): arguments are short.
func diffLines(before, after string) string {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	const most = 400
	if len(a) > most || len(b) > most {
		return "  (too long to compare here)\n"
	}
	lcs := make([][]int, len(a)+1)
	for i := range lcs {
		lcs[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				lcs[i][j] = lcs[i+1][j+1] + 1
			} else {
				lcs[i][j] = max(lcs[i+1][j], lcs[i][j+1])
			}
		}
	}
	var out strings.Builder
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			fmt.Fprintf(&out, "    %s\n", visible(a[i]))
			i, j = i+1, j+1
		case j < len(b) && (i == len(a) || lcs[i][j+1] >= lcs[i+1][j]):
			fmt.Fprintf(&out, "  + %s\n", visible(b[j]))
			j++
		default:
			fmt.Fprintf(&out, "  - %s\n", visible(a[i]))
			i++
		}
	}
	return out.String()
}

type approveCmd struct {
	ID     string `arg:"" help:"The approval or its call, or a unique beginning of either id."`
	Digest string `help:"The digest that was shown: decide on exactly that, without showing it again."`
	Yes    bool   `help:"Show it, and do not ask."`
}

// Run shows a question and approves it.
func (c *approveCmd) Run(ctx context.Context, g *Globals) error {
	return g.decide(ctx, decision{id: c.ID, verdict: "approve", digest: c.Digest, yes: c.Yes})
}

type denyCmd struct {
	ID     string `arg:"" help:"The approval or its call, or a unique beginning of either id."`
	Reason string `help:"Reaches the agent: what to do instead."`
	Digest string `help:"The digest that was shown."`
}

// Run denies a question.
func (c *denyCmd) Run(ctx context.Context, g *Globals) error {
	return g.decide(ctx, decision{id: c.ID, verdict: "deny", digest: c.Digest, reason: c.Reason, yes: true})
}

type approvalsGrantCmd struct {
	ID    string        `arg:"" help:"The approval or its call, or a unique beginning of either id."`
	When  string        `help:"A CEL condition over args. Default: made from these arguments."`
	Calls int32         `help:"At most so many calls." default:"20"`
	For   time.Duration `help:"For so long, at most 30m." default:"30m"`
	Yes   bool          `help:"Do not ask."`
}

// Run approves a question and gives the session a grant for calls like it.
func (c *approvalsGrantCmd) Run(ctx context.Context, g *Globals) error {
	return g.decide(ctx, decision{id: c.ID, verdict: "approve", yes: c.Yes, grant: &sallyportv1.SessionGrant{When: c.When, Calls: c.Calls, Seconds: int64(c.For.Seconds())}})
}

type decision struct {
	id, verdict, digest, reason string
	yes                         bool
	grant                       *sallyportv1.SessionGrant
}

// decide reads the question, shows it unless its digest is named already, and decides on the digest that was shown.
func (g *Globals) decide(ctx context.Context, d decision) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	shown, err := answer(api.ShowApproval(ctx, &sallyportv1.ShowApprovalRequest{Id: d.id}))
	if err != nil {
		return err
	}
	if d.digest == "" {
		d.digest = shown.GetApproval().GetDigest()
		if d.verdict == "approve" && !g.JSON && !g.Quiet {
			g.showApproval(shown)
			fmt.Fprintln(g.out)
		}
	}
	if d.grant != nil && d.grant.GetWhen() == "" {
		d.grant.When = shown.GetSuggestedWhen()
	}
	if d.grant != nil {
		g.noteGrant(d.grant)
	}
	if err := g.confirm(ctx, d.yes, "Run exactly this?"); err != nil {
		return err
	}
	return g.send(ctx, api, shown.GetApproval().GetId(), d)
}

func (g *Globals) send(ctx context.Context, api sallyportv1connect.OperatorClient, id string, d decision) error {
	r, err := answer(api.Decide(ctx, &sallyportv1.DecideRequest{Approval: id, Digest: d.digest, Decision: d.verdict, Reason: d.reason, Grant: d.grant}))
	if err != nil {
		return decided(err)
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	switch {
	case d.verdict == "deny":
		fmt.Fprintln(g.out, "denied; the agent reads the reason")
	case r.GetApproval().GetState() == "open":
		fmt.Fprintln(g.out, "approved by you; it needs a second person")
	case r.GetGrant() != "":
		fmt.Fprintf(g.out, "approved; it runs now. Grant %s lets this session repeat it\n", shortID(r.GetGrant()))
	default:
		fmt.Fprintln(g.out, "approved; it runs now")
	}
	return nil
}

func (g *Globals) noteGrant(k *sallyportv1.SessionGrant) {
	when := "for any arguments"
	if k.GetWhen() != "" {
		when = "where " + oneLine(k.GetWhen())
	}
	g.note("The grant: %s, at most %s within %s.", when, count(int(k.GetCalls()), "call", "calls"), config.Length(time.Duration(k.GetSeconds())*time.Second))
}

// deciding says what a failed decision means to the person who watches.
func deciding(err error) string {
	if errs.Is(err, errs.Conflict) {
		return "somebody else decided it, or it changed: " + errs.Message(err)
	}
	return errs.Message(err)
}

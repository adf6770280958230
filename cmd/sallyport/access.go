package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
)

type sessionsCmd struct {
	List   sessionsListCmd  `cmd:"" default:"withargs" help:"List sessions."`
	Show   sessionsShowCmd  `cmd:"" help:"Show one session."`
	Close  sessionsCloseCmd `cmd:"" help:"End a session for good."`
	Park   notBuilt         `cmd:"" help:"Stop a sandbox and keep its state."`
	Resume notBuilt         `cmd:"" help:"Start a parked sandbox."`
}

type sessionsListCmd struct {
	All bool `help:"Closed ones too."`
}

// Run prints sessions.
func (c *sessionsListCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListSessions(ctx, &sallyportv1.ListSessionsRequest{All: c.All}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	rows := make([][]string, 0, len(r.GetSessions()))
	for _, s := range r.GetSessions() {
		rows = append(rows, []string{
			shortID(s.GetId()), s.GetProfile(), s.GetOwner(), s.GetHarness(), s.GetDriver(), networkOf(s.GetClosed()), s.GetState(), fmt.Sprint(s.GetOpenQuestions()), ago(s.GetCreatedMs()),
		})
	}
	g.table([]string{"SESSION", "PROFILE", "OWNER", "HARNESS", "DRIVER", "NETWORK", "STATE", "ASKING", "SINCE"}, rows)
	if len(rows) == 0 {
		g.note("No sessions. Start one: sallyport run --profile NAME -- claude")
	}
	return nil
}

// session finds a session by a unique beginning of its id.
func (g *Globals) session(ctx context.Context, id string) (*sallyportv1.SessionRow, error) {
	api, err := g.client()
	if err != nil {
		return nil, err
	}
	r, err := answer(api.ListSessions(ctx, &sallyportv1.ListSessionsRequest{All: true}))
	if err != nil {
		return nil, err
	}
	var found *sallyportv1.SessionRow
	for _, s := range r.GetSessions() {
		if !strings.HasPrefix(s.GetId(), id) {
			continue
		}
		if found != nil {
			return nil, errs.Newf(errs.Conflict, "more than one session begins with %s: write more of its id", id)
		}
		found = s
	}
	if found == nil {
		return nil, errs.Newf(errs.NotFound, "no session begins with %s", id)
	}
	return found, nil
}

type sessionsShowCmd struct {
	ID string `arg:""`
}

// Run prints one session.
func (c *sessionsShowCmd) Run(ctx context.Context, g *Globals) error {
	s, err := g.session(ctx, c.ID)
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(s)
		return nil
	}
	for _, p := range [][2]string{
		{"session", s.GetId()}, {"epoch", fmt.Sprint(s.GetEpoch())}, {"state", s.GetState()}, {"profile", s.GetProfile()}, {"owner", s.GetOwner()},
		{"attended", fmt.Sprint(s.GetAttended())}, {"harness", s.GetHarness()}, {"driver", s.GetDriver()}, {"network", networkOf(s.GetClosed())},
		{"host", s.GetHost()}, {"policy", s.GetPolicyDigest()}, {"asking", fmt.Sprint(s.GetOpenQuestions())}, {"since", ago(s.GetCreatedMs())},
	} {
		fmt.Fprintf(g.out, "%-9s %s\n", p[0], oneLine(p[1]))
	}
	return nil
}

type sessionsCloseCmd struct {
	ID     string `arg:""`
	Reason string `help:"Stays in the record."`
	Yes    bool   `help:"Do not ask."`
}

// Run closes a session.
func (c *sessionsCloseCmd) Run(ctx context.Context, g *Globals) error {
	s, err := g.session(ctx, c.ID)
	if err != nil {
		return err
	}
	if err := g.confirm(c.Yes, "Its sandbox ends and its open questions are void. Close "+s.GetId()+"?"); err != nil {
		return err
	}
	api, err := g.client()
	if err != nil {
		return err
	}
	_, err = answer(api.CloseOwnedSession(ctx, &sallyportv1.CloseOwnedSessionRequest{Session: s.GetId(), Reason: c.Reason}))
	return err
}

type profilesCmd struct {
	List profilesListCmd `cmd:"" default:"withargs" help:"List profiles and their rules."`
	Show notBuilt        `cmd:"" help:"Show one profile."`
	Test profilesTestCmd `cmd:"" help:"Say what would be decided for these arguments, and why; nothing runs."`
}

type profilesListCmd struct{}

// Run prints profiles.
func (profilesListCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListProfiles(ctx, &sallyportv1.ListProfilesRequest{}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	for _, p := range r.GetProfiles() {
		kind := "unattended"
		if p.GetAttended() {
			kind = "attended"
		}
		fmt.Fprintf(g.out, "%s  %s, %s, version %d\n", oneLine(p.GetName()), kind, p.GetDriver(), p.GetVersion())
		for _, l := range p.GetRules() {
			fmt.Fprintf(g.out, "    %s\n", oneLine(l))
		}
	}
	return nil
}

type profilesTestCmd struct {
	Profile    string `arg:""`
	Tool       string `arg:"" help:"connection/tool, or its name in the sandbox."`
	Args       string `help:"The arguments, as JSON." xor:"args" placeholder:"JSON"`
	ArgsFile   string `help:"A file with the arguments." xor:"args" placeholder:"FILE"`
	Unattended bool   `help:"As if no person were there."`
}

// Run explains a decision without a call.
func (c *profilesTestCmd) Run(ctx context.Context, g *Globals) error {
	args := []byte(c.Args)
	if c.ArgsFile != "" {
		var err error
		if args, err = os.ReadFile(c.ArgsFile); err != nil {
			return errs.Wrap(errs.NotFound, c.ArgsFile+" cannot be read", err)
		}
	}
	if len(args) == 0 {
		args = []byte("{}")
	}
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.Explain(ctx, &sallyportv1.ExplainRequest{Profile: c.Profile, Tool: c.Tool, Arguments: args, Unattended: c.Unattended}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	fmt.Fprintf(g.out, "%s", r.GetVerdict())
	if r.GetCode() != "" {
		fmt.Fprintf(g.out, " (%s)", r.GetCode())
	}
	fmt.Fprintln(g.out)
	for _, s := range r.GetSteps() {
		fmt.Fprintf(g.out, "  %s\n", oneLine(s))
	}
	if r.GetMessage() != "" {
		fmt.Fprintf(g.out, "the agent would read: %s\n", visible(r.GetMessage()))
	}
	if r.GetVerdict() == "refuse" {
		return exitError{code: exitFailed}
	}
	return nil
}

type grantsCmd struct {
	List grantsListCmd `cmd:"" default:"withargs" help:"List standing and session grants."`
	Give grantsGiveCmd `cmd:"" help:"Give a standing grant: calls like this run without a question."`
	Rm   grantsRmCmd   `cmd:"" help:"End a grant."`
}

type grantsListCmd struct {
	Profile string `help:"Of this profile."`
}

// Run prints given grants.
func (c *grantsListCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListGrants(ctx, &sallyportv1.ListGrantsRequest{Profile: c.Profile}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	rows := make([][]string, 0, len(r.GetGrants()))
	for _, k := range r.GetGrants() {
		rows = append(rows, []string{k.GetId(), k.GetKind(), k.GetProfile(), k.GetTool(), k.GetWhen(), fmt.Sprintf("%d/%d", k.GetUsed(), k.GetCalls()), ago(k.GetUntilMs()), k.GetState(), k.GetBy()})
	}
	g.table([]string{"GRANT", "KIND", "PROFILE", "TOOL", "WHEN", "USED", "UNTIL", "STATE", "BY"}, rows)
	return nil
}

type grantsGiveCmd struct {
	Profile string        `arg:""`
	Tool    string        `arg:"" help:"connection/tool."`
	Name    string        `help:"A name for it."`
	When    string        `help:"A CEL condition over args."`
	Calls   int64         `help:"At most so many calls." default:"1000"`
	Per     time.Duration `help:"Within each such window. Default: over its whole life."`
	For     time.Duration `help:"Its life." default:"720h"`
	Reason  string        `required:"" help:"Why a write may run without a question."`
}

// Run gives a standing grant.
func (c *grantsGiveCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.GiveGrant(ctx, &sallyportv1.GiveGrantRequest{
		Name: c.Name, Profile: c.Profile, Tool: c.Tool, When: c.When, Calls: c.Calls, PerSeconds: int64(c.Per.Seconds()), UntilMs: time.Now().Add(c.For).UnixMilli(), Reason: c.Reason,
	}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	fmt.Fprintln(g.out, r.GetId())
	return nil
}

type grantsRmCmd struct {
	ID string `arg:""`
}

// Run ends a grant.
func (c *grantsRmCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	_, err = answer(api.RemoveGrant(ctx, &sallyportv1.RemoveGrantRequest{Id: c.ID}))
	return err
}

type revokeCmd struct {
	Kind   string        `arg:"" enum:"session,host,worker,tool,grant,connection,credential,egress,person,everything,list" help:"session, host, worker, tool, grant, connection, credential, egress, person, everything; or list."`
	Name   string        `arg:"" optional:"" help:"What. Tools and credentials are connection/NAME."`
	For    time.Duration `help:"Give it back by itself after so long. Default: never."`
	DryRun bool          `help:"Only say what it would hit."`
	Reason string        `help:"Stays in the record."`
	Yes    bool          `help:"Do not ask."`
}

// Run throws a switch.
func (c *revokeCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	if c.Kind == "list" {
		return g.switches(ctx)
	}
	req := &sallyportv1.RevokeRequest{Kind: c.Kind, Name: c.Name, Seconds: int64(c.For.Seconds()), DryRun: true, Reason: c.Reason}
	preview, err := answer(api.Revoke(ctx, req))
	if err != nil {
		return err
	}
	if !g.JSON {
		g.note("This hits %s.", strings.Join(preview.GetHits(), ", "))
	}
	if c.DryRun {
		if g.JSON {
			g.printJSON(preview)
		}
		return nil
	}
	// In an emergency nobody should have to answer for a single session or tool; everything asks.
	if c.Kind == "everything" {
		if err := g.confirm(c.Yes, "No call of anybody will run. Withdraw everything?"); err != nil {
			return err
		}
	}
	req.DryRun = false
	r, err := answer(api.Revoke(ctx, req))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	fmt.Fprintf(g.out, "revoked in %.1f ms; nothing that is not sent yet will be sent\n", float64(r.GetTookUs())/1000)
	g.note("Undo: sallyport restore %s %s", c.Kind, c.Name)
	return nil
}

func (g *Globals) switches(ctx context.Context) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListSwitches(ctx, &sallyportv1.ListSwitchesRequest{}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	rows := make([][]string, 0, len(r.GetSwitches()))
	for _, s := range r.GetSwitches() {
		until := "until restored"
		if s.GetUntilMs() > 0 {
			until = ago(s.GetUntilMs())
		}
		rows = append(rows, []string{s.GetKind(), s.GetName(), s.GetBy(), ago(s.GetAtMs()), until, s.GetReason()})
	}
	g.table([]string{"KIND", "NAME", "BY", "WHEN", "UNTIL", "REASON"}, rows)
	if len(rows) == 0 {
		g.note("Nothing is revoked.")
	}
	return nil
}

type restoreCmd struct {
	Kind   string `arg:"" enum:"session,host,worker,tool,grant,connection,credential,egress,person,everything"`
	Name   string `arg:"" optional:""`
	DryRun bool   `help:"Only say what it would undo."`
}

// Run undoes a switch.
func (c *restoreCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.Restore(ctx, &sallyportv1.RestoreRequest{Kind: c.Kind, Name: c.Name, DryRun: c.DryRun}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	if c.DryRun {
		fmt.Fprintf(g.out, "would undo: %s\n", strings.Join(r.GetHits(), ", "))
		return nil
	}
	fmt.Fprintf(g.out, "restored in %.1f ms\n", float64(r.GetTookUs())/1000)
	return nil
}

type hostsCmd struct {
	List hostsListCmd `cmd:"" default:"withargs" help:"List hosts."`
	Show notBuilt     `cmd:"" help:"Show one host."`
	Rm   hostsRmCmd   `cmd:"" help:"End a host's identity for good."`
}

type workersCmd struct {
	List workersListCmd `cmd:"" default:"withargs" help:"List workers."`
	Show notBuilt       `cmd:"" help:"Show one worker."`
	Rm   workersRmCmd   `cmd:"" help:"End a worker's identity for good."`
}

type hostsListCmd struct{}

// Run prints hosts.
func (hostsListCmd) Run(ctx context.Context, g *Globals) error { return g.machines(ctx, "host") }

type workersListCmd struct{}

// Run prints workers.
func (workersListCmd) Run(ctx context.Context, g *Globals) error { return g.machines(ctx, "worker") }

func (g *Globals) machines(ctx context.Context, role string) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListMachines(ctx, &sallyportv1.ListMachinesRequest{Role: role}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	rows := make([][]string, 0, len(r.GetMachines()))
	for _, m := range r.GetMachines() {
		rows = append(rows, []string{m.GetName(), m.GetPool(), m.GetState(), ago(m.GetSeenMs()), m.GetBuild(), m.GetConfinement()})
	}
	g.table([]string{"NAME", "POOL", "STATE", "SEEN", "BUILD", "CONFINEMENT"}, rows)
	return nil
}

type hostsRmCmd struct {
	Name string `arg:""`
	Yes  bool   `help:"Do not ask."`
}

// Run removes a host.
func (c *hostsRmCmd) Run(ctx context.Context, g *Globals) error {
	return g.removeMachine(ctx, "host", c.Name, c.Yes)
}

type workersRmCmd struct {
	Name string `arg:""`
	Yes  bool   `help:"Do not ask."`
}

// Run removes a worker.
func (c *workersRmCmd) Run(ctx context.Context, g *Globals) error {
	return g.removeMachine(ctx, "worker", c.Name, c.Yes)
}

func (g *Globals) removeMachine(ctx context.Context, role, name string, yes bool) error {
	if err := g.confirm(yes, "Its identity ends for good; it must be enrolled again. Remove "+role+" "+name+"?"); err != nil {
		return err
	}
	api, err := g.client()
	if err != nil {
		return err
	}
	_, err = answer(api.RemoveMachine(ctx, &sallyportv1.RemoveMachineRequest{Role: role, Name: name}))
	return err
}

type enrolCmd struct {
	Role string `arg:"" enum:"host,worker" help:"host or worker."`
	Name string `arg:"" help:"Its name."`
	Pool string `help:"A worker's pool." default:"default"`
}

// Run prints a one-time token.
func (c *enrolCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	req := &sallyportv1.EnrolRequest{Role: c.Role, Name: c.Name}
	if c.Role == "worker" {
		req.Pool = c.Pool
	}
	r, err := answer(api.Enrol(ctx, req))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	g.note("On the new machine, within 15 minutes: sallyport %s --join TOKEN", c.Role)
	fmt.Fprintln(g.out, r.GetToken())
	return nil
}

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/host/daemon"
	"sallyport.dev/host/gate"
	"sallyport.dev/host/harness"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/bwrap"
	"sallyport.dev/host/sandbox/launch"
	"sallyport.dev/host/supervisor"
	"sallyport.dev/telemetry"
)

// helpers are the entries of this program that are no commands: they run between fork and exec, or inside a sandbox, before anything else.
var helpers = map[string]func(args []string) int{
	launch.Arg:     func([]string) int { return launch.Main() },
	bwrap.EnterArg: func(args []string) int { return bwrap.EnterMain(args) },
	supervisor.Arg: func([]string) int { return supervisor.Main(drivers()) },
}

type runCmd struct {
	Profile    string             `required:"" help:"What the sandbox may do."`
	Workspace  string             `help:"The folder that the agent works in. Default: the current one." placeholder:"DIR"`
	Unattended bool               `help:"No person is there: a write that needs one is refused at once."`
	Harness    string             `help:"claude, codex, pi, or other. Default: by the program's name." enum:"auto,claude,codex,pi,other" default:"auto"`
	Insecure   bool               `name:"insecure-no-sandbox" help:"With a profile of the process driver: run the agent without any isolation."`
	Env        []string           `help:"Set a variable for the agent, or keep one of yours by its name." placeholder:"NAME[=VALUE]"`
	Log        telemetry.LogFlags `embed:"" prefix:"log-"`
	Args       []string           `arg:"" optional:"" passthrough:"" help:"-- and the agent's command."`
}

// Run runs an agent in a closed sandbox and returns its exit code; 125 when Sallyport failed before it ran; 143 when its host ended it: whatever the
// agent made of being told to end, who waits for it learns that it did not finish.
func (c *runCmd) Run(ctx context.Context, g *Globals) error {
	out, err := c.run(ctx, g)
	for _, r := range out.Remarks {
		g.note("Look at this: %s", oneLine(r))
	}
	switch {
	case out.Stopped != "":
		g.note("The sandbox was ended: %s", oneLine(out.Stopped))
		if out.Ran {
			return exitError{code: exitStopped, err: err}
		}
	case err == nil && out.Ran:
		return exitError{code: out.Code}
	}
	if err == nil && !out.Ran {
		err = errs.New(errs.Internal, "the agent did not run")
	}
	if out.Ran {
		return exitError{code: out.Code, err: err}
	}
	return exitError{code: exitRun, err: err}
}

func (c *runCmd) run(ctx context.Context, g *Globals) (supervisor.Outcome, error) {
	failed := supervisor.Outcome{Code: exitRun}
	args := c.Args
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return failed, errs.New(errs.Invalid, "name the agent's command after --, such as: sallyport run --profile dev -- claude")
	}
	log := c.Log.Logger(g.err).With("part", "run")
	profile, ticket, err := c.ticket(ctx, g)
	if err != nil {
		return failed, err
	}
	registry := drivers()
	driver, err := registry.Choose(profile.GetDriver(), "", c.Insecure)
	if err != nil {
		return failed, err
	}
	agent, err := harness.Find(args[0], os.Getenv("PATH"))
	if err != nil {
		return failed, err
	}
	if c.Harness != "auto" {
		agent.Harness = c.Harness
	}
	hostSocket, err := g.socket("host.sock")
	if err != nil {
		return failed, err
	}
	opened, err := daemon.Open(ctx, hostSocket, daemon.Request{
		Profile: c.Profile, Ticket: ticket, Attended: profile.GetAttended() && !c.Unattended, Harness: agent.Harness, Driver: driver.Name(), Insecure: c.Insecure,
	})
	if err != nil {
		return failed, err
	}
	if opened.Note != "" {
		g.note("Note: %s", oneLine(opened.Note))
	}
	job, err := c.job(g, agent, args[1:], opened, driver)
	if err != nil {
		return failed, err
	}
	host, err := gate.NewClient(gate.Dial(opened.Gate))
	if err != nil {
		return failed, err
	}
	in, out, errOut, err := g.files()
	if err != nil {
		return failed, err
	}
	if err := ctx.Err(); err != nil {
		return failed, errs.Wrap(errs.Cancelled, "stopped before the agent ran", err)
	}
	// From here on signals are the supervisor's: it knows which of them end the sandbox, and hands the others, such as an interrupt, to the agent. One
	// that came before, and nobody looked at yet, is heard by Cancelled.
	return supervisor.Run(context.WithoutCancel(ctx), supervisor.Config{
		Job: job, Driver: driver, Host: host, Stdio: supervisor.Stdio{In: in, Out: out, Err: errOut}, Log: log, Cancelled: ctx.Done(),
		Started: func(f sandbox.Facts) {
			for _, n := range f.Notes {
				g.note("Note: %s", oneLine(n))
			}
			log.Debug("the sandbox runs", "session", opened.Session, "driver", f.Driver, "closed", string(f.Closed), "bounds", string(f.Levels.Summary()))
		},
	})
}

// ticket finds the profile and asks for the right to open one session of it as oneself.
func (c *runCmd) ticket(ctx context.Context, g *Globals) (*sallyportv1.ProfileRow, string, error) {
	api, err := g.client()
	if err != nil {
		return nil, "", err
	}
	list, err := answer(api.ListProfiles(ctx, &sallyportv1.ListProfilesRequest{}))
	if err != nil {
		return nil, "", err
	}
	for _, p := range list.GetProfiles() {
		if p.GetName() != c.Profile {
			continue
		}
		t, err := answer(api.SessionTicket(ctx, &sallyportv1.SessionTicketRequest{Profile: c.Profile, Attended: p.GetAttended() && !c.Unattended}))
		if err != nil {
			return nil, "", err
		}
		return p, t.GetTicket(), nil
	}
	return nil, "", errs.Newf(errs.NotFound, "no profile is named %q here; sallyport profiles list shows them, sallyport apply brings them from sallyport.yaml", c.Profile)
}

// job is what the supervisor runs.
func (c *runCmd) job(g *Globals, a harness.Found, args []string, o *daemon.Opened, driver sandbox.Driver) (supervisor.Job, error) {
	state, err := g.stateDir()
	if err != nil {
		return supervisor.Job{}, err
	}
	run, err := g.runDir()
	if err != nil {
		return supervisor.Job{}, err
	}
	workspace := sandbox.Workspace{Mode: sandbox.WorkspaceMode(o.Workspace), Protected: nil, EnvFiles: o.EnvFiles}
	if workspace.Mode != sandbox.NoWorkspace {
		dir := c.Workspace
		if dir == "" {
			dir = "."
		}
		if dir, err = filepath.Abs(dir); err == nil {
			dir, err = filepath.EvalSymlinks(dir)
		}
		if err != nil {
			return supervisor.Job{}, errs.Wrap(errs.NotFound, "the workspace cannot be found: "+c.Workspace, err)
		}
		workspace.Path = dir
	}
	if len(o.Protected) > 0 {
		workspace.Protected = append(sandbox.DefaultProtected(), o.Protected...)
	}
	plan := sandbox.Plan{
		Driver: driver.Name(), Session: o.Session, Epoch: o.Epoch, Dir: o.Dir, In: o.In, Out: o.Out, Workspace: workspace,
		Gate: gateArgs(o, driver.Name()), Bounds: sandbox.Bounds{Memory: o.Memory, PIDs: o.PIDs, CPU: o.CPU},
		Where: sandbox.Where{State: state, Run: run}, InsecureNoSandbox: c.Insecure,
	}
	return c.configure(g, a, args, o, plan)
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// named are the variables that the person named: set, or kept by name.
func (c *runCmd) named() ([]string, error) {
	var env []string
	for _, e := range c.Env {
		name, _, set := strings.Cut(e, "=")
		if !envName.MatchString(name) {
			return nil, errs.Newf(errs.Invalid, "--env %q names no variable: a name has letters, digits and _, and begins with no digit", e)
		}
		if !set {
			v, ok := os.LookupEnv(name)
			if !ok {
				return nil, errs.Newf(errs.Invalid, "--env %s keeps a variable that is not set here: set it, or give a value with --env %s=VALUE", name, name)
			}
			e = name + "=" + v
		}
		env = append(env, e)
	}
	return env, nil
}

// files are the streams as files: the supervisor lends the agent a terminal, or pipes, of its own.
func (g *Globals) files() (in, out, errOut *os.File, err error) {
	in, ok1 := g.in.(*os.File)
	out, ok2 := g.out.(*os.File)
	errOut, ok3 := g.err.(*os.File)
	if !ok1 || !ok2 || !ok3 {
		return nil, nil, nil, errs.New(errs.Internal, fmt.Sprintf("run needs real streams, not %T, %T, %T", g.in, g.out, g.err))
	}
	return in, out, errOut, nil
}

package main

import (
	"os"
	"path/filepath"
	"slices"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/host/daemon"
	"sallyport.dev/host/harness"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/process"
	"sallyport.dev/host/supervisor"
	"sallyport.dev/relay"
)

// gateArgs is the sandbox's first process. Where there is no sandbox it works on the host's own paths, and starts no bridge: its port would be the
// whole machine's.
func gateArgs(o *daemon.Opened, driver string) []string {
	if driver == process.Name {
		return []string{filepath.Join(o.In, relay.BinDir, "sallyport-guest"), "gate", "--in", o.In, "--out", o.Out, "--no-bridge"}
	}
	return []string{sandbox.Guest, "gate"}
}

// shimCommand is how a harness starts our MCP server; nil is as in our sandboxes.
func shimCommand(o *daemon.Opened, driver string) []string {
	if driver == process.Name {
		return []string{filepath.Join(o.In, relay.BinDir, "sallyport-guest"), "shim", "--in", o.In, "--out", o.Out}
	}
	return nil
}

// configure fills in what depends on the agent: its files, its environment, its arguments, and what of the machine it needs to see.
func (c *runCmd) configure(g *Globals, a harness.Found, args []string, o *daemon.Opened, plan sandbox.Plan) (supervisor.Job, error) {
	if plan.Workspace.Mode != sandbox.NoWorkspace {
		if err := harness.CheckReserved(plan.Workspace.Path); err != nil {
			return supervisor.Job{}, err
		}
	}
	home, workdir := sandbox.Home, sandbox.Workdir(plan.Workspace)
	if plan.Driver == process.Name {
		home = filepath.Join(o.Dir, "home")
		if workdir = plan.Workspace.Path; plan.Workspace.Mode == sandbox.NoWorkspace {
			workdir = home
		}
	}
	options := harness.Options{
		Guest: shimCommand(o, plan.Driver), Provider: o.Provider, Workdir: workdir, Home: home, Hold: time.Duration(o.HoldMS) * time.Millisecond,
		// Our sandbox lets a harness make its own inside, where it has one (Codex).
		Sandboxed: plan.Driver != process.Name, Nested: plan.Driver != process.Name,
	}
	config, err := harness.Other(options)
	if slices.Contains(harness.Names(), a.Harness) {
		config, err = harness.Generate(a.Harness, options)
	}
	if err != nil {
		return supervisor.Job{}, err
	}
	for _, n := range config.Notes {
		g.note("Note: %s", oneLine(n))
	}
	named, err := c.named()
	if err != nil {
		return supervisor.Job{}, err
	}
	plan.Env = slices.Concat(harness.Environment(os.Environ(), a.Paths), config.Env, named)
	if plan.Driver == process.Name {
		plan.Env = append(plan.Env, "HOME="+home)
	}
	plan.Args = slices.Concat(a.Args, config.Args, args)
	plan.Installs, plan.Nested = a.Installs, config.Nested
	return supervisor.Job{Plan: plan, Home: config.Files}, nil
}

type harnessCmd struct {
	Config harnessConfigCmd `cmd:"" help:"Print the configuration for an agent that somebody else starts in one of our sandboxes."`
}

type harnessConfigCmd struct {
	Harness  string        `arg:"" enum:"claude,codex,pi,acp,json" help:"claude, codex, pi, acp or json."`
	Provider string        `help:"The model's provider: anthropic, openai or none." enum:"anthropic,openai,none" default:"none"`
	Hold     time.Duration `help:"The profile's hold: tool timeouts lie above it." default:"45s"`
}

// Run prints files, variables and arguments.
func (c *harnessConfigCmd) Run(g *Globals) error {
	text, err := harness.Print(c.Harness, harness.Options{Provider: c.Provider, Hold: c.Hold})
	if err != nil {
		return err
	}
	if g.JSON && c.Harness != "acp" && c.Harness != "json" {
		return errs.New(errs.Invalid, "this is printed for people: use acp or json for a program")
	}
	_, err = g.out.Write([]byte(text))
	return err
}

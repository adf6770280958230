package main

import (
	"path/filepath"

	"sallyport.dev/host/daemon"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/supervisor"
	"sallyport.dev/relay"
)

// gateArgs is the sandbox's first process. Where there is no sandbox it works on the host's own paths, and starts no bridge: its port would be the
// whole machine's.
func gateArgs(o *daemon.Opened, driver string) []string {
	if driver == "process" {
		return []string{filepath.Join(o.In, relay.BinDir, "sallyport-guest"), "gate", "--in", o.In, "--out", o.Out, "--no-bridge"}
	}
	return []string{sandbox.Guest, "gate"}
}

// configure fills in what depends on the agent: its environment, its files, what of the machine it needs to see.
func (c *runCmd) configure(_ *Globals, a agent, o *daemon.Opened, plan sandbox.Plan) (supervisor.Job, error) {
	env, err := c.environment(nil)
	if err != nil {
		return supervisor.Job{}, err
	}
	plan.Env = env
	plan.Args = append([]string{a.path}, a.args[1:]...)
	if !within(a.path, "/usr") {
		plan.Installs = []string{a.path}
	}
	return supervisor.Job{Plan: plan}, nil
}

func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

package main

import (
	"context"
	"fmt"
	"strings"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
)

type hostsCmd struct {
	List hostsListCmd `cmd:"" default:"withargs" help:"List hosts."`
	Show hostsShowCmd `cmd:"" help:"Show one host."`
	Rm   hostsRmCmd   `cmd:"" help:"End a host's identity for good."`
}

type workersCmd struct {
	List workersListCmd `cmd:"" default:"withargs" help:"List workers."`
	Show workersShowCmd `cmd:"" help:"Show one worker, with the fingerprint of the key that credentials are sealed to."`
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

type hostsShowCmd struct {
	Name string `arg:""`
}

// Run prints one host.
func (c *hostsShowCmd) Run(ctx context.Context, g *Globals) error {
	return g.showMachine(ctx, "host", c.Name)
}

type workersShowCmd struct {
	Name string `arg:""`
}

// Run prints one worker.
func (c *workersShowCmd) Run(ctx context.Context, g *Globals) error {
	return g.showMachine(ctx, "worker", c.Name)
}

func (g *Globals) showMachine(ctx context.Context, role, name string) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListMachines(ctx, &sallyportv1.ListMachinesRequest{Role: role}))
	if err != nil {
		return err
	}
	for _, m := range r.GetMachines() {
		if m.GetName() != name && m.GetId() != name {
			continue
		}
		if g.JSON {
			g.printJSON(m)
			return nil
		}
		rows := [][2]string{
			{"name", m.GetName()}, {"id", m.GetId()}, {"state", m.GetState()}, {"seen", ago(m.GetSeenMs())}, {"enrolled", ago(m.GetSinceMs())}, {"build", m.GetBuild()},
		}
		if role == "worker" {
			rows = append(rows, [2]string{"pool", m.GetPool()}, [2]string{"pool key", m.GetPoolKey()}, [2]string{"run", m.GetRun()}, [2]string{"confined", m.GetConfinement()})
		} else {
			rows = append(rows, [2]string{"sessions", fmt.Sprint(m.GetSessions())})
		}
		g.members(rows)
		return nil
	}
	return errs.Newf(errs.NotFound, "no %s is named %s; sallyport %ss list shows them", role, name, role)
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
	if err := g.confirm(ctx, yes, "Its identity ends for good; it must be enrolled again. Remove "+role+" "+name+"?"); err != nil {
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
	fmt.Fprintln(g.out, r.GetToken())
	g.note("It works once, within 15 minutes. Where the %s runs: sallyport %s --join TOKEN", c.Role, c.Role)
	if t, err := identity.ParseToken(r.GetToken()); err == nil && strings.HasPrefix(t.Address, "unix:") {
		g.note("This control is reached from this machine only; start it with --listen ADDR:PORT, so that others can dial it.")
	}
	return nil
}

package bwrap

import (
	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/bounds"
	"sallyport.dev/host/sandbox/proc"
)

// reached is a sandbox whose supervisor is another process: it is known by what that one wrote down.
type reached struct{ *instance }

// Reach implements [sandbox.Driver].
func (d *Driver) Reach(dir string) (sandbox.Reached, error) {
	none := errs.New(errs.NotFound, "no sandbox of this session runs")
	t, exists, err := loadTraces(dir)
	if err != nil {
		return nil, err
	}
	if !exists || t.First.PID == 0 {
		return nil, none
	}
	first, err := proc.Open(t.First.PID)
	if err != nil {
		return nil, none
	}
	if first.ID != t.First || !proc.Runs(t.First.PID) {
		first.Close()
		return nil, none
	}
	in := &instance{
		driver: d, traces: t, group: bounds.Attach(t.Cgroups), state: sandbox.Running, uid: t.UID, gid: t.GID, first: first, levels: t.Levels,
		plan: sandbox.Plan{Session: t.Session, Epoch: t.Epoch, Dir: dir, Env: t.Env, Nested: t.Nested, Bounds: t.Bounds},
	}
	return reached{in}, nil
}

// Process implements [sandbox.Reached].
func (r reached) Process() sandbox.Process {
	p := sandbox.Process{PID: r.traces.First.PID, Start: r.traces.First.Start, Outer: r.traces.Outer.PID}
	p.NetNS, _ = proc.Namespace(p.PID, "net") // empty once it ended
	p.PIDNS, _ = proc.Namespace(p.PID, "pid")
	if len(r.traces.Cgroups) > 0 {
		p.Cgroup = r.traces.Cgroups[0]
	}
	return p
}

// Workspace implements [sandbox.Reached].
func (r reached) Workspace() string { return r.traces.Workspace }

// Close implements [sandbox.Reached]. The sandbox goes on.
func (r reached) Close() { r.first.Close() }

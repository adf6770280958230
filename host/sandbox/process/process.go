// Package process runs an agent without any sandbox: the same gate, the same relay and the same scrubbed environment, on the machine itself.
// It is for trying things out where no sandbox can be had. The agent can read what its user can read, and could answer its own approvals, so
// the driver is refused without the user's word, and its sessions may not be approved locally.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/bounds"
	"sallyport.dev/host/sandbox/launch"
	"sallyport.dev/host/sandbox/proc"
)

// Name is the driver's name in profiles.
const Name = "process"

// marker is the variable by which the processes of a session are found again, whatever parents they have by then.
const marker = "SALLYPORT_SESSION"

// endTimeout bounds how long ending the processes may take.
const endTimeout = 10 * time.Second

// Driver runs agents on the machine itself. Its methods may be called concurrently.
type Driver struct {
	// Launcher is the command that runs package launch's Main.
	Launcher []string
}

// Name implements [sandbox.Driver].
func (*Driver) Name() string { return Name }

// Capabilities implements [sandbox.Driver].
func (*Driver) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{Closed: sandbox.Open, Exec: true, Park: true, Terminal: true}
}

// Check implements [sandbox.Driver].
func (*Driver) Check(context.Context, sandbox.Where) []sandbox.Finding {
	return []sandbox.Finding{{Level: sandbox.Warning, Subject: Name, Message: "no sandbox: the agent can read your files and credentials, and reach the network"}}
}

// Owner implements [sandbox.Driver]: the user of the host.
func (*Driver) Owner(dir string) (int, int, error) {
	if err := os.MkdirAll(filepath.Join(dir, "home"), 0o700); err != nil {
		return 0, 0, errs.Wrap(errs.Unavailable, "the session's folder cannot be made", err)
	}
	return os.Geteuid(), os.Getegid(), nil
}

// Prepare implements [sandbox.Driver].
func (d *Driver) Prepare(ctx context.Context, plan sandbox.Plan) (sandbox.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !plan.InsecureNoSandbox {
		return nil, errs.New(errs.NotAllowed, "driver process has no sandbox at all: the agent could read your files and credentials; say --insecure-no-sandbox if you mean it")
	}
	if err := plan.Check(); err != nil {
		return nil, err
	}
	if plan.Workspace.Mode != sandbox.NoWorkspace {
		real, err := plan.Where.CheckShown("workspace", plan.Workspace.Path)
		if err != nil {
			return nil, err
		}
		plan.Workspace.Path = real
	}
	if _, _, err := d.Owner(plan.Dir); err != nil {
		return nil, err
	}
	return &instance{driver: d, plan: plan, state: sandbox.Prepared}, nil
}

// Recover implements [sandbox.Driver].
func (d *Driver) Recover(ctx context.Context, dir string) error {
	return end(ctx, filepath.Base(dir), nil)
}

// Reach implements [sandbox.Driver].
func (d *Driver) Reach(dir string) (sandbox.Reached, error) {
	want := []byte(marker + "=" + filepath.Base(dir))
	for _, pid := range proc.Find(func(pid int) bool { return pid != os.Getpid() && proc.Runs(pid) && hasVariable(pid, want) }) {
		if s, err := proc.Read(pid); err == nil {
			return reached{s.ID}, nil
		}
	}
	return nil, errs.New(errs.NotFound, "no agent of this session runs")
}

// reached is the first process of a session that was found.
type reached struct{ id proc.ID }

// Process implements [sandbox.Reached].
func (r reached) Process() sandbox.Process {
	return sandbox.Process{PID: r.id.PID, Start: r.id.Start}
}

// Workspace implements [sandbox.Reached]: nothing is shut in.
func (r reached) Workspace() string { return "" }

// Exec implements [sandbox.Reached].
func (r reached) Exec(context.Context, sandbox.Command, sandbox.Stdio) (sandbox.Stream, error) {
	return nil, errs.New(errs.Unavailable, "this session has no sandbox to enter: its agent runs on this machine itself, and so does any command that you type")
}

// Close implements [sandbox.Reached].
func (r reached) Close() {}

type instance struct {
	driver *Driver
	plan   sandbox.Plan
	group  *bounds.Group

	mu     sync.Mutex
	state  sandbox.State
	levels sandbox.Levels
	child  *launch.Child
}

// Facts implements [sandbox.Instance].
func (in *instance) Facts() sandbox.Facts {
	in.mu.Lock()
	defer in.mu.Unlock()
	return sandbox.Facts{
		Driver: Name, Closed: sandbox.Open, Levels: in.levels, GuestUID: os.Geteuid(), GuestGID: os.Getegid(), SameUID: true, Workdir: in.workdir(),
		Notes: []string{"there is no sandbox: the agent runs as you"},
	}
}

func (in *instance) workdir() string {
	if in.plan.Workspace.Mode == sandbox.NoWorkspace {
		return filepath.Join(in.plan.Dir, "home")
	}
	return in.plan.Workspace.Path
}

func (in *instance) step(e sandbox.Event) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	next, err := sandbox.Next(in.state, e)
	if err == nil {
		in.state = next
	}
	return err
}

// Start implements [sandbox.Instance].
func (in *instance) Start(ctx context.Context, stdio sandbox.Stdio) (sandbox.Process, error) {
	if err := in.step(sandbox.Start); err != nil {
		return sandbox.Process{}, err
	}
	return in.boot(ctx, stdio)
}

// Resume implements [sandbox.Instance].
func (in *instance) Resume(ctx context.Context, stdio sandbox.Stdio) (sandbox.Process, error) {
	if err := in.step(sandbox.Resume); err != nil {
		return sandbox.Process{}, err
	}
	return in.boot(ctx, stdio)
}

func (in *instance) boot(ctx context.Context, stdio sandbox.Stdio) (sandbox.Process, error) {
	limits := in.plan.Bounds.WithDefaults()
	group, levels := bounds.Make(fmt.Sprintf("sallyport-%s-%d", in.plan.Session, in.plan.Epoch), limits)
	in.mu.Lock()
	in.group, in.levels = group, levels
	in.mu.Unlock()
	args := append(slices.Clone(in.plan.Gate), "--")
	args = append(args, in.plan.Args...)
	child, err := in.launch(ctx, args, nil, in.workdir(), stdio)
	if err != nil {
		if gone := in.Stop(context.WithoutCancel(ctx), 0); gone != nil {
			err = errors.Join(err, gone)
		}
		return sandbox.Process{}, err
	}
	in.mu.Lock()
	in.child = child
	in.mu.Unlock()
	p := sandbox.Process{PID: child.PID, Outer: child.PID}
	if s, err := proc.Read(child.PID); err == nil {
		p.Start = s.Start
	}
	p.NetNS, _ = proc.Namespace(child.PID, "net")
	if dirs := group.Dirs(); len(dirs) > 0 {
		p.Cgroup = dirs[0]
	}
	return p, nil
}

func (in *instance) launch(ctx context.Context, args, env []string, dir string, stdio sandbox.Stdio) (*launch.Child, error) {
	o := launch.Order{
		Path: args[0], Args: args, Env: sandbox.Settle(slices.Concat(in.plan.Env, env, []string{marker + "=" + in.plan.Session})), Dir: dir, UID: -1, GID: -1,
		Limits: []launch.Limit{{Resource: unix.RLIMIT_CORE}},
	}
	return launch.Start(ctx, in.driver.Launcher, o, launch.Stdio{In: stdio.In, Out: stdio.Out, Err: stdio.Err}, in.group.Add)
}

// Exec implements [sandbox.Instance].
func (in *instance) Exec(ctx context.Context, c sandbox.Command, stdio sandbox.Stdio) (sandbox.Stream, error) {
	if err := in.step(sandbox.Exec); err != nil {
		return nil, err
	}
	if len(c.Args) == 0 {
		return nil, errs.New(errs.Invalid, "no command to run; write it after --")
	}
	dir := c.Dir
	if dir == "" {
		dir = in.workdir()
	}
	args := slices.Clone(c.Args)
	path, err := find(args[0], slices.Concat(in.plan.Env, c.Env))
	if err != nil {
		return nil, err
	}
	args[0] = path
	child, err := in.launch(ctx, args, c.Env, dir, stdio)
	if err != nil {
		return nil, err
	}
	return stream{child}, nil
}

func find(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, entry := range slices.Backward(env) {
		list, ok := strings.CutPrefix(entry, "PATH=")
		if !ok {
			continue
		}
		for dir := range strings.SplitSeq(list, ":") {
			p := filepath.Join(dir, name)
			if unix.Access(p, unix.X_OK) == nil {
				return p, nil
			}
		}
		break
	}
	return "", errs.Newf(errs.NotFound, "there is no program %s", name)
}

type stream struct{ child *launch.Child }

// Signal implements [sandbox.Stream].
func (s stream) Signal(sig os.Signal) error { return s.child.Signal(sig) }

// Wait implements [sandbox.Stream].
func (s stream) Wait() (sandbox.Exit, error) { return exit(s.child) }

func exit(c *launch.Child) (sandbox.Exit, error) {
	state, err := c.State()
	if err != nil {
		return sandbox.Exit{}, errs.Wrap(errs.Internal, "the end of the agent could not be read", err)
	}
	e := sandbox.Exit{Code: state.ExitCode(), Ran: true}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Code, e.Signal = 128+int(ws.Signal()), ws.Signal()
	}
	return e, nil
}

// Signal implements [sandbox.Instance].
func (in *instance) Signal(s os.Signal) error {
	in.mu.Lock()
	child := in.child
	in.mu.Unlock()
	if child == nil {
		return os.ErrProcessDone
	}
	return child.Signal(s)
}

// Wait implements [sandbox.Instance].
func (in *instance) Wait() (sandbox.Exit, error) {
	in.mu.Lock()
	child := in.child
	in.mu.Unlock()
	if child == nil {
		return sandbox.Exit{}, errs.New(errs.Conflict, "the agent was not started")
	}
	return exit(child)
}

// Stop implements [sandbox.Instance].
func (in *instance) Stop(ctx context.Context, grace time.Duration) error {
	if err := in.step(sandbox.Stop); err != nil {
		return err
	}
	return in.stop(ctx, grace)
}

// Park implements [sandbox.Instance].
func (in *instance) Park(ctx context.Context, grace time.Duration) error {
	if err := in.step(sandbox.Park); err != nil {
		return err
	}
	return in.stop(ctx, grace)
}

func (in *instance) stop(ctx context.Context, grace time.Duration) error {
	in.mu.Lock()
	child := in.child
	in.mu.Unlock()
	if child != nil && grace > 0 && child.Signal(unix.SIGTERM) == nil {
		select {
		case <-child.Done():
		case <-time.After(grace):
		case <-ctx.Done():
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if child != nil {
		child.Kill()
		<-child.Done()
	}
	if err := end(ctx, in.plan.Session, in.group); err != nil {
		return err
	}
	in.mu.Lock()
	in.child = nil
	in.mu.Unlock()
	return nil
}

// end kills every process of a session and returns nil once none is left. Without a control group a process that cleared its environment
// is not found: without a sandbox nothing holds it.
func end(ctx context.Context, session string, group *bounds.Group) error {
	if group != nil {
		if err := group.Kill(ctx); err != nil {
			return err
		}
		if err := group.Remove(ctx); err != nil {
			return err
		}
	}
	want := []byte(marker + "=" + session)
	for {
		left := proc.Find(func(pid int) bool { return pid != os.Getpid() && proc.Runs(pid) && hasVariable(pid, want) })
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return errs.Newf(errs.Internal, "processes %v of the agent are still there", left)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func hasVariable(pid int, want []byte) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || errors.Is(err, fs.ErrNotExist) {
		return false
	}
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		if bytes.Equal(entry, want) {
			return true
		}
	}
	return false
}

// Destroy implements [sandbox.Instance].
func (in *instance) Destroy(ctx context.Context) error {
	in.mu.Lock()
	running, done := in.state == sandbox.Running, in.state == sandbox.Destroyed
	in.mu.Unlock()
	if done {
		return nil
	}
	if running {
		if err := in.Stop(ctx, 0); err != nil {
			return err
		}
	}
	return in.step(sandbox.Destroy)
}

// Remarks implements [sandbox.Instance].
func (in *instance) Remarks() []string { return nil }

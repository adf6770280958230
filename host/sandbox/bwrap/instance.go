package bwrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
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

// startTimeout bounds how long bubblewrap may take to make its namespaces. It is generous: a busy machine is slow, not broken.
const startTimeout = 20 * time.Second

// endTimeout bounds how long ending a sandbox may take before its absence counts as unproven.
const endTimeout = 10 * time.Second

// instance is one sandbox.
type instance struct {
	driver   *Driver
	plan     sandbox.Plan
	path     string // of bubblewrap
	uid, gid int
	root     *os.Root // the workspace
	owner    unix.Stat_t
	lock     *workspaceLock
	guarding guarding
	traces   traces
	group    *bounds.Group
	levels   sandbox.Levels
	remarks  []string

	mu    sync.Mutex
	state sandbox.State
	child *launch.Child
	first *proc.Handle
	facts sandbox.Process
}

// Facts implements [sandbox.Instance]. Levels are known once it was started.
func (in *instance) Facts() sandbox.Facts {
	in.mu.Lock()
	defer in.mu.Unlock()
	return sandbox.Facts{
		Driver: Name, Closed: sandbox.Proven, Levels: in.levels, GuestUID: in.uid, GuestGID: in.gid,
		Workdir: sandbox.Workdir(in.plan.Workspace), Notes: slices.Clone(in.guarding.notes),
	}
}

// Remarks implements [sandbox.Instance].
func (in *instance) Remarks() []string { return slices.Clone(in.remarks) }

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

// Resume implements [sandbox.Instance]: what was stopped boots again, shut.
func (in *instance) Resume(ctx context.Context, stdio sandbox.Stdio) (sandbox.Process, error) {
	if err := in.step(sandbox.Resume); err != nil {
		return sandbox.Process{}, err
	}
	return in.boot(ctx, stdio)
}

// boot starts the sandbox; on an error nothing of it runs.
func (in *instance) boot(ctx context.Context, stdio sandbox.Stdio) (p sandbox.Process, err error) {
	defer func() {
		if err != nil {
			// Not with ctx: what failed may be that it ended.
			if gone := in.Stop(context.WithoutCancel(ctx), 0); gone != nil {
				err = errors.Join(err, gone)
			}
		}
	}()
	name := bounds.Name(in.plan.Session, in.plan.Epoch)
	in.traces.Cgroups = bounds.Candidates(name) // before one is made: who dies in between leaves none that nobody knows of
	if err := in.traces.save(in.plan.Dir); err != nil {
		return p, err
	}
	var group *bounds.Group
	group, levels := bounds.Make(name, in.plan.Bounds)
	in.mu.Lock()
	in.group, in.levels = group, in.limitLevels(levels)
	in.mu.Unlock()
	in.traces.Cgroups, in.traces.Levels = group.Dirs(), in.levels
	if err := in.traces.save(in.plan.Dir); err != nil {
		return p, err
	}

	order, files, info, err := in.order()
	if err != nil {
		return p, err
	}
	defer info.Close()
	child, err := launch.Start(ctx, in.driver.Launcher, order, launch.Stdio{In: stdio.In, Out: stdio.Out, Err: stdio.Err, Files: files}, group.Add)
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		return p, err
	}
	in.mu.Lock()
	in.child = child
	in.mu.Unlock()
	if s, err := proc.Read(child.PID); err == nil {
		in.traces.Outer = s.ID
	}
	told, err := readInfo(info, startTimeout)
	if err != nil {
		child.Kill()
		state, _ := child.State()
		return p, errs.Wrap(errs.Unavailable, "bubblewrap could not make the sandbox; its message stands above, and doctor says what is missing", fmt.Errorf("%w (%v)", err, state))
	}
	first, err := proc.Open(told.Child)
	if err != nil {
		return p, errs.Wrap(errs.Unavailable, "the sandbox ended while it was made; its message stands above", err)
	}
	in.mu.Lock()
	in.first = first
	in.mu.Unlock()
	in.traces.First = first.ID
	if err := in.traces.save(in.plan.Dir); err != nil {
		return p, err
	}
	return in.identify(told)
}

// told is what bubblewrap says about the sandbox that it made.
type told struct {
	Child int    `json:"child-pid"`
	Net   uint64 `json:"net-namespace"`
	PID   uint64 `json:"pid-namespace"`
}

func readInfo(r *os.File, patience time.Duration) (told, error) {
	var t told
	_ = r.SetReadDeadline(time.Now().Add(patience))
	if err := json.NewDecoder(io.LimitReader(r, 64<<10)).Decode(&t); err != nil {
		return t, fmt.Errorf("bubblewrap said nothing about its sandbox: %w", err)
	}
	if t.Child <= 0 || t.Net == 0 || t.PID == 0 {
		return t, errors.New("bubblewrap is too old: it does not name the namespaces that it made")
	}
	return t, nil
}

// identify asks the kernel who the first process is, and compares with what bubblewrap said: its parent is bubblewrap, whose parent we are,
// and its namespaces are new ones.
func (in *instance) identify(t told) (sandbox.Process, error) {
	bad := func(what string, err error) (sandbox.Process, error) {
		return sandbox.Process{}, errs.Wrap(errs.Internal, "the sandbox is not the one that was made: "+what, err)
	}
	if !proc.Runs(t.Child) {
		return sandbox.Process{}, errs.New(errs.Unavailable, "the sandbox ended while it was made; its message stands above")
	}
	if !proc.Below(t.Child, in.child.PID, 1) {
		return bad("its first process has another parent", nil)
	}
	p := sandbox.Process{PID: in.first.ID.PID, Start: in.first.ID.Start, Outer: in.child.PID}
	for _, ns := range []struct {
		kind string
		said uint64
		to   *string
	}{{"net", t.Net, &p.NetNS}, {"pid", t.PID, &p.PIDNS}} {
		seen, err := proc.Namespace(t.Child, ns.kind)
		if err != nil {
			return bad("its "+ns.kind+" namespace cannot be read", err)
		}
		own, err := proc.Namespace(os.Getpid(), ns.kind)
		if err != nil {
			return bad("our "+ns.kind+" namespace cannot be read", err)
		}
		var dev, inode uint64
		if _, err := fmt.Sscanf(seen, "%d:%d", &dev, &inode); err != nil || inode != ns.said || seen == own {
			return bad("its "+ns.kind+" namespace is "+seen, err)
		}
		*ns.to = seen
	}
	if dirs := in.group.Dirs(); len(dirs) > 0 {
		p.Cgroup = dirs[0]
	}
	in.mu.Lock()
	in.facts = p
	in.mu.Unlock()
	return p, in.limitFirst()
}

// Wait implements [sandbox.Instance].
func (in *instance) Wait() (sandbox.Exit, error) {
	in.mu.Lock()
	child, first := in.child, in.first
	in.mu.Unlock()
	if child == nil {
		return sandbox.Exit{}, errs.New(errs.Conflict, "the sandbox was not started")
	}
	state, err := child.State()
	if err != nil {
		return sandbox.Exit{}, errs.Wrap(errs.Internal, "the end of the sandbox could not be read", err)
	}
	return exitOf(state, first != nil), nil
}

func exitOf(state *os.ProcessState, ran bool) sandbox.Exit {
	e := sandbox.Exit{Code: state.ExitCode(), Ran: ran}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Code, e.Signal = 128+int(ws.Signal()), ws.Signal()
	}
	return e
}

// Signal implements [sandbox.Instance]: the first process, which hands signals on to the agent.
func (in *instance) Signal(s os.Signal) error {
	in.mu.Lock()
	first := in.first
	in.mu.Unlock()
	sig, ok := s.(syscall.Signal)
	if first == nil || !ok {
		return os.ErrProcessDone
	}
	return first.Signal(sig)
}

// Stop implements [sandbox.Instance].
func (in *instance) Stop(ctx context.Context, grace time.Duration) error {
	if err := in.step(sandbox.Stop); err != nil {
		return err
	}
	return in.stop(ctx, grace)
}

// Park implements [sandbox.Instance]: stopped, with everything on disk kept. There is no snapshot of memory.
func (in *instance) Park(ctx context.Context, grace time.Duration) error {
	if err := in.step(sandbox.Park); err != nil {
		return err
	}
	return in.stop(ctx, grace)
}

func (in *instance) stop(ctx context.Context, grace time.Duration) error {
	in.mu.Lock()
	child, first := in.child, in.first
	in.mu.Unlock()
	if first != nil && grace > 0 && first.Signal(unix.SIGTERM) == nil {
		wait, cancel := context.WithTimeout(ctx, grace)
		_ = first.Wait(wait)
		cancel()
	}
	// Whatever ctx says, what was started must end.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if child != nil {
		child.Kill()
	}
	if err := in.end(ctx); err != nil {
		return err
	}
	if child != nil {
		select {
		case <-child.Done():
		case <-ctx.Done():
			return errs.New(errs.Internal, "bubblewrap did not end")
		}
	}
	in.mu.Lock()
	in.child = nil
	if first != nil {
		first.Close()
	}
	in.first, in.facts = nil, sandbox.Process{}
	in.mu.Unlock()
	if in.group != nil {
		if err := in.group.Remove(ctx); err != nil {
			return err
		}
	}
	if in.root != nil {
		in.remarks = compare(in.root, in.guarding.before)
	}
	return nil
}

// end kills what the traces name and returns nil once the kernel says that nothing of it is left: the first process of the namespace ended,
// after which it holds none; the control group is empty; and where the sandbox had a user of its own, no process of that user exists.
func (in *instance) end(ctx context.Context) error {
	for _, id := range []proc.ID{in.traces.Outer, in.traces.First} {
		if err := endProcess(ctx, id); err != nil {
			return err
		}
	}
	if in.group != nil {
		if err := in.group.Kill(ctx); err != nil {
			return err
		}
	}
	if in.traces.OwnUID {
		left := func() []int {
			return proc.Find(func(pid int) bool { return proc.UID(pid) == in.traces.UID && proc.Runs(pid) })
		}
		for len(left()) > 0 {
			for _, pid := range left() {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			if ctx.Err() != nil {
				return errs.Newf(errs.Internal, "processes %v of the sandbox are still there", left())
			}
		}
	}
	return nil
}

// endProcess kills the very process of id and waits for its end. Only the descriptor tells the end: the first thread of a process may be
// dead in /proc while others still run, and with them the namespace.
func endProcess(ctx context.Context, id proc.ID) error {
	if id.PID == 0 {
		return nil
	}
	h, err := proc.Open(id.PID)
	switch {
	case errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return errs.Wrap(errs.Internal, "a process of the sandbox could not be reached", err)
	}
	defer h.Close()
	if h.ID != id {
		return nil // the pid is another process by now
	}
	_ = h.Signal(unix.SIGKILL)
	if err := h.Wait(ctx); err != nil {
		return errs.Wrap(errs.Internal, fmt.Sprintf("process %d of the sandbox did not end", id.PID), err)
	}
	return nil
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
	if err := in.step(sandbox.Destroy); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	return in.takeBack(ctx)
}

// memoryFile makes a file in memory that bubblewrap reads from its start.
func memoryFile(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(content); err != nil {
		f.Close()
		return nil, err
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, err
}

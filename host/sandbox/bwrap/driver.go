// Package bwrap makes sandboxes with bubblewrap: Linux namespaces without an interface but lo, an allowlist of what is seen, no capability,
// no new privilege, a system call filter, and bounds by control group where they can be had.
//
// The agent is never user 0 inside. Run by root, it is a user of its own outside too; run by a plain user, it is that user, shut in.
package bwrap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/bounds"
	"sallyport.dev/host/sandbox/launch"
)

// Name is the driver's name in profiles.
const Name = "bwrap"

// Driver makes bubblewrap sandboxes. Its methods may be called concurrently.
type Driver struct {
	// Launcher is the command that runs package launch's Main: this program with [launch.Arg].
	Launcher []string
	// Enter is the command that runs [EnterMain]: this program with [EnterArg]; none means that Exec is refused.
	Enter []string
}

// Name implements [sandbox.Driver].
func (*Driver) Name() string { return Name }

// Capabilities implements [sandbox.Driver].
func (*Driver) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{Closed: sandbox.Proven, Exec: true, Park: true, OwnUID: os.Geteuid() == 0, Terminal: true, TwoMount: true}
}

// bubblewrap returns the path of bubblewrap.
func bubblewrap() (string, error) {
	path, err := exec.LookPath("bwrap")
	if err != nil {
		return "", errs.Wrap(errs.Unavailable, "bubblewrap is not installed; install it (Debian, Ubuntu: apt-get install bubblewrap)", err)
	}
	return path, nil
}

// Prepare implements [sandbox.Driver].
func (d *Driver) Prepare(ctx context.Context, plan sandbox.Plan) (_ sandbox.Instance, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := plan.Check(); err != nil {
		return nil, err
	}
	if plan.Where.State == "" {
		return nil, errs.New(errs.Internal, "the plan does not say where Sallyport's state is")
	}
	if plan.Session == "" || filepath.Base(plan.Dir) != plan.Session {
		return nil, errs.New(errs.Internal, "the session's folder is not named after the session")
	}
	path, err := bubblewrap()
	if err != nil {
		return nil, err
	}
	for _, shown := range []string{plan.In, plan.Out} {
		if info, err := os.Lstat(shown); err != nil || !info.IsDir() {
			return nil, errs.New(errs.Internal, "the session's relay directory was not made")
		}
	}
	if plan.Gate[0] == sandbox.Guest {
		if _, err := os.Stat(filepath.Join(plan.In, "bin", "sallyport-guest")); err != nil {
			return nil, errs.Wrap(errs.Internal, "the guest's binaries are missing from the session's folder", err)
		}
	}
	if _, exists, err := loadTraces(plan.Dir); err != nil {
		return nil, err
	} else if exists {
		return nil, errs.New(errs.Conflict, "this session's sandbox was not taken back yet; recover it first")
	}

	in := &instance{driver: d, plan: plan, path: path, state: sandbox.Prepared}
	defer func() {
		if err != nil {
			in.letGo()
		}
	}()
	for i, install := range plan.Installs {
		real, err := plan.Where.CheckShown("install folder", install)
		if err != nil {
			return nil, err
		}
		if real != install {
			return nil, errs.Newf(errs.Internal, "the install folder %s is reached by a link", install)
		}
		in.plan.Installs[i] = real
	}
	if plan.Workspace.Mode != sandbox.NoWorkspace {
		if err := in.openWorkspace(); err != nil {
			return nil, err
		}
	}
	in.uid, in.gid, err = d.Owner(plan.Dir)
	if err != nil {
		return nil, err
	}
	if err := in.checkOwner(); err != nil {
		return nil, err
	}
	in.plan.Bounds = plan.Bounds.WithDefaults()
	in.traces = traces{
		Session: plan.Session, Epoch: plan.Epoch, UID: in.uid, GID: in.gid, OwnUID: in.uid != os.Geteuid(), Where: plan.Where,
		Workspace: in.plan.Workspace.Path, Protected: in.protected(), Env: in.plan.Env, Workdir: sandbox.Workdir(in.plan.Workspace), Nested: in.plan.Nested,
		Bounds: in.plan.Bounds,
	}
	if err := in.traces.save(plan.Dir); err != nil {
		return nil, err
	}
	if err := in.guardWorkspace(); err != nil {
		_ = in.takeBack(ctx)
		return nil, err
	}
	return in, nil
}

// openWorkspace checks the workspace and holds on to it: what is decided about its names is decided about this folder.
func (in *instance) openWorkspace() error {
	w := &in.plan.Workspace
	real, err := in.plan.Where.CheckWorkspace(w.Path)
	if err != nil {
		return err
	}
	w.Path = real
	if in.root, err = os.OpenRoot(real); err != nil {
		return errs.Wrap(errs.NotAllowed, "the workspace cannot be opened", err)
	}
	if err := unix.Stat(real, &in.owner); err != nil {
		return errs.Wrap(errs.NotAllowed, "the workspace cannot be read", err)
	}
	in.lock, err = lockWorkspace(in.plan.Where.State, in.owner)
	return err
}

// checkOwner refuses a workspace whose files root cannot show as the sandbox user's own.
func (in *instance) checkOwner() error {
	if in.root == nil || os.Geteuid() != 0 {
		return nil
	}
	err := launch.CheckOwner(in.workspaceMount(), in.uid, in.gid)
	switch {
	case errors.Is(err, launch.ErrNoOwnerMapping):
		return errs.Wrap(errs.NotAllowed, fmt.Sprintf("the file system of the workspace %s cannot show its files to the sandbox's own user (NFS cannot, nor an old kernel); run Sallyport as the user who owns the workspace", in.plan.Workspace.Path), err)
	case err != nil:
		return errs.Wrap(errs.NotAllowed, "the workspace cannot be shown to the sandbox's own user; as root, Sallyport needs CAP_SYS_ADMIN (doctor says more)", err)
	}
	return nil
}

func (in *instance) protected() []string {
	if in.plan.Workspace.Mode != sandbox.ReadWrite {
		return nil
	}
	if in.plan.Workspace.Protected == nil {
		return sandbox.DefaultProtected()
	}
	return in.plan.Workspace.Protected
}

func (in *instance) guardWorkspace() error {
	if in.root == nil {
		return nil
	}
	if in.plan.Workspace.Mode == sandbox.ReadWrite {
		var err error
		if in.guarding, err = guardNames(in.root, in.protected(), in.owner); err != nil {
			return err
		}
	}
	return in.guarding.search(in.root, in.plan.Workspace.EnvFiles)
}

// Recover implements [sandbox.Driver].
func (d *Driver) Recover(ctx context.Context, dir string) error {
	t, exists, err := loadTraces(dir)
	if err != nil || !exists {
		return err
	}
	in := &instance{driver: d, plan: sandbox.Plan{Dir: dir, Where: t.Where}, traces: t, group: bounds.Attach(t.Cgroups), state: sandbox.Running, uid: t.UID}
	if t.Workspace != "" {
		in.root, err = os.OpenRoot(t.Workspace)
		if err == nil {
			if err := unix.Stat(t.Workspace, &in.owner); err == nil {
				in.lock, _ = lockWorkspace(t.Where.State, in.owner)
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return errs.Wrap(errs.Unavailable, "the workspace cannot be opened", err)
		}
	}
	if err := in.end(ctx); err != nil {
		in.letGo()
		return err
	}
	return in.takeBack(ctx)
}

// letGo closes what an instance holds on to, without taking anything back.
func (in *instance) letGo() {
	if in.lock != nil {
		in.lock.release()
		in.lock = nil
	}
	if in.root != nil {
		_ = in.root.Close()
		in.root = nil
	}
}

// takeBack undoes what was made outside the session's folder, the last first.
func (in *instance) takeBack(ctx context.Context) error {
	defer in.letGo()
	if in.group != nil {
		if err := in.group.Remove(ctx); err != nil {
			return err
		}
	}
	if in.lock != nil && in.root != nil {
		lock := in.lock
		in.lock = nil
		if err := lock.alone(func() error { return removePlaceholders(in.root, in.traces.Protected) }); err != nil {
			return errs.Wrap(errs.Unavailable, fmt.Sprintf("folders that were made to protect %s could not be removed", in.traces.Workspace), err)
		}
	}
	return in.traces.erase(in.plan.Dir)
}

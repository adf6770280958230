package bwrap

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/launch"
)

// Descriptors in bubblewrap, in the order in which they are handed over.
const (
	argsFD    = launch.FirstFile
	filterFD  = launch.FirstFile + 1
	infoFD    = launch.FirstFile + 2
	firstData = launch.FirstFile + 3
)

// order returns what the launcher does, the files that bubblewrap reads, and the end on which it tells about the sandbox.
func (in *instance) order() (launch.Order, []*os.File, *os.File, error) {
	var files []*os.File
	fail := func(err error) (launch.Order, []*os.File, *os.File, error) {
		for _, f := range files {
			_ = f.Close()
		}
		return launch.Order{}, nil, nil, err
	}
	mounts, source := in.mounts()
	args, contents, err := in.arguments(source)
	if err != nil {
		return fail(err)
	}
	filter, err := program(in.plan.Nested)
	if err != nil {
		return fail(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	for _, part := range []struct {
		name    string
		content []byte
	}{{"args", []byte(strings.Join(args, "\x00") + "\x00")}, {"filter", filter}} {
		f, err := memoryFile(part.name, part.content)
		if err != nil {
			_, _ = read.Close(), write.Close()
			return fail(err)
		}
		files = append(files, f)
	}
	files = append(files, write)
	for _, c := range contents {
		f, err := memoryFile(filepath.Base(c.dest), []byte(c.content))
		if err != nil {
			_ = read.Close()
			return fail(err)
		}
		files = append(files, f)
	}
	command := []string{"bwrap", "--args", strconv.Itoa(argsFD), "--"}
	command = append(append(append(command, in.plan.Gate...), "--"), in.plan.Args...)
	o := launch.Order{
		Path: in.path, Args: command, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", UID: -1, GID: -1,
		Mounts: mounts, Limits: in.limitsAtLaunch(),
	}
	if os.Geteuid() == 0 {
		o.UID, o.GID = in.uid, in.gid
	}
	return o, files, read, nil
}

func (in *instance) home() string { return filepath.Join(in.plan.Dir, homeName) }

// mounts returns what root must stage for the sandbox's user, and how a source is called then. A plain user's paths are open to bubblewrap,
// which is the same user.
func (in *instance) mounts() ([]launch.Mount, func(string) string) {
	if os.Geteuid() != 0 {
		return nil, func(p string) string { return p }
	}
	var mounts []launch.Mount
	names := make(map[string]string)
	stage := func(m launch.Mount) {
		if _, ok := names[m.Source]; ok {
			return
		}
		m.Name = strconv.Itoa(len(mounts))
		mounts = append(mounts, m)
		names[m.Source] = filepath.Join(launch.Stage, m.Name)
	}
	for _, p := range slices.Concat([]string{in.plan.In, in.plan.Out, in.home()}, in.plan.Installs) {
		stage(launch.Mount{Source: p, OwnerUID: -1, OwnerGID: -1})
	}
	if in.root != nil {
		stage(in.workspaceMount())
	}
	return mounts, func(p string) string {
		if staged, ok := names[p]; ok {
			return staged
		}
		return p
	}
}

// workspaceMount is the workspace with its owner shown as the sandbox's user.
func (in *instance) workspaceMount() launch.Mount {
	return launch.Mount{Source: in.plan.Workspace.Path, OwnerUID: int(in.owner.Uid), OwnerGID: int(in.owner.Gid)}
}

// arguments returns bubblewrap's arguments and the files that they read.
func (in *instance) arguments(source func(string) string) ([]string, []data, error) {
	v := &view{source: source}
	v.add("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
	if !in.plan.Nested {
		v.add("--disable-userns")
	}
	v.add("--uid", strconv.Itoa(sandbox.InnerUID), "--gid", strconv.Itoa(sandbox.InnerGID), "--hostname", "sandbox")
	// The gate is process 1: it hands signals on, reaps, and takes the terminal for the agent as the leader of a session of its own.
	v.add("--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL")
	v.add("--seccomp", strconv.Itoa(filterFD), "--info-fd", strconv.Itoa(infoFD))

	v.system()
	v.etc()
	v.add("--proc", "/proc", "--dev", "/dev")
	v.scratch(in.plan.Bounds.Memory)
	v.session(in.plan.In, in.plan.Out, in.home())
	workdir := sandbox.Workdir(in.plan.Workspace)
	// A later mount covers an earlier one: an install folder around the workspace comes before it, one inside it after it.
	if err := v.installs(in.plan.Installs, func(p string) bool { return within(workdir, p) }); err != nil {
		return nil, nil, err
	}
	if in.root != nil {
		v.workspace(in.plan.Workspace.Path, in.plan.Workspace.Mode, workdir, in.guarding.guards)
	}
	if err := v.installs(in.plan.Installs, func(p string) bool { return !within(workdir, p) }); err != nil {
		return nil, nil, err
	}
	v.add("--remount-ro", "/", "--chdir", workdir, "--clearenv")
	for _, entry := range sandbox.Settle(in.plan.Env) {
		name, value, _ := strings.Cut(entry, "=")
		v.add("--setenv", name, value)
	}
	for _, a := range v.args {
		if strings.ContainsRune(a, 0) {
			return nil, nil, errs.New(errs.Invalid, "a path holds a zero byte")
		}
	}
	return v.args, v.files, nil
}

// limitsAtLaunch are the resource limits that are set before bubblewrap starts.
//
// The number of processes is counted per user. Root's sandboxes have a user of their own, so it can be set here; a plain user's own
// processes outside would count too, so there it is set on the first process inside (a user namespace counts by itself).
func (in *instance) limitsAtLaunch() []launch.Limit {
	limits := []launch.Limit{{Resource: unix.RLIMIT_CORE, Value: 0}}
	if os.Geteuid() == 0 && in.levels.PIDs == sandbox.Rlimit {
		limits = append(limits, launch.Limit{Resource: unix.RLIMIT_NPROC, Value: uint64(in.plan.Bounds.PIDs)})
	}
	if in.levels.Memory == sandbox.Rlimit {
		limits = append(limits, launch.Limit{Resource: unix.RLIMIT_DATA, Value: uint64(max(in.plan.Bounds.Memory, leastData))})
	}
	return limits
}

// leastData is the smallest limit of a process's data: unlike a control group it counts what is reserved and never touched, and a runtime
// reserves a lot.
const leastData = 512 << 20

// limitLevels says what is reached when resource limits stand in for missing control groups.
func (in *instance) limitLevels(l sandbox.Levels) sandbox.Levels {
	if l.PIDs == sandbox.None {
		l.PIDs = sandbox.Rlimit
	}
	if l.Memory == sandbox.None {
		l.Memory = sandbox.Rlimit
	}
	return l
}

// limitFirst sets what can only be set inside, while the gate is still shut: everything else in the sandbox comes from its first process.
func (in *instance) limitFirst() error {
	if os.Geteuid() == 0 || in.levels.PIDs != sandbox.Rlimit {
		return nil
	}
	n := uint64(in.plan.Bounds.PIDs)
	var now unix.Rlimit
	if err := unix.Prlimit(in.first.ID.PID, unix.RLIMIT_NPROC, nil, &now); err != nil {
		return errs.Wrap(errs.Unavailable, "the sandbox's number of processes could not be bounded", err)
	}
	n = min(n, now.Max)
	if err := unix.Prlimit(in.first.ID.PID, unix.RLIMIT_NPROC, &unix.Rlimit{Cur: n, Max: n}, nil); err != nil {
		return errs.Wrap(errs.Unavailable, "the sandbox's number of processes could not be bounded", fmt.Errorf("prlimit: %w", err))
	}
	return nil
}

package bwrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/launch"
	"sallyport.dev/host/sandbox/proc"
)

// Exec implements [sandbox.Instance]: a command joins the sandbox's namespaces and control groups, and is confined like everything in it.
//
// Joining needs a program with one thread (setns(2)), so nsenter does it: first into the user namespace that owns the others, then into the
// one below it, in which nobody is root. What it runs is a sealed copy of this program in memory, which gives up what joining took and
// becomes the command: the agent can neither trace it nor write to the file that it came from.
func (in *instance) Exec(ctx context.Context, c sandbox.Command, stdio sandbox.Stdio) (_ sandbox.Stream, err error) {
	if err := in.step(sandbox.Exec); err != nil {
		return nil, err
	}
	if len(in.driver.Enter) == 0 {
		return nil, errs.New(errs.Internal, "this host cannot run a further command in a sandbox")
	}
	if len(c.Args) == 0 || c.Args[0] == "" {
		return nil, errs.New(errs.Invalid, "no command to run; write it after --")
	}
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, "nsenter is not installed; install it (Debian, Ubuntu: apt-get install util-linux)", err)
	}
	in.mu.Lock()
	first, group := in.first, in.group
	in.mu.Unlock()
	if first == nil {
		return nil, errs.New(errs.Conflict, "the sandbox does not run")
	}

	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	hand := func(f *os.File) string { // what the child calls it
		files = append(files, f)
		return "/proc/self/fd/" + strconv.Itoa(launch.FirstFile+len(files)-1)
	}
	order, err := in.enterOrder(c)
	if err != nil {
		return nil, err
	}
	orderFile, err := memoryFile("enter", order)
	if err != nil {
		return nil, err
	}
	orderPath := hand(orderFile)
	program, err := sealedCopy(in.driver.Enter[0])
	if err != nil {
		return nil, err
	}
	programPath := hand(program)

	users, err := userNamespaces(first.ID.PID)
	if err != nil {
		return nil, err
	}
	args := []string{"nsenter", "--preserve-credentials"}
	outer := users[len(users)-1]
	args = append(args, "--user="+hand(outer))
	for _, kind := range []struct{ flag, name string }{{"--mount=", "mnt"}, {"--net=", "net"}, {"--ipc=", "ipc"}, {"--uts=", "uts"}, {"--cgroup=", "cgroup"}, {"--pid=", "pid"}} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", first.ID.PID, kind.name))
		if err != nil {
			return nil, errs.Wrap(errs.Conflict, "the sandbox ended", err)
		}
		args = append(args, kind.flag+hand(f))
	}
	for _, inner := range slices.Backward(users[:len(users)-1]) {
		args = append(args, "--", "/usr/bin/nsenter", "--preserve-credentials", "--user="+hand(inner))
	}
	args = append(append(args, "--", programPath), in.driver.Enter[1:]...)
	args = append(args, orderPath)
	// The descriptors name the namespaces of whoever had this pid when they were opened.
	if !first.ID.Alive() {
		return nil, errs.New(errs.Conflict, "the sandbox ended")
	}
	o := launch.Order{Path: nsenter, Args: args, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", UID: -1, GID: -1, Limits: in.limitsAtLaunch()}
	if os.Geteuid() == 0 {
		o.UID, o.GID = in.uid, in.gid
	}
	child, err := launch.Start(ctx, in.driver.Launcher, o, launch.Stdio{In: stdio.In, Out: stdio.Out, Err: stdio.Err, Files: files}, group.Add)
	if err != nil {
		return nil, err
	}
	return &stream{child: child}, nil
}

// enterOrder is what [EnterMain] reads.
func (in *instance) enterOrder(c sandbox.Command) ([]byte, error) {
	dir := c.Dir
	if dir == "" {
		dir = in.traces.Workdir
	}
	e := enter{Args: c.Args, Env: sandbox.Settle(slices.Concat(in.plan.Env, c.Env)), Dir: dir, Nested: in.plan.Nested}
	if in.levels.PIDs == sandbox.Rlimit {
		e.Processes = uint64(in.plan.Bounds.PIDs)
	}
	return json.Marshal(e)
}

// userNamespaces returns the user namespace of a process and those around it, inner first, up to but without our own.
func userNamespaces(pid int) ([]*os.File, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		return nil, errs.Wrap(errs.Conflict, "the sandbox ended", err)
	}
	own, err := os.Stat("/proc/self/ns/user")
	if err != nil {
		f.Close()
		return nil, err
	}
	var found []*os.File
	for {
		info, err := f.Stat()
		if err != nil || os.SameFile(info, own) || len(found) == 8 {
			f.Close()
			break
		}
		found = append(found, f)
		parent, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_PARENT)
		if err != nil {
			break // the parent is outside what we may see
		}
		f = os.NewFile(uintptr(parent), "user namespace")
	}
	if len(found) == 0 {
		return nil, errs.New(errs.Internal, "the sandbox has no user namespace of its own")
	}
	return found, nil
}

// sealedCopy copies a program into memory that nobody can write to any more.
func sealedCopy(path string) (*os.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "this program cannot be read", err)
	}
	defer src.Close()
	fd, err := unix.MemfdCreate("sallyport", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "sallyport")
	if _, err = io.Copy(f, src); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		f.Close()
		return nil, errs.Wrap(errs.Internal, "this program could not be copied", err)
	}
	return f, nil
}

// stream is a further command in a sandbox.
type stream struct {
	child *launch.Child
}

// Signal implements [sandbox.Stream]: the command itself, which is nsenter's child.
func (s *stream) Signal(sig os.Signal) error {
	number, ok := sig.(syscall.Signal)
	if !ok {
		return errs.New(errs.Invalid, "not a signal")
	}
	for _, pid := range proc.Find(func(pid int) bool { st, err := proc.Read(pid); return err == nil && st.Parent == s.child.PID }) {
		h, err := proc.Open(pid)
		if err != nil {
			continue
		}
		defer h.Close()
		if proc.Below(pid, s.child.PID, 1) {
			return h.Signal(number)
		}
	}
	return os.ErrProcessDone
}

// Wait implements [sandbox.Stream].
func (s *stream) Wait() (sandbox.Exit, error) {
	state, err := s.child.State()
	if err != nil {
		return sandbox.Exit{}, errs.Wrap(errs.Internal, "the end of the command could not be read", err)
	}
	return exitOf(state, true), nil
}

// EnterArg is the first argument by which this program knows that it was started inside a sandbox: main calls [EnterMain] then.
const EnterArg = "__enter"

// enter is what a further command is.
type enter struct {
	Args      []string `json:"args"`
	Env       []string `json:"env"`
	Dir       string   `json:"dir"`
	Nested    bool     `json:"nested"`
	Processes uint64   `json:"processes"` // 0: bounded by the control group
}

// EnterMain runs inside a sandbox, with more rights than anything there may have. It gives them up and becomes the command of the order
// file that its last argument names. It returns only by failing: 125, or 127 for a command that is not there.
func EnterMain(args []string) int {
	if len(args) == 0 {
		return 125
	}
	data, err := os.ReadFile(args[len(args)-1])
	var e enter
	if err == nil {
		err = json.Unmarshal(data, &e)
	}
	if err == nil {
		err = e.run()
	}
	fmt.Fprintf(os.Stderr, "sallyport: %v\n", err)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return 127
	}
	return 125
}

// find looks a command up in the PATH of its own environment.
func (e *enter) find() (string, error) {
	name := e.Args[0]
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := "/usr/local/bin:/usr/bin:/bin"
	for _, entry := range e.Env {
		if v, ok := strings.CutPrefix(entry, "PATH="); ok {
			path = v
		}
	}
	for dir := range strings.SplitSeq(path, ":") {
		p := dir + "/" + name
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}

// Package launch starts the outermost process of a sandbox through a short-lived copy of this program.
//
// Between fork and exec some things must happen in the child alone that the Go runtime cannot do in its parent: wait until it stands in its
// control groups, lower its resource limits, arrange mounts in a mount namespace of its own, give up root, and ask the kernel to be killed
// with its parent. The copy does these and then becomes the driver's program, so that process ids, parent and descriptors stay what they were.
package launch

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
)

// Arg is the first argument by which this program knows that it is the copy: main calls [Main] then, before anything else.
const Arg = "__launch"

// failed is the copy's exit status when it could not become the driver's program.
const failed = 125

// Limit is one resource limit, lowered in the child.
type Limit struct {
	Resource int    `json:"resource"`
	Value    uint64 `json:"value"`
}

// Mount is one host path that root shows to an unprivileged driver in a mount namespace of its own, below [Stage].
type Mount struct {
	Source string `json:"source"`
	Name   string `json:"name"` // below Stage
	// OwnerUID and OwnerGID own the files on disk and appear as the child's user inside; -1: as they are.
	OwnerUID int `json:"owner_uid"`
	OwnerGID int `json:"owner_gid"`
}

// Stage is where the mounts of a root launch lie, in the child's own mount namespace only. Folders of the machine below /run are hidden there.
const Stage = "/run"

// Order is what the copy does.
type Order struct {
	Path string   `json:"path"`
	Args []string `json:"args"`
	Env  []string `json:"env"`
	Dir  string   `json:"dir"`
	// UID and GID are taken when the copy is root; -1: kept.
	UID    int     `json:"uid"`
	GID    int     `json:"gid"`
	Limits []Limit `json:"limits"`
	Mounts []Mount `json:"mounts"`
	Parent int     `json:"parent"` // pid of the supervisor: a copy that finds another parent ends itself
	Files  int     `json:"files"`  // how many descriptors follow; any further one was inherited from somebody and is closed
}

// Stdio and Files are what the child gets beside the order: Files begin at descriptor [FirstFile].
type Stdio struct {
	In, Out, Err *os.File
	Files        []*os.File
}

// FirstFile is the descriptor number of the first of Stdio.Files in the child. 3 carries the order.
const FirstFile = 4

// Child is a started process. Its methods may be called concurrently.
type Child struct {
	PID   int
	done  chan struct{}
	state *os.ProcessState
	err   error
	proc  *os.Process
}

// Start starts the copy, calls place with its process id (to move it into control groups) and then lets it go on. The child has no
// controlling terminal: it leads a session of its own.
//
// The kernel sends the parent's death signal when the *thread* that forked ends, so that thread is kept until the child is gone.
func Start(ctx context.Context, launcher []string, order Order, stdio Stdio, place func(pid int) error) (*Child, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(launcher) == 0 {
		return nil, errs.New(errs.Internal, "the launcher is not named")
	}
	order.Parent, order.Files = os.Getpid(), len(stdio.Files)
	data, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer write.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), launcher[0], launcher[1:]...)
	cmd.Env = []string{}
	cmd.Dir = "/"
	// nil would be replaced by /dev/null for us, but a typed nil must not become an open file.
	if stdio.In != nil {
		cmd.Stdin = stdio.In
	}
	if stdio.Out != nil {
		cmd.Stdout = stdio.Out
	}
	if stdio.Err != nil {
		cmd.Stderr = stdio.Err
	}
	cmd.ExtraFiles = append([]*os.File{read}, stdio.Files...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if len(order.Mounts) > 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	}

	c := &Child{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		_ = read.Close()
		if err != nil {
			started <- err
			return
		}
		c.PID, c.proc = cmd.Process.Pid, cmd.Process
		started <- nil
		err = cmd.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = nil
		}
		c.state, c.err = cmd.ProcessState, err
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, errs.Wrap(errs.Internal, "the sandbox's first process could not be started", err)
	}
	if place != nil {
		if err := place(c.PID); err != nil {
			c.Kill()
			<-c.done
			return nil, err
		}
	}
	if _, err := write.Write(data); err != nil {
		c.Kill()
		<-c.done
		return nil, errs.Wrap(errs.Internal, "the sandbox's first process went away", err)
	}
	return c, nil
}

// Done is closed once the child was reaped.
func (c *Child) Done() <-chan struct{} { return c.done }

// State returns how the child ended, after Done.
func (c *Child) State() (*os.ProcessState, error) {
	<-c.done
	return c.state, c.err
}

// Signal sends a signal to the child, if it still runs.
func (c *Child) Signal(s os.Signal) error {
	select {
	case <-c.done:
		return os.ErrProcessDone
	default:
		return c.proc.Signal(s)
	}
}

// Kill ends the child.
func (c *Child) Kill() { _ = c.Signal(unix.SIGKILL) }

// Main is the copy. It returns only by failing: 125, with one line on standard error.
func Main() int {
	runtime.LockOSThread() // the death signal belongs to the thread that asks for it, and this one becomes the new program
	data, err := io.ReadAll(io.LimitReader(os.NewFile(3, "order"), 4<<20))
	if err != nil || len(data) == 0 {
		return failed // the parent gave up
	}
	var order Order
	if err := json.Unmarshal(data, &order); err != nil {
		return say("order", err)
	}
	_ = unix.Close(3)
	if err := order.run(); err != nil {
		return say("start", err)
	}
	return failed
}

func (o *Order) run() error {
	if len(o.Mounts) > 0 {
		if err := stage(o.Mounts, o.UID, o.GID); err != nil {
			return err
		}
	}
	for _, l := range o.Limits {
		if err := lower(l); err != nil {
			return err
		}
	}
	if o.UID >= 0 {
		if err := dropTo(o.UID, o.GID); err != nil {
			return err
		}
	}
	if o.Dir != "" {
		if err := os.Chdir(o.Dir); err != nil {
			return err
		}
	}
	// The caller of this program may have left descriptors open: a shell's, a service manager's. None of them is for the sandbox.
	if err := unix.CloseRange(uint(FirstFile+o.Files), ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return os.NewSyscallError("close_range", err)
	}
	// Asked for again: a change of user forgets it.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if os.Getppid() != o.Parent {
		return errors.New("the supervisor is gone")
	}
	// What runs in a sandbox sleeps as exactly as elsewhere, however coarsely its host does.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(usualSlack), 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	return os.NewSyscallError("exec "+o.Path, syscall.Exec(o.Path, o.Args, o.Env))
}

// usualSlack is how late the kernel may end a sleep, where nobody asked for anything else.
const usualSlack = 50 * time.Microsecond

// lower lowers a limit to at most its hard value: raising one needs a capability that even root may lack.
func lower(l Limit) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(l.Resource, &now); err != nil {
		return err
	}
	v := min(l.Value, now.Max)
	return os.NewSyscallError("setrlimit", unix.Setrlimit(l.Resource, &unix.Rlimit{Cur: v, Max: v}))
}

// dropTo gives up root, in all threads, for good.
func dropTo(uid, gid int) error {
	if err := syscall.Setgroups(nil); err != nil {
		return os.NewSyscallError("setgroups", err)
	}
	if err := syscall.Setresgid(gid, gid, gid); err != nil {
		return os.NewSyscallError("setresgid", err)
	}
	if err := syscall.Setresuid(uid, uid, uid); err != nil {
		return os.NewSyscallError("setresuid", err)
	}
	return nil
}

func say(what string, err error) int {
	_, _ = io.WriteString(os.Stderr, "sallyport: "+what+": "+err.Error()+"\n")
	return failed
}

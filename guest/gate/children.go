package gate

import (
	"errors"
	"iter"
	"os"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"sallyport.dev/errs"
)

// dead yields every child that ended or stopped since it was last asked: our own, and orphans of the sandbox.
func dead() iter.Seq2[int, syscall.WaitStatus] {
	return func(yield func(int, syscall.WaitStatus) bool) {
		for {
			var status syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WUNTRACED, nil)
			switch {
			case errors.Is(err, syscall.EINTR):
			case err != nil || pid == 0:
				return
			case !yield(pid, status):
				return
			}
		}
	}
}

// cannotRun is the error of a command that cannot be started, with the code of a shell.
type cannotRun struct {
	err  *errs.Error
	code int
}

func (c cannotRun) Error() string { return c.err.Error() }
func (c cannotRun) Unwrap() error { return c.err }

// lookUp finds the agent's program as execvp(3) does.
func lookUp(command []string) (string, error) {
	if len(command) == 0 || command[0] == "" {
		return "", cannotRun{errs.New(errs.Invalid, "no command was given"), exitNotRun}
	}
	name := command[0]
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	err := error(cannotRun{errs.Newf(errs.NotFound, "%s is in no folder of PATH", name), exitNotFound})
	for _, dir := range strings.Split(os.Getenv("PATH"), ":") {
		if dir == "" {
			dir = "."
		}
		path := dir + "/" + name
		found := executable(path)
		if found == nil {
			return path, nil
		}
		if errs.Is(found, errs.NotAllowed) {
			err = found
		}
	}
	return "", err
}

func executable(path string) error {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return cannotRun{errs.Wrap(errs.NotFound, path+" cannot be found", err), exitNotFound}
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG || syscall.Access(path, 1) != nil { // X_OK
		return cannotRun{errs.Newf(errs.NotAllowed, "%s cannot be executed", path), exitNotExecutable}
	}
	return nil
}

// startAgent starts the agent with our three standard streams and nothing else. On a terminal it leads the foreground group, so that keys
// reach it alone; on one that nobody controls yet it takes it over in a session of its own.
func startAgent(path string, command []string) (int, error) {
	attr := &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}}
	ways := []syscall.SysProcAttr{{Setpgid: true}}
	var group int32
	switch errno := ioctl(0, syscall.TIOCGPGRP, unsafe.Pointer(&group)); {
	case errno == 0 && int(group) == syscall.Getpgrp():
		ways = []syscall.SysProcAttr{{Setpgid: true, Foreground: true, Ctty: 0}, {Setpgid: true}}
	case errno != 0 && isTerminal(0):
		ways = []syscall.SysProcAttr{{Setsid: true, Setctty: true, Ctty: 0}, {Setpgid: true}}
	}
	var pid int
	var err error
	for _, way := range ways {
		way.Pdeathsig = syscall.SIGKILL // a gate that is killed takes its sandbox with it
		attr.Sys = &way
		if pid, err = syscall.ForkExec(path, command, attr); err == nil {
			return pid, nil
		}
	}
	return 0, cannotRun{errs.Wrap(errs.NotAllowed, command[0]+" cannot be started: "+err.Error(), err), exitNotExecutable}
}

func isTerminal(fd int) bool {
	var t syscall.Termios
	return ioctl(fd, syscall.TCGETS, unsafe.Pointer(&t)) == 0
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) syscall.Errno {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	return errno
}

// bridgePause is how long an ended bridge stays down: not at all where it ran for a while, so that the agent hardly notices, else long enough
// that one that cannot run costs nothing.
func bridgePause(ran time.Duration) time.Duration {
	if ran > bridgePauseMost {
		return 0
	}
	return bridgePauseMost
}

const bridgePauseMost = time.Second

// startBridge starts the bridge and, the first time, waits until it listens: an agent that finds nobody there gives up.
func (g *gate) startBridge(first bool) error {
	if len(g.Bridge) == 0 || g.Bridge[0] == "" {
		return nil
	}
	var ready [2]int
	if err := syscall.Pipe2(ready[:], syscall.O_CLOEXEC); err != nil {
		return errs.Wrap(errs.Unavailable, "no pipe for the bridge", err)
	}
	end := os.NewFile(uintptr(ready[0]), "ready")
	defer end.Close()
	null, err := syscall.Open(os.DevNull, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		_ = syscall.Close(ready[1])
		return errs.Wrap(errs.Unavailable, os.DevNull+" cannot be opened", err)
	}
	defer syscall.Close(null) //nolint:errcheck // nothing was written
	g.bridgeBegan = time.Now()
	pid, err := syscall.ForkExec(g.Bridge[0], append(append([]string{}, g.Bridge...), "--ready-fd", "3"), &syscall.ProcAttr{
		Env: []string{}, Files: []uintptr{uintptr(null), uintptr(null), 2, uintptr(ready[1])},
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	_ = syscall.Close(ready[1])
	if err != nil {
		return errs.Wrap(errs.Unavailable, "the bridge "+g.Bridge[0]+" cannot be started", err)
	}
	g.bridge = pid
	if !first {
		return nil
	}
	answer := make(chan bool, 1)
	go func() {
		n, _ := end.Read(make([]byte, 1))
		answer <- n == 1
	}()
	select {
	case ok := <-answer:
		if ok {
			return nil
		}
	case <-time.After(readyPatience):
	}
	return errs.New(errs.Unavailable, "the bridge does not listen; its own line says why")
}

func (g *gate) stopBridge() {
	if g.bridge > 0 {
		_ = syscall.Kill(g.bridge, syscall.SIGKILL)
	}
}

package bwrap_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/bwrap"
	"sallyport.dev/host/sandbox/proc"
	"sallyport.dev/host/sandbox/sandboxtest"
)

// started is a running sandbox that ends with the test.
type started struct {
	sandbox.Instance
	*sandboxtest.Session
	process sandbox.Process
	out     *sandboxtest.Output
	done    func()
}

func start(t *testing.T, s *sandboxtest.Session) *started {
	t.Helper()
	in, err := sandboxtest.Driver(t).Prepare(context.Background(), s.Plan)
	if err != nil {
		t.Fatal(err)
	}
	r := &started{Instance: in, Session: s}
	var stdio sandbox.Stdio
	r.out, stdio, r.done = sandboxtest.Pipes(t)
	t.Cleanup(func() {
		if err := in.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if r.process, err = in.Start(context.Background(), stdio); err != nil {
		r.done()
		t.Fatalf("%v\n%s", err, r.out.Err())
	}
	s.Open(t)
	return r
}

// await waits for a file that the sandbox makes.
func await(t *testing.T, path string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s did not appear", path)
		case <-tick.C:
		}
	}
}

// inNamespace returns the processes in a pid namespace.
func inNamespace(ns string) []int {
	return proc.Find(func(pid int) bool {
		have, err := proc.Namespace(pid, "pid")
		return err == nil && have == ns && proc.Runs(pid)
	})
}

func TestSandboxStopsWhatIgnores(t *testing.T) {
	r := start(t, sandboxtest.New(t, sandboxtest.Probe("ignore")...))
	await(t, filepath.Join(r.Dir, "home", "ready"))
	if n := len(inNamespace(r.process.PIDNS)); n < 3 {
		t.Fatalf("%d processes in the sandbox", n)
	}
	if r.process.Cgroup != "" {
		if data, err := os.ReadFile(filepath.Join(r.process.Cgroup, "cgroup.procs")); err != nil || len(bytes.Fields(data)) < 3 {
			t.Errorf("control group: %q %v", data, err)
		}
	}
	if err := r.Stop(context.Background(), 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if left := inNamespace(r.process.PIDNS); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if (proc.ID{PID: r.process.PID, Start: r.process.Start}).Alive() {
		t.Error("the first process is alive")
	}
	if r.process.Cgroup != "" {
		if _, err := os.Stat(r.process.Cgroup); !os.IsNotExist(err) {
			t.Errorf("control group: %v", err)
		}
	}
	r.done()
}

func TestSandboxPolite(t *testing.T) {
	r := start(t, sandboxtest.New(t, "/bin/sh", "-c", "trap 'echo bye; exit 3' TERM; touch $HOME/ready; while :; do sleep 0.01; done"))
	await(t, filepath.Join(r.Dir, "home", "ready"))
	exit := make(chan sandbox.Exit, 1)
	go func() {
		e, _ := r.Wait()
		exit <- e
	}()
	if err := r.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if e := <-exit; e.Code != 3 || e.Signal != nil {
		t.Errorf("exit %+v", e)
	}
	r.done()
	if r.out.Out() != "bye\n" {
		t.Errorf("out: %q", r.out.Out())
	}
}

func TestSandboxParks(t *testing.T) {
	r := start(t, sandboxtest.New(t, "/bin/sh", "-c", "echo kept > $HOME/note; echo lost > /tmp/note; touch $HOME/ready; sleep 100"))
	await(t, filepath.Join(r.Dir, "home", "ready"))
	if _, err := r.Resume(context.Background(), sandbox.Stdio{}); !errs.Is(err, errs.Conflict) {
		t.Errorf("resumed while running: %v", err)
	}
	if err := r.Park(context.Background(), 0); err != nil {
		t.Fatal(err)
	}
	r.done()
	if _, err := r.Exec(context.Background(), sandbox.Command{Args: []string{"true"}}, sandbox.Stdio{}); !errs.Is(err, errs.Conflict) {
		t.Errorf("ran in a parked sandbox: %v", err)
	}
	uid := r.Facts().GuestUID
	if err := r.Destroy(context.Background()); err != nil {
		t.Fatal(err)
	}
	// Prepared again, as after a restart of the host: the same user, the same home, nothing else.
	r.Plan.Epoch, r.Plan.Args = 2, []string{"/bin/sh", "-c", "cat $HOME/note /tmp/note; echo more >> $HOME/note"}
	again := r.Run(t, sandboxtest.Driver(t))
	if again.Out != "kept\n" || again.Facts.GuestUID != uid || !strings.Contains(again.Err, "No such file") {
		t.Errorf("%s%s %+v", again.Out, again.Err, again.Facts)
	}
}

func TestSandboxExec(t *testing.T) {
	s := sandboxtest.New(t, "/bin/sh", "-c", "touch $HOME/ready; sleep 100")
	s.Plan.Env = append(s.Plan.Env, "OWN=1")
	r := start(t, s)
	await(t, filepath.Join(r.Dir, "home", "ready"))
	run := func(c sandbox.Command) (string, string, sandbox.Exit) {
		t.Helper()
		out, stdio, done := sandboxtest.Pipes(t)
		st, err := r.Exec(context.Background(), c, stdio)
		if err != nil {
			t.Fatal(err)
		}
		exit, err := st.Wait()
		if err != nil {
			t.Fatal(err)
		}
		done()
		return out.Out(), out.Err(), exit
	}
	out, stderr, exit := run(sandbox.Command{Args: sandboxtest.Probe("status")})
	for _, want := range []string{"Uid:\t1000\t1000\t1000\t1000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s%s (%+v)", want, out, stderr, exit)
		}
	}
	out, stderr, exit = run(sandbox.Command{Args: []string{"sh", "-c", "pwd; echo $OWN$MORE; ls /proc/self/fd | wc -l; tail -n +3 /proc/net/dev | cut -d: -f1; readlink /proc/self/ns/user /proc/1/ns/user | uniq | wc -l; exit 9"}, Env: []string{"MORE=2"}})
	if out != r.Work+"\n12\n4\n    lo\n1\n" || exit.Code != 9 {
		t.Errorf("%q %q %+v", out, stderr, exit)
	}
	for _, p := range []string{"userns", "mount", "keyctl", "tiocsti", "setuid-file"} {
		if out, stderr, exit := run(sandbox.Command{Args: sandboxtest.Probe(p)}); exit.Code != 1 {
			t.Errorf("%s: %s%s", p, out, stderr)
		}
	}
	if _, stderr, exit := run(sandbox.Command{Args: []string{"no-such-program"}}); exit.Code != 127 || !strings.Contains(stderr, "no-such-program") {
		t.Errorf("%q %+v", stderr, exit)
	}

	// A signal reaches the command; the end of the sandbox ends it.
	out2, stdio, done := sandboxtest.Pipes(t)
	st, err := r.Exec(context.Background(), sandbox.Command{Args: []string{"sh", "-c", "trap 'echo got; exit 4' USR1; touch $HOME/ready2; while :; do sleep 0.01; done"}}, stdio)
	if err != nil {
		t.Fatal(err)
	}
	await(t, filepath.Join(r.Dir, "home", "ready2"))
	if err := st.Signal(syscall.SIGUSR1); err != nil {
		t.Error(err)
	}
	exit, err = st.Wait()
	done()
	if err != nil || exit.Code != 4 || out2.Out() != "got\n" {
		t.Errorf("%+v %v %q", exit, err, out2.Out())
	}
	_, stdio, done = sandboxtest.Pipes(t)
	st, err = r.Exec(context.Background(), sandbox.Command{Args: []string{"sleep", "100"}}, stdio)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(context.Background(), 0); err != nil {
		t.Error(err)
	}
	if exit, err := st.Wait(); err != nil || exit.Code == 0 {
		t.Errorf("%+v %v", exit, err)
	}
	done()
	r.done()
}

func TestSandboxBoundsProcesses(t *testing.T) {
	s := sandboxtest.New(t, sandboxtest.Probe("fork", "100")...)
	s.Plan.Bounds.PIDs = 40
	r := s.Run(t, sandboxtest.Driver(t))
	n, _ := strconv.Atoi(strings.TrimPrefix(strings.SplitN(r.Out, "\n", 2)[0], "started "))
	if n < 5 || n > 40 || !strings.Contains(r.Out, "resource temporarily unavailable") {
		t.Errorf("level %s: %s%s", r.Facts.Levels.PIDs, r.Out, r.Err)
	}
	want := sandbox.Rlimit
	if os.Geteuid() == 0 && controlled("pids") {
		want = sandbox.Cgroup
	}
	if r.Facts.Levels.PIDs != want && want == sandbox.Cgroup {
		t.Errorf("the level is %s", r.Facts.Levels.PIDs)
	}
}

func TestSandboxBoundsMemory(t *testing.T) {
	s := sandboxtest.New(t, sandboxtest.Probe("hog", "1500")...)
	s.Plan.Bounds.Memory = 1 << 30
	r := s.Run(t, sandboxtest.Driver(t))
	switch r.Facts.Levels.Memory {
	case sandbox.Cgroup:
		if r.Exit.Code != 128+9 {
			t.Errorf("%+v %s%s", r.Exit, r.Out, r.Err)
		}
	case sandbox.Rlimit:
		if r.Out != "hog: cannot allocate memory\n" {
			t.Errorf("%+v %s%s", r.Exit, r.Out, r.Err)
		}
	default:
		t.Errorf("the level is %s", r.Facts.Levels.Memory)
	}
	if os.Geteuid() == 0 && controlled("memory") && r.Facts.Levels.Memory != sandbox.Cgroup {
		t.Errorf("the level is %s", r.Facts.Levels.Memory)
	}
	s.Plan.Args = sandboxtest.Probe("hog", "300")
	if r := s.Run(t, sandboxtest.Driver(t)); r.Out != "hog: ok\n" {
		t.Errorf("below the bound: %s%s", r.Out, r.Err)
	}
}

// controlled reports whether this machine has a controller at all.
func controlled(name string) bool {
	for _, p := range []string{"/sys/fs/cgroup/cgroup.controllers", "/proc/cgroups"} {
		if data, err := os.ReadFile(p); err == nil && bytes.Contains(data, []byte(name)) {
			return unix.Access("/sys/fs/cgroup", unix.W_OK) == nil
		}
	}
	return false
}

// TestSandboxSupervisorKilled kills the parent of a sandbox like a crash does. The kernel ends the sandbox; Recover proves it and takes back
// the rest.
func TestSandboxSupervisorKilled(t *testing.T) {
	s := sandboxtest.New(t, sandboxtest.Probe("ignore")...)
	plan, err := json.Marshal(s.Plan)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(sandboxtest.Self(t), "-test.run=^TestChildSupervisor$")
	cmd.Env = append(os.Environ(), "SALLYPORT_TEST_CHILD="+string(plan))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	fields := strings.Fields(line)
	if err != nil || len(fields) != 2 {
		t.Fatalf("%q %v", line, err)
	}
	pid, _ := strconv.Atoi(fields[0])
	await(t, filepath.Join(s.Dir, "home", "ready"))
	first, err := proc.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if n := len(inNamespace(fields[1])); n < 3 {
		t.Fatalf("%d processes in the sandbox", n)
	}
	if left := listing(t, s.Work); len(left) == 0 {
		t.Error("no placeholder was made")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := first.Wait(ctx); err != nil {
		t.Fatalf("the sandbox outlived its supervisor: %v", err)
	}
	if left := inNamespace(fields[1]); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := sandboxtest.Driver(t).Prepare(ctx, s.Plan); !errs.Is(err, errs.Conflict) {
		t.Errorf("prepared over the traces of another: %v", err)
	}
	for range 2 {
		if err := sandboxtest.Driver(t).Recover(ctx, s.Dir); err != nil {
			t.Fatal(err)
		}
	}
	if left := listing(t, s.Work); len(left) != 0 {
		t.Errorf("left in the workspace: %v", left)
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/sallyport-" + s.Plan.Session + "*")
	if len(groups) != 0 {
		t.Errorf("left: %v", groups)
	}
	s.Plan.Args = []string{"/bin/true"}
	s.Plan.Epoch = 2
	if r := s.Run(t, sandboxtest.Driver(t)); r.Exit.Code != 0 {
		t.Errorf("%+v", r)
	}
}

// TestChildSupervisor is the process that the test above kills.
func TestChildSupervisor(t *testing.T) {
	child := os.Getenv("SALLYPORT_TEST_CHILD")
	if child == "" {
		return // run as part of the suite, it has nothing to do
	}
	var plan sandbox.Plan
	if err := json.Unmarshal([]byte(child), &plan); err != nil {
		t.Fatal(err)
	}
	in, err := sandboxtest.Driver(t).Prepare(context.Background(), plan)
	if err != nil {
		t.Fatal(err)
	}
	p, err := in.Start(context.Background(), sandbox.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(plan.Dir, "in", "open"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString(strconv.Itoa(p.PID) + " " + p.PIDNS + "\n")
	_, _ = in.Wait()
}

func TestSandboxFailsToStart(t *testing.T) {
	s := sandboxtest.New(t, "/bin/true")
	d := sandboxtest.Driver(t)
	s.Plan.Gate = []string{"/no/such/gate"}
	in, err := d.Prepare(context.Background(), s.Plan)
	if err != nil {
		t.Fatal(err)
	}
	out, stdio, done := sandboxtest.Pipes(t)
	_, err = in.Start(context.Background(), stdio)
	if err == nil {
		// bubblewrap had made its namespaces before it looked for the gate.
		if exit, werr := in.Wait(); werr != nil || exit.Code == 0 {
			t.Errorf("%+v %v", exit, werr)
		}
	}
	done()
	if err := in.Destroy(context.Background()); err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.Err(), "/no/such/gate") {
		t.Errorf("%v %q", err, out.Err())
	}
	if left := listing(t, s.Work); len(left) != 0 {
		t.Errorf("left in the workspace: %v", left)
	}
}

func TestSandboxCheck(t *testing.T) {
	s := sandboxtest.New(t)
	found := sandboxtest.Driver(t).Check(context.Background(), s.Where)
	for _, f := range found {
		if f.Level == sandbox.Failure || f.Message == "" || f.Subject == "" {
			t.Errorf("%+v", f)
		}
	}
	t.Setenv("PATH", t.TempDir())
	found = (&bwrap.Driver{}).Check(context.Background(), s.Where)
	if len(found) != 1 || found[0].Level != sandbox.Failure || !strings.Contains(found[0].Message, "apt-get install bubblewrap") {
		t.Errorf("without bubblewrap: %+v", found)
	}
	if _, err := (&bwrap.Driver{}).Prepare(context.Background(), s.Plan); err == nil {
		t.Error("prepared without bubblewrap")
	}
}

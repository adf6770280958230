package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sallyport.dev/test/fixture/mcpserver"
)

var update = flag.Bool("update", false, "write what the scripts compare with")

// TestMain lets the test binary be sallyport, under that name: scripts run real processes, with the race detector when the tests have it.
func TestMain(m *testing.M) {
	testscript.Main(leakFree{m}, map[string]func(){"sallyport": main})
}

type leakFree struct{ m *testing.M }

// Run runs the tests, then looks for goroutines that they left.
func (l leakFree) Run() int {
	code := l.m.Run()
	if code != 0 {
		return code
	}
	// Package up keeps one thread for its life.
	if err := goleak.Find(goleak.IgnoreTopFunction("sallyport.dev/cmd/sallyport/up.init.0.func1")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                filepath.Join("testdata", "scripts"),
		RequireUniqueNames: true,
		UpdateScripts:      *update,
		Setup:              setup,
		Condition:          condition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": cmdExits, "eventually": cmdEventually, "start": cmdStart, "await": cmdAwait, "finish": cmdFinish, "interrupt": cmdInterrupt, "log": cmdLog, "killpart": cmdKillPart, "noprocs": cmdNoProcs,
			"fixture": cmdFixture, "mutual": cmdMutual, "effects": cmdEffects, "hold": cmdHold, "redescribe": cmdRedescribe, "release": cmdRelease,
			"tty": cmdTTY, "type": cmdType, "host": cmdHost, "hello": cmdHello, "record": cmdRecord, "session": cmdSession, "ended": cmdEnded, "call": cmdCall, "result": cmdResult, "ack": cmdAck, "question": cmdQuestion, "callid": cmdCallID, "state": cmdState,
			"fill": cmdFill, "jsonget": cmdJSONGet, "scrub": cmdScrub, "short": cmdShort, "modeof": cmdMode, "pidof": cmdPidOf, "policy": cmdPolicy, "moved": cmdMoved, "readtoken": cmdReadToken, "tamper": cmdTamper, "taken": cmdTaken, "free": cmdFree, "get": cmdGet, "smalldisk": cmdSmallDisk, "unmount": cmdUnmount, "filldisk": cmdFillDisk,
		},
	})
}

// guard bounds what a script waits for: nothing waits as long when it works.
const guard = time.Minute

type worldKey struct{}

// world is what one script started.
type world struct {
	state     string
	processes map[string]*program
	fixture   *mcpserver.Server
	holds     map[string]holder
	disk      string // a mounted one
	host      *testHost
	calls     map[string]string // record: session
}

func worldOf(ts *testscript.TestScript) *world { return ts.Value(worldKey{}).(*world) }

// setup gives a script a state directory with a short name, since sockets lie in it, and ends at the end what the script started.
func setup(env *testscript.Env) error {
	state, err := os.MkdirTemp("", "sp")
	if err != nil {
		return err
	}
	w := &world{state: filepath.Join(state, "s"), processes: map[string]*program{}, holds: map[string]holder{}, calls: map[string]string{}}
	env.Values[worldKey{}] = w
	env.Setenv("SALLYPORT_STATE", w.state)
	env.Setenv("S", w.state)
	env.Setenv("HOME", env.WorkDir)
	if dir := os.Getenv("GOCOVERDIR"); dir != "" {
		env.Setenv("GOCOVERDIR", dir)
	}
	env.Defer(func() {
		if w.host != nil {
			w.host.close()
		}
		names := slices.Sorted(maps.Keys(w.processes))
		for _, name := range slices.Backward(names) { // control last: others have something to tell it
			p := w.processes[name]
			p.end()
			env.T().Log("what " + name + " printed:\n" + p.all()) // seen when the script failed
		}
		if w.fixture != nil {
			w.fixture.Close()
		}
		if w.disk != "" {
			unix.Unmount(w.disk, unix.MNT_DETACH)
		}
		os.RemoveAll(state)
	})
	return nil
}

// condition knows who runs the tests, and what a machine may lack.
func condition(cond string) (bool, error) {
	switch cond {
	case "root":
		return os.Geteuid() == 0, nil
	case "userns": // without them there is nothing to take away
		return exec.Command("unshare", "--user", "--map-root-user", "true").Run() == nil, nil //nolint:noctx // it does nothing
	case "mount":
		return mayMount(), nil
	}
	return false, fmt.Errorf("unknown condition %q", cond)
}

// mayMount reports whether this process can mount a small disk of its own: root outside of most containers.
func mayMount() bool {
	dir, err := os.MkdirTemp("", "sp")
	if err != nil {
		return false
	}
	defer os.Remove(dir)
	if unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k") != nil {
		return false
	}
	return unix.Unmount(dir, 0) == nil
}

// cmdExits runs a command that must end with exactly this code: exits CODE COMMAND...
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var e *exec.ExitError
		if !errors.As(err, &e) {
			ts.Fatalf("%v", err)
		}
		got = e.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// cmdEventually runs a command again and again until it succeeds, or with ! fails, for what a part finds out by itself: eventually COMMAND...
func cmdEventually(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) == 0 {
		ts.Fatalf("usage: eventually COMMAND...")
	}
	for deadline := time.Now().Add(guard); ; <-time.After(50 * time.Millisecond) {
		err := ts.Exec(args[0], args[1:]...)
		if (err == nil) != neg {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("it did not change: %v", err)
		}
	}
}

// cmdFill replaces $VARIABLES in files: fill FILE...
func cmdFill(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: fill FILE...")
	}
	for _, name := range args {
		text := os.Expand(ts.ReadFile(name), ts.Getenv)
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o644))
	}
}

// cmdShort makes VARIABLE the beginning of another one: short NEW OLD LENGTH
func cmdShort(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: short NEW OLD LENGTH")
	}
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	ts.Setenv(args[0], ts.Getenv(args[1])[:n])
}

// cmdMode checks the mode of a file: modeof MODE FILE
func cmdMode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: modeof MODE FILE")
	}
	info, err := os.Stat(ts.MkAbs(args[1]))
	ts.Check(err)
	if got := fmt.Sprintf("%04o", info.Mode().Perm()); got != args[0] {
		ts.Fatalf("%s has mode %s, want %s", args[1], got, args[0])
	}
}

// scrubs replace what differs from run to run.
var scrubs = []struct {
	from *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`\b[a-z2-7]{26}\b`), "ID"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "DIGEST"},
	{regexp.MustCompile(`\b([0-9a-f]{4}-){9}[0-9a-f]{4}\b`), "FINGERPRINT"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "127.0.0.1:PORT"},
	{regexp.MustCompile(`"(\w+_ms)": "[1-9]\d*"`), `"$1": "MS"`},
	{regexp.MustCompile(`"(\w+_us)": "\d+"`), `"$1": "US"`},
	{regexp.MustCompile(` +\d+\.\d ms`), " N ms"},
	{regexp.MustCompile(`\+ +\d+ms|\+\d+ms`), "+Nms"},
	{regexp.MustCompile(`\b\d\d:\d\d:\d\d\.\d\d\d\b`), "CLOCK"},
	{regexp.MustCompile(`(\t| {2})(\d+[smhd] ago|now|in \d+[smhd]|\d+[smhd])(\t|\n|$| {2})`), "${1}TIME$3"},
	{regexp.MustCompile(`\t(none|published|acknowledged)\t`), "\tDELIVERY\t"}, // it rides along with the next commit
	{regexp.MustCompile(`(?m)^[a-z2-7]{8}\t`), "ID8\t"},
	{regexp.MustCompile(`\t[a-z2-7]{8}\topen\t`), "\tID8\topen\t"},
	{regexp.MustCompile(`local:[a-z_][a-z0-9_-]*`), "local:ME"},
}

// cmdScrub replaces, in the last standard output, what differs from run to run, so that the rest can be compared.
func cmdScrub(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: scrub")
	}
	text, errText := ts.ReadFile("stdout"), ts.ReadFile("stderr")
	for _, v := range []string{"SALLYPORT_STATE", "WORK"} {
		text = strings.ReplaceAll(text, ts.Getenv(v), "$"+v)
	}
	for _, s := range scrubs {
		text = s.from.ReplaceAllString(text, s.to)
	}
	fmt.Fprint(ts.Stdout(), text)
	fmt.Fprint(ts.Stderr(), errText)
}

// within is the time that a command of a script has.
func within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), guard)
}

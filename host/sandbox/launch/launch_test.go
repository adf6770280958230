package launch_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sallyport.dev/host/sandbox/launch"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case launch.Arg:
			os.Exit(launch.Main())
		case "__coarse": // a host whose own sleeps are coarse
			runtime.LockOSThread()
			must(unix.Prctl(unix.PR_SET_TIMERSLACK, 1_000_000, 0, 0, 0))
			must(unix.Exec(os.Args[0], []string{os.Args[0], launch.Arg}, nil))
		case "__never":
			os.Exit(0)
		}
	}
	goleak.VerifyTestMain(m)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func self(t *testing.T) []string {
	t.Helper()
	p, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{p, launch.Arg}
}

// run starts an order and returns what it printed and its exit status.
func run(t *testing.T, o launch.Order, place func(int) error) (string, int) {
	t.Helper()
	return runBy(t, self(t), o, place)
}

func runBy(t *testing.T, launcher []string, o launch.Order, place func(int) error) (string, int) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	o.UID, o.GID = -1, -1
	c, err := launch.Start(context.Background(), launcher, o, launch.Stdio{Out: w, Err: w}, place)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	buffer := make([]byte, 4096)
	for {
		n, err := r.Read(buffer)
		out.Write(buffer[:n])
		if err != nil {
			break
		}
	}
	state, err := c.State()
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), state.ExitCode()
}

func TestStart(t *testing.T) {
	placed := 0
	out, code := run(t, launch.Order{
		Path: "/bin/sh", Args: []string{"sh", "-c", "echo $$ $X; pwd; ulimit -c; ulimit -n; exit 7"}, Env: []string{"X=y"}, Dir: "/usr",
		Limits: []launch.Limit{{Resource: unix.RLIMIT_CORE}, {Resource: unix.RLIMIT_NOFILE, Value: 50}},
	}, func(pid int) error { placed = pid; return nil })
	fields := strings.Fields(out)
	if code != 7 || len(fields) != 5 || fields[1] != "y" || fields[2] != "/usr" || fields[3] != "0" || fields[4] != "50" {
		t.Errorf("%d %q", code, out)
	}
	if placed == 0 || !strings.HasPrefix(out, strings.TrimSpace(fields[0])) {
		t.Errorf("placed %d", placed)
	}
}

// A limit is never raised: root may lack the right to.
// A host's parts let the kernel end their sleeps late; a sandbox's programs do not inherit that.
func TestStartSleepsExactly(t *testing.T) {
	coarse := self(t)
	coarse[1] = "__coarse"
	out, code := runBy(t, coarse, launch.Order{Path: "/bin/cat", Args: []string{"cat", "/proc/self/timerslack_ns"}}, nil)
	if code != 0 || out != "50000\n" {
		t.Errorf("%d %q", code, out)
	}
}

func TestStartLowersOnly(t *testing.T) {
	out, code := run(t, launch.Order{
		Path: "/bin/sh", Args: []string{"sh", "-c", "ulimit -Hn"}, Limits: []launch.Limit{{Resource: unix.RLIMIT_NOFILE, Value: 1 << 40}},
	}, nil)
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	if code != 0 || strings.TrimSpace(out) == "" {
		t.Errorf("%d %q, hard limit here %d", code, out, now.Max)
	}
}

func TestStartFails(t *testing.T) {
	if out, code := run(t, launch.Order{Path: "/no/such/program", Args: []string{"x"}}, nil); code != 125 || !strings.Contains(out, "/no/such/program") {
		t.Errorf("%d %q", code, out)
	}
	if out, code := run(t, launch.Order{Path: "/bin/true", Args: []string{"true"}, Dir: "/no/such/folder"}, nil); code != 125 || !strings.Contains(out, "/no/such/folder") {
		t.Errorf("%d %q", code, out)
	}
	refused := errors.New("no room in the group")
	if _, err := launch.Start(context.Background(), self(t), launch.Order{Path: "/bin/true", UID: -1, GID: -1}, launch.Stdio{}, func(int) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("%v", err)
	}
	if _, err := launch.Start(context.Background(), nil, launch.Order{}, launch.Stdio{}, nil); err == nil {
		t.Error("started without a launcher")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := launch.Start(ctx, self(t), launch.Order{}, launch.Stdio{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestCheckOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		return // only root lends folders to another user
	}
	if err := launch.CheckOwner(launch.Mount{Source: t.TempDir(), OwnerUID: 0, OwnerGID: 0}, 1<<30, 1<<30); err != nil {
		t.Errorf("the temporary folder: %v", err)
	}
	// The kernel's own file systems have owners that mean something.
	if err := launch.CheckOwner(launch.Mount{Source: "/proc/sys", OwnerUID: 0, OwnerGID: 0}, 1<<30, 1<<30); !errors.Is(err, launch.ErrNoOwnerMapping) {
		t.Errorf("/proc/sys: %v", err)
	}
}

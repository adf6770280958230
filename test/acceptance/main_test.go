package acceptance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/test/harness"
	"sallyport.dev/test/rig"
)

// patience bounds one run of an agent. It only ends what hangs: nothing is measured against it.
const patience = 3 * time.Minute

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	if code == 0 {
		if err := goleak.Find(goleak.IgnoreTopFunction("sallyport.dev/test/rig.init.func1.1")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// built are the programs under test, the agents that drive them, and the program that looks around in a sandbox. They are made once, by whichever
// test needs them first.
var built struct {
	once     sync.Once
	dir      string
	programs rig.Programs
	agents   *harness.Installed
	probe    string
	err      error
}

func programs(t *testing.T) (rig.Programs, *harness.Installed) {
	t.Helper()
	built.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
		defer cancel()
		built.err = build(ctx)
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.programs, built.agents
}

// build makes them. SALLYPORT_TEST_PROGRAMS names a folder with programs that are built already, for who runs these tests again and again, or as
// somebody who cannot build.
func build(ctx context.Context) (err error) {
	if dir := os.Getenv("SALLYPORT_TEST_PROGRAMS"); dir != "" {
		built.programs, built.probe = rig.Programs{Dir: dir}, filepath.Join(dir, "probe")
		built.agents, err = harness.Install(ctx, os.Stderr)
		return err
	}
	if built.dir, err = os.MkdirTemp("", "sallyport-acceptance-"); err != nil {
		return err
	}
	root, err := rig.Root(ctx)
	if err != nil {
		return err
	}
	// The distribution's packages: bubblewrap, npm. As a plain user this says what to type.
	if out, err := exec.CommandContext(ctx, filepath.Join(root, "scripts", "prepare")).CombinedOutput(); err != nil {
		return fmt.Errorf("scripts/prepare: %w\n%s", err, out)
	}
	if built.agents, err = harness.Install(ctx, os.Stderr); err != nil {
		return err
	}
	if built.programs, err = rig.Build(ctx, built.dir); err != nil {
		return err
	}
	built.probe = filepath.Join(built.dir, "probe")
	for out, pkg := range map[string]string{built.probe: "./test/acceptance/probe", filepath.Join(built.dir, "demo-agent"): "./test/demo/agent"} {
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", out, pkg)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", pkg, err, text)
		}
	}
	return nil
}

// must ends a test that cannot go on.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		if _, file, line, ok := runtime.Caller(1); ok {
			t.Fatalf("%s:%d: %v", filepath.Base(file), line, err)
		}
		t.Fatal(err)
	}
}

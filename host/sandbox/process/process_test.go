package process_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/launch"
	"sallyport.dev/host/sandbox/process"
	"sallyport.dev/host/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	sandboxtest.Main()
	goleak.VerifyTestMain(m)
}

func session(t *testing.T, script string) (*sandboxtest.Session, *process.Driver) {
	t.Helper()
	s := sandboxtest.New(t, "-c", script)
	// env stands in for the gate: it takes "--" and the agent, too.
	s.Plan.Driver, s.Plan.Gate, s.Plan.InsecureNoSandbox = process.Name, []string{"/usr/bin/env"}, true
	s.Plan.Args = []string{"/bin/sh", "-c", script}
	return s, &process.Driver{Launcher: []string{sandboxtest.Self(t), launch.Arg}}
}

func TestRefusedWithoutTheUsersWord(t *testing.T) {
	s, d := session(t, "true")
	s.Plan.InsecureNoSandbox = false
	_, err := d.Prepare(context.Background(), s.Plan)
	if !errs.Is(err, errs.NotAllowed) || !strings.Contains(errs.Message(err), "--insecure-no-sandbox") {
		t.Errorf("%v", err)
	}
}

func TestRuns(t *testing.T) {
	t.Setenv("PLANTED_TOKEN", "canary")
	s, d := session(t, "pwd; env; exit 5")
	r := s.Run(t, d)
	if r.Exit.Code != 5 || !strings.HasPrefix(r.Out, s.Work+"\n") || strings.Contains(r.Out, "PLANTED") || !r.Facts.SameUID || r.Facts.Closed != sandbox.Open {
		t.Errorf("%+v", r)
	}
}

func TestStopFindsWhatLeft(t *testing.T) {
	s, d := session(t, "(setsid sh -c 'trap \"\" TERM; touch $HOME_DIR/ready; sleep 300' &) ; sleep 300")
	home := filepath.Join(s.Dir, "home")
	s.Plan.Env = append(s.Plan.Env, "HOME_DIR="+home)
	in, err := d.Prepare(context.Background(), s.Plan)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Start(context.Background(), sandbox.Stdio{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(filepath.Join(home, "ready")); err == nil {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("the agent did not start")
		}
	}
	st, err := in.Exec(ctx, sandbox.Command{Args: []string{"sh", "-c", "exit 6"}}, sandbox.Stdio{})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := st.Wait(); err != nil || e.Code != 6 {
		t.Errorf("%+v %v", e, err)
	}
	if err := in.Stop(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Recover(ctx, s.Dir); err != nil {
		t.Error(err)
	}
	if err := in.Destroy(ctx); err != nil {
		t.Error(err)
	}
}

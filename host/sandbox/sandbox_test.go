package sandbox_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
)

// fake is a driver that makes nothing.
type fake struct {
	sandbox.Driver
	name   string
	closed sandbox.Closed
}

func (f fake) Name() string                       { return f.name }
func (f fake) Capabilities() sandbox.Capabilities { return sandbox.Capabilities{Closed: f.closed} }
func (f fake) Prepare(context.Context, sandbox.Plan) (sandbox.Instance, error) {
	return nil, errs.New(errs.Internal, "prepared before it was chosen")
}

func TestChoose(t *testing.T) {
	r := sandbox.NewRegistry(fake{name: "bwrap", closed: sandbox.Proven}, fake{name: "cloud", closed: sandbox.Asserted}, fake{name: "process", closed: sandbox.Open}, fake{name: "odd", closed: "perhaps"})
	cases := []struct {
		name     string
		demanded sandbox.Closed
		insecure bool
		code     errs.Code
		says     string
	}{
		{"bwrap", sandbox.Proven, false, "", ""},
		{"bwrap", "", false, "", ""},
		{"bwrap", "", true, errs.Invalid, "leave --insecure-no-sandbox out"},
		{"bwrap", sandbox.Asserted, false, "", ""},
		{"bwrap", "nonsense", false, errs.NotAllowed, ""},
		{"cloud", sandbox.Proven, false, errs.NotAllowed, "closed: asserted"},
		{"cloud", "", true, errs.NotAllowed, "closed: asserted"},
		{"cloud", sandbox.Asserted, false, "", ""},
		{"process", sandbox.Proven, false, errs.NotAllowed, "use bwrap, or say --insecure-no-sandbox"},
		{"process", sandbox.Open, false, errs.NotAllowed, "--insecure-no-sandbox"},
		{"process", sandbox.Proven, true, "", ""},
		{"odd", sandbox.Open, true, errs.NotAllowed, ""},
		{"docker", sandbox.Proven, true, errs.NotFound, "bwrap, cloud, process, odd"},
		{"", sandbox.Proven, true, errs.NotFound, ""},
	}
	for _, c := range cases {
		d, err := r.Choose(c.name, c.demanded, c.insecure)
		if errs.CodeOf(err) != c.code || !strings.Contains(errs.Message(err), c.says) || (err == nil) != (d != nil) {
			t.Errorf("%q for %q (insecure %v): %v", c.name, c.demanded, c.insecure, err)
		}
	}
}

// Whatever happens to an instance, nothing runs after stop, and nothing starts after destroy.
func TestNext(t *testing.T) {
	events := []sandbox.Event{sandbox.Start, sandbox.Resume, sandbox.Exec, sandbox.Stop, sandbox.Park, sandbox.Destroy}
	rapid.Check(t, func(t *rapid.T) {
		s := sandbox.Prepared
		started, destroyed := false, false
		for _, e := range rapid.SliceOf(rapid.SampledFrom(events)).Draw(t, "events") {
			next, err := sandbox.Next(s, e)
			if err != nil {
				if next != s || !errs.Is(err, errs.Conflict) {
					t.Fatalf("a refused %s moved %s to %s: %v", e, s, next, err)
				}
				if e == sandbox.Destroy || e == sandbox.Stop {
					t.Fatalf("%s was refused in %s", e, s)
				}
				continue
			}
			if destroyed && next != sandbox.Destroyed {
				t.Fatalf("%s after destroy", e)
			}
			if e == sandbox.Start && started {
				t.Fatal("started twice")
			}
			started = started || e == sandbox.Start
			destroyed = destroyed || e == sandbox.Destroy
			if (e == sandbox.Stop || e == sandbox.Park) && next == sandbox.Running {
				t.Fatalf("running after %s", e)
			}
			if e == sandbox.Exec && s != sandbox.Running {
				t.Fatalf("a command ran in %s", s)
			}
			s = next
		}
	})
}

func TestLevels(t *testing.T) {
	for want, l := range map[sandbox.Level]sandbox.Levels{
		sandbox.Cgroup: {Memory: sandbox.Cgroup, PIDs: sandbox.Cgroup, CPU: sandbox.None},
		sandbox.Rlimit: {Memory: sandbox.Rlimit, PIDs: sandbox.Cgroup},
		sandbox.None:   {Memory: sandbox.None, PIDs: sandbox.None, CPU: sandbox.Cgroup},
	} {
		if got := l.Summary(); got != want {
			t.Errorf("%+v is %s, want %s", l, got, want)
		}
	}
}

// A folder is shown only if it neither lies in, nor contains, a folder of Sallyport's, whatever links lead there.
func TestCheckShown(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"a/state/sessions/x", "a/run", "b/work/deep", "astate"} {
		if err := os.MkdirAll(filepath.Join(base, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"b/to-state": "../a/state", "b/to-a": "../a", "b/work/up": "../../a/state/sessions", "b/loop": "loop", "s": "a/state"} {
		if err := os.Symlink(to, filepath.Join(base, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, state := range []string{"a/state", "s"} {
		w := sandbox.Where{State: filepath.Join(base, state), Run: filepath.Join(base, "a/run/not-there-yet")}
		for p, ok := range map[string]bool{
			"b/work": true, "b/work/deep": true, "astate": true,
			"a": false, "a/state": false, "a/state/sessions/x": false, "b/to-state": false, "b/to-a": false, "b/work/up/x": false, ".": false,
			"a/run": false, "b/loop": false, "missing": false,
		} {
			real, err := w.CheckShown("workspace", filepath.Join(base, p))
			if (err == nil) != ok {
				t.Errorf("state %s: %s: %q %v", state, p, real, err)
			}
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

package rig_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport.dev/host/sandbox/proc"
	"sallyport.dev/host/sandbox/remains"
	"sallyport.dev/test/rig"
)

const boxProfiles = `profiles:
  box:
    sandbox: {driver: bwrap, closed: proven}
    grants:
      - {tools: [tracker/echo], rule: allow}
`

// box is a sandbox that sallyport run made, and what the list says of it.
type box struct {
	Session, Profile, Driver, Closed, State, Workspace, Dir string
	PID                                                     int

	run  *exec.Cmd
	said bytes.Buffer
	in   io.Closer
}

// startBox runs a shell in a sandbox that prints a line and waits; it returns once the line is out.
func startBox(t *testing.T, ctx context.Context, r *rig.Rig, work string) *box {
	t.Helper()
	b := &box{run: r.Command(ctx, "run", "--profile", "box", "--workspace", work, "--", "sh", "-c", `printf 'agent \033[31mhere\033[0m\n'; cat; setsid sleep 1000`)}
	in, err := b.run.StdinPipe()
	must(t, err)
	out, err := b.run.StdoutPipe()
	must(t, err)
	b.in, b.run.Stderr = in, &b.said
	must(t, b.run.Start())
	line := make([]byte, len("agent \033[31mhere\033[0m\n"))
	if _, err := io.ReadFull(out, line); err != nil {
		_ = b.run.Wait()
		t.Fatalf("%v: %s", err, b.said.String())
	}
	b.find(t, ctx, r)
	return b
}

// find reads the only sandbox that the list has.
func (b *box) find(t *testing.T, ctx context.Context, r *rig.Rig) {
	t.Helper()
	var all []box
	must(t, r.JSON(ctx, &all, "sandboxes", "list"))
	if len(all) != 1 {
		t.Fatalf("the list has %d sandboxes", len(all))
	}
	b.Session, b.Profile, b.Driver, b.Closed, b.State, b.PID = all[0].Session, all[0].Profile, all[0].Driver, all[0].Closed, all[0].State, all[0].PID
	b.Workspace, b.Dir = all[0].Workspace, all[0].Dir
}

// crash kills the host and the sandbox's supervisor as a power cut would: neither can take anything back.
func (b *box) crash(t *testing.T, ctx context.Context, r *rig.Rig) {
	t.Helper()
	must(t, r.KillPart(ctx, rig.Host))
	must(t, b.run.Process.Kill())
	if err := b.run.Wait(); err == nil {
		t.Error("the supervisor was not killed")
	}
	left, err := remains.Find(b.Dir)
	must(t, err)
	if left.Dir == "" || len(left.Cgroups)+len(left.Mounts) == 0 {
		t.Errorf("a crash that leaves nothing tests nothing: %s", left)
	}
}

func (b *box) gone(t *testing.T) {
	t.Helper()
	left, err := remains.Find(b.Dir)
	must(t, err)
	if left.Any() {
		t.Errorf("left: %s", left)
	}
	if proc.Runs(b.PID) {
		t.Errorf("process %d runs", b.PID)
	}
}

// The sandboxes of a machine are seen, entered, read and removed, and after crashes nothing of them is left: by the host that starts again, and
// by hand where none does.
func TestSandboxes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("control groups and mounts, of which a crash must leave none, need root here")
	}
	programs := programs(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	up, err := rig.StartUpstream(ctx, programs, "s3cret", "--auth", "bearer")
	must(t, err)
	defer up.Close()
	r, err := rig.Start(ctx, rig.Options{Programs: programs, Apart: true})
	must(t, err)
	defer func() {
		if t.Failed() {
			t.Log(r.Log())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	tracker := rig.Connection{Name: "tracker", URL: up.URL, Auth: "{type: bearer}", Secret: "s3cret", Reads: []string{"echo"}}
	must(t, r.Configure(ctx, []rig.Connection{tracker}, boxProfiles))
	work := t.TempDir()
	must(t, os.WriteFile(filepath.Join(work, "file"), []byte("in the workspace\n"), 0o644))

	// Seen, entered, read, removed.
	b := startBox(t, ctx, r, work)
	if b.Profile != "box" || b.Driver != "bwrap" || b.Closed != "proven" || b.State != "running" || b.PID == 0 || b.Workspace != work {
		t.Errorf("listed as %+v", b)
	}
	out, err := r.CLI(ctx, "typed\n", "sandboxes", "exec", b.Session[:8], "--", "sh", "-c", `cat; cat file; id -u; tail -n +3 /proc/net/dev | cut -d: -f1; ls /run/sallyport/in/bin; ls / | grep -c work || true`)
	if want := "typed\nin the workspace\n1000\n    lo\nsallyport-bridge\nsallyport-guest\n0\n"; out != want || err != nil {
		t.Errorf("inside: %q, want %q", out, want)
	}
	var exit *exec.ExitError
	if _, err := r.CLI(ctx, "", "sandboxes", "exec", b.Session, "--", "sh", "-c", "exit 9"); !errors.As(err, &exit) || exit.ExitCode() != 9 {
		t.Errorf("exit 9 became %v", err)
	}
	if out, err := r.CLI(ctx, "", "sandboxes", "logs", b.Session); err != nil || out != "agent here\n" {
		t.Errorf("logs: %q %v", out, err)
	}
	if out, err := r.CLI(ctx, "", "sandboxes", "logs", b.Session, "--raw"); err != nil || out != "agent \033[31mhere\033[0m\n" {
		t.Errorf("raw logs: %q %v", out, err)
	}
	if _, err := r.CLI(ctx, "", "sandboxes", "exec", "zzzz", "--", "true"); err == nil || !strings.Contains(err.Error(), "no sandbox on this host is of a session that begins with zzzz") {
		t.Errorf("an unknown one: %v", err)
	}
	_, err = r.CLI(ctx, "", "sandboxes", "rm", b.Session, "--yes")
	must(t, err)
	b.gone(t)
	if err := b.run.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 143 || !strings.Contains(b.said.String(), "removed on its host") {
		t.Errorf("run ended with %v: %s", err, b.said.String())
	}

	// Crashed; taken back by hand, while no host runs.
	b = startBox(t, ctx, r, work)
	b.crash(t, ctx, r)
	b.find(t, ctx, r)
	if b.State != "lost" {
		t.Errorf("after the crash it is listed as %s", b.State)
	}
	_, err = r.CLI(ctx, "", "sandboxes", "rm", b.Session, "--yes")
	must(t, err)
	b.gone(t)
	must(t, r.StartPart(ctx, rig.Host))
	must(t, r.AwaitLink(ctx, rig.Host))

	// Crashed; taken back by the next host, also where its notes were torn.
	for _, torn := range []bool{false, true} {
		b = startBox(t, ctx, r, work)
		b.crash(t, ctx, r)
		if torn {
			must(t, os.WriteFile(filepath.Join(b.Dir, "session.state.json"), []byte(`{"session":"`), 0o600))
		}
		must(t, r.StartPart(ctx, rig.Host))
		must(t, r.AwaitLink(ctx, rig.Host))
		for {
			if _, err := os.Stat(b.Dir); errors.Is(err, os.ErrNotExist) {
				break
			}
			select {
			case <-ctx.Done():
				t.Fatal("the host did not take it back")
			case <-time.After(20 * time.Millisecond):
			}
		}
		b.gone(t)
	}
	if data, err := os.ReadFile(filepath.Join(work, "file")); err != nil || string(data) != "in the workspace\n" {
		t.Errorf("the workspace: %q %v", data, err)
	}
}

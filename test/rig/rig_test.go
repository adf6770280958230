package rig_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport.dev/relay"
	"sallyport.dev/test/rig"
)

const profiles = `profiles:
  work:
    attached: allow
    sandbox: {driver: process, closed: "no"}
    grants:
      - {tools: [tracker/echo], rule: allow}
standing:
  bot: {profile: work, tools: [tracker/create_issue, tracker/long_job], calls: 100, until: %s, reason: "the rig's own test"}
`

var built struct {
	once sync.Once
	dir  string
	rig.Programs
	err error
}

// programs are built once, by whichever test needs them first.
func programs(t *testing.T) rig.Programs {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "sallyport-rig-test-"); built.err == nil {
			built.Programs, built.err = rig.Build(context.Background(), built.dir)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.Programs
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// Everything is started, a read and a granted write go all the way, each part alone is killed and comes back, and nothing stays behind.
func TestRig(t *testing.T) {
	programs := programs(t)
	for _, apart := range []bool{true, false} {
		t.Run(fmt.Sprintf("apart %t", apart), func(t *testing.T) { testRig(t, programs, apart) })
	}
}

// tooOld publishes what a guest from before relay format 1 would: it is told to start again with this host's guest, and the journal has it.
func tooOld(t *testing.T, r *rig.Rig, s *rig.Session) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	id := relay.NewID()
	record := []byte(`{"v":0,"session":"` + s.Session + `"}`)
	if err := relay.Publish(filepath.Join(s.Out, relay.TmpDir, id), filepath.Join(s.Out, relay.NewDir, relay.CallName(id)), record); err != nil {
		t.Fatal(err)
	}
	const says = "call: format 0 is no longer served, 1 is; restart the session with the guest of this host"
	ask := time.NewTicker(10 * time.Millisecond)
	defer ask.Stop()
	for {
		var list struct {
			Calls []struct {
				ID, Code, Reason string
				Record           string `json:"record_id"`
			}
		}
		if err := r.JSON(ctx, &list, "calls", "list", "--status", "refused"); err != nil {
			t.Fatal(err)
		}
		for _, c := range list.Calls {
			if c.Record != id {
				continue
			}
			if c.Code != "too_old" || c.Reason != says {
				t.Errorf("the journal says %+v", c)
			}
			if shown, err := r.CLI(ctx, "", "calls", "show", c.ID); err != nil || !strings.Contains(shown, "refused (too_old)") || !strings.Contains(shown, says) {
				t.Errorf("%v\n%s", err, shown)
			}
			data, err := os.ReadFile(filepath.Join(s.In, "results", relay.ResultName(id)))
			if err != nil || !bytes.Contains(data, []byte(says+" (too_old)")) {
				t.Errorf("the guest reads %s, %v", data, err)
			}
			return
		}
		select {
		case <-ask.C:
		case <-ctx.Done():
			t.Fatal(r.Log())
		}
	}
}

// sleepsCoarsely tells that a part's threads may be woken late (docs/decisions/0016).
func sleepsCoarsely(t *testing.T, r *rig.Rig, part string) {
	t.Helper()
	pid, err := r.PID(part)
	if err != nil {
		t.Fatal(err)
	}
	// What it is for a process is what its first thread has; a worker that cannot be looked into cannot be asked.
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", pid))
	if got := strings.TrimSpace(string(b)); err == nil && got != "1000000" || err != nil && !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%s: %s ns, %v", part, got, err)
	}
}

const jobArguments = `{"key":"k","title":"t"}`

// longJob makes a call that the server makes a task of (SEP-2663), and returns once the journal says so. What the call came to follows.
func longJob(t *testing.T, r *rig.Rig, s *rig.Session) <-chan string {
	t.Helper()
	ended := make(chan string, 1)
	go func() {
		got, err := s.Call(t.Context(), "tracker_long_job", jobArguments)
		if err != nil {
			got.Text = err.Error()
		}
		ended <- got.Text
	}()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	ask := time.NewTicker(10 * time.Millisecond)
	defer ask.Stop()
	for {
		var list struct{ Calls []struct{ State string } }
		if err := r.JSON(ctx, &list, "calls", "list"); err != nil {
			t.Fatal(err)
		}
		for _, c := range list.Calls {
			if c.State == "working" {
				return ended
			}
		}
		select {
		case got := <-ended:
			t.Fatalf("no task was made: %s", got)
		case <-ask.C:
		case <-ctx.Done():
			t.Fatal(r.Log())
		}
	}
}

func testRig(t *testing.T, programs rig.Programs, apart bool) {
	ctx := t.Context()
	up, err := rig.StartUpstream(ctx, programs, "s3cret", "--auth", "bearer")
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	dir := ""
	if apart { // where sockets have longer paths than the kernel takes for a name
		dir = filepath.Join(t.TempDir(), strings.Repeat("a-long-name/", 12))
	}
	r, err := rig.Start(ctx, rig.Options{Programs: programs, Apart: apart, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	defer func() {
		if !closed {
			t.Logf("%s", r.Log())
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	err = r.Configure(ctx, []rig.Connection{{
		Name: "tracker", URL: up.URL, Auth: "{type: bearer}", Secret: "s3cret", Reads: []string{"echo"}, Writes: []string{"create_issue=new_issue", "long_job"},
	}}, fmt.Sprintf(profiles, time.Now().AddDate(0, 0, 7).Format(time.DateOnly)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Open(ctx, rig.SessionOptions{Profile: "work"})
	if err != nil {
		t.Fatal(err)
	}
	echo := func(text string) {
		t.Helper()
		got, err := s.Call(ctx, "tracker_echo", fmt.Sprintf(`{"text":%q}`, text))
		if err != nil || got.Text != text || got.IsError {
			t.Fatalf("echo %s: %+v, %v", text, got, err)
		}
	}
	echo("one")
	for _, part := range []string{rig.Control, rig.Host, rig.Worker} {
		sleepsCoarsely(t, r, part)
	}
	tooOld(t, r, s)
	const issue = `{"project":"web","title":"one"}`
	got, err := s.Call(ctx, "new_issue", issue)
	if err != nil || got.IsError {
		t.Fatalf("new_issue: %+v, %v", got, err)
	}
	requests, effects, err := up.Count(ctx, "create_issue", issue)
	if err != nil || requests != 1 || effects != 1 {
		t.Fatalf("%d requests, %d effects, %v", requests, effects, err)
	}
	ended := longJob(t, r, s)
	if apart {
		for _, part := range []string{rig.Host, rig.Worker, rig.Control} {
			if err := r.KillPart(ctx, part); err != nil {
				t.Fatal(err)
			}
			if err := r.StartPart(ctx, part); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{rig.Host, rig.Worker} {
				if err := r.AwaitLink(ctx, name); err != nil {
					t.Fatal(err)
				}
			}
			echo("after " + part)
		}
	}
	if err := up.Steer(ctx, http.MethodPost, "/release", map[string]string{"key": "k"}, nil); err != nil {
		t.Fatal(err)
	}
	if got := <-ended; got != "job 2 is done" {
		t.Fatalf("the task came to %q", got)
	}
	if requests, effects, err := up.Count(ctx, "long_job", jobArguments); err != nil || requests != 1 || effects != 1 {
		t.Fatalf("the task: %d requests, %d effects, %v", requests, effects, err)
	}
	again, err := s.AnotherShim(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := again.Call(ctx, "tracker_echo", `{"text":"two"}`); err != nil || got.Text != "two" {
		t.Fatalf("%+v, %v", got, err)
	}
	var list struct{ Calls []struct{ State string } }
	if err := r.JSON(ctx, &list, "calls", "list"); err != nil {
		t.Fatal(err)
	}
	if len(list.Calls) < 3 {
		t.Fatalf("the journal has %d calls", len(list.Calls))
	}
	dir = filepath.Dir(r.State())
	closed = true
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Fatalf("%s stays behind: %v", dir, err)
	}
}

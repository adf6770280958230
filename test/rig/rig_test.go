package rig_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sallyport.dev/test/rig"
)

const profiles = `profiles:
  work:
    attached: allow
    sandbox: {driver: process, closed: "no"}
    grants:
      - {tools: [tracker/echo], rule: allow}
standing:
  bot: {profile: work, tools: [tracker/create_issue], calls: 100, until: %s, reason: "the rig's own test"}
`

// Everything is started, a read and a granted write go all the way, each part alone is killed and comes back, and nothing stays behind.
func TestRig(t *testing.T) {
	programs, err := rig.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, apart := range []bool{true, false} {
		t.Run(fmt.Sprintf("apart %t", apart), func(t *testing.T) { testRig(t, programs, apart) })
	}
}

func testRig(t *testing.T, programs rig.Programs, apart bool) {
	ctx := t.Context()
	up, err := rig.StartUpstream(ctx, programs, "s3cret", "--auth", "bearer")
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	r, err := rig.Start(ctx, rig.Options{Programs: programs, Apart: apart})
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
		Name: "tracker", URL: up.URL, Auth: "{type: bearer}", Secret: "s3cret", Reads: []string{"echo"}, Writes: []string{"create_issue=new_issue"},
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
	const issue = `{"project":"web","title":"one"}`
	got, err := s.Call(ctx, "new_issue", issue)
	if err != nil || got.IsError {
		t.Fatalf("new_issue: %+v, %v", got, err)
	}
	requests, effects, err := up.Count(ctx, "create_issue", issue)
	if err != nil || requests != 1 || effects != 1 {
		t.Fatalf("%d requests, %d effects, %v", requests, effects, err)
	}
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
	dir := filepath.Dir(r.State())
	closed = true
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Fatalf("%s stays behind: %v", dir, err)
	}
}

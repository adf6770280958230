package rig_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
	"sallyport.dev/test/rig"
)

// A call's record is put back as it was, as a copied, restored or synchronized tree of a sandbox does: while its result lies there, after that was read, and
// after each of host and control was killed and started again. It ran once, for ever; another record under its id is a conflict.
func TestCopiedTree(t *testing.T) {
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
	must(t, r.Configure(ctx, []rig.Connection{{
		Name: "tracker", URL: up.URL, Auth: "{type: bearer}", Secret: "s3cret", Reads: []string{"echo"}, Writes: []string{"create_issue", "long_job"},
	}}, fmt.Sprintf(profiles, time.Now().AddDate(0, 0, 7).Format(time.DateOnly))))
	s, err := r.Open(ctx, rig.SessionOptions{Profile: "work"})
	must(t, err)

	const arguments = `{"project":"web","title":"once"}`
	call := &relay.Call{
		V: 1, Session: s.Session, Epoch: 1, Shim: relay.NewID(), ID: relay.NewID(), Tool: "tracker_create_issue", Arguments: []byte(arguments), TimeoutMS: 60_000,
	}
	record, err := relay.AppendCall(nil, call)
	must(t, err)
	result := filepath.Join(s.In, "results", relay.ResultName(call.ID))
	// put publishes a record and waits until it was taken, and its result, if it gets one, lies there.
	put := func(record []byte) {
		t.Helper()
		name := filepath.Join(s.Out, relay.NewDir, relay.CallName(call.ID))
		must(t, relay.Publish(filepath.Join(s.Out, relay.TmpDir, relay.NewID()), name, record))
		awaitFile(t, ctx, name, false)
		awaitFile(t, ctx, result, true)
	}
	once := func(when string) {
		t.Helper()
		if requests, effects, err := up.Count(ctx, "create_issue", arguments); err != nil || requests != 1 || effects != 1 {
			t.Errorf("%s: %d requests, %d effects, %v", when, requests, effects, err)
		}
		if b, err := os.ReadFile(result); err != nil || !strings.Contains(string(b), `"id":"`+call.ID+`"`) {
			t.Errorf("%s: the result is %s, %v", when, b, err)
		}
	}
	put(record)
	once("at first")
	put(record)
	once("put back beside its result")
	guest := relay.NewGuest(s.In, s.Out)
	defer guest.Close() //nolint:errcheck // the session ends
	read := func() {
		t.Helper()
		must(t, guest.Ack(call.ID))
		awaitFile(t, ctx, result, false)
	}
	read()
	put(record)
	once("put back after it was read")
	for _, part := range []string{rig.Host, rig.Control} {
		must(t, r.KillPart(ctx, part))
		must(t, r.StartPart(ctx, part))
		must(t, errors.Join(r.AwaitLink(ctx, rig.Host), r.AwaitLink(ctx, rig.Worker)))
		put(record)
		once("put back after " + part + " was killed")
		read()
		put(record)
		once("put back, read, after " + part + " was killed")
	}
	read()
	put([]byte(strings.Replace(string(record), "once", "twice", 1)))
	b, err := os.ReadFile(result)
	if err != nil || !strings.Contains(string(b), string(errs.Conflict)) {
		t.Errorf("another record of the same id got %s, %v", b, err)
	}
	if requests, _, err := up.Count(ctx, "create_issue", strings.Replace(arguments, "once", "twice", 1)); err != nil || requests != 0 {
		t.Errorf("another record of the same id: %d requests, %v", requests, err)
	}

	// A guest whose clocks are wrong by days: none of them counts.
	for _, wrong := range []string{"1000000", "-1"} {
		args := []string{"-T", "--monotonic", wrong, "--boottime", wrong, filepath.Join(s.In, relay.BinDir, "sallyport-guest"), "shim", "--in", s.In, "--out", s.Out}
		if os.Getuid() != 0 {
			args = append([]string{"-Ur"}, args...)
		}
		shim, err := rig.StartShim(exec.CommandContext(ctx, "unshare", args...))
		must(t, err)
		must(t, shim.Initialize(ctx))
		if got, err := shim.Call(ctx, "tracker_echo", `{"text":"late"}`); err != nil || got.Text != "late" {
			t.Errorf("a guest with a wrong clock: %+v, %v", got, err)
		}
		must(t, shim.Close())
	}
}

// awaitFile waits until a file is there, or is gone.
func awaitFile(t *testing.T, ctx context.Context, name string, there bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Lstat(name); (err == nil) == there {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s is there: %t is what was waited for", filepath.Base(name), there)
		}
	}
}

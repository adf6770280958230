package hostile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/relay"
	"sallyport.dev/test/rig"
)

// Sandboxes of this test: reads are allowed, writes are given by an administrator.
const sandboxes = `profiles:
  work:
    attached: allow
    sandbox: {memory: 96MiB, pids: 256}
    grants:
      - {tools: [tracker/echo], rule: allow}
standing:
  bot: {profile: work, tools: [tracker/create_issue], calls: 10000, until: %s, reason: "hostile guests"}
`

// What an attack may cost the parts outside, in MiB of memory at once.
const (
	hostBound    = 160
	controlBound = 160
)

// attack is what a program in a sandbox does, and what must come of it.
type attack struct {
	name string
	what string
	ends string // in words of the host's log, where it ends the session; "": the session lives on
	line string // a reason that the journal must have of the attacker's session; "": it need not have one
	got  func(t *testing.T, g *guests, did did)
}

// did is what the attacking program says of itself.
type did struct {
	Session string
	Did     int64
	Failed  int64
	Got     string
}

var guestAttacks = []attack{
	{name: "flood", what: "64 good calls in flight, without a pause"},
	{name: "publish", what: "good calls as fast as they can be written, whose answers nobody reads", ends: "more than 4,096 entries in new/"},
	{name: "notes", what: "acknowledgments, cancels and refusals of calls that never were"},
	{name: "lies", what: "records that are none: half JSON, a name twice, bad UTF-8, other sessions, other epochs, 2 MiB", line: "it belongs to another session"},
	{name: "links", what: "links out of the sandbox, pipes, sockets, folders, odd names, many links of one file"},
	{name: "swaps", what: "records that become links, pipes, longer and shorter while they are read"},
	{name: "directories", what: "the watched directory replaced by links, files and closed folders"},
	{name: "disk", what: "the relay's room filled, by files that have names and by files that have none"},
	{name: "forks", what: "programs that compute, as many as may be started"},
	{name: "watches", what: "every inotify instance and watch"},
	{name: "memory", what: "memory, until it is killed", ends: "code=137"},
	{
		name: "forged", what: "calls in another session's name, with another's harness call id, and one id for two calls",
		line: "it belongs to another session", got: forgedNothing,
	},
}

// guests is an installation with a well-behaved session in a sandbox beside the attacker's.
type guests struct {
	rig   *rig.Rig
	up    *rig.Upstream
	good  *rig.Shim
	id    string // of the good session
	files map[string]string
	calls int
}

// A hostile program in a sandbox costs itself: whatever it does, another sandbox's calls are answered, its write has one effect, no file outside is read
// or written, no part outside ends or grows, and, where all is played, its reads' p99 stays within twice what it is alone (I13).
func TestGuests(t *testing.T) {
	g := newGuests(t)
	for _, a := range guestAttacks {
		t.Run(a.name, func(t *testing.T) { g.play(t, a) })
	}
	g.untouched(t)
}

func newGuests(t *testing.T) *guests {
	t.Helper()
	up, err := rig.StartUpstream(t.Context(), programs, "s3cret", "--auth", "bearer")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { up.Close() }) //nolint:errcheck // it ends with the test
	g := &guests{up: up, rig: installation(t, rig.Options{LogLevel: "info"}), files: map[string]string{}}
	err = g.rig.Configure(t.Context(), []rig.Connection{{
		Name: "tracker", URL: up.URL, Auth: "{type: bearer}", Secret: "s3cret", Reads: []string{"echo"}, Writes: []string{"create_issue"}, Limits: "{concurrent: 256}",
	}}, fmt.Sprintf(sandboxes, time.Now().AddDate(0, 0, 7).Format(time.DateOnly)))
	if err != nil {
		t.Fatal(err)
	}
	// What no guest may read or change.
	for _, name := range []string{g.rig.Path("outside.txt"), filepath.Join(g.rig.State(), "outside.txt")} {
		g.files[name] = "outside-" + relay.NewID()
		if err := os.WriteFile(name, []byte(g.files[name]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var first struct{ Session string }
	g.good = g.run(t, "good", &first, "/bin/sh", "-c",
		`tr -d '\n' </run/sallyport/in/session.json; echo; exec /run/sallyport/in/bin/sallyport-guest shim --in /run/sallyport/in --out /run/sallyport/out`)
	g.id = first.Session
	if err := g.good.Initialize(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

// run starts a program in a sandbox of its own and reads its first line.
func (g *guests) run(t *testing.T, workspace string, first any, command ...string) *rig.Shim {
	t.Helper()
	dir := g.rig.Path(workspace)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := g.rig.Command(context.WithoutCancel(t.Context()), append([]string{"run", "--profile", "work", "--workspace", dir, "--"}, command...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	shim, err := rig.StartShim(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shim.Kill() }) //nolint:errcheck // it may have ended
	line := note(t, shim, 0, &stderr)
	if err := json.Unmarshal(line, first); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	return shim
}

// note waits for a program's line.
func note(t *testing.T, shim *rig.Shim, n int, stderr fmt.Stringer) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if notes := shim.Notes(); len(notes) > n {
			return notes[n]
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the program says nothing: %s", stderr)
		}
	}
}

func (g *guests) play(t *testing.T, a attack) {
	span := 500 * time.Millisecond
	if *all {
		span = 4 * time.Second
	}
	dir := g.rig.Path("bad-" + a.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "guest")
	if err := copyFile(program, programs.Path("hostile-guest")); err != nil {
		t.Fatal(err)
	}
	before := g.parts(t)
	quiet := g.reads(t, time.Now().Add(span))
	calm(t, g.rig, rig.Host, rig.Control)
	mark := len(g.rig.Log())
	var d did
	args := []string{program, a.name, span.String(), g.id, "harness-call-of-the-good-one"}
	if a.name == "links" {
		args = append(args[:3], slices.Sorted(maps.Keys(g.files))...)
	}
	bad := g.run(t, "bad-"+a.name, &d, args...)
	ended := make(chan struct{})
	if err := bad.Notify("begin", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(ended)
		bad.Close() //nolint:errcheck // how it ended is what its last line, and the log, say
	}()
	beside := g.reads(t, time.Now().Add(span))
	select {
	case <-ended:
	case <-time.After(rig.Patience):
		t.Error("the attacker's sandbox does not end")
	}
	if notes := bad.Notes(); len(notes) > 1 {
		if err := json.Unmarshal(notes[1], &d); err != nil {
			t.Errorf("%v: %s", err, notes[1])
		}
	}
	quiet = append(quiet, g.reads(t, time.Now().Add(span))...) // before and after: a machine has moods
	g.write(t)
	if after := g.parts(t); after != before {
		t.Errorf("a part ended: %v became %v", before, after)
	}
	host, control := peak(t, g.rig, rig.Host), peak(t, g.rig, rig.Control)
	if host > hostBound || control > controlBound {
		t.Errorf("the host took %d MiB, control %d", host, control)
	}
	log := g.rig.Log()[mark:]
	if a.ends != "" && !strings.Contains(log, a.ends) {
		t.Errorf("the log does not say %q:\n%s", a.ends, tail(log, 4<<10))
	}
	if a.line != "" {
		g.hasLine(t, d.Session, a.line)
	}
	if a.got != nil {
		a.got(t, g, d)
	}
	ratio := float64(p99(beside)) / float64(p99(quiet))
	t.Logf("%-12s %8d done, %7d not allowed; neighbour's p99 %6.2f ms, alone %6.2f ms, %4.1f times; host %3d MiB, control %3d MiB: %s",
		a.name, d.Did, d.Failed, ms(p99(beside)), ms(p99(quiet)), ratio, host, control, a.what)
	if *all && ratio > 2 {
		t.Errorf("the neighbour's p99 is %.1f times what it is alone", ratio)
	}
}

// reads makes one read after another until then, each with the right answer.
func (g *guests) reads(t *testing.T, until time.Time) (took []time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	for len(took) < 20 || time.Now().Before(until) {
		g.calls++
		text := fmt.Sprintf("good %d", g.calls)
		began := time.Now()
		got, err := g.good.Call(ctx, "tracker_echo", fmt.Sprintf(`{"text":%q}`, text))
		took = append(took, time.Since(began))
		if err != nil || got.IsError || got.Text != text {
			t.Fatalf("a neighbour's read came to %q, %v: %s", got.Text, err, got.Error)
		}
	}
	return took
}

// write makes a write of the good session, which has exactly one effect.
func (g *guests) write(t *testing.T) {
	t.Helper()
	g.calls++
	arguments := fmt.Sprintf(`{"project":"web","title":"good %d"}`, g.calls)
	got, err := g.good.Call(t.Context(), "tracker_create_issue", arguments)
	if err != nil || got.IsError {
		t.Errorf("the neighbour's write came to %q, %v", got.Text, err)
	}
	if _, effects, err := g.up.Count(t.Context(), "create_issue", arguments); err != nil || effects != 1 {
		t.Errorf("the neighbour's write had %d effects, %v", effects, err)
	}
}

// parts are the processes outside.
func (g *guests) parts(t *testing.T) (pids [3]int) {
	t.Helper()
	for i, part := range []string{rig.Control, rig.Host, rig.Worker} {
		pid, err := g.rig.PID(part)
		if err != nil {
			t.Fatal(err)
		}
		pids[i] = pid
	}
	return pids
}

// hasLine looks for a refused call of a session.
func (g *guests) hasLine(t *testing.T, session, line string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		list, err := g.rig.Operator().ListCalls(ctx, &sallyportv1.ListCallsRequest{Session: session, Limit: 200})
		if err != nil {
			t.Error(err)
			return
		}
		for _, c := range list.GetCalls() {
			if strings.Contains(c.GetReason(), line) {
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Errorf("the journal of %s does not say %q", session, line)
			return
		}
	}
}

// forgedNothing: of one id's two calls one ran, and the answer is its own; no call stands in the good session that it did not make.
func forgedNothing(t *testing.T, g *guests, d did) {
	other, one, _ := strings.Cut(d.Got, "\n")
	if !strings.Contains(other, `"with the id of another's call"`) {
		t.Errorf("another's harness call id got %s", other)
	}
	if strings.Contains(one, `"first"`) == strings.Contains(one, `"second"`) {
		t.Errorf("one id for two calls got %s", one)
	}
	for _, text := range []string{"as another session", "with the id of another's call"} {
		requests, _, err := g.up.Count(t.Context(), "echo", fmt.Sprintf(`{"text":%q}`, text))
		want := 0
		if text == "with the id of another's call" {
			want = 1 // it is a hint: the call is the attacker's own
		}
		if err != nil || requests != want {
			t.Errorf("%s: %d calls came to the server, want %d, %v", text, requests, want, err)
		}
	}
	shown, err := g.rig.Operator().ListCalls(t.Context(), &sallyportv1.ListCallsRequest{Session: g.id, Limit: 200})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range shown.GetCalls() {
		if c.GetReason() != "" && strings.Contains(c.GetReason(), "another session") {
			t.Errorf("the good session's journal has %s", c.GetReason())
		}
	}
}

// untouched: the files outside are what they were, and what stands in them came to no server.
func (g *guests) untouched(t *testing.T) {
	t.Helper()
	for name, want := range g.files {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("a file outside holds %q, %v", got, err)
		}
	}
	for text := range strings.Lines(g.rig.Log()) {
		for _, secret := range g.files {
			if strings.Contains(text, secret) {
				t.Errorf("a file outside stands in the log: %s", text)
			}
		}
	}
}

func p99(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)*99/100]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func copyFile(to, from string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, r); err != nil {
		w.Close() //nolint:errcheck // the copy failed
		return err
	}
	return w.Close()
}

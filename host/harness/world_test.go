package harness_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/host/egress"
	"sallyport.dev/host/gate"
	"sallyport.dev/host/harness"
	"sallyport.dev/host/link/linktest"
	"sallyport.dev/host/runner"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/proc"
	"sallyport.dev/host/sandbox/sandboxtest"
	"sallyport.dev/host/supervisor"
	"sallyport.dev/relay"
	"sallyport.dev/test/fixture/model"
	programs "sallyport.dev/test/harness"
)

func TestMain(m *testing.M) {
	sandboxtest.Main()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if guestDir != "" {
			_ = os.RemoveAll(guestDir)
		}
		os.Exit(code)
	}))
}

var (
	guestOnce sync.Once
	guestDir  string
	guestErr  error
)

// guests builds the guest's programs as they ship.
func guests(t testing.TB) string {
	t.Helper()
	if built := os.Getenv("SALLYPORT_TEST_GUEST"); built != "" {
		return built // a folder with both, for a user who has no compiler
	}
	guestOnce.Do(func() {
		if guestDir, guestErr = os.MkdirTemp("", "sallyport-guest-"); guestErr != nil {
			return
		}
		cmd := exec.Command("go", "build", "-o", guestDir+"/", "sallyport.dev/cmd/sallyport-guest", "sallyport.dev/cmd/sallyport-bridge")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			guestErr = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if guestErr != nil {
		t.Fatal(guestErr)
	}
	return guestDir
}

// modelKey is the real key, which must never be seen inside.
const modelKey = "sk-real-model-key-7f3a"

// world is a host with everything real but control, which is a strict fake of one process, and the model, which follows a script.
type world struct {
	*sandboxtest.Session
	t       testing.TB
	control *linktest.Control
	model   *model.Server
	socket  string
	config  harness.Config
	found   harness.Found
	ended   chan gate.Result

	mu    sync.Mutex
	calls []*linktest.Call
}

// newWorld makes a host with one session for an installed harness. args are the user's own.
func newWorld(t testing.TB, p programs.Program, provider string, change func(*sandbox.Plan), args ...string) *world {
	t.Helper()
	w := &world{Session: sandboxtest.New(t, "unset"), t: t, ended: make(chan gate.Result, 1)}
	if change != nil {
		change(&w.Plan)
	}
	bin := guests(t)
	for _, name := range []string{"sallyport-guest", "sallyport-bridge"} {
		data, err := os.ReadFile(filepath.Join(bin, name))
		must(t, err)
		must(t, w.Folder.Publish(filepath.Join(relay.BinDir, name), data, 0o755))
	}
	w.Plan.Gate = []string{sandbox.Guest, "gate"}

	found, err := harness.Find(p.Argv[len(p.Argv)-1], strings.Join(append(p.Path, os.Getenv("PATH")), ":"))
	must(t, err)
	w.found = found
	options := harness.Options{Provider: provider, Workdir: sandbox.Workdir(w.Plan.Workspace), Hold: 45 * time.Second, Sandboxed: true, Nested: true}
	if w.config, err = harness.Other(options); found.Harness != "other" {
		w.config, err = harness.Generate(found.Harness, options)
	}
	must(t, err)
	w.Plan.Installs, w.Plan.Nested = found.Installs, w.config.Nested
	w.Plan.Args = append(append(append([]string{}, found.Args...), w.config.Args...), args...)
	w.Plan.Env = append(harness.Environment(os.Environ(), found.Paths), w.config.Env...)

	tools, err := relay.AppendTools(nil, [][]byte{
		[]byte(`{"name":"echo","description":"Says a text again","inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]},"annotations":{"readOnlyHint":false}}`),
	})
	must(t, err)
	session, err := relay.AppendSession(nil, &relay.Session{
		Session: w.Plan.Session, Epoch: 1, Build: "test", Server: harness.Server, Await: "await_call", HoldMS: 45_000, TimeoutMS: 120_000, Limits: relay.DefaultLimits(),
	})
	must(t, err)
	must(t, w.Folder.Publish(relay.SessionName, session, 0o644))
	must(t, w.Folder.Publish(relay.ToolsName, tools, 0o644))
	w.serve(provider)
	return w
}

// serve starts the host's parts. They end with the test.
func (w *world) serve(provider string) {
	t := w.t
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	log := slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	hub := gate.NewHub(log)
	t.Cleanup(func() { cancel(); all.Wait(); hub.Close() })

	w.control = linktest.New(func(err error) { t.Error("the host broke the rules:", err) })
	w.control.OnCall(func(k *linktest.Call) {
		w.mu.Lock()
		w.calls = append(w.calls, k)
		w.mu.Unlock()
		k.Journal()
		k.Answer("answered", `{"content":[{"type":"text","text":"echoed `+strings.ReplaceAll(string(k.Record.Arguments), `"`, `'`)+`"}]}`)
	})
	run := runner.New(runner.Config{Link: w.control, Log: log})
	all.Go(func() {
		if err := run.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	must(t, run.Add(runner.Session{ID: w.Plan.Session, Epoch: 1, Folder: w.Folder, Owners: []uint32{uint32(w.owner())}}))

	var err error
	w.model, err = model.New(model.Options{
		Anthropic: model.Credential{Header: "X-Api-Key", Value: modelKey}, OpenAI: model.Credential{Header: "Authorization", Value: "Bearer " + modelKey},
	})
	must(t, err)
	t.Cleanup(func() { _ = w.model.Close() })
	keyFile := filepath.Join(sandboxtest.Dir(t), "key")
	must(t, os.WriteFile(keyFile, []byte(modelKey), 0o600))
	address := w.model.URL()
	if provider == "openai" {
		address += "/v1"
	}
	transport := egress.NewTransport()
	t.Cleanup(transport.CloseIdleConnections)
	gateway, err := egress.New(egress.Policy{Session: w.Plan.Session, Provider: provider, Allow: []string{"tool_search"}}, egress.Source{Provider: provider, URL: address, File: keyFile}, transport, func(egress.Decision) {}, log)
	must(t, err)
	bridge, err := egress.Listen(filepath.Join(w.Folder.In(), relay.BridgeName), 0o666)
	must(t, err)
	all.Go(func() { _ = egress.Serve(ctx, bridge, gateway, log) })

	w.socket = filepath.Join(sandboxtest.Dir(t), "gate.sock")
	l, err := net.Listen("unix", w.socket)
	must(t, err)
	all.Go(func() { _ = hub.Serve(ctx, l) })
	all.Go(func() { w.confirm(ctx) })
	self, err := proc.Self()
	must(t, err)
	must(t, hub.Admit(gate.Box{
		Session: w.Plan.Session, Epoch: 1, Closed: sandbox.Proven, Demanded: sandbox.Proven, Policy: "digest", Supervisor: self, Timeout: 30 * time.Second,
		Record: func(ctx context.Context) (gate.Record, []byte, error) {
			r, raw, err := run.Gate(ctx, w.Plan.Session)
			return gate.Record{Session: r.Session, Epoch: r.Epoch, NetNS: r.NetNS, Probe: gate.ReadProbe(r.Probe)}, raw, err
		},
		Confirm: func(ctx context.Context, c gate.Confirm) (bool, string, error) {
			err := run.AskGate(ctx, c.Session, c.Parent, c.Policy, c.Probe)
			return err == nil, "", err
		},
		Open: func() error {
			if err := run.Open(w.Plan.Session); err != nil {
				return err
			}
			return w.Folder.Publish(relay.OpenName, []byte("open\n"), 0o644)
		},
		Recover: func(ctx context.Context) error { return sandboxtest.Driver(t).Recover(ctx, w.Dir) },
	}))
}

// confirm is control: it confirms the gate of the session.
func (w *world) confirm(ctx context.Context) {
	err := w.control.Await(ctx, func(v *linktest.View) bool { return v.Gate(w.Plan.Session) != nil })
	if err == nil {
		w.control.Push(&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Gate{Gate: &sallyportv1.GateAnswer{Session: w.Plan.Session, Epoch: 1, Open: true}}})
	}
}

func (w *world) owner() int {
	uid, _, err := sandboxtest.Driver(w.t).Owner(w.Dir)
	must(w.t, err)
	return uid
}

func (w *world) job() supervisor.Job { return supervisor.Job{Plan: w.Plan, Home: w.config.Files} }

// run runs the harness to its end without a terminal.
func (w *world) run() (supervisor.Outcome, string, string) {
	t := w.t
	t.Helper()
	client, err := gate.NewClient(gate.Dial(w.socket))
	must(t, err)
	var out, stderr bytes.Buffer
	var copies sync.WaitGroup
	var stdio supervisor.Stdio
	for _, p := range []struct {
		to **os.File
		b  *bytes.Buffer
	}{{&stdio.Out, &out}, {&stdio.Err, &stderr}} {
		r, wr, err := os.Pipe()
		must(t, err)
		*p.to = wr
		copies.Go(func() { _, _ = io.Copy(p.b, r); r.Close() })
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	o, err := supervisor.Run(ctx, supervisor.Config{Job: w.job(), Driver: sandboxtest.Driver(t), Host: client, Stdio: stdio})
	stdio.Out.Close()
	stdio.Err.Close()
	copies.Wait()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out.String(), stderr.String())
	}
	return o, out.String(), stderr.String()
}

// called are the calls that reached the host.
func (w *world) called() []*linktest.Call {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*linktest.Call(nil), w.calls...)
}

// saw reports whether the model was shown a text.
func (w *world) saw(text string) bool {
	for _, r := range w.model.Requests() {
		if strings.Contains(r.Body, text) {
			return true
		}
	}
	return false
}

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// installed returns the harnesses at the versions that the project tests with.
func installed(t testing.TB) *programs.Installed {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	inst, err := programs.Install(ctx, testLog{t})
	must(t, err)
	return inst
}

func raw(v any) json.RawMessage {
	data, _ := json.Marshal(v)
	return data
}

package harness_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport.dev/test/fixture/mcpserver"
	"sallyport.dev/test/fixture/model"
	"sallyport.dev/test/harness"
)

// build compiles a program of this module into a folder of the test.
func build(t *testing.T, pkg string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), filepath.Base(pkg))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", pkg, err, b)
	}
	return out
}

func install(t *testing.T) (context.Context, *harness.Installed) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	in, err := harness.Install(ctx, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	return ctx, in
}

// TestVersions starts every installed program and compares what it says of itself with the pin.
func TestVersions(t *testing.T) {
	ctx, in := install(t)
	for _, p := range in.Programs() {
		if p.Name == in.Everything.Name || p.Name == in.Inspector.Name {
			b, err := os.ReadFile(filepath.Join(in.Root, "node_modules", "@modelcontextprotocol", strings.TrimPrefix(p.Name, "mcp-"), "package.json"))
			var manifest struct{ Version string }
			if err != nil || json.Unmarshal(b, &manifest) != nil || manifest.Version != p.Version {
				t.Errorf("%s: %v %s, want %s", p.Name, err, manifest.Version, p.Version)
			}
			continue
		}
		cmd := exec.CommandContext(ctx, filepath.Join(in.Bin, p.Name), "--version")
		cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + strings.Join(append(p.Path, "/usr/bin", "/bin"), ":")}
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), p.Version) {
			t.Errorf("%s: %v %q, want %s", p.Name, err, out, p.Version)
		}
		t.Logf("%s: %s", p.Name, strings.TrimSpace(string(out)))
	}
}

// TestAgents drives each agent through a play with the plainest server, and compares what it reports with what its model received.
func TestAgents(t *testing.T) {
	ctx, in := install(t)
	stdio := build(t, "sallyport.dev/test/fixture/cmd/fixture-stdio")
	for _, p := range []harness.Program{in.Claude, in.ClaudeOld, in.Codex, in.Pi} {
		t.Run(p.Name, func(t *testing.T) {
			key := model.Credential{Header: "X-Api-Key", Value: "k"}
			m := model.Start(t, model.Options{Anthropic: key, OpenAI: model.Credential{Header: "Authorization", Value: "Bearer k"}})
			play := model.Play(
				model.Call("demo/echo", `{"text":"Grüße 🙂 <b>"}`),
				model.Step{Together: []model.Step{model.Call("demo/add", `{"a":2,"b":3}`), model.Call("demo/fail", `{}`)}},
				model.Call("demo/echo", `{"text":"again {{0~echo: (.*)}}"}`),
				model.Say("the end: {{last}}"))
			c, err := in.Outside(p, harness.Outside{Home: homeOf(t), Dir: t.TempDir(), Server: "demo", Argv: []string{stdio}, Model: m.URL(), Key: "k", Prompt: play})
			if err != nil {
				t.Fatal(err)
			}
			run, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			got, err := harness.Run(run, c)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("ran %s\nexit %d, %d calls, final %q, errors %q, noise %q, stderr %q", strings.Join(c.Argv[:len(p.Argv)], " "), got.ExitCode, len(got.Calls), got.Final, got.Errors, got.Noise, got.Stderr)
			if got.ExitCode != 0 || !got.Ended || !strings.HasPrefix(got.Final, "the end: ") || !strings.Contains(got.Final, "echo: again Grüße 🙂 <b>") {
				t.Errorf("%+v", got)
			}
			if len(got.Calls) != 4 {
				t.Fatalf("%d calls: %+v", len(got.Calls), got.Calls)
			}
			for _, c := range got.Calls {
				if c.Server != "demo" || !c.Answered {
					t.Errorf("%+v", c)
				}
			}
			if c := got.Call("echo", 1); c == nil || c.Result != "echo: again Grüße 🙂 <b>" || c.IsError || string(c.Arguments) != `{"text":"again Grüße 🙂 <b>"}` {
				t.Errorf("%+v", c)
			}
			if c := got.Call("fail", 0); c == nil || !c.IsError || !strings.Contains(c.Result, "it failed as it was told") {
				t.Errorf("%+v", c)
			}
			if r := m.Received(); len(r) != 4 || !strings.Contains(r[1].Text, `"total":5`) || !strings.Contains(r[2].Text, "it failed as it was told") {
				t.Errorf("the model received %+v", r)
			}
			for _, r := range m.Requests() {
				if r.Refused != "" {
					t.Errorf("the model refused %s %s: %s", r.Method, r.Path, r.Refused)
				}
			}
		})
	}
}

// TestAgentsOverHTTP drives each agent against the HTTP fixture itself: the fixture's strictness against real clients, in both eras.
func TestAgentsOverHTTP(t *testing.T) {
	ctx, in := install(t)
	for _, era := range []struct {
		name string
		eras mcpserver.Era
	}{{"legacy", mcpserver.Legacy}, {"both", mcpserver.Both}} {
		for _, framing := range []mcpserver.Framing{mcpserver.JSON, mcpserver.SSE} {
			for _, p := range []harness.Program{in.Claude, in.ClaudeOld, in.Codex, in.Pi} {
				t.Run(era.name+"/"+p.Name+"/"+[]string{"json", "sse"}[framing], func(t *testing.T) {
					m := model.Start(t, model.Options{})
					s := mcpserver.Start(t, mcpserver.Options{Eras: era.eras, Framing: framing, GetStream: framing == mcpserver.SSE, Auth: mcpserver.Auth{Kind: mcpserver.Bearer, Secret: "s3cret"}})
					play := model.Play(model.Call("tracker/get_issue", `{"project":"web","number":7}`), model.Call("tracker/create_issue", `{"project":"web","title":"one"}`), model.Say("{{last}}"))
					c, err := in.Outside(p, harness.Outside{Home: homeOf(t), Dir: t.TempDir(), Server: "tracker", URL: s.URL(), Bearer: "s3cret", Model: m.URL(), Key: "k", Prompt: play})
					if err != nil {
						t.Fatal(err)
					}
					run, cancel := context.WithTimeout(ctx, time.Minute)
					defer cancel()
					got, err := harness.Run(run, c)
					if err != nil {
						t.Fatal(err)
					}
					if s.Effects().CountOf("create_issue", `{"project":"web","title":"one"}`) != 1 || !strings.Contains(got.Final, `"number":1`) {
						t.Errorf("%d effects; %+v", s.Effects().Count(""), got)
					}
					for _, r := range s.Recorder().Records(nil) {
						if r.Refused != "" || r.Note.Refused != "" {
							t.Logf("refused: %s %s %s %s: %s%s", r.Request.Method, r.Note.RPC, r.Note.Era, r.Request.Headers.Value("MCP-Protocol-Version"), r.Refused, r.Note.Refused)
						}
					}
					calls := s.Calls("create_issue")
					if len(calls) == 1 {
						t.Logf("%s era, arguments %s", calls[0].Note.Era, calls[0].Note.Arguments)
					}
				})
			}
		}
	}
}

// homeOf is a home that is not below the system's temporary folder, which Codex refuses.
func homeOf(t *testing.T) string {
	t.Helper()
	cache, err := harness.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(cache, "home-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

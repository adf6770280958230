package harness_test

import (
	"context"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"sallyport.dev/test/fixture/mcpserver"
	"sallyport.dev/test/fixture/model"
	"sallyport.dev/test/harness"
)

// TestInspector holds the HTTP fixture against the MCP Inspector, in every era that both can speak.
func TestInspector(t *testing.T) {
	ctx, in := install(t)
	for _, tt := range []struct {
		name string
		eras mcpserver.Era
		era  string
		seen string
	}{{"legacy", mcpserver.Legacy, "legacy", "legacy"}, {"modern", mcpserver.Modern, "modern", "modern"}, {"both, auto", mcpserver.Both, "auto", "modern"}, {"legacy, auto", mcpserver.Legacy, "auto", "legacy"}} {
		t.Run(tt.name, func(t *testing.T) {
			s := mcpserver.Start(t, mcpserver.Options{Eras: tt.eras, Framing: mcpserver.SSE, PageSize: 9})
			inspect := func(args ...string) []byte {
				t.Helper()
				run, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				argv := append(append(in.Inspector.Argv[1:], "--cli", s.URL(), "--transport", "http", "--protocol-era", tt.era), args...)
				cmd := exec.CommandContext(run, in.Inspector.Argv[0], argv...)
				cmd.Env = []string{"HOME=" + homeOf(t), "PATH=" + strings.Join(append(in.Inspector.Path, "/usr/bin", "/bin"), ":"), "MCP_INSPECTOR_SECRET_STORE=memory"}
				out, err := cmd.Output()
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				return out
			}
			var listed struct{ Tools []struct{ Name string } }
			if out := inspect("--method", "tools/list"); json.Unmarshal(out, &listed) != nil || len(listed.Tools) != len(mcpserver.DefaultTools()) {
				t.Errorf("%d tools: %s", len(listed.Tools), out)
			}
			out := inspect("--method", "tools/call", "--tool-name", "create_issue", "--tool-arg", "project=web", "title=one")
			if !strings.Contains(string(out), `"number": 1`) || s.Effects().Count("create_issue") != 1 {
				t.Errorf("%d effects: %s", s.Effects().Count("create_issue"), out)
			}
			if calls := s.Calls("create_issue"); len(calls) != 1 || calls[0].Note.Era != tt.seen {
				t.Errorf("%+v", calls)
			}
		})
	}
}

// TestEverything starts the reference server on standard input and output, through the official SDK.
func TestEverything(t *testing.T) {
	ctx, in := install(t)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.Command(in.Everything.Argv[0], in.Everything.Argv[1:]...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=/usr/bin:/bin"}
	ses, err := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ses.Close()
	res, err := ses.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"message": "hi"}})
	if err != nil || len(res.Content) != 1 || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, "hi") {
		t.Errorf("%+v %v", res, err)
	}
}

// TestVisible runs each agent in a bare sandbox that shows nothing but /usr and what Visible names: so a driver may rely on it.
func TestVisible(t *testing.T) {
	ctx, in := install(t)
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Fatal("the acceptance tests need bubblewrap: install it (on Debian: apt-get install bubblewrap)")
	}
	stdio := build(t, "sallyport.dev/test/fixture/cmd/fixture-stdio")
	for _, p := range []harness.Program{in.Claude, in.ClaudeOld, in.Codex, in.Pi} {
		t.Run(p.Name, func(t *testing.T) {
			m := model.Start(t, model.Options{})
			home := homeOf(t)
			c, err := in.Outside(p, harness.Outside{
				Home: home, Dir: home, Server: "demo", Argv: []string{"/opt/stdio"}, Model: m.URL(), Key: "k",
				Prompt: model.Play(model.Call("demo/add", `{"a":20,"b":22}`), model.Say("{{last}}")),
			})
			if err != nil {
				t.Fatal(err)
			}
			argv := []string{
				"bwrap", "--unshare-all", "--share-net", "--die-with-parent", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
				"--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
				"--bind", home, home, "--ro-bind", stdio, "/opt/stdio",
			}
			for _, dir := range p.Visible {
				argv = append(argv, "--ro-bind", dir, dir)
			}
			c.Argv = append(append(argv, "--"), c.Argv...)
			c.Dir = "/"
			run, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			got, err := harness.Run(run, c)
			if err != nil || got.ExitCode != 0 || !strings.Contains(got.Final, "42") {
				t.Errorf("%v %+v", err, got)
			}
		})
	}
}

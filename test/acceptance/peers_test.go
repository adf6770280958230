package acceptance

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport.dev/test/fixture/model"
)

// inspector: the MCP Inspector, in both eras, is served by the shim as by any server.
func inspector(t *testing.T, w *world) {
	for _, era := range []string{"modern", "legacy"} {
		t.Run(era, func(t *testing.T) {
			call := func(args ...string) []byte {
				t.Helper()
				dir := w.workspace(t)
				must(t, os.WriteFile(filepath.Join(dir, "servers.json"), []byte(`{"mcpServers":{"sallyport":{"type":"stdio","command":"/run/sallyport/in/bin/sallyport-guest","args":["shim"]}}}`), 0o644))
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				cmd := w.command(ctx, append([]string{
					"run", "--profile", "anthropic-dev", "--workspace", dir, "--env", "MCP_INSPECTOR_SECRET_STORE=memory", "--", w.agents.Inspector.Name,
					"--cli", "--config", "servers.json", "--server", "sallyport", "--protocol-era", era,
				}, args...)...)
				var stderr strings.Builder
				cmd.Stderr = &stderr
				out, err := cmd.Output()
				if err != nil {
					t.Fatalf("%v\n%s\n%s", err, out, stderr.String())
				}
				return out
			}
			var list struct{ Tools []struct{ Name string } }
			must(t, json.Unmarshal(call("--method", "tools/list"), &list))
			names := fmt.Sprint(list.Tools)
			for _, want := range []string{"modern_json_echo", "legacy_sse_create_issue", "await_call"} {
				if !strings.Contains(names, "{"+want+"}") {
					t.Errorf("the tools are %s; %s is missing", names, want)
				}
			}
			var got struct {
				Content []struct{ Text string }
				IsError bool
			}
			text := token() + " Grüße"
			must(t, json.Unmarshal(call("--method", "tools/call", "--tool-name", "modern_json_echo", "--tool-arg", "text="+text), &got))
			if len(got.Content) != 1 || got.Content[0].Text != text || got.IsError {
				t.Errorf("%+v", got)
			}
			w.counted(t, "modern-json", "echo", `{"text":"`+text+`"}`, 1)
		})
	}
}

// everything is an MCP server that nobody here wrote, as a process.
func everything(t *testing.T) (url string) {
	t.Helper()
	_, agents := programs(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	p := agents.Everything
	cmd := exec.Command(p.Argv[0], append(p.Argv[1:], "streamableHttp")...)
	cmd.Env = []string{fmt.Sprintf("PORT=%d", port), "PATH=" + strings.Join(append(p.Path, "/usr/bin", "/bin"), ":"), "HOME=" + t.TempDir()}
	stderr, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	said := make(chan string, 100)
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			select {
			case said <- lines.Text():
			default:
			}
		}
		close(said)
	}()
	url = fmt.Sprintf("http://127.0.0.1:%d/mcp", port)
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	until(ctx, t, "server-everything to listen", func() bool {
		r, err := client.Get(url) // refused without a session, but answered
		if err != nil {
			return false
		}
		r.Body.Close()
		return true
	})
	return url
}

// foreign: the tools of a server that nobody here wrote, listed, reviewed and called.
func foreign(t *testing.T, w *world, a agent) {
	s := w.run(t, a, "foreign", model.Step{Together: []model.Step{
		tool("everything_echo", `{"message":"TOKEN Grüße"}`), tool("everything_get_sum", `{"a":2,"b":40}`),
	}}, model.Say("heard TOKEN: {{1}}"))
	s.end("heard TOKEN: ")
	if got := s.got(0); got.IsError || s.agent.text(got.Text) != s.fill("Echo: TOKEN Grüße") {
		t.Errorf("the model was sent %+v", got)
	}
	if got := s.got(1); got.IsError || s.agent.text(got.Text) != "The sum of 2 and 40 is 42." {
		t.Errorf("the model was sent %+v", got)
	}
	if c := s.state(`{"message":"TOKEN Grüße"}`, "answered"); c.GetCall().GetConnection() != "everything" || c.GetCall().GetTool() != "echo" {
		t.Errorf("the journal has %+v", c.GetCall())
	}
}

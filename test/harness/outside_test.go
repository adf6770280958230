package harness_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport.dev/test/harness"
)

// TestOutside writes what each agent reads, with values that need quoting.
func TestOutside(t *testing.T) {
	fakeNPM(t, makeAll())
	in, err := harness.Install(deadline(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	o := harness.Outside{Home: home, Dir: "/", Server: "demo", Argv: []string{"/opt/a \"b\"", "--x"}, Env: map[string]string{"K": "v\\w"}, Model: "http://127.0.0.1:1", Key: "k", Prompt: "do it"}
	for _, p := range []harness.Program{in.Claude, in.ClaudeOld, in.Codex, in.Pi} {
		c, err := in.Outside(p, o)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(c.Argv, " "), "do it") || c.Argv[0] != p.Argv[0] || c.Dir != "/" {
			t.Errorf("%+v", c)
		}
		for _, e := range c.Env {
			if strings.HasPrefix(e, "HOME=") && e != "HOME="+home {
				t.Error(e)
			}
		}
	}
	for _, file := range []string{"mcp.json", ".pi/agent/mcp.json"} {
		b, err := os.ReadFile(filepath.Join(home, file))
		var got struct {
			MCPServers map[string]struct {
				Command string
				Args    []string
				Env     map[string]string
			}
		}
		if err != nil || json.Unmarshal(b, &got) != nil || got.MCPServers["demo"].Command != `/opt/a "b"` || got.MCPServers["demo"].Env["K"] != `v\w` {
			t.Errorf("%s: %v %s", file, err, b)
		}
	}
	if b, err := os.ReadFile(filepath.Join(home, ".codex/config.toml")); err != nil || !strings.Contains(string(b), `command = "/opt/a \"b\""`) || !strings.Contains(string(b), `"K" = "v\\w"`) {
		t.Errorf("%v %s", err, b)
	}
	for name, wrong := range map[string]harness.Outside{
		"no server": {Home: home, Dir: "/", Server: "demo"},
		"two":       {Home: home, Dir: "/", Server: "demo", Argv: []string{"a"}, URL: "http://x"},
		"no home":   {Dir: "/", Server: "demo", Argv: []string{"a"}},
		"not named": {Home: home, Dir: "/", Argv: []string{"a"}},
	} {
		if _, err := in.Outside(in.Claude, wrong); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if _, err := in.Outside(in.Node, o); err == nil {
		t.Error("node was taken for an agent")
	}
}

package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Outside is a run of an agent without any sandbox and without Sallyport: the agent, one MCP server, one model.
type Outside struct {
	Home    string            // is made; everything that the agent keeps goes there
	Dir     string            // working directory
	Server  string            // the MCP server's name
	Argv    []string          // a server on standard input and output, or
	URL     string            // one over HTTP,
	Bearer  string            // with this token
	Env     map[string]string // more environment of a server on standard input and output
	Model   string            // base address of the model, without /v1
	Key     string            // what the agent sends to the model as its key
	Prompt  string
	Timeout time.Duration // of one tool call; 0: 2 min
	Allowed []string      // tools that Claude may call without asking; nil: all of the server
}

// Outside writes the agent's configuration below o.Home and says how it is started. Only the programs Claude, ClaudeOld, Codex and Pi
// are agents.
func (i *Installed) Outside(p Program, o Outside) (Command, error) {
	if o.Home == "" || o.Dir == "" || o.Server == "" || (len(o.Argv) == 0) == (o.URL == "") {
		return Command{}, errors.New("a run outside needs a home, a directory, a server's name, and either its command or its address")
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Minute
	}
	if err := os.MkdirAll(o.Home, 0o700); err != nil {
		return Command{}, err
	}
	c := Command{Dir: o.Dir, Env: []string{
		"HOME=" + o.Home, "PATH=" + strings.Join(append(slices.Clone(p.Path), "/usr/local/bin", "/usr/bin", "/bin"), ":"), "TERM=dumb", "LANG=C.UTF-8",
	}}
	switch p.Name {
	case i.Claude.Name, i.ClaudeOld.Name:
		return o.claude(p, c)
	case i.Codex.Name:
		return o.codex(p, c)
	case i.Pi.Name:
		return o.pi(p, c)
	}
	return Command{}, fmt.Errorf("%s is no agent", p.Name)
}

func (o Outside) claude(p Program, c Command) (Command, error) {
	server := map[string]any{"type": "stdio", "command": first(o.Argv), "args": rest(o.Argv), "env": orEmpty(o.Env)}
	if o.URL != "" {
		server = map[string]any{"type": "http", "url": o.URL}
		if o.Bearer != "" {
			server["headers"] = map[string]string{"Authorization": "Bearer " + o.Bearer}
		}
	}
	file := filepath.Join(o.Home, "mcp.json")
	if err := writeJSON(file, map[string]any{"mcpServers": map[string]any{o.Server: server}}); err != nil {
		return c, err
	}
	allowed := "mcp__" + o.Server
	if o.Allowed != nil {
		var names []string
		for _, t := range o.Allowed {
			names = append(names, "mcp__"+o.Server+"__"+t)
		}
		allowed = strings.Join(names, ",")
	}
	c.Kind = Claude
	c.Argv = append(slices.Clone(p.Argv), "-p", o.Prompt, "--mcp-config", file, "--strict-mcp-config", "--allowedTools", allowed, "--output-format", "stream-json", "--verbose")
	c.Env = append(c.Env, "ANTHROPIC_BASE_URL="+o.Model, "ANTHROPIC_API_KEY="+o.Key, fmt.Sprintf("MCP_TOOL_TIMEOUT=%d", o.Timeout.Milliseconds()),
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1", "DISABLE_ERROR_REPORTING=1")
	return c, nil
}

// codex keeps its helpers below CODEX_HOME, and refuses to below the system's temporary folder: its own shell sandbox then fails.
func (o Outside) codex(p Program, c Command) (Command, error) {
	home := filepath.Join(o.Home, ".codex")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return c, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "model = \"gpt-5.5\"\nmodel_provider = \"fixture\"\napproval_policy = \"never\"\n\n[model_providers.fixture]\nname = \"fixture\"\nbase_url = %s\nenv_key = \"FIXTURE_KEY\"\nwire_api = \"responses\"\nrequest_max_retries = 0\nstream_max_retries = 0\n\n",
		toml(o.Model+"/v1"))
	fmt.Fprintf(&b, "[mcp_servers.%s]\ntool_timeout_sec = %d\nstartup_timeout_sec = 20\ndefault_tools_approval_mode = \"approve\"\n", o.Server, int(o.Timeout.Seconds()))
	if o.URL != "" {
		fmt.Fprintf(&b, "url = %s\n", toml(o.URL))
		if o.Bearer != "" {
			b.WriteString("bearer_token_env_var = \"FIXTURE_BEARER\"\n")
			c.Env = append(c.Env, "FIXTURE_BEARER="+o.Bearer)
		}
	} else {
		args := make([]string, 0, len(o.Argv))
		for _, a := range rest(o.Argv) {
			args = append(args, toml(a))
		}
		fmt.Fprintf(&b, "command = %s\nargs = [%s]\n[mcp_servers.%s.env]\n", toml(first(o.Argv)), strings.Join(args, ", "), o.Server)
		for k, v := range o.Env {
			fmt.Fprintf(&b, "%s = %s\n", toml(k), toml(v))
		}
	}
	if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(b.String()), 0o600); err != nil {
		return c, err
	}
	c.Kind = Codex
	c.Argv = append(slices.Clone(p.Argv), "exec", "--json", "--skip-git-repo-check", o.Prompt)
	c.Env = append(c.Env, "CODEX_HOME="+home, "FIXTURE_KEY="+o.Key)
	return c, nil
}

func (o Outside) pi(p Program, c Command) (Command, error) {
	home := filepath.Join(o.Home, ".pi", "agent")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return c, err
	}
	server := map[string]any{"exposure": "direct", "timeout": int(o.Timeout.Seconds())}
	if o.URL != "" {
		server["url"] = o.URL
		if o.Bearer != "" {
			server["headers"] = map[string]string{"Authorization": "Bearer " + o.Bearer}
		}
	} else {
		server["command"], server["args"], server["env"] = first(o.Argv), rest(o.Argv), orEmpty(o.Env)
	}
	if err := writeJSON(filepath.Join(home, "mcp.json"), map[string]any{"mcpServers": map[string]any{o.Server: server}}); err != nil {
		return c, err
	}
	provider := map[string]any{"baseUrl": o.Model, "apiKey": o.Key, "api": "anthropic-messages", "models": []any{map[string]any{"id": "fixture-model"}}}
	if err := writeJSON(filepath.Join(home, "models.json"), map[string]any{"providers": map[string]any{"fixture": provider}}); err != nil {
		return c, err
	}
	c.Kind = Pi
	c.Argv = append(slices.Clone(p.Argv), "-p", "--mode", "json", "--no-session", "--offline", "--model", "fixture/fixture-model", o.Prompt)
	c.Env = append(c.Env, "PI_OFFLINE=1", "PI_TELEMETRY=0")
	return c, nil
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}

// toml writes a basic string; JSON's form is one.
func toml(s string) string {
	b, _ := json.Marshal(s) // a string does not fail
	return string(b)
}

func first(argv []string) string {
	if len(argv) == 0 {
		return ""
	}
	return argv[0]
}

func rest(argv []string) []string {
	if len(argv) < 2 {
		return []string{}
	}
	return argv[1:]
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

package harness

import (
	"fmt"
	"strings"
)

// codex configures Codex.
//
// Codex asks about a tool unless its server's tools are approved, and never starts a server again: both are settled here. It makes a sandbox
// for its shell commands; where ours does not let it, that one is turned off, because ours is around it.
func codex(o Options) (Config, error) {
	if err := o.needs("Codex", "openai"); err != nil {
		return Config{}, err
	}
	c := Config{Nested: o.Nested}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if o.Provider == "openai" {
		line("model_provider = %s", quote(Server))
	}
	line("check_for_update_on_startup = false")
	line("web_search = %s", quote("disabled"))
	line("cli_auth_credentials_store = %s", quote("file"))
	if o.Sandboxed && !o.Nested {
		line("sandbox_mode = %s", quote("danger-full-access"))
		c.Notes = append(c.Notes, "Codex's own sandbox for shell commands is off: the sandbox around it lets it make none")
	}
	line("")
	line("[analytics]")
	line("enabled = false")
	line("")
	line("[features]") // what only its maker's servers do, and the model gateway refuses
	for _, f := range []string{"apps", "plugins", "remote_plugin", "image_generation"} {
		line("%s = false", f)
	}
	line("")
	if o.Provider == "openai" {
		line("[model_providers.%s]", Server)
		line("name = %s", quote("Sallyport's model gateway"))
		line("base_url = %s", quote(o.Gateway+"/openai/v1"))
		line("env_key = %s", quote("OPENAI_API_KEY"))
		line("wire_api = %s", quote("responses"))
		line("")
	}
	line("[mcp_servers.%s]", Server)
	line("command = %s", quote(o.Guest[0]))
	args := make([]string, 0, len(o.Guest)-1)
	for _, a := range o.Guest[1:] {
		args = append(args, quote(a))
	}
	line("args = [%s]", strings.Join(args, ", "))
	line("startup_timeout_sec = 30")
	line("tool_timeout_sec = %d", int(o.Timeout().Seconds()))
	line("default_tools_approval_mode = %s", quote("approve"))
	line("")
	line("[projects.%s]", quote(o.Workdir))
	line("trust_level = %s", quote("trusted"))
	c.Files = []File{{Path: ".codex/config.toml", Content: []byte(b.String())}}
	c.Env = append(o.modelEnv(), "CODEX_HOME="+o.Home+"/.codex")
	return c, nil
}

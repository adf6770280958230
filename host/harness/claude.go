package harness

import (
	"encoding/json"
	"fmt"
	"path"
)

// claude configures Claude Code.
//
// Its own questions are answered by files: the first run (theme, onboarding), trust in the folder, the key. The server is named twice: in the
// arguments, where it is the only one (a project's .mcp.json would bring a question of its own, and could take the server's name), and in
// the user's configuration for a claude that something else starts.
func claude(o Options) (Config, error) {
	if err := o.needs("Claude Code", "anthropic"); err != nil {
		return Config{}, err
	}
	server := map[string]any{"type": "stdio", "command": o.Guest[0], "args": o.Guest[1:], "env": map[string]string{}}
	servers := map[string]any{"mcpServers": map[string]any{Server: server}}
	settings := map[string]any{
		"permissions": map[string]any{"allow": []string{"mcp__" + Server}},
		// What follows answers questions of a first run.
		"enableAllProjectMcpServers":        false,
		"skipDangerousModePermissionPrompt": true,
	}
	state := map[string]any{
		"hasCompletedOnboarding":        true,
		"lastOnboardingVersion":         "99.0.0",
		"numStartups":                   1,
		"theme":                         "dark",
		"autoUpdates":                   false,
		"bypassPermissionsModeAccepted": true,
		// A key is recognized by its end.
		"customApiKeyResponses": map[string]any{"approved": []string{placeholder[len(placeholder)-20:]}, "rejected": []string{}},
		"projects": map[string]any{o.Workdir: map[string]any{
			"hasTrustDialogAccepted": true, "hasCompletedProjectOnboarding": true, "projectOnboardingSeenCount": 1,
			"enabledMcpjsonServers": []string{}, "disabledMcpjsonServers": []string{},
		}},
		"mcpServers": servers["mcpServers"],
	}
	c := Config{
		Env: append(o.modelEnv(),
			fmt.Sprintf("MCP_TOOL_TIMEOUT=%d", o.Timeout().Milliseconds()), "MCP_TIMEOUT=30000",
			// Tools inline, with their schemas; otherwise a call of a tool that was not searched for is made blind.
			"ENABLE_TOOL_SEARCH=false",
			// A large answer stays an answer; the relay's own bound is below.
			"MAX_MCP_OUTPUT_TOKENS=100000",
			"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1", "DISABLE_ERROR_REPORTING=1",
			"DISABLE_INSTALLATION_CHECKS=1",
		),
		Args: []string{"--mcp-config", path.Join(o.Home, ".sallyport/mcp.json"), "--strict-mcp-config"},
	}
	if o.Sandboxed {
		c.Env = append(c.Env, "IS_SANDBOX=1")
	}
	for _, f := range []struct {
		path  string
		value any
		merge bool
	}{{".claude/settings.json", settings, true}, {".claude.json", state, true}, {".sallyport/mcp.json", servers, false}} {
		content, err := json.MarshalIndent(f.value, "", "  ")
		if err != nil {
			return Config{}, err
		}
		c.Files = append(c.Files, File{Path: f.path, Content: append(content, '\n'), Merge: f.merge})
	}
	return c, nil
}

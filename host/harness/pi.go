package harness

import "encoding/json"

// pi configures Pi. Its built-in models are kept; only the address and the key of their provider are replaced. Tools are given to the model
// directly: behind its code mode a call could be made without ever being seen by the model.
func pi(o Options) (Config, error) {
	if o.Provider == "none" && o.Sandboxed {
		return Config{}, o.needs("Pi", "anthropic or openai")
	}
	providers := map[string]any{}
	settings := map[string]any{
		"defaultProjectTrust": "always", "enableInstallTelemetry": false, "quietStartup": true,
	}
	switch o.Provider {
	case "anthropic":
		providers["anthropic"] = map[string]any{"baseUrl": o.Gateway + "/anthropic", "apiKey": placeholder}
	case "openai":
		providers["openai"] = map[string]any{"baseUrl": o.Gateway + "/openai/v1", "apiKey": placeholder}
	}
	if o.Provider != "none" {
		settings["defaultProvider"] = o.Provider
	}
	server := map[string]any{
		"command": o.Guest[0], "args": o.Guest[1:], "exposure": "direct", "timeout": int(o.Timeout().Seconds()),
	}
	c := Config{Env: append(o.modelEnv(), "PI_OFFLINE=1", "PI_TELEMETRY=0", "PI_SKIP_VERSION_CHECK=1")}
	for _, f := range []struct {
		path  string
		value any
		merge bool
	}{
		{".pi/agent/models.json", map[string]any{"providers": providers}, false},
		{".pi/agent/mcp.json", map[string]any{"mcpServers": map[string]any{Server: server}}, false},
		{".pi/agent/settings.json", settings, true},
	} {
		content, err := json.MarshalIndent(f.value, "", "  ")
		if err != nil {
			return Config{}, err
		}
		c.Files = append(c.Files, File{Path: f.path, Content: append(content, '\n'), Merge: f.merge})
	}
	return c, nil
}

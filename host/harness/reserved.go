package harness

import (
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"

	"sallyport.dev/errs"
)

// CheckReserved refuses a workspace whose own configuration describes an MCP server by our name: the harness could start that one instead,
// and its tools would look like ours. What cannot be read as configuration is left to the harness to complain about.
func CheckReserved(workspace string) error {
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return errs.Wrap(errs.NotFound, "the workspace cannot be opened", err)
	}
	defer root.Close()
	for _, p := range []string{".mcp.json", ".pi/mcp.json", ".claude/settings.json", ".claude/settings.local.json"} {
		var c struct {
			Servers map[string]json.RawMessage `json:"mcpServers"`
		}
		if data := readSome(root, p); json.Unmarshal(data, &c) == nil {
			for name := range c.Servers {
				if takes(name) {
					return reserved(p, name)
				}
			}
		}
	}
	if data := readSome(root, ".codex/config.toml"); data != nil {
		for line := range strings.Lines(string(data)) {
			table, ok := strings.CutPrefix(strings.ReplaceAll(strings.TrimSpace(line), " ", ""), "[mcp_servers.")
			if !ok {
				continue
			}
			name := strings.FieldsFunc(table, func(r rune) bool { return r == '.' || r == ']' })
			if len(name) > 0 && takes(strings.Trim(name[0], `"'`)) {
				return reserved(".codex/config.toml", Server)
			}
		}
	}
	return nil
}

// takes reports whether a harness could take a server's name for ours: they fold case and odd characters in the names of tools.
func takes(name string) bool {
	return strings.EqualFold(strings.Trim(name, "-_ "), Server)
}

func reserved(file, name string) error {
	return errs.Newf(errs.NotAllowed, "the workspace's %s describes an MCP server named %s; that name is Sallyport's: rename the server there", file, name)
}

func readSome(root *os.Root, p string) []byte {
	info, err := root.Stat(p)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxKept {
		return nil
	}
	f, err := root.Open(p)
	if err != nil {
		return nil
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxKept))
	if err != nil {
		return nil
	}
	return slices.Clip(data)
}

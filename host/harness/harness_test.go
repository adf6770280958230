package harness

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sallyport.dev/errs"
)

func TestGenerate(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			provider := "anthropic"
			if name == "codex" {
				provider = "openai"
			}
			c, err := Generate(name, Options{Provider: provider, Workdir: "/srv/we \"quote\"", Hold: 45 * time.Second, Sandboxed: true, Nested: true})
			if err != nil {
				t.Fatal(err)
			}
			if c.Harness != name || len(c.Files) == 0 {
				t.Errorf("%+v", c)
			}
			all := strings.Join(c.Env, "\n") + strings.Join(c.Args, "\n")
			for _, f := range c.Files {
				all += "\n" + string(f.Content)
				if strings.HasSuffix(f.Path, ".json") && !json.Valid(f.Content) {
					t.Errorf("%s is no JSON:\n%s", f.Path, f.Content)
				}
				if !filepath.IsLocal(f.Path) {
					t.Errorf("%s is not below HOME", f.Path)
				}
			}
			for _, want := range []string{"/run/sallyport/in/bin/sallyport-guest", "shim", "http://127.0.0.1:4180/", placeholder} {
				if !strings.Contains(all, want) {
					t.Errorf("nothing names %s:\n%s", want, all)
				}
			}
		})
	}
	if _, err := Generate("emacs", Options{}); !errs.Is(err, errs.NotFound) || !strings.Contains(errs.Message(err), "claude, codex, pi") {
		t.Errorf("%v", err)
	}
}

func TestGenerateRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
		says string
	}{
		{"claude", Options{Provider: "openai", Sandboxed: true}, "needs a model of anthropic; the profile gives openai"},
		{"claude", Options{Provider: "none", Sandboxed: true}, "needs a model of anthropic"},
		{"codex", Options{Provider: "anthropic"}, "needs a model of openai"},
		{"pi", Options{Sandboxed: true}, "needs a model"},
		{"pi", Options{Provider: "gemini"}, "one of anthropic, openai, none"},
		{"claude", Options{Provider: "anthropic", Hold: 10 * time.Minute}, "too long"},
		{"claude", Options{Provider: "anthropic", Hold: -1}, "too long"},
	} {
		if _, err := Generate(c.name, c.o); !errs.Is(err, errs.Invalid) || !strings.Contains(errs.Message(err), c.says) {
			t.Errorf("%s %+v: %v", c.name, c.o, err)
		}
	}
	// Outside a sandbox a person has a model of their own.
	if c, err := Generate("claude", Options{}); err != nil || strings.Contains(strings.Join(c.Env, " "), "ANTHROPIC_BASE_URL") || strings.Contains(strings.Join(c.Env, " "), "IS_SANDBOX") {
		t.Errorf("%+v %v", c, err)
	}
}

func TestCodexSaysThatItsSandboxIsOff(t *testing.T) {
	c, err := Generate("codex", Options{Provider: "openai", Sandboxed: true})
	if err != nil || c.Nested || len(c.Notes) != 1 || !strings.Contains(string(c.Files[0].Content), "danger-full-access") {
		t.Errorf("%+v %v", c, err)
	}
	c, err = Generate("codex", Options{Provider: "openai", Sandboxed: true, Nested: true})
	if err != nil || !c.Nested || len(c.Notes) != 0 || strings.Contains(string(c.Files[0].Content), "danger-full-access") {
		t.Errorf("%+v %v", c, err)
	}
}

// A harness must wait longer than a call may be held, with room to answer, and never longer than a call may live.
func TestTimeout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hold := time.Duration(rapid.Int64Range(0, int64(MaxTimeout-margin)).Draw(t, "hold"))
		got := Options{Hold: hold}.Timeout()
		if got < hold+margin || got < DefaultTimeout || got > MaxTimeout {
			t.Fatalf("hold %s gives %s", hold, got)
		}
	})
}

func TestEnvironment(t *testing.T) {
	env := Environment([]string{
		"TERM=xterm-256color", "LANG=de_DE.UTF-8", "LC_TIME=C", "TZ=Europe/Berlin", "COLORTERM=truecolor", "HOME=/root", "PATH=/evil", "GITHUB_TOKEN=secret",
		"SSH_AUTH_SOCK=/run/x", "LD_PRELOAD=/x.so", "ANTHROPIC_API_KEY=secret", "LC_EVIL=a b\x1b[0m", "LC_TOKEN=secret", "LC_CTYPE=a b\x1b[0m", "NO_COLOR=" + strings.Repeat("1", 200), "noequals",
		"DBUS_SESSION_BUS_ADDRESS=unix:path=/run/x", "DOCKER_HOST=unix:///run/docker.sock",
	}, []string{"/opt/node/bin"})
	slices.Sort(env)
	want := []string{
		"COLORTERM=truecolor", "HOME=/home/agent", "LANG=de_DE.UTF-8", "LC_TIME=C", "LOGNAME=agent", "PATH=/opt/node/bin:/usr/local/bin:/usr/bin:/bin",
		"SHELL=/bin/bash", "TERM=xterm-256color", "TMPDIR=/tmp", "TZ=Europe/Berlin", "USER=agent",
	}
	if !slices.Equal(env, want) {
		t.Errorf("%q", env)
	}
	if env := Environment(nil, nil); !slices.Contains(env, "TERM=dumb") || !slices.Contains(env, "LANG=C.UTF-8") {
		t.Errorf("%q", env)
	}
}

// plant makes a file, with the folders on the way.
func plant(t *testing.T, path, content string, mode os.FileMode) string {
	t.Helper()
	ok(t, os.MkdirAll(filepath.Dir(path), 0o755))
	ok(t, os.WriteFile(path, []byte(content), mode))
	return path
}

func TestFind(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	ok(t, err)
	at := func(p string) string { return filepath.Join(base, p) }
	link := func(to, p string) string {
		ok(t, os.MkdirAll(filepath.Dir(at(p)), 0o755))
		ok(t, os.Symlink(to, at(p)))
		return at(p)
	}
	plant(t, at("npm/lib/node_modules/@anthropic-ai/claude-code/bin/claude.exe"), "\x7fELF", 0o755)
	link("../lib/node_modules/@anthropic-ai/claude-code/bin/claude.exe", "npm/bin/claude")
	plant(t, at("npm/lib/node_modules/@openai/codex/bin/codex.js"), "#!/usr/bin/env node\n", 0o755)
	link("../lib/node_modules/@openai/codex/bin/codex.js", "npm/bin/codex")
	plant(t, at("node/bin/node"), "\x7fELF", 0o755)
	plant(t, at("ws/node_modules/x/node_modules/@earendil-works/pi-coding-agent/cli.js"), "#!/usr/bin/env -S node --flag\n", 0o755)
	link("../x/node_modules/@earendil-works/pi-coding-agent/cli.js", "ws/node_modules/.bin/pi")
	plant(t, at("native/versions/2.1/claude"), "\x7fELF", 0o755)
	link("../versions/2.1/claude", "native/bin/claude")
	plant(t, at("tools/agent"), "#!/bin/sh\n", 0o755)
	plant(t, at("tools/odd"), "#!"+at("node/bin/node")+" -x\n", 0o755)
	plant(t, at("tools/not-executable"), "#!/bin/sh\n", 0o644)
	plant(t, at("tools/no-interpreter"), "#!/no/such/thing\n", 0o755)
	plant(t, at("tools/unknown-interpreter"), "#!/usr/bin/env frobnicate\n", 0o755)
	plant(t, at("tools/empty"), "", 0o755)
	link("nowhere", "tools/dangling")
	ok(t, os.MkdirAll(at("tools/folder"), 0o755))
	path := strings.Join([]string{"", "relative", at("npm/bin"), at("node/bin"), at("tools"), "/usr/bin"}, ":")

	for command, want := range map[string]Found{
		"claude": {
			Harness: "claude", Path: at("npm/lib/node_modules/@anthropic-ai/claude-code/bin/claude.exe"), Installs: []string{at("npm/lib/node_modules")},
		},
		"codex": {
			Harness: "codex", Path: at("npm/lib/node_modules/@openai/codex/bin/codex.js"),
			Installs: []string{at("npm/lib/node_modules"), at("node/bin/node")}, Paths: []string{at("node/bin")},
		},
		at("ws/node_modules/.bin/pi"): {
			Harness: "pi", Path: at("ws/node_modules/x/node_modules/@earendil-works/pi-coding-agent/cli.js"),
			Installs: []string{at("ws/node_modules"), at("node/bin/node")}, Paths: []string{at("node/bin")},
		},
		at("native/bin/claude"): {Harness: "claude", Path: at("native/versions/2.1/claude"), Installs: []string{at("native/versions/2.1/claude")}},
		"agent":                 {Harness: "other", Path: at("tools/agent"), Installs: []string{at("tools/agent")}},
		"odd": {
			Harness: "other", Path: at("tools/odd"), Installs: []string{at("tools/odd"), at("node/bin/node")}, Paths: []string{at("node/bin")},
		},
		"empty": {Harness: "other", Path: at("tools/empty"), Installs: []string{at("tools/empty")}},
		"env":   {Harness: "other", Path: "/usr/bin/env"},
	} {
		got, err := Find(command, path)
		if err != nil {
			t.Errorf("%s: %v", command, err)
			continue
		}
		if got.Harness != want.Harness || got.Path != want.Path || !slices.Equal(got.Installs, want.Installs) || !slices.Equal(got.Paths, want.Paths) || !slices.Equal(got.Args, []string{want.Path}) {
			t.Errorf("%s:\n%+v, want\n%+v", command, got, want)
		}
	}
	for _, command := range []string{"not-executable", "nothing", "folder", "dangling", at("tools/not-executable"), "no-interpreter", "unknown-interpreter", ""} {
		if got, err := Find(command, path); !errs.Is(err, errs.NotFound) || errs.Message(err) == "" {
			t.Errorf("%q: %+v %v", command, got, err)
		}
	}
}

func TestCheckReserved(t *testing.T) {
	for file, cases := range map[string]map[string]bool{
		".mcp.json": {
			`{"mcpServers":{"other":{"command":"x"}}}`: true, `{"mcpServers":{"sallyport":{"command":"x"}}}`: false, `{"mcpServers":{"Sallyport":{}}}`: false,
			`{"mcpServers":{"sallyport-":{}}}`: false, `{"mcpServers":{"sallyport2":{}}}`: true, `not JSON`: true, `[]`: true,
		},
		".pi/mcp.json":                {`{"mcpServers":{"sallyport":{"enabled":false}}}`: false},
		".claude/settings.local.json": {`{"mcpServers":{"sallyport":{}}}`: false},
		".codex/config.toml": {
			"[mcp_servers.other]\ncommand = 'x'\n": true, "[mcp_servers.sallyport]\n": false, "  [ mcp_servers . \"sallyport\" ]\n": false,
			"[mcp_servers.sallyport.env]\n": false, "# [mcp_servers.sallyport]\n": true,
		},
	} {
		for content, fine := range cases {
			dir := t.TempDir()
			plant(t, filepath.Join(dir, file), content, 0o644)
			if err := CheckReserved(dir); (err == nil) != fine || !fine && !errs.Is(err, errs.NotAllowed) {
				t.Errorf("%s with %q: %v", file, content, err)
			}
		}
	}
	if err := CheckReserved(filepath.Join(t.TempDir(), "missing")); !errs.Is(err, errs.NotFound) {
		t.Errorf("%v", err)
	}
	// A link out of the workspace is not followed.
	dir, outside := t.TempDir(), t.TempDir()
	plant(t, filepath.Join(outside, "x.json"), `{"mcpServers":{"sallyport":{}}}`, 0o644)
	ok(t, os.Symlink(filepath.Join(outside, "x.json"), filepath.Join(dir, ".mcp.json")))
	if err := CheckReserved(dir); err != nil {
		t.Error(err)
	}
}

func TestPrint(t *testing.T) {
	for _, name := range Printed() {
		provider := "anthropic"
		if name == "codex" {
			provider = "openai"
		}
		text, err := Print(name, Options{Provider: provider, Guest: []string{"/opt/sallyport-guest", "shim", "--in", "/x"}})
		if err != nil || !strings.Contains(text, "/opt/sallyport-guest") || !strings.Contains(text, "--in") {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
	var acp map[string]any
	text, err := Print("acp", Options{})
	ok(t, err)
	ok(t, json.Unmarshal([]byte(text), &acp))
	if _, typed := acp["type"]; typed || acp["name"] != "sallyport" || acp["env"] == nil {
		t.Errorf("%s", text)
	}
	if _, err := Print("emacs", Options{}); !errs.Is(err, errs.NotFound) || !strings.Contains(errs.Message(err), "acp, claude, codex, json, pi") {
		t.Errorf("%v", err)
	}
}

package harness_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport.dev/host/harness"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/test/fixture/model"
)

// script has the model call our tool, run a shell command, and say what it got.
func script(shell, argument, command string) string {
	input := map[string]string{argument: command}
	if shell == "Bash" {
		input["description"] = "look around"
	}
	return model.Play(
		model.Step{Call: harness.Server + "/echo", With: raw(map[string]string{"text": "hello"})},
		model.Step{Call: shell, With: raw(input)},
		model.Step{Say: "the tool said {{0}}; the shell said {{1}}"},
	)
}

// look is what an agent's shell does in these tests: it writes where it may, and looks for the model's key. The key is split, so that the
// command does not find itself.
const look = `echo user=$(id -u) links=$(tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' \n'); touch made-by-agent && echo wrote; leak=nothing; ` +
	`env | grep -q 'sk-real''-model' && leak=environment; grep -rqs 'sk-real''-model' /home/agent /run /etc /tmp && leak=file; echo leak=$leak end`

// check is what must hold after any harness ran the script.
func (w *world) check(out, stderr string) {
	t := w.t
	t.Helper()
	calls := w.called()
	if len(calls) != 1 || calls[0].Record.Tool != "echo" || string(calls[0].Record.Arguments) != `{"text":"hello"}` {
		t.Errorf("calls that reached the host: %+v", calls)
	}
	for _, want := range []string{"echoed {'text':'hello'}", "user=1000 links=lo", "wrote", "leak=nothing end"} {
		if !w.saw(want) {
			t.Errorf("the model was not shown %q", want)
		}
	}
	if _, err := os.Stat(filepath.Join(w.Work, "made-by-agent")); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		t.Logf("%s\n%s", out, stderr)
	}
}

func TestClaude(t *testing.T) {
	inst := installed(t)
	for _, p := range []struct {
		name string
		w    func() *world
	}{
		{"latest", func() *world {
			return newWorld(t, inst.Claude, "anthropic", nil, "-p", script("Bash", "command", look), "--allowedTools", "Bash", "--output-format", "stream-json", "--verbose")
		}},
		{"older", func() *world {
			return newWorld(t, inst.ClaudeOld, "anthropic", nil, "-p", script("Bash", "command", look), "--allowedTools", "Bash", "--output-format", "stream-json", "--verbose")
		}},
	} {
		t.Run(p.name, func(t *testing.T) {
			w := p.w()
			w.t = t
			o, out, stderr := w.run()
			if o.Code != 0 || !strings.Contains(out, "mcp__sallyport__echo") {
				t.Errorf("%+v", o)
			}
			w.check(out, stderr)
		})
	}
}

// Codex keeps the sandbox that it makes for its own commands: inside ours, below HOME nothing can be written by them.
func TestCodex(t *testing.T) {
	w := newWorld(t, installed(t).Codex, "openai", nil, "exec", "--model", "gpt-5.5", "--json", "--skip-git-repo-check", "--sandbox", "workspace-write",
		script("exec_command", "cmd", look+"; touch $HOME/beyond 2>/dev/null || echo its own sandbox holds"))
	o, out, stderr := w.run()
	if o.Code != 0 || !w.saw(`wrote`) || !w.saw(`its own sandbox holds\n`) {
		t.Errorf("%+v\n%s\n%s", o, out, stderr)
	}
	if _, err := os.Stat(filepath.Join(w.Dir, "home", "beyond")); err == nil {
		t.Error("Codex's own sandbox is off")
	}
	w.check(out, stderr)
}

func TestPi(t *testing.T) {
	for provider, id := range map[string]string{"anthropic": "claude-opus-5-5", "openai": "gpt-5.5"} {
		t.Run(provider, func(t *testing.T) {
			w := newWorld(t, installed(t).Pi, provider, nil, "-p", "--model", id, "--mode", "json", script("bash", "command", look))
			o, out, stderr := w.run()
			if o.Code != 0 {
				t.Errorf("%+v", o)
			}
			w.check(out, stderr)
		})
	}
}

// A workspace without write access, and none at all, are no reason for a harness not to start.
func TestClaudeWithoutAWorkspace(t *testing.T) {
	for _, mode := range []sandbox.WorkspaceMode{sandbox.ReadOnly, sandbox.NoWorkspace} {
		t.Run(string(mode), func(t *testing.T) {
			w := newWorld(t, installed(t).Claude, "anthropic", func(p *sandbox.Plan) { p.Workspace.Mode = mode }, "-p", model.Play(
				model.Step{Call: harness.Server + "/echo", With: raw(map[string]string{"text": "hello"})}, model.Step{Say: "it said {{0}}"},
			), "--output-format", "stream-json", "--verbose")
			if o, out, stderr := w.run(); o.Code != 0 || len(w.called()) != 1 {
				t.Errorf("%+v\n%s\n%s", o, out, stderr)
			}
		})
	}
}

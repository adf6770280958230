package harness_test

import (
	"strings"
	"testing"

	"sallyport.dev/host/harness"
	"sallyport.dev/test/fixture/model"
)

// script has the model call our tool, run a shell command, and answer.
func script(shell string, input any) string {
	return model.Play(
		model.Step{Call: harness.Server + "/echo", With: raw(map[string]string{"text": "hello"})},
		model.Step{Call: shell, With: raw(input)},
		model.Step{Say: "the tool said {{0}}; the shell said {{1}}"},
	)
}

const look = "id -u; cat /proc/net/dev | wc -l; env | grep -c KEY; echo $HOME; touch made-by-agent && echo wrote"

func TestClaude(t *testing.T) {
	w := newWorld(t, installed(t).Claude, "anthropic", nil, "-p", script("Bash", map[string]string{"command": look, "description": "look"}), "--allowedTools", "Bash", "--output-format", "stream-json", "--verbose")
	o, out, stderr := w.run()
	t.Logf("%+v\n%s\n%s", o, out, stderr)
	if calls := w.called(); len(calls) != 1 || calls[0].Record.Tool != "echo" || !strings.Contains(string(calls[0].Record.Arguments), "hello") {
		t.Errorf("calls: %v", calls)
	}
}

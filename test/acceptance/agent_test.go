package acceptance

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"sallyport.dev/test/fixture/model"
	"sallyport.dev/test/harness"
)

// agent is a harness: how it is run without a terminal, and what of a result it shows its model.
type agent struct {
	name     string
	program  func(*harness.Installed) harness.Program
	kind     harness.Kind
	provider string // whose model it uses
	args     func(prompt string) []string
	// marks: it tells its model that a result is an error.
	marks bool
}

var agents = []agent{
	{
		name: "claude", program: func(i *harness.Installed) harness.Program { return i.Claude }, kind: harness.Claude, provider: "anthropic", marks: true,
		args: claudeArgs,
	},
	{
		name: "claude-2.1.197", program: func(i *harness.Installed) harness.Program { return i.ClaudeOld }, kind: harness.Claude, provider: "anthropic", marks: true,
		args: claudeArgs,
	},
	{
		name: "codex", program: func(i *harness.Installed) harness.Program { return i.Codex }, kind: harness.Codex, provider: "openai",
		args: func(prompt string) []string {
			return []string{"exec", "--json", "--skip-git-repo-check", "--sandbox", "workspace-write", "--model", "gpt-5.5", prompt}
		},
	},
	{
		name: "pi", program: func(i *harness.Installed) harness.Program { return i.Pi }, kind: harness.Pi, provider: "anthropic", marks: true,
		args: func(prompt string) []string {
			return []string{"-p", "--mode", "json", "--no-session", "--model", "claude-opus-5-5", prompt}
		},
	},
}

func claudeArgs(prompt string) []string {
	return []string{"-p", prompt, "--output-format", "stream-json", "--verbose", "--allowedTools", "Bash"}
}

// session is one agent in its sandbox.
type session struct {
	t     *testing.T
	w     *world
	agent agent
	dir   string // its workspace
	token string // stands in its prompt and in the arguments of its calls
	*harness.Process
	command harness.Command
	ctx     context.Context
	cancel  context.CancelFunc
}

// run starts an agent on a profile, with a play for its model. Calls in the play name tools as TOOL of our server; TOKEN in it stands for the
// session's own.
func (w *world) run(t *testing.T, a agent, profile string, steps ...model.Step) *session {
	t.Helper()
	return w.runWith(t, a, nil, profile, steps...)
}

// runWith is run with more flags for sallyport run.
func (w *world) runWith(t *testing.T, a agent, flags []string, profile string, steps ...model.Step) *session {
	t.Helper()
	s := w.prepare(t, a, flags, profile, steps...)
	s.start()
	return s
}

// prepare is runWith, but starts nothing yet.
func (w *world) prepare(t *testing.T, a agent, flags []string, profile string, steps ...model.Step) *session {
	t.Helper()
	s := &session{t: t, w: w, agent: a, dir: w.workspace(t), token: token()}
	s.ctx, s.cancel = context.WithTimeout(t.Context(), patience)
	t.Cleanup(s.cancel)
	args := append([]string{"run", "--profile", a.provider + "-" + profile, "--workspace", s.dir}, flags...)
	cmd := w.command(s.ctx, append(args, "--", a.program(w.agents).Name)...)
	s.command = harness.Command{Kind: a.kind, Argv: cmd.Args, Env: cmd.Env, Dir: s.dir}
	if len(steps) > 0 {
		s.play(steps...)
	}
	return s
}

// play gives the agent its prompt, with the play in it.
func (s *session) play(steps ...model.Step) {
	s.command.Argv = append(s.command.Argv, s.agent.args(s.fill(model.Play(steps...)))...)
}

// start starts the agent. It is gone when its test is.
func (s *session) start() {
	s.t.Helper()
	p, err := harness.Start(s.ctx, s.command)
	must(s.t, err)
	s.Process = p
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("the agent wrote:\n%s\n%s", clip(p.Raw()), p.Snapshot().Stderr)
		}
		s.cancel() // ends one that still runs
		_, _ = p.Wait()
	})
}

// command is a command of the program under test, as an operator types it, with the agents in PATH.
func (w *world) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := w.rig.Command(ctx, args...)
	cmd.Args[0] = cmd.Path
	cmd.Env = append(cmd.Env, "PATH="+w.agents.Bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	return cmd
}

// workspace is a folder of a test's own that the sandbox's user can enter.
func (w *world) workspace(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(w.rig.Path("work"), "w")
	must(t, err)
	must(t, os.Chmod(dir, 0o755))
	return dir
}

// end waits until the agent ended by itself, as it should, with this as its last words.
func (s *session) end(last string) *harness.Transcript {
	s.t.Helper()
	got, err := s.Wait()
	must(s.t, err)
	if got.ExitCode != 0 || !got.Ended || !strings.Contains(got.Final, s.fill(last)) {
		s.t.Errorf("exit code %d, last words %q, errors %q\n%s", got.ExitCode, got.Final, got.Errors, got.Stderr)
	}
	return got
}

// received is what the agent's model was sent as results of its calls so far.
func (s *session) received() []model.ToolResult {
	var newest []model.ToolResult
	for _, r := range s.w.model.Requests() {
		if strings.Contains(r.Body, s.token) && len(r.Results) >= len(newest) {
			newest = r.Results
		}
	}
	return newest
}

// got is the nth result that the model was sent, from 0.
func (s *session) got(n int) model.ToolResult {
	s.t.Helper()
	all := s.received()
	if n >= len(all) {
		s.t.Fatalf("the model was sent %d results, %d is not among them", len(all), n)
	}
	return all[n]
}

// tool is a call of a tool of ours.
func tool(name, arguments string) model.Step { return model.Call("sallyport/"+name, arguments) }

func clip(b []byte) []byte {
	const most = 20_000
	if len(b) > most {
		return append([]byte("…"), b[len(b)-most:]...)
	}
	return b
}

package acceptance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// exitCodes: sallyport run ends as its agent did, and with 125 where there was none.
func exitCodes(t *testing.T, w *world) {
	dir := w.workspace(t)
	plain := filepath.Join(dir, "plain.txt")
	must(t, os.WriteFile(plain, []byte("no program\n"), 0o644))
	for _, c := range []struct {
		name string
		args []string
		code int
		says string // on standard error
	}{
		{"nothing", []string{"--profile", "anthropic-dev", "--", "/bin/true"}, 0, ""},
		{"a code", []string{"--profile", "anthropic-dev", "--", "/bin/sh", "-c", "exit 7"}, 7, ""},
		{"a signal", []string{"--profile", "anthropic-dev", "--", "/bin/sh", "-c", "kill -9 $$"}, 137, ""},
		{"no such profile", []string{"--profile", "nobody", "--", "/bin/true"}, 125, `no profile is named "nobody"`},
		{"no such program", []string{"--profile", "anthropic-dev", "--", "sallyport-no-such-program"}, 125, "is in no folder of PATH"},
		{"no program", []string{"--profile", "anthropic-dev", "--", plain}, 125, "is not a program that can be run"},
		{"no such workspace", []string{"--profile", "anthropic-dev", "--workspace", filepath.Join(dir, "none"), "--", "/bin/true"}, 125, "the workspace cannot be found"},
		{"a workspace that shows the state", []string{"--profile", "anthropic-dev", "--workspace", w.rig.State(), "--", "/bin/true"}, 125, "Sallyport"},
		{"no command", []string{"--profile", "anthropic-dev"}, 125, "name the agent's command after --"},
		{"another provider's model", []string{"--profile", "openai-dev", "--", "claude", "-p", "hello"}, 125, "needs a model of anthropic"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"run"}, c.args...)
			if !strings.Contains(strings.Join(c.args, " "), "--workspace") {
				args = append([]string{"run", "--workspace", dir}, c.args...)
			}
			cmd := w.command(t.Context(), args...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			err := cmd.Run()
			if got := cmd.ProcessState.ExitCode(); got != c.code || !strings.Contains(stderr.String(), c.says) {
				t.Errorf("exit code %d (%v), want %d and %q:\n%s", got, err, c.code, c.says, stderr.String())
			}
		})
	}
}

// nothingRuns: without a control and a host there is no sandbox, and the sentence says what to start.
func nothingRuns(t *testing.T, w *world) {
	cmd := exec.CommandContext(t.Context(), w.command(t.Context()).Path, "--state", filepath.Join(t.TempDir(), "s"), "run", "--profile", "dev", "--", "/bin/true")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 125 || !strings.Contains(string(out), "sallyport up") {
		t.Errorf("%v\n%s", err, out)
	}
}

// ended: a person closes or revokes a session; its sandbox ends, and who started it reads why.
func ended(t *testing.T, w *world) {
	for _, command := range [][]string{{"sessions", "close", "--yes"}, {"revoke", "session"}} {
		t.Run(command[0], func(t *testing.T) {
			r := w.shell(t, `echo ready; cat /run/sallyport/in/session.json; echo; trap 'echo tidy; exit 5' TERM; while :; do sleep 0.1; done`)
			session := r.session(t)
			w.cli(t, append(command, session)...)
			out, code := r.end(t)
			if out != "tidy\n" || code != 143 || !strings.Contains(r.stderr.String(), "The sandbox was ended: ") {
				t.Errorf("%q, exit code %d\n%s", out, code, r.stderr.String())
			}
			until(t.Context(), t, "the session to be closed", func() bool { return w.sessionState(t, session) == "closed" })
		})
	}
}

// streams: what the caller gives, the agent reads; what the agent writes, the caller reads, each stream for itself.
func streams(t *testing.T, w *world) {
	cmd := w.command(t.Context(), "run", "--profile", "anthropic-dev", "--workspace", w.workspace(t), "--", "/bin/sh", "-c", "tr a-z A-Z; echo aside >&2")
	cmd.Stdin = strings.NewReader(strings.Repeat("a line of many\n", 20_000))
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil || out.String() != strings.Repeat("A LINE OF MANY\n", 20_000) || stderr.String() != "aside\n" {
		t.Errorf("%v, %d bytes, %q", err, out.Len(), stderr.String())
	}
}

// running is a program in a sandbox that said that it runs.
type running struct {
	*exec.Cmd
	out    *bufio.Reader
	stderr bytes.Buffer
}

// session reads the session's id, which the program prints as session.json.
func (r *running) session(t *testing.T) string {
	t.Helper()
	line, err := r.out.ReadBytes('\n')
	must(t, err)
	var in struct{ Session string }
	must(t, json.Unmarshal(line, &in))
	return in.Session
}

func (w *world) shell(t *testing.T, script string) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	t.Cleanup(cancel)
	r := &running{Cmd: w.command(ctx, "run", "--profile", "anthropic-dev", "--workspace", w.workspace(t), "--", "/bin/bash", "-c", script)}
	pipe, err := r.StdoutPipe()
	must(t, err)
	r.Stderr = &r.stderr
	must(t, r.Start())
	r.out = bufio.NewReader(pipe)
	if line, err := r.out.ReadString('\n'); line != "ready\n" || err != nil {
		_ = r.Wait()
		t.Fatalf("%q, %v\n%s", line, err, r.stderr.String())
	}
	return r
}

// end reads the rest of what the program wrote, and its exit code.
func (r *running) end(t *testing.T) (string, int) {
	t.Helper()
	rest, err := io.ReadAll(r.out)
	must(t, err)
	err = r.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(rest), r.ProcessState.ExitCode()
}

// signals: an interrupt is the agent's own matter; to be told to end ends the agent, with a chance to tidy up; a supervisor that is killed takes its
// sandbox along.
func signals(t *testing.T, w *world) {
	t.Run("interrupt", func(t *testing.T) {
		r := w.shell(t, `trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.1; done`)
		must(t, r.Process.Signal(os.Interrupt))
		if out, code := r.end(t); out != "interrupted\n" || code != 9 {
			t.Errorf("%q, exit code %d", out, code)
		}
	})
	t.Run("terminate", func(t *testing.T) {
		r := w.shell(t, `trap 'echo tidy; exit 3' TERM; echo ready; while :; do sleep 0.1; done`)
		must(t, r.Process.Signal(syscall.SIGTERM))
		if out, code := r.end(t); out != "tidy\n" || code != 3 {
			t.Errorf("%q, exit code %d", out, code)
		}
	})
	t.Run("kill", func(t *testing.T) {
		r := w.shell(t, `echo ready; cat /run/sallyport/in/session.json; echo; exec sleep 600`)
		session := r.session(t)
		must(t, r.Process.Kill())
		if _, code := r.end(t); code != -1 {
			t.Errorf("exit code %d", code)
		}
		// The pipe's end says that nothing of the sandbox holds it any more; the host says that the session is over.
		until(t.Context(), t, "the session's directory to go", func() bool {
			_, err := os.Stat(filepath.Join(w.rig.State(), "host", "sessions", session))
			return errors.Is(err, os.ErrNotExist)
		})
		until(t.Context(), t, "the session to be closed", func() bool { return w.sessionState(t, session) == "closed" })
	})
}

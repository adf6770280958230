package acceptance

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"

	"sallyport.dev/test/fixture/model"
)

// screen is a terminal on which a command runs.
type screen struct {
	cmd    *exec.Cmd
	tty    io.ReadWriteCloser
	closed chan struct{}

	mu      sync.Mutex
	all     bytes.Buffer
	changed chan struct{}
}

func onScreen(t *testing.T, cmd *exec.Cmd) *screen {
	t.Helper()
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 160})
	must(t, err)
	s := &screen{cmd: cmd, tty: tty, closed: make(chan struct{}), changed: make(chan struct{}, 1)}
	go func() {
		defer close(s.closed)
		buffer := make([]byte, 32<<10)
		for {
			n, err := tty.Read(buffer)
			s.mu.Lock()
			s.all.Write(buffer[:n])
			s.mu.Unlock()
			select {
			case s.changed <- struct{}{}:
			default:
			}
			if err != nil {
				return // nobody holds the other side any more
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it ended, where all went well
		_ = cmd.Wait()
		tty.Close()
		<-s.closed
	})
	return s
}

// text is what was drawn, without the terminal's commands and without spaces: programs jump with the cursor between words.
func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	data := s.all.Bytes()
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == 0x1b && i+1 < len(data) && data[i+1] == '[':
			for i += 2; i < len(data) && (data[i] < 0x40 || data[i] > 0x7e); i++ {
			}
		case c == 0x1b && i+1 < len(data) && data[i+1] == ']':
			for i += 2; i < len(data) && data[i] != 0x07 && data[i] != 0x1b; i++ {
			}
		case c == 0x1b:
			i++
		case c > ' ':
			b.WriteByte(c)
		}
	}
	return b.String()
}

// shows waits for a text; spaces do not count.
func (s *screen) shows(ctx context.Context, t *testing.T, text string) {
	t.Helper()
	text = strings.ReplaceAll(text, " ", "")
	for !strings.Contains(s.text(), text) {
		select {
		case <-s.changed:
		case <-s.closed:
			t.Fatalf("it ended without %q on the screen:\n%s", text, s.text())
		case <-ctx.Done():
			t.Fatalf("the screen has no %q:\n%s", text, s.text())
		}
	}
}

func (s *screen) types(t *testing.T, text string) {
	t.Helper()
	_, err := io.WriteString(s.tty, text)
	must(t, err)
}

// interactive: a person sits down before Claude Code in its sandbox for the first time. No dialog stands between the start and the prompt; a read runs,
// a write waits for the person's decision elsewhere, and the end is the agent's own.
func interactive(t *testing.T, w *world) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	t.Cleanup(cancel)
	s := &session{t: t, w: w, agent: agents[0], dir: w.workspace(t), token: token(), ctx: ctx}
	cmd := w.command(ctx, "run", "--profile", "anthropic-dev", "--workspace", s.dir, "--", "claude")
	cmd.Env = append(cmd.Env, "TERM=xterm-256color")
	screen := onScreen(t, cmd)
	screen.shows(ctx, t, "❯") // its prompt
	const arguments = `{"project":"web","title":"TOKEN typed"}`
	screen.types(t, s.fill(model.Play(tool("modern_json_echo", `{"text":"TOKEN read"}`), tool("modern_json_create_issue", arguments), model.Say("the tool said {{0}}"))))
	screen.shows(ctx, t, "play%%") // typed together with the text, Enter would be part of a paste
	screen.types(t, "\r")
	s.approve(s.question("approval", "typed"))
	screen.shows(ctx, t, s.fill("the tool said TOKEN read"))
	s.effects("modern-json", "create_issue", arguments, 1, 1)
	s.state(arguments, "answered")
	if got := s.got(0); got.IsError || got.Text != s.fill("TOKEN read") {
		t.Errorf("the model was sent %+v", got)
	}
	for _, dialog := range []string{
		"Do you trust", "Choose the text style", "Detected a custom API key", "Select login method", "Do you want to proceed", "New MCP server", "Welcome to Claude Code for",
		"Bypass Permissions mode", "Update available", "Auto-update",
	} {
		if strings.Contains(screen.text(), strings.ReplaceAll(dialog, " ", "")) {
			t.Errorf("the screen asks %q", dialog)
		}
	}
	screen.types(t, "/exit\r")
	select {
	case <-screen.closed:
	case <-ctx.Done():
		t.Fatalf("it did not end:\n%s", screen.text())
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

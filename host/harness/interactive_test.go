package harness_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"sallyport.dev/host/gate"
	"sallyport.dev/host/harness"
	"sallyport.dev/host/sandbox/sandboxtest"
	"sallyport.dev/host/supervisor"
	"sallyport.dev/test/fixture/model"
	programs "sallyport.dev/test/harness"
)

// screen is a terminal with a harness on it.
type screen struct {
	t     *testing.T
	outer *os.File
	done  chan struct{}
	end   chan struct{}
	o     supervisor.Outcome
	err   error

	mu     sync.Mutex
	all    bytes.Buffer
	signal chan struct{}
}

func (w *world) interactive(t *testing.T) *screen {
	t.Helper()
	client, err := gate.NewClient(gate.Dial(w.socket))
	must(t, err)
	outer, inner, err := pty.Open()
	must(t, err)
	must(t, pty.Setsize(outer, &pty.Winsize{Rows: 50, Cols: 120}))
	s := &screen{t: t, outer: outer, done: make(chan struct{}), end: make(chan struct{}), signal: make(chan struct{}, 1)}
	go func() {
		defer close(s.done)
		buffer := make([]byte, 32<<10)
		for {
			n, err := outer.Read(buffer)
			s.mu.Lock()
			s.all.Write(buffer[:n])
			s.mu.Unlock()
			select {
			case s.signal <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	go func() {
		defer close(s.end)
		s.o, s.err = supervisor.Run(ctx, supervisor.Config{
			Job: w.job(), Driver: sandboxtest.Driver(t), Host: client, Stdio: supervisor.Stdio{In: inner, Out: inner, Err: inner},
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-s.end
		inner.Close()
		<-s.done
		outer.Close()
	})
	return s
}

// text is what was drawn, without the terminal's commands and without spaces: programs draw words with jumps of the cursor between them.
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

// shows waits for a text on the screen; spaces do not count.
func (s *screen) shows(text string) {
	s.t.Helper()
	text = strings.ReplaceAll(text, " ", "")
	timeout := time.After(3 * time.Minute)
	for !strings.Contains(s.text(), text) {
		select {
		case <-s.signal:
		case <-s.end:
			s.t.Fatalf("the run ended (%+v, %v) without %q on the screen:\n%s", s.o, s.err, text, s.text())
		case <-timeout:
			s.t.Fatalf("the screen has no %q:\n%s", text, s.text())
		}
	}
}

func (s *screen) types(text string) {
	s.t.Helper()
	_, err := s.outer.WriteString(text)
	must(s.t, err)
}

// One interactive session on a fresh home: no dialog stands between the start and the first answer, and our tool runs without a question
// of the harness's own.
func TestClaudeInteractive(t *testing.T) {
	w := newWorld(t, installed(t).Claude, "anthropic", nil)
	s := w.interactive(t)
	s.shows("❯") // its prompt
	s.types(model.Play(
		model.Step{Call: harness.Server + "/echo", With: raw(map[string]string{"text": "hello"})},
		model.Step{Say: "the tool said {{0}}, finally"},
	))
	s.shows("play%%") // typed together with the text, Enter would be part of a paste
	s.types("\r")
	s.shows("the tool said echoed")
	if calls := w.called(); len(calls) != 1 || string(calls[0].Record.Arguments) != `{"text":"hello"}` {
		t.Errorf("calls: %+v", calls)
	}
	for _, dialog := range []string{"Do you trust", "Choose the text style", "Detected a custom API key", "Select login method", "Do you want to proceed", "New MCP server"} {
		if strings.Contains(s.text(), strings.ReplaceAll(dialog, " ", "")) {
			t.Errorf("the screen asks %q", dialog)
		}
	}
	s.types("/exit")
	s.shows("/exit")
	s.types("\r")
	select {
	case <-s.end:
		if s.err != nil || s.o.Code != 0 {
			t.Errorf("%+v %v", s.o, s.err)
		}
	case <-time.After(3 * time.Minute):
		t.Errorf("it did not end:\n%s", s.text())
	}
}

// A shell under the real gate has what a shell has on a terminal: its size, its keys, job control, and its own exit status.
func TestShellInteractive(t *testing.T) {
	w := newWorld(t, programs.Program{Argv: []string{"/bin/bash"}}, "anthropic", nil, "--norc", "-i")
	s := w.interactive(t)
	s.types("PS1='$((1+1))> '; stty size\r")
	s.shows("50 120")
	must(t, pty.Setsize(s.outer, &pty.Winsize{Rows: 30, Cols: 90}))
	must(t, syscall.Kill(os.Getpid(), syscall.SIGWINCH)) // the kernel tells the caller's process group, which a test's terminal does not have
	s.types("while [ \"$(stty size)\" != '30 90' ]; do :; done; echo now $((40+2))\r")
	s.shows("now 42")
	s.types("sh -c 'echo begins $((70+1)); exec sleep 1000'; echo after $((50+1))\r") // said by who has the terminal then
	s.shows("begins 71")
	s.types("\x03")
	s.types("echo interrupted $?\r")
	s.shows("interrupted 130")
	s.types("sh -c 'echo begins $((60+1)); exec sleep 1000'\r")
	s.shows("begins 61")
	s.types("\x1a")
	s.shows("Stopped")
	s.types("disown %1; exit 3\r") // what is stopped ends with the sandbox
	select {
	case <-s.end:
		if s.err != nil || s.o.Code != 3 {
			t.Errorf("%+v %v\n%s", s.o, s.err, s.text())
		}
	case <-time.After(3 * time.Minute):
		t.Errorf("it did not end:\n%s", s.text())
	}
	if text := s.text(); strings.Contains(text, "nojobcontrol") || strings.Contains(text, "after51") {
		t.Error(text)
	}
}

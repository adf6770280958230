package runner

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/host/link/linktest"
	"sallyport.dev/relay"
)

// guestDir is where guestBinary built; TestMain removes it.
var guestDir string

// guestBinary builds the real guest once.
var guestBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "runner-guest")
	if err != nil {
		return "", err
	}
	guestDir = dir
	path := filepath.Join(dir, "sallyport-guest")
	cmd := exec.Command("go", "build", "-o", path, "sallyport.dev/cmd/sallyport-guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// harness is a client on the shim's pipes.
type harness struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan map[string]json.RawMessage
	ended chan struct{}
}

// harness starts the real shim in the sandbox's directories and initializes it.
func (b *sandbox) harness(timeoutMS int64) *harness {
	t := b.rig.t
	t.Helper()
	binary, err := guestBinary()
	if err != nil {
		t.Fatal(err)
	}
	session, err := relay.AppendSession(nil, &relay.Session{
		Session: b.ID, Epoch: b.Epoch, Build: "test", Server: "sallyport", Await: "await_call",
		HoldMS: 1000, TimeoutMS: timeoutMS, Limits: relay.DefaultLimits(),
	})
	if err != nil {
		t.Fatal(err)
	}
	tools, err := relay.AppendTools(nil, [][]byte{[]byte(`{"name":"echo","inputSchema":{"type":"object"}}`)})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{relay.SessionName: session, relay.ToolsName: tools} {
		if err := b.Folder.Publish(name, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h := &harness{t: t, lines: make(chan map[string]json.RawMessage, 64), ended: make(chan struct{})}
	h.cmd = exec.Command(binary, "shim", "--in", b.Folder.In(), "--out", b.Folder.Out())
	h.cmd.Stderr = os.Stderr
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(h.ended)
		defer close(h.lines)
		for r := bufio.NewReaderSize(out, 1<<20); ; {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return
			}
			var m map[string]json.RawMessage
			if err := json.Unmarshal(line, &m); err != nil {
				t.Errorf("stdout has %q", line)
			}
			h.lines <- m
		}
	}()
	t.Cleanup(h.kill)
	h.send(`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	h.result(`"i"`)
	h.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return h
}

func (h *harness) send(line string) {
	h.t.Helper()
	if _, err := io.WriteString(h.in, line+"\n"); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) call(id int, arguments string) {
	h.t.Helper()
	h.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":%s}}`, id, arguments))
}

// result waits for the answer to id, letting others by.
func (h *harness) result(id string) string {
	h.t.Helper()
	for m := range h.lines {
		if string(m["id"]) == id {
			if m["error"] != nil {
				h.t.Fatalf("error %s", m["error"])
			}
			return string(m["result"])
		}
	}
	h.t.Fatal("the shim ended")
	return ""
}

func (h *harness) kill() {
	_ = h.cmd.Process.Kill()
	<-h.ended
	_ = h.cmd.Wait()
}

// only waits for the one call that control has not seen before.
func (x *rig) only(seen map[string]bool) (k *linktest.Call) {
	x.t.Helper()
	x.await("no call", func(v *linktest.View) bool {
		for _, c := range v.All() {
			if !seen[c.Record.ID] {
				k = c
			}
		}
		return k != nil
	})
	seen[k.Record.ID] = true
	return k
}

func TestShim(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	h := b.harness(120_000)
	seen := make(map[string]bool)
	h.call(1, `{"n": 12345678901234567890}`)
	k := x.only(seen)
	if string(k.Record.Arguments) != `{"n": 12345678901234567890}` || k.Record.Tool != "echo" {
		t.Errorf("control got %+v", k.Record)
	}
	k.Answer("answered", `{"content":[{"type":"text","text":"done"}],"x":9007199254740993}`)
	wantText(t, h.result("1"), `"done"`, `"x":9007199254740993`)
	x.await("no ack", func(v *linktest.View) bool { return v.State(k).Acked == 1 })

	// A long one, in chunks.
	h.call(2, `{}`)
	k = x.only(seen)
	k.Answer("answered", answer(strings.Repeat("x", relay.MaxInline-100)))
	if got := h.result("2"); len(got) < relay.MaxInline-100 {
		t.Errorf("%d bytes", len(got))
	}

	// A cancelled one gets no answer, and control hears why.
	h.call(3, `{}`)
	k = x.only(seen)
	h.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`)
	x.await("no cancel", func(v *linktest.View) bool { return v.State(k).Cancelled(sallyportv1.CancelWhy_CANCEL_WHY_HARNESS) })
	k.Answer("cancelled", answer("cancelled"))
	h.call(4, `{}`)
	k = x.only(seen)
	k.Answer("answered", answer("next"))
	wantText(t, h.result("4"), "next")

	// The pipe closes while a call is open: it lives on.
	h.call(5, `{}`)
	k = x.only(seen)
	if err := h.in.Close(); err != nil {
		t.Fatal(err)
	}
	x.await("no cancel", func(v *linktest.View) bool { return v.State(k).Cancelled(sallyportv1.CancelWhy_CANCEL_WHY_CLOSED) })
	k.Answer("answered", answer("nobody reads it"))
	b.inside("in/results/"+relay.ResultName(k.Record.ID), true)
}

// The shim dies without a word: the call runs once, its answer lies there, and the next shim works.
func TestShimIsKilled(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	seen := make(map[string]bool)
	h := b.harness(120_000)
	h.call(1, `{}`)
	k := x.only(seen)
	h.kill()
	k.Journal()
	k.Answer("answered", answer("nobody reads it"))
	b.inside("in/results/"+relay.ResultName(k.Record.ID), true)
	h = b.harness(120_000)
	h.call(1, `{}`)
	again := x.only(seen)
	again.Answer("answered", answer("second"))
	wantText(t, h.result("1"), "second")
	if k.State().Sent != 1 || k.State().Acked != 0 {
		t.Errorf("sent %d times, acked %d", k.State().Sent, k.State().Acked)
	}
}

// The host restarts while a call is open and another is made: the shim notices nothing.
func TestShimOverARestartOfTheHost(t *testing.T) {
	x := newRig(t)
	b := x.sandbox()
	seen := make(map[string]bool)
	h := b.harness(120_000)
	h.call(1, `{}`)
	first := x.only(seen)
	x.stop()
	h.call(2, `{}`)
	x.control.Forget()
	x.begin(nil)
	if err := x.runner.Add(b.Session); err != nil {
		t.Fatal(err)
	}
	second := x.only(seen)
	second.Answer("answered", answer("two"))
	wantText(t, h.result("2"), "two")
	first.Answer("answered", answer("one"))
	wantText(t, h.result("1"), "one")
	if first.State().Sent != 2 || second.State().Sent != 1 {
		t.Errorf("sent %d and %d times", first.State().Sent, second.State().Sent)
	}
}

// Control is away for longer than a call may take: the model reads what is known, in time.
func TestShimWithoutControl(t *testing.T) {
	x := newRig(t)
	x.control.Break(errAway)
	b := x.sandbox()
	h := b.harness(500)
	h.call(1, `{}`)
	wantText(t, h.result("1"), "Sallyport did not run echo", "deadline_exceeded")
	x.control.Mend()
	h = b.harness(120_000)
	h.call(2, `{}`)
	k := x.only(make(map[string]bool))
	k.Answer("answered", answer("back"))
	wantText(t, h.result("2"), "back")
}

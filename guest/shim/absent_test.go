package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"sallyport.dev/guest/fakehost"
	"sallyport.dev/relay"
)

func TestAnswersThatAreRefused(t *testing.T) {
	tests := map[string]func(h *fakehost.Host, c fakehost.Call) error{
		"of another call record": func(h *fakehost.Host, c fakehost.Call) error {
			return h.AnswerAs(relay.Result{V: 1, ID: c.ID, Call: relay.Sum([]byte("another")), State: "answered", Result: []byte(`{"content":[]}`)})
		},
		"of another id": func(h *fakehost.Host, c fakehost.Call) error {
			record, err := relay.AppendResult(nil, &relay.Result{V: 1, ID: relay.NewID(), Call: c.Digest, State: "answered", Result: []byte(`{}`)})
			if err != nil {
				return err
			}
			return h.AnswerRaw(c.ID, record)
		},
		"no record":    func(h *fakehost.Host, c fakehost.Call) error { return h.AnswerRaw(c.ID, []byte(`{"v":1`)) },
		"empty":        func(h *fakehost.Host, c fakehost.Call) error { return h.AnswerRaw(c.ID, nil) },
		"of a version": func(h *fakehost.Host, c fakehost.Call) error { return h.AnswerRaw(c.ID, []byte(`{"v":7}`)) },
	}
	for name, answer := range tests {
		t.Run(name, func(t *testing.T) {
			h := host(t, func(h *fakehost.Host, c fakehost.Call) {
				if err := answer(h, c); err != nil {
					t.Error(err)
				}
			}, "echo")
			p := open(t, h.In(), h.Out()).hello()
			want(t, text(t, p.ask(call("1", "echo", "{}"))), "The answer to echo was refused", "(call "+relay.CallID(h.Session.Session, h.Seen().Calls[0].ID)+", outcome_uncertain)", "Do not repeat it")
			p.end()
			if acks := h.Seen().Acks; len(acks) > 0 {
				t.Errorf("acknowledged: %v", acks)
			}
		})
	}
}

// A record that no host takes is taken back, so that it does not run when nobody waits for it any more.
func TestUnclaimedCallIsWithdrawn(t *testing.T) {
	h, err := fakehost.New(t.TempDir(), [][]byte{[]byte(`{"name":"echo","inputSchema":{}}`)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := open(t, h.In(), h.Out(), func(s *Server) { s.unclaimed = 10 * time.Millisecond }).hello()
	want(t, text(t, p.ask(call("1", "echo", "{}"))), "did not run echo", "withdrawn", "(not_sent)", "safe to call echo again")
	names, err := os.ReadDir(filepath.Join(h.Out(), relay.NewDir))
	if err != nil || len(names) != 0 {
		t.Fatalf("left behind: %v, %v", names, err)
	}
	p.end()
}

// A claimed call that gets no answer at all ends in words of our own before the harness gives up.
func TestNoAnswerInTime(t *testing.T) {
	h := host(t, nil, "echo")
	h.Session.TimeoutMS = 60
	if err := h.PublishSession(); err != nil {
		t.Fatal(err)
	}
	p := open(t, h.In(), h.Out()).hello()
	p.send(call("1", "echo", "{}"))
	got := text(t, p.line())
	if s := h.Seen(); len(s.Calls) == 0 {
		want(t, got, "(not_sent)") // a machine so slow that the host had not looked yet
		return
	}
	id := relay.CallID(h.Session.Session, h.Seen().Calls[0].ID)
	want(t, got, "(call "+id+", still_running)", "may or may not have run", "Do not repeat it", `call await_call with {"call":"`+id+`"}`)
	if s := seen(t, h, cancels(1)); s.Cancels[0].Why != relay.WhyClosed {
		t.Errorf("cancelled by %s", s.Cancels[0].Why)
	}
}

func TestPatience(t *testing.T) {
	for _, timeout := range []time.Duration{time.Millisecond, time.Second, 20 * time.Second, 120 * time.Second, relay.MaxTimeout} {
		if got, asked := giveUpAfter(timeout), relay.AskAt(timeout); got <= asked || got >= timeout {
			t.Errorf("%v: the shim gives up after %v, the host asks at %v", timeout, got, asked)
		}
	}
	if got := giveUpAfter(120 * time.Second); got != 115*time.Second {
		t.Errorf("120 s: %v", got)
	}
}

// The host may be stopped and started at any time; a call waits for it.
func TestHostRestarts(t *testing.T) {
	h := host(t, answering(t, `{"content":[]}`), "echo")
	p := open(t, h.In(), h.Out()).hello()
	for i := range 20 {
		h.Close()
		p.send(call(strconv.Itoa(i), "echo", "{}"))
		if err := h.Start(); err != nil {
			t.Fatal(err)
		}
		if got, want := p.line(), fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"content":[]}}`, i); got != want {
			t.Fatalf("got %s", got)
		}
		seen(t, h, acks(i+1))
	}
}

// A host that is upgraded or resumes the session writes new files beneath a live shim.
func TestNewSessionFileIsUsed(t *testing.T) {
	h := host(t, answering(t, `{"content":[]}`), "echo")
	p := open(t, h.In(), h.Out()).hello()
	p.ask(call("1", "echo", "{}"))
	seen(t, h, acks(1))
	h.Close()
	h.Session.Epoch, h.Session.TimeoutMS = 2, 60_000
	if err := h.PublishSession(); err != nil {
		t.Fatal(err)
	}
	tools, err := relay.AppendTools(nil, [][]byte{[]byte(`{"name":"other","inputSchema":{}}`)})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.PublishFile(relay.ToolsName, tools, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	want(t, p.ask(call("2", "echo", "{}")), "unknown tool")
	p.ask(call("3", "other", "{}"))
	if s := seen(t, h, acks(2)); s.Calls[1].Epoch != 2 || s.Calls[1].TimeoutMS != 60_000 {
		t.Errorf("the call says %+v", s.Calls[1].Call)
	}
}

func TestWhereNothingIsServed(t *testing.T) {
	tests := []struct {
		name    string
		session string // content of session.json, "" for none
		want    []string
	}{
		{"no directory", "", []string{"not started by Sallyport", "(not_found)", "sallyport run"}},
		{"a newer format", `{"v":2,"session":"x"}`, []string{"(too_old)", "newer"}},
		{"an older format", `{"v":0}`, []string{"(too_old)", "restart the session"}},
		{"broken", `{"v":1,`, []string{"(invalid)"}},
		{"unknown members", `{"v":1,"surprise":1}`, []string{"(invalid)"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.session != "" {
				if err := os.Mkdir(filepath.Join(dir, "in"), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, "in", relay.SessionName), []byte(tt.session), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			p := open(t, filepath.Join(dir, "in"), filepath.Join(dir, "out"))
			want(t, p.ask(legacyHello), append(tt.want, `"protocolVersion":"2025-11-25"`, "Sallyport has no tools here")...)
			list := p.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
			want(t, list, append(tt.want, `"id":1,"error":{"code":-32603,`)...)
			want(t, text(t, p.ask(call("2", "echo", "{}"))), append(tt.want, "Sallyport did not run")...)
			want(t, p.ask(`{"jsonrpc":"2.0","id":3,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`), tt.want...)
			p.end()
		})
	}
}

// The directory may come later: the shim has not ended, and serves it.
func TestDirectoryThatComesLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	p := open(t, filepath.Join(dir, "in"), filepath.Join(dir, "relay", "out")).hello()
	want(t, text(t, p.ask(call("1", "echo", "{}"))), "did not run")
	h, err := fakehost.New(dir, [][]byte{[]byte(`{"name":"echo","inputSchema":{}}`)}, answering(t, `{"content":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	if got := p.ask(call("2", "echo", "{}")); got != `{"jsonrpc":"2.0","id":2,"result":{"content":[]}}` {
		t.Fatal(got)
	}
}

func TestRelayThatCannotBeWritten(t *testing.T) {
	h := host(t, nil, "echo")
	out := filepath.Join(t.TempDir(), "nothing")
	p := open(t, h.In(), out).hello()
	want(t, text(t, p.ask(call("1", "echo", "{}"))), "did not run echo", "cannot be written", "(unavailable)", "safe to call echo again")
	if got := p.ask(`{"jsonrpc":"2.0","id":1,"method":"ping"}`); got != `{"jsonrpc":"2.0","id":1,"result":{}}` {
		t.Fatal("the id is still taken: ", got)
	}
}

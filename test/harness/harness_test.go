package harness_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"sallyport.dev/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What each harness wrote for the same play, cut to what is read.
var transcripts = map[harness.Kind]string{
	harness.Claude: `warming up
{"type":"system","subtype":"init","tools":["Bash","mcp__demo__echo"],"mcp_servers":[{"name":"demo","status":"connected"}]}
{"type":"assistant","message":{"content":[{"id":"t1","input":{"text":"hi"},"name":"mcp__demo__echo","type":"tool_use"}],"role":"assistant"}}
{"type":"user","message":{"role":"user","content":[{"tool_use_id":"t1","type":"tool_result","content":[{"type":"text","text":"echo: hi"},{"type":"image","x":1}]}]}}
{"type":"assistant","message":{"content":[{"type":"thinking","thinking":"…"},{"id":"t2","input":{},"name":"mcp__demo__fail","type":"tool_use"},{"id":"t3","input":{"command":"ls"},"name":"Bash","type":"tool_use"}]}}
{"type":"user","message":{"content":[{"type":"tool_result","content":"it failed","is_error":true,"tool_use_id":"t2"}]}}
{"type":"user","message":{"content":"a plain text"}}
{"type":"assistant","message":{"content":[{"text":"the end","type":"text"}]}}
{"type":"result","subtype":"success","is_error":false,"result":"the end"}
`,
	harness.Codex: `warming up
{"type":"thread.started","thread_id":"x"}
{"type":"turn.started"}
{"type":"item.started","item":{"id":"i1","type":"mcp_tool_call","server":"demo","tool":"echo","arguments":{"text":"hi"},"result":null,"error":null,"status":"in_progress"}}
{"type":"item.completed","item":{"id":"i1","type":"mcp_tool_call","server":"demo","tool":"echo","arguments":{"text":"hi"},"result":{"content":[{"type":"text","text":"echo: hi"},{"type":"image","x":1}],"structured_content":null},"error":null,"status":"completed"}}
{"type":"item.completed","item":{"id":"i2","type":"mcp_tool_call","server":"demo","tool":"fail","arguments":{},"result":null,"error":{"message":"it failed"},"status":"failed"}}
{"type":"item.started","item":{"id":"i3","type":"command_execution","command":"ls","status":"in_progress"}}
{"type":"item.completed","item":{"id":"i4","type":"agent_message","text":"the end"}}
{"type":"turn.completed","usage":{}}
`,
	harness.Pi: `warming up
{"type":"session","version":3}
{"type":"message_end","message":{"role":"user","content":[{"type":"text","text":"the prompt"}]}}
{"type":"tool_execution_start","toolCallId":"t1","toolName":"mcp__demo__echo","args":{"text":"hi"}}
{"type":"tool_execution_end","toolCallId":"t1","toolName":"mcp__demo__echo","result":{"content":[{"type":"text","text":"echo: hi"},{"type":"image","x":1}]},"isError":false}
{"type":"tool_execution_start","toolCallId":"t2","toolName":"mcp__demo__fail","args":{}}
{"type":"tool_execution_start","toolCallId":"t3","toolName":"bash","args":{"command":"ls"}}
{"type":"tool_execution_end","toolCallId":"t2","toolName":"mcp__demo__fail","result":{"content":[{"type":"text","text":"it failed"}]},"isError":true}
{"type":"message_end","message":{"role":"assistant","content":[{"type":"text","text":"the end"}],"stopReason":"stop"}}
{"type":"agent_end","messages":[]}
`,
}

// TestParse reads the same run out of three formats.
func TestParse(t *testing.T) {
	for kind, output := range transcripts {
		t.Run(string(kind), func(t *testing.T) {
			got, err := harness.Parse(kind, []byte(strings.ReplaceAll(output, "\n", "\r\n"))) // as a terminal writes it
			if err != nil {
				t.Fatal(err)
			}
			if got.Final != "the end" || !got.Ended || len(got.Errors) != 0 || len(got.Calls) != 3 || len(got.Noise) != 1 || got.Noise[0] != "warming up" {
				t.Fatalf("%+v", got)
			}
			if c := got.Call("echo", 0); c == nil || c.Server != "demo" || string(c.Arguments) != `{"text":"hi"}` || !c.Answered || c.IsError || c.Result != "echo: hi\n"+`{"type":"image","x":1}` {
				t.Errorf("%+v", c)
			}
			if c := got.Call("fail", 0); c == nil || !c.IsError || c.Result != "it failed" {
				t.Errorf("%+v", c)
			}
			if c := got.Calls[2]; c.Server != "" || c.Answered {
				t.Errorf("an open call of the harness's own: %+v", c)
			}
			if got.Call("echo", 1) != nil || got.Call("other", 0) != nil {
				t.Error("a call that was not made was found")
			}
			// Cut anywhere, a transcript is a shorter transcript, never an error.
			for i := range output {
				if part, err := harness.Parse(kind, []byte(output[:i])); err != nil || len(part.Calls) > 3 {
					t.Fatalf("cut at %d: %v", i, err)
				}
			}
		})
	}
	if got := mustParse(t, harness.Claude, `{"type":"result","subtype":"error_during_execution","is_error":true,"result":"no model"}`); len(got.Errors) != 1 || got.Final != "" {
		t.Errorf("%+v", got)
	}
	if got := mustParse(t, harness.Codex, `{"type":"turn.failed","error":{"message":"no model"}}`); len(got.Errors) != 1 || !got.Ended {
		t.Errorf("%+v", got)
	}
	if got := mustParse(t, harness.Pi, `{"type":"message_end","message":{"role":"assistant","content":[],"stopReason":"error","errorMessage":"no model"}}`); len(got.Errors) != 1 || got.Ended {
		t.Errorf("%+v", got)
	}
	if _, err := harness.Parse("clippy", []byte("{}")); err == nil {
		t.Error("an unknown harness was read")
	}
	if _, err := harness.Parse(harness.Pi, []byte(`{"type":7}`)); err == nil {
		t.Error("another format was read")
	}
}

func mustParse(t *testing.T, kind harness.Kind, output string) *harness.Transcript {
	t.Helper()
	got, err := harness.Parse(kind, []byte(output))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestRun starts a program with exactly the given environment and reads it as it writes.
func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(file, []byte(transcripts[harness.Claude]), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LEAK", "1")
	got, err := harness.Run(deadline(t), harness.Command{Kind: harness.Claude, Argv: []string{"/bin/sh", "-c", `cat ` + file + `; echo "env:$(env | sort | cut -d= -f1 | tr '\n' ' ')" >&2; exit 3`}, Env: []string{"A=b"}})
	if err != nil || got.ExitCode != 3 || got.Final != "the end" || strings.Contains(got.Stderr, "LEAK") || !strings.Contains(got.Stderr, "env:A ") {
		t.Errorf("%v %+v", err, got)
	}
	if got, err := harness.Run(deadline(t), harness.Command{Kind: harness.Claude, Argv: []string{"/bin/sh", "-c", "env"}}); err != nil || strings.Contains(strings.Join(got.Noise, " "), "LEAK") {
		t.Errorf("no environment: %v %+v", err, got)
	}
	if _, err := harness.Run(deadline(t), harness.Command{Argv: []string{"/does/not/exist"}}); err == nil {
		t.Error("a program that is not there ran")
	}
	if _, err := harness.Run(deadline(t), harness.Command{}); err == nil {
		t.Error("nothing ran")
	}
}

// TestFollow waits for a call while the program runs, and ends it with its children.
func TestFollow(t *testing.T) {
	ctx := deadline(t)
	script := `echo '{"type":"tool_execution_start","toolCallId":"t1","toolName":"mcp__demo__echo","args":{}}'; sleep 1000 & wait`
	p, err := harness.Start(ctx, harness.Command{Kind: harness.Pi, Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Until(ctx, func(t *harness.Transcript) bool { return t.Call("echo", 0) != nil }); err != nil {
		t.Fatal(err)
	}
	if p.Snapshot().Calls[0].Answered || !strings.HasPrefix(string(p.Raw()), `{"type":"tool_execution_start"`) {
		t.Errorf("%+v", p.Snapshot())
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Until(ctx, func(t *harness.Transcript) bool { return t.Ended }); err == nil {
		t.Error("a program that was killed ended its turn")
	}
	// A child that lives on holds the output open: Wait would then fail.
	if got, err := p.Wait(); err != nil || got.ExitCode != -1 || len(got.Calls) != 1 {
		t.Errorf("%v %+v", err, got)
	}
}

// TestTimeout kills the whole group when the context ends, and says so.
func TestTimeout(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p, err := harness.Start(ctx, harness.Command{Kind: harness.Pi, Argv: []string{"/bin/sh", "-c", "echo started; sleep 1000 & wait"}, Env: []string{"PATH=/usr/bin:/bin"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Until(deadline(t), func(t *harness.Transcript) bool { return len(t.Noise) == 1 }); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := p.Wait(); err == nil || !strings.Contains(err.Error(), "did not end in time") {
		t.Errorf("%v", err)
	}
}

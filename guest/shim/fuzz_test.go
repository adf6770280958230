package shim

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"sallyport.dev/relay/strictjson"
)

// FuzzLines feeds whatever a broken or hostile harness could send. Everything that comes back is strict JSON on its own line and is a
// response or one of our notifications; afterwards the pipe still serves.
func FuzzLines(f *testing.F) {
	for _, seed := range []string{
		"", "\n\n", "{", "[]", "nul", `{"jsonrpc":"2.0","id":1,"method":"ping"}`,
		legacyHello + "\n" + call("1", "x", `{"a":1e400}`),
		`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":1,"method":"ping"},7]`,
		strings.Replace(legacyHello, "2025-11-25", "2025-03-26", 1) + "\n" + `[{"jsonrpc":"2.0","id":1,"method":"tools/list"},{"jsonrpc":"2.0","method":"x"}]`,
		`{"jsonrpc":"2.0","id":"\ud800","method":"ping"}`, `{"id":1,"id":1}`, "{\"id\":\"\xff\"}",
		`{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}` + "\n" + `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"l"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":{},"traceparent":1,"callId":[]}}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, lines []byte) {
		const last = `{"jsonrpc":"2.0","id":"the last line","method":"ping"}`
		var out bytes.Buffer
		s := New(Config{In: io.MultiReader(bytes.NewReader(lines), strings.NewReader("\n"+last+"\n")), Out: &out, Log: io.Discard, RelayIn: "nowhere", RelayOut: "nowhere", Build: "fuzz"})
		if err := s.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		answered := false
		for line := range strings.Lines(out.String()) {
			if !strings.HasSuffix(line, "\n") {
				t.Fatalf("a cut line: %q", line)
			}
			answered = answered || strings.Contains(line, `"id":"the last line"`)
			if line[0] == '[' {
				if err := strictjson.Check([]byte(line)); err != nil {
					t.Fatalf("%v: %q", err, line)
				}
				continue
			}
			members, err := strictjson.Object([]byte(line), nil)
			if err != nil {
				t.Fatalf("%v: %q", err, line)
			}
			kinds := 0
			for _, m := range members {
				switch string(m.Name) {
				case "result", "error", "method":
					kinds++
				}
			}
			if kinds != 1 {
				t.Fatalf("neither a response nor a notification: %q", line)
			}
		}
		if !answered {
			t.Fatalf("the last line was not served; the output is %q", out.String())
		}
	})
}

// FuzzProjection splices arbitrary results: what comes out is strict JSON.
func FuzzProjection(f *testing.F) {
	f.Add([]byte(`{"content":[{"type":"text","text":"x"}],"structuredContent":{"a":1},"isError":true,"_meta":{}}`), true)
	f.Add([]byte(`{"structuredContent":1}`), false)
	f.Add([]byte("{ \"content\" : [ ] , \"resultType\":\n1 }"), true)
	f.Fuzz(func(t *testing.T, result []byte, codex bool) {
		if strictjson.Check([]byte(`{"result":`+string(result)+`}`)) != nil {
			t.Skip("no record carries it")
		}
		if result = bytes.TrimSpace(result); result[0] != '{' {
			t.Skip("no record carries it")
		}
		for _, version := range []string{modernVersion, "2025-06-18", "2024-11-05"} {
			r := &request{projection: projectionFor(map[bool]string{true: "codex-mcp-client", false: "claude-code"}[codex], version)}
			if version == modernVersion {
				r.era = modern
			}
			line := appendResult(nil, r, []byte("1"), result, "fuzz")
			if err := strictjson.Check(line); err != nil || bytes.ContainsAny(line, "\n\r") {
				t.Fatalf("%s became %s: %v", result, line, err)
			}
		}
	})
}

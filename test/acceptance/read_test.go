package acceptance

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sallyport.dev/test/fixture/mcpserver"
	"sallyport.dev/test/fixture/model"
	"sallyport.dev/test/fixture/wire"
)

// reading is a read whose answer needs care.
type reading struct {
	tool, arguments string
	// shows is what a model must be sent of the answer: its text blocks and, last, structured content that no block says already, as the server wrote
	// it. A regular expression where the server's words are only part of it.
	shows    string
	matches  string
	rendered bool // by the harness, for its model
	isError  bool
	result   string // the server's result, but for the members of its era; "" where it has none
}

// issue is what the fixture says of an issue, in both of its forms.
const issue = `{"number":7,"project":"TOKEN","title":"Issue 7 of TOKEN","labels":["fixture"]}`

// arguments with every kind of value that JavaScript and Rust carry unchanged: members in an order of their own, nesting, quotes, and characters of
// four bytes. What a harness's own parser would round (big integers) never gets as far as the harness's MCP client.
const arguments = `{"run":"TOKEN","text":"Grüße 世界 🙂 <b>&amp;</b> \"quoted\" \\ /","list":[1,2.5,-3,true,null],"zulu":{"z":1,"alpha":{"b":[{}]}}}`

var readings = []reading{
	{
		tool: "numbers", arguments: `{"run":"TOKEN"}`, result: mcpserver.NumbersResult,
		shows: `{"big":9007199254740993,"bigger":12345678901234567890,"huge":1e400}` + "\n" +
			`{"big":9007199254740993,"bigger":12345678901234567890,"huge":1e400,"price":1.10,"one":1.0,"exp":1E+2,"minus":-0,"small":0.1e-7,"list":[9007199254740993,18446744073709551616]}`,
	},
	{
		tool: "unicode", arguments: `{"run":"TOKEN"}`, result: mcpserver.UnicodeResult,
		shows: "Grüße 世界 🙂 é世🙂 \u202eesrever\u202c a\u200bb \u2028\u2029 <b>&amp;</b> / \\ \" \t \a nul:\x00 e\u0301\n" +
			`{"schlüssel":"Grüße","\u0065scaped":"\u00e9","emoji":"🙂","pair":"\ud83d\ude42"}`,
	},
	{
		tool: "unknown", arguments: `{"run":"TOKEN"}`, result: mcpserver.UnknownResult,
		shows: "known\n" + `{"type":"x_table","rows":[[1,2],[3,4]]}` + "\n" + `{"known":"yes","x-more":{"deep":[true]}}`,
	},
	// Each harness shows its model media in its own way; none of it is ours.
	{tool: "media", arguments: `{"run":"TOKEN"}`, rendered: true, matches: `^four things\n(?s:.*)iVBORw0KGgo(?s:.*)tracker://issues/1(?s:.*)the second`},
	{tool: "differs", arguments: `{"run":"TOKEN"}`, result: mcpserver.DiffersResult, shows: "plain words\n" + `{"value":"structured words"}`},
	{tool: "get_issue", arguments: `{"project":"TOKEN","number":7}`, shows: issue, result: `{"content":[{"type":"text","text":` + quoted(issue) + `}],"structuredContent":` + issue + `}`},
	{tool: "fail", arguments: `{"run":"TOKEN"}`, result: mcpserver.ErrorResult, shows: `project "ops" does not exist`, isError: true},
	{
		tool: "rpc_error", arguments: `{"message":"closed TOKEN"}`, isError: true,
		matches: `^[a-z-]+ answered [a-z_]+ with error -32603: closed TOKEN \(call [a-z2-7]{26}, upstream_error\)\.`,
	},
	{tool: "echo_raw", arguments: arguments, shows: arguments, result: `{"content":[{"type":"text","text":` + quoted(arguments) + `}]}`},
}

// quoted writes a text as the fixture does.
func quoted(text string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // a string does not fail
	return strings.TrimSpace(b.String())
}

// read: whatever a server says, in either era and either framing, the journal keeps to the byte, and the model reads whole: text, structure beside
// other text, numbers of any size and spelling, characters of any kind, failures of a tool and of a protocol.
func read(t *testing.T, w *world, a agent) {
	variants := []string{"modern-json", "modern-sse", "legacy-json", "legacy-sse"}
	var steps []model.Step
	for _, c := range variants {
		var together []model.Step
		for _, r := range readings {
			together = append(together, tool(folded(c, r.tool), r.arguments))
		}
		steps = append(steps, model.Step{Together: together})
	}
	s := w.run(t, a, "dev", append(steps, model.Say("read TOKEN"))...)
	transcript := s.end("read TOKEN")
	journal := s.journal()
	if n := len(variants) * len(readings); len(journal) != n || len(transcript.Calls) != n {
		t.Errorf("the journal has %d calls, the agent reports %d, want %d", len(journal), len(transcript.Calls), n)
	}
	for i, c := range variants {
		for k, r := range readings {
			t.Run(c+"/"+r.tool, func(t *testing.T) {
				s := s.in(t)
				got := s.got(i*len(readings) + k)
				s.shown(got, r)
				if reported := transcript.Call(folded(c, r.tool), 0); reported == nil || !reported.Answered || !r.rendered && reported.Result != s.agent.text(got.Text) || reported.IsError != r.isError {
					t.Errorf("the agent reports %+v", reported)
				}
				for _, j := range journal {
					if j.GetCall().GetConnection() == c && j.GetCall().GetTool() == r.tool {
						s.kept(c, r, j.GetArguments(), j.GetResult())
						return
					}
				}
				t.Error("the journal has no such call")
			})
		}
	}
}

// in is the session for a part of its test.
func (s *session) in(t *testing.T) *session {
	part := *s
	part.t = t
	return &part
}

// folded is a tool's name in the sandbox.
func folded(connection, tool string) string {
	return strings.ReplaceAll(connection, "-", "_") + "_" + tool
}

// wallTime is what Codex puts before every result.
var wallTime = regexp.MustCompile(`^Wall time: [0-9.]+ seconds\nOutput:\n`)

// text is a result without what the harness itself puts before it.
func (a agent) text(result string) string {
	if !a.marks {
		return wallTime.ReplaceAllString(result, "")
	}
	return result
}

// shown compares what the model was sent with what it must be sent.
func (s *session) shown(got model.ToolResult, r reading) {
	s.t.Helper()
	text, isError := s.agent.text(got.Text), got.IsError
	if !s.agent.marks { // in its place, our words are
		text, isError = strings.CutPrefix(text, "tool error: ")
	}
	if isError != r.isError {
		s.t.Errorf("the model is told an error: %t, want %t", isError, r.isError)
	}
	if want := s.fill(r.shows); r.matches == "" && text != want {
		s.t.Errorf("the model was sent\n%q\nwant\n%q", text, want)
	}
	if r.matches != "" && !regexp.MustCompile(s.fill(r.matches)).MatchString(text) {
		s.t.Errorf("the model was sent %q, want %s", text, s.fill(r.matches))
	}
}

// kept compares the journal with what the server recorded: it saw the call once, with these bytes, and its answer stands in the journal as it was sent.
func (s *session) kept(connection string, r reading, arguments, answer []byte) {
	t, want := s.t, s.fill(r.arguments)
	if string(arguments) != want {
		t.Errorf("the journal has the arguments %s, want %s", arguments, want)
	}
	is := mcpserver.ForCalls(r.tool)
	records := s.w.servers[connection].Recorder().Records(func(rec *wire.Record) bool { return is(rec) && string(rec.Note.Arguments) == want })
	if len(records) != 1 {
		t.Errorf("the server saw %d requests with %s", len(records), want)
		return
	}
	rec := records[0]
	if era, framing, _ := strings.Cut(connection, "-"); rec.Note.Era != era || bytes.HasPrefix(rec.Body, []byte("{")) != (framing == "json") {
		t.Errorf("the call went in era %s and was answered with %.40q", rec.Note.Era, rec.Body)
	}
	if sent := message(rec.Body); !bytes.Equal(sent, answer) {
		t.Errorf("the journal has\n%s\nthe server sent\n%s", answer, sent)
	}
	// The era's own members stand in front; what the tool said is whole behind them.
	if r.result != "" && !strings.HasSuffix(string(answer), s.fill(r.result)[1:]+"}") {
		t.Errorf("the server sent\n%s\nwhich does not end with\n%s", answer, s.fill(r.result)[1:])
	}
}

// message is the JSON-RPC message of an answer: the whole, or the last event of a stream.
func message(body []byte) []byte {
	if bytes.HasPrefix(body, []byte("{")) {
		return body
	}
	var last []byte
	for line := range bytes.Lines(body) {
		if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			last = bytes.TrimRight(data, "\r\n")
		}
	}
	return last
}

// spoken: the newest Claude Code speaks 2026-07-28 with the shim, the older one begins with initialize. Both say so in their own log.
func spoken(t *testing.T, w *world) {
	for name, want := range map[string]string{"claude": "on a modern connection", "claude-2.1.197": "Connection established with capabilities"} {
		t.Run(name, func(t *testing.T) {
			a := agents[slices.IndexFunc(agents, func(a agent) bool { return a.name == name })]
			s := w.prepare(t, a, nil, "dev", tool("modern_json_echo", `{"text":"TOKEN"}`), model.Say("heard TOKEN"))
			log := filepath.Join(s.dir, "debug.log")
			s.command.Argv = append(s.command.Argv, "--debug-file", log)
			s.start()
			s.end("heard TOKEN")
			data, err := os.ReadFile(log)
			must(t, err)
			if !bytes.Contains(data, []byte(`MCP server "sallyport"`)) || !bytes.Contains(data, []byte(want)) {
				t.Errorf("%s says nothing of %q:\n%s", name, want, clip(data))
			}
			if modern := bytes.Contains(data, []byte("modern connection")); modern != (name == "claude") {
				t.Errorf("%s speaks with the shim in the modern era: %t", name, modern)
			}
		})
	}
}

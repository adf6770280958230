package shim

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sallyport.dev/relay/strictjson"
)

func TestProjection(t *testing.T) {
	const (
		claude = "claude-code"
		codex  = "codex-mcp-client"
		pi     = "pi"
		other  = "somebody"
		every  = `{"content":[{"type":"text","text":"","x":1},{"type":"image","data":"","mimeType":"a/b"},{"type":"audio","data":"","mimeType":"a/b"},{"type":"resource_link","uri":"a:b","name":""},` +
			`{"type":"resource","resource":{"uri":"a:b","text":""}},{"type":"resource","resource":{"uri":"a:b","blob":""}}]}`
	)
	tests := []struct {
		name, client, version, result, want string
	}{
		{"an unknown client gets it as it is", other, modernVersion, `{"content":[],"structuredContent":{"a":1}}`, `{"content":[],"structuredContent":{"a":1}}`},
		{"nothing structured", claude, modernVersion, `{"content":[{"type":"text","text":"x"}]}`, `{"content":[{"type":"text","text":"x"}]}`},
		{"null is nothing", claude, modernVersion, `{"structuredContent":null,"content":[]}`, `{"structuredContent":null,"content":[]}`},
		{"exact text, first member gone", claude, modernVersion, `{"structuredContent":{"n":1e400,"s":"\"\u00e9"},"content":[{"type":"text","text":"x"}]}`, `{"content":[{"type":"text","text":"x"},{"type":"text","text":"{\"n\":1e400,\"s\":\"\\\"\\u00e9\"}"}]}`},
		{"last member gone, white space kept", claude, modernVersion, `{ "content" : [ ] , "structuredContent" : 1.10 }`, `{ "content" : [ {"type":"text","text":"1.10"}] }`},
		{"the only member", claude, modernVersion, `{"structuredContent":[]}`, `{"content":[{"type":"text","text":"[]"}]}`},
		{"content says it", claude, modernVersion, `{"content":[{"type":"text","text":" {\"a\":[1,\"\\u0062\"]} "}],"structuredContent":{"a":[1,"b"]},"isError":false}`, `{"content":[{"type":"text","text":" {\"a\":[1,\"\\u0062\"]} "}],"isError":false}`},
		{"the same but for a rounded number is not the same", claude, modernVersion, `{"content":[{"type":"text","text":"{\"a\":1}"}],"structuredContent":{"a":1.0}}`, `{"content":[{"type":"text","text":"{\"a\":1}"},{"type":"text","text":"{\"a\":1.0}"}]}`},
		{"two blocks, one says it", claude, modernVersion, `{"content":[{"type":"image","data":"","mimeType":"image/png"},{"type":"text","text":"1"}],"structuredContent":1}`, `{"content":[{"type":"image","data":"","mimeType":"image/png"},{"type":"text","text":"1"}]}`},
		{"content of another kind is left alone", claude, modernVersion, `{"content":"x","structuredContent":1}`, `{"content":"x","structuredContent":1}`},
		{"blocks that are none, for whom they are no matter", other, modernVersion, `{"content":[1,{"type":"x_table"}]}`, `{"content":[1,{"type":"x_table"}]}`},
		{"blocks that are none", claude, modernVersion, `{"content":[1,null,{"type":7,"text":"1"},{"type":"text"},{"type":"text","text":1}]}`, `{"content":[{"type":"text","text":"1"},{"type":"text","text":"null"},{"type":"text","text":"{\"type\":7,\"text\":\"1\"}"},{"type":"text","text":"{\"type\":\"text\"}"},{"type":"text","text":"{\"type\":\"text\",\"text\":1}"}]}`},
		{"a block of a kind to come", pi, modernVersion, "{\"content\":[{\"type\":\"x_table\",\n\"rows\":[1.10]},{\"type\":\"text\",\"text\":\"x\"}]}", `{"content":[{"type":"text","text":"{\"type\":\"x_table\",\n\"rows\":[1.10]}"},{"type":"text","text":"x"}]}`},
		{"media without their data", codex, "2025-06-18", `{"content":[{"type":"audio","data":""},{"type":"resource_link","uri":"a:b"}]}`, `{"content":[{"type":"text","text":"{\"type\":\"audio\",\"data\":\"\"}"},{"type":"text","text":"{\"type\":\"resource_link\",\"uri\":\"a:b\"}"}]}`},
		{"a resource without what it holds", claude, modernVersion, `{"content":[{"type":"resource","resource":{"uri":"a:b"}},{"type":"resource"},{"type":"resource","resource":{"uri":"a:b","text":7,"blob":""}}]}`, `{"content":[{"type":"text","text":"{\"type\":\"resource\",\"resource\":{\"uri\":\"a:b\"}}"},{"type":"text","text":"{\"type\":\"resource\"}"},{"type":"text","text":"{\"type\":\"resource\",\"resource\":{\"uri\":\"a:b\",\"text\":7,\"blob\":\"\"}}"}]}`},
		{"every kind that is known", codex, "2025-06-18", every, every},

		{"pi sees content, where the same may stay", pi, modernVersion, `{"content":[{"type":"text","text":"1"}],"structuredContent":1}`, `{"content":[{"type":"text","text":"1"}],"structuredContent":1}`},
		{"pi sees nothing else beside content", pi, modernVersion, `{"content":[{"type":"text","text":"x"}],"structuredContent":1}`, `{"content":[{"type":"text","text":"x"},{"type":"text","text":"1"}]}`},
		{"pi rounds what it shows instead", pi, modernVersion, `{"content":[],"structuredContent":1}`, `{"content":[{"type":"text","text":"1"}]}`},

		{"codex: a failure is marked", codex, "2025-06-18", `{"content":[{"type":"image","data":"","mimeType":"image/png"},{"text":"NO","type":"text"},{"type":"text","text":"x"}],"isError":true}`, `{"content":[{"type":"image","data":"","mimeType":"image/png"},{"text":"tool error: NO","type":"text"},{"type":"text","text":"x"}],"isError":true}`},
		{"codex: a failure without text", codex, "2025-06-18", `{"content":[{"type":"image","data":"","mimeType":"image/png"}],"isError":true}`, `{"content":[{"type":"image","data":"","mimeType":"image/png"},{"type":"text","text":"tool error: "}],"isError":true}`},
		{"codex: a failure with nothing", codex, "2025-06-18", `{"isError":true}`, `{"content":[{"type":"text","text":"tool error: "}],"isError":true}`},
		{"codex: a structured failure", codex, "2025-06-18", `{"isError":true,"structuredContent":{"a":1}}`, `{"content":[{"type":"text","text":"tool error: {\"a\":1}"}],"isError":true}`},
		{"codex: no failure", codex, "2025-06-18", `{"content":[{"type":"text","text":"x"}],"isError":false}`, `{"content":[{"type":"text","text":"x"}],"isError":false}`},
		{"claude marks failures itself", claude, modernVersion, `{"content":[{"type":"text","text":"x"}],"isError":true}`, `{"content":[{"type":"text","text":"x"}],"isError":true}`},

		{"an old revision knows no structuredContent", other, "2025-03-26", `{"content":[],"structuredContent":{"a":1}}`, `{"content":[{"type":"text","text":"{\"a\":1}"}]}`},
		{"the first revision that knows it", other, "2025-06-18", `{"content":[],"structuredContent":{"a":1}}`, `{"content":[],"structuredContent":{"a":1}}`},
		{"codex of an old revision still marks", codex, "2024-11-05", `{"content":[{"type":"text","text":""}],"isError":true}`, `{"content":[{"type":"text","text":"tool error: "}],"isError":true}`},
	}
	for _, tt := range tests {
		o := parseObject([]byte(tt.result))
		projectionFor(tt.client, tt.version).project(o)
		if got := string(o.append(nil)); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

func TestResultMembersOfTheEra(t *testing.T) {
	const info = `"io.modelcontextprotocol/serverInfo":{"name":"sallyport","title":"Sallyport","version":"b"}`
	tests := []struct {
		era          era
		result, want string
	}{
		{legacy, `{"content":[]}`, `{"content":[]}`},
		{legacy, `{}`, `{}`},
		{legacy, `{"resultType":"complete"}`, `{}`},
		{legacy, `{"a":1,"resultType":"complete","b":2}`, `{"a":1,"b":2}`},
		{legacy, `{"_meta":{"x":1,"io.modelcontextprotocol/serverInfo":{}},"a":1}`, `{"_meta":{"x":1},"a":1}`},
		{legacy, `{"_meta":{"io.modelcontextprotocol/serverInfo":{}}}`, `{"_meta":{}}`},
		{legacy, `{"_meta":null}`, `{"_meta":null}`},
		{modern, `{"content":[]}`, `{"resultType":"complete","_meta":{` + info + `},"content":[]}`},
		{modern, `{}`, `{"resultType":"complete","_meta":{` + info + `}}`},
		{modern, `{"resultType":"complete","_meta":{},"content":[]}`, `{"resultType":"complete","_meta":{` + info + `},"content":[]}`},
		{modern, `{"_meta":{"x": 1.0},"resultType":"task"}`, `{"_meta":{` + info + `,"x": 1.0},"resultType":"complete"}`},
		{modern, `{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"up"},"x":1}}`, `{"resultType":"complete","_meta":{` + info + `,"x":1}}`},
		{modern, `{"_meta":7}`, `{"resultType":"complete","_meta":{` + info + `}}`},
		{modern, "{\n\t\"content\":\r\n[]}", "{\"resultType\":\"complete\",\"_meta\":{" + info + "}, \t\"content\":  []}"},
	}
	for _, tt := range tests {
		r := &request{era: tt.era}
		got := string(appendResult(nil, r, []byte("1"), []byte(tt.result), "b"))
		want := `{"jsonrpc":"2.0","id":1,"result":` + tt.want + `}`
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", tt.result, got, want)
		}
	}
}

// Whatever a server says, what comes out is strict JSON on one line, keeps every foreign member's bytes, and every block of content.
func TestResultsSurviveProjection(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		result := drawResult(t)
		client := rapid.SampledFrom([]string{"claude-code", "codex-mcp-client", "pi", "x"}).Draw(t, "client")
		version := rapid.SampledFrom(append([]string{modernVersion}, legacyVersions...)).Draw(t, "version")
		r := &request{projection: projectionFor(client, version)}
		if version == modernVersion {
			r.era = modern
		}
		line := appendResult(nil, r, []byte(`"i"`), []byte(result), "b")
		if err := strictjson.Check(line); err != nil {
			t.Fatalf("%s\nbecame %s: %v", result, line, err)
		}
		if strings.ContainsAny(string(line), "\n\r") {
			t.Fatalf("more than one line: %q", line)
		}
		out, _ := strictjson.Lookup(line, "result")
		foreign, _ := strictjson.Lookup([]byte(result), "vendor")
		if kept, _ := strictjson.Lookup(out, "vendor"); string(kept) != strings.NewReplacer("\n", " ", "\r", " ").Replace(string(foreign)) {
			t.Fatalf("vendor was %s, is %s", foreign, kept)
		}
		var before, after struct {
			Content           []json.RawMessage
			StructuredContent json.RawMessage
		}
		if json.Unmarshal([]byte(result), &before) != nil {
			return // content is no array: it is handed on as it is
		}
		if err := json.Unmarshal(out, &after); err != nil {
			t.Fatal(err)
		}
		if len(after.Content) < len(before.Content) {
			t.Fatalf("%d blocks became %d", len(before.Content), len(after.Content))
		}
		has, _ := strictjson.Lookup([]byte(result), "structuredContent")
		if _, still := strictjson.Lookup(out, "structuredContent"); has != nil && !still && !newContent(parseObject(out)).says(has) && r.projection.errorPrefix == "" {
			t.Fatalf("structuredContent was lost: %s", line)
		}
	})
}

func drawResult(t *rapid.T) string {
	value := rapid.SampledFrom([]string{`1`, `1.10`, `"\u00e9\n"`, `[ ]`, "{\n\"a\":[1e400]}", `null`, `"x"`, `12345678901234567890`})
	block := rapid.SampledFrom([]string{`{"type":"text","text":"x"}`, `{"type":"text","text":"1.10"}`, `{"type":"image","data":""}`, `{"type":"text","text":"1"}`, `7`, "{\r\n}"})
	var members []string
	add := func(name string, draw func() string) {
		if rapid.Bool().Draw(t, name) {
			members = append(members, `"`+name+`":`+draw())
		}
	}
	add("content", func() string {
		if rapid.IntRange(0, 9).Draw(t, "odd") == 0 {
			return value.Draw(t, "content")
		}
		return "[" + strings.Join(rapid.SliceOfN(block, 0, 4).Draw(t, "blocks"), ",") + "]"
	})
	add("structuredContent", func() string { return value.Draw(t, "structured") })
	add("isError", func() string { return rapid.SampledFrom([]string{"true", "false", `"true"`}).Draw(t, "error") })
	add("resultType", func() string { return rapid.SampledFrom([]string{`"complete"`, `"task"`, `1`}).Draw(t, "type") })
	add("_meta", func() string {
		return rapid.SampledFrom([]string{`{}`, `{"a":1}`, `{"io.modelcontextprotocol/serverInfo":1,"b":2}`, `[]`}).Draw(t, "meta")
	})
	add("vendor", func() string { return value.Draw(t, "vendor") })
	return "{" + strings.Join(rapid.Permutation(members).Draw(t, "order"), ",") + "}"
}

func TestSameJSON(t *testing.T) {
	tests := []struct {
		text, value string
		want        bool
	}{
		{`{"a":1}`, `{ "a" : 1 }`, true},
		{`{"a":1} `, `{"a":1}`, true},
		{`{"\u0061":"\u0062"}`, `{"a":"b"}`, true},
		{`{"a":1,"b":2}`, `{"b":2,"a":1}`, false},
		{`1`, `1.0`, false},
		{`1e2`, `100`, false},
		{`"1"`, `1`, false},
		{`[1,2]`, `[1,2,3]`, false},
		{`[1,2,3]`, `[1,2]`, false},
		{`{"a":1}}`, `{"a":1}`, false},
		{`{"a":1`, `{"a":1}`, false},
		{``, `1`, false},
		{`"a`, `"a"`, false},
		{`"\x"`, `"x"`, false},
		{`nul`, `null`, false},
		{`[1 2]`, `[1,2]`, false},
		{`[1,2]`, `[12]`, false},
	}
	for _, tt := range tests {
		if got := sameJSON([]byte(tt.text), []byte(tt.value)); got != tt.want {
			t.Errorf("%s and %s: %v", tt.text, tt.value, got)
		}
	}
}

package upstream

import (
	"fmt"
	"strings"
	"testing"

	"sallyport.dev/errs"
	"sallyport.dev/test/fixture/mcpserver"
)

func TestHeaderText(t *testing.T) {
	for value, want := range map[string]string{ // the table of 2026-07-28, "Value Encoding", and its edges
		"us-west1":            "us-west1",
		"Hello, \u4e16\u754c": "=?base64?SGVsbG8sIOS4lueVjA==?=",
		" padded ":            "=?base64?IHBhZGRlZCA=?=",
		"line1\nline2":        "=?base64?bGluZTEKbGluZTI=?=",
		"=?base64?literal?=":  "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=",
		"":                    "",
		"a b\tc":              "a b\tc",
		"=?base64?":           "=?base64?",
		"x\r\nHost: evil":     "=?base64?eA0KSG9zdDogZXZpbA==?=",
		"\x7f":                "=?base64?fw==?=",
	} {
		if got := headerText(value); got != want {
			t.Errorf("headerText(%q) = %q, want %q", value, got, want)
		}
	}
}

func TestParamAnnotations(t *testing.T) {
	for schema, ok := range map[string]bool{
		`{"type":"object"}`: true,
		`{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}`:                                                                  true,
		`{"properties":{"a":{"type":"object","properties":{"b":{"type":"integer","x-mcp-header":"B"}}}}}`:                            true,
		`{"properties":{"x-mcp-header":{"type":"string"}}}`:                                                                          true, // a property of that name
		`{"properties":{"a":{"type":"string","default":{"x-mcp-header":1},"const":{"x-mcp-header":1},"enum":[{"x-mcp-header":1}]}}}`: true, // data
		`{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}`:                                                                  false,
		`{"properties":{"a":{"type":["string","null"],"x-mcp-header":"A"}}}`:                                                         false,
		`{"properties":{"a":{"x-mcp-header":"A"}}}`:                                                                                  false,
		`{"properties":{"a":{"type":"string","x-mcp-header":""}}}`:                                                                   false,
		`{"properties":{"a":{"type":"string","x-mcp-header":1}}}`:                                                                    false,
		`{"properties":{"a":{"type":"string","x-mcp-header":"A B"}}}`:                                                                false,
		`{"properties":{"a":{"type":"string","x-mcp-header":"A\r\nB"}}}`:                                                             false,
		`{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}`:                         false,
		`{"x-mcp-header":"A","type":"string"}`:                                                                                       false,
		`{"properties":{"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}}}`:                                         false,
		`{"oneOf":[{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}]}`:                                                      false,
		`{"$defs":{"d":{"type":"string","x-mcp-header":"A"}},"properties":{"a":{"$ref":"#/$defs/d"}}}`:                               false,
		`{"properties":{"a":{"allOf":[{"type":"string","x-mcp-header":"A"}]}}}`:                                                      false,
		`{"if":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}`:                                                           false,
		`{"patternProperties":{"^a":{"type":"string","x-mcp-header":"A"}}}`:                                                          false,
		`{"additionalProperties":{"type":"string","x-mcp-header":"A"}}`:                                                              false,
	} {
		_, err := paramAnnotations([]byte(`{"name":"t","inputSchema":` + schema + `}`))
		if (err == nil) != ok {
			t.Errorf("%s: %v", schema, err)
		}
	}
}

func TestParamHeaders(t *testing.T) {
	tool := []byte(`{"name":"t","inputSchema":{"properties":{"s":{"type":"string","x-mcp-header":"S"},"n":{"type":"integer","x-mcp-header":"N"},` +
		`"b":{"type":"boolean","x-mcp-header":"B"},"o":{"type":"object","properties":{"d":{"type":"string","x-mcp-header":"D"}}}}}}`)
	for args, want := range map[string]string{
		`{}`: "",
		`{"s":"x","n":42,"b":true,"o":{"d":"y"}}`: "Mcp-Param-S=x Mcp-Param-N=42 Mcp-Param-B=true Mcp-Param-D=y",
		`{"s":null,"n":null,"b":null,"o":null}`:   "",
		`{"s":"\u00e9","n":-7}`:                   "Mcp-Param-S==?base64?w6k=?= Mcp-Param-N=-7",
		`{"n":42.0}`:                              "Mcp-Param-N=42",
		`{"n":1e2}`:                               "Mcp-Param-N=100",
		`{"n":-0}`:                                "Mcp-Param-N=0",
		`{"n":9007199254740991}`:                  "Mcp-Param-N=9007199254740991",
		`{"n":-9007199254740991}`:                 "Mcp-Param-N=-9007199254740991",
		`{"n":9007199254740992}`:                  "!",
		`{"n":9007199254740991.5}`:                "!",
		`{"n":1e400}`:                             "!",
		`{"n":1e999999999}`:                       "!",
		`{"n":1e-999999999}`:                      "!",
		`{"n":1.5}`:                               "!",
		`{"n":"42"}`:                              "!",
		`{"n":true}`:                              "!",
		`{"s":42}`:                                "!",
		`{"b":"true"}`:                            "!",
		`{"s":{}}`:                                "!",
		`{"o":"text"}`:                            "",
		`{"s":"` + strings.Repeat("x", maxParamText+1) + `"}`: "!",
	} {
		headers, err := paramHeaders(tool, []byte(args))
		var got []string
		for _, h := range headers {
			got = append(got, h[0]+"="+h[1])
		}
		if want == "!" {
			if errs.CodeOf(err) != errs.Invalid {
				t.Errorf("%.60s: %v, %v", args, got, err)
			}
			continue
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v, want %q", args, got, err, want)
		}
	}
	if h, err := paramHeaders(nil, []byte(`{"s":"x"}`)); h != nil || err != nil {
		t.Errorf("without a schema: %v %v", h, err)
	}
	for _, bad := range []string{`{`, `{"inputSchema":{"x-mcp-header":"A"}}`} {
		if _, err := paramHeaders([]byte(bad), []byte(`{}`)); err == nil {
			t.Errorf("%s passed", bad)
		}
	}
}

// The fixture refuses a call whose mirrored headers are missing, wrong or not asked for.
func TestParamHeadersOnTheWire(t *testing.T) {
	s := mcpserver.Start(t, mcpserver.Options{})
	c, tg := client(t, s), target(s, Modern)
	list, err := c.ListTools(deadline(t), tg)
	if err != nil {
		t.Fatal(err)
	}
	var schema []byte
	for _, tool := range list.Tools {
		if tool.Name == "query_region" {
			schema = tool.Raw
		}
	}
	for i, args := range []string{
		`{"region":"us-west1","query":"q","limit":42,"dry":false,"where":{"tenant":"t"}}`,
		`{"region":" Zürich\n","query":"q","limit":4.2e1}`,
		`{"region":"=?base64?x?=","query":"q","where":{}}`,
	} {
		call := &Call{ID: fmt.Sprintf("q.%d", i), Tool: "query_region", Arguments: []byte(args), Schema: schema}
		if out := dispatch(t, c, tg, call, Hooks{}); out.Failure != "" || out.Status != 200 || strings.Contains(string(out.Body), `"error"`) {
			t.Errorf("%s: %+v %s", args, out, out.Body)
		}
	}
	out := dispatch(t, c, tg, &Call{ID: "q.x", Tool: "query_region", Arguments: []byte(`{"region":"a","query":"q"}`)}, Hooks{})
	if out.Failure != FailStatus || out.Status != 400 || !strings.Contains(string(out.Body), "-32020") {
		t.Errorf("without the schema: %+v %s", out, out.Body)
	}
	if n := len(s.Calls("query_region")); n != 4 {
		t.Errorf("%d calls for four", n)
	}
}

package shim

import (
	"strings"
	"testing"
)

func TestDecideEra(t *testing.T) {
	const (
		v    = `"2026-07-28"`
		none = ""
		obj  = `{}`
	)
	tests := []struct {
		name                          string
		method                        string
		version, client, capabilities string
		handshake                     bool
		want                          era
		code                          int
	}{
		{"initialize is legacy whatever its _meta says", "initialize", v, obj, obj, false, legacy, 0},
		{"ping before the handshake", "ping", none, none, none, false, legacy, 0},
		{"ping of the modern era is served as modern, which has none", "ping", v, none, obj, true, modern, 0},
		{"a call after the handshake", "tools/call", none, none, none, true, legacy, 0},
		{"a call before any handshake", "tools/call", none, none, none, false, modern, codeInvalidParams},
		{"a modern call after a handshake", "tools/call", v, none, obj, true, modern, 0},
		{"a modern call", "tools/call", v, obj, obj, false, modern, 0},
		{"without capabilities", "tools/call", v, obj, none, true, modern, codeInvalidParams},
		{"capabilities of another kind", "tools/call", v, obj, `[]`, true, modern, codeInvalidParams},
		{"without a version", "tools/call", none, obj, obj, true, modern, codeInvalidParams},
		{"clientInfo of another kind", "tools/call", v, `"x"`, obj, true, modern, codeInvalidParams},
		{"a version of another kind", "tools/call", `7`, obj, obj, true, modern, codeInvalidParams},
		{"another version", "tools/call", `"2027-01-01"`, obj, obj, true, modern, codeUnsupportedVersion},
		{"a legacy version in _meta", "tools/list", `"2025-06-18"`, obj, obj, true, modern, codeUnsupportedVersion},
		{"the version is looked at first", "tools/call", `"2027-01-01"`, none, none, true, modern, codeUnsupportedVersion},
		{"server/discover bare, after a handshake", "server/discover", none, none, none, true, modern, codeInvalidParams},
		{"subscriptions/listen bare", "subscriptions/listen", none, none, none, true, modern, codeInvalidParams},
	}
	for _, tt := range tests {
		m := meta{version: raw(tt.version), client: raw(tt.client), capabilities: raw(tt.capabilities)}
		got, e := decideEra(tt.method, m, tt.handshake)
		code := 0
		if e != nil {
			code = e.code
		}
		if got != tt.want || code != tt.code {
			t.Errorf("%s: era %d code %d, want %d and %d", tt.name, got, code, tt.want, tt.code)
		}
	}
}

func raw(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

func TestAnUnsupportedVersionIsCut(t *testing.T) {
	_, e := decideEra("x", meta{version: []byte(`"` + strings.Repeat("é", 100) + `"`), capabilities: []byte("{}")}, false)
	if want := `{"supported":["2026-07-28"],"requested":"` + strings.Repeat("é", 32) + `…"}`; string(e.data) != want {
		t.Fatalf("data %s", e.data)
	}
}

func TestNegotiate(t *testing.T) {
	for wanted, want := range map[string]string{
		"2024-11-05": "2024-11-05", "2025-03-26": "2025-03-26", "2025-06-18": "2025-06-18", "2025-11-25": "2025-11-25",
		"2026-07-28": "2025-11-25", "": "2025-11-25", "1.0": "2025-11-25", "2024-10-07": "2025-11-25",
	} {
		if got := negotiate(wanted); got != want {
			t.Errorf("%q: %q, want %q", wanted, got, want)
		}
	}
}

func TestTraceparent(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
	if traceparent([]byte(`"`+good+`"`)) != good {
		t.Error("a traceparent was dropped")
	}
	for _, bad := range []string{
		``, `7`, `""`, `"` + good + `-00"`, `"01` + good[2:] + `"`, `"` + strings.ToUpper(good) + `"`,
		`"` + strings.Replace(good, "0af7651916cd43dd8448eb211c80319c", strings.Repeat("0", 32), 1) + `"`,
		`"` + strings.Replace(good, "00f067aa0ba902b7", strings.Repeat("0", 16), 1) + `"`,
		`"` + strings.Replace(good, "-01", "_01", 1) + `"`,
	} {
		if got := traceparent(raw(bad)); got != "" {
			t.Errorf("%s: %q", bad, got)
		}
	}
}

func TestHarnessCall(t *testing.T) {
	long := `"` + strings.Repeat("x", 257) + `"`
	for _, tt := range []struct{ claude, codex, want string }{
		{`"toolu_1"`, ``, "toolu_1"},
		{``, `"call_1"`, "call_1"},
		{`"toolu_1"`, `"call_1"`, "toolu_1"},
		{`7`, `"call_1"`, "call_1"},
		{long, ``, ""},
		{`""`, `null`, ""},
		{`"a\u0062"`, ``, "ab"},
	} {
		if got := harnessCall(meta{claude: raw(tt.claude), callID: raw(tt.codex)}); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}

package egress_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"sallyport.dev/host/egress"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const canary = "key-canary-5d1e"

type provider struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
	answer   http.HandlerFunc
}

func newProvider(t *testing.T) *provider {
	p := &provider{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		p.mu.Lock()
		p.requests = append(p.requests, r)
		p.bodies = append(p.bodies, string(b))
		p.mu.Unlock()
		if p.answer != nil {
			p.answer(w, r)
			return
		}
		fmt.Fprint(w, `{"usage":{"input_tokens":10,"output_tokens":7}}`)
	}))
	t.Cleanup(p.Close)
	return p
}

type gate struct {
	*egress.Gateway
	client *http.Client
	mu     sync.Mutex
	lines  []egress.Decision
}

func open(t *testing.T, name string, p *provider, policy egress.Policy) *gate {
	t.Helper()
	t.Setenv("SALLYPORT_TEST_KEY", canary)
	g := &gate{}
	transport := egress.NewTransport()
	t.Cleanup(transport.CloseIdleConnections)
	policy.Session, policy.Provider = "s", name
	var err error
	g.Gateway, err = egress.New(policy, egress.Source{Provider: name, URL: p.URL, Env: "SALLYPORT_TEST_KEY"}, transport, func(d egress.Decision) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.lines = append(g.lines, d)
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "bridge.sock")
	l, err := egress.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- egress.Serve(ctx, l, g.Gateway, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	unix := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(unix.CloseIdleConnections)
	g.client = &http.Client{Transport: unix, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return g
}

func (g *gate) do(t *testing.T, method, path, body string, header http.Header) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://bridge"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	r, err := g.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func (g *gate) last() egress.Decision {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lines[len(g.lines)-1]
}

// The bytes that were ruled on are the bytes that are sent; the host's key goes with them, the guest's own authorization does not.
func TestForwardsExactBytesWithTheHostsKey(t *testing.T) {
	p := newProvider(t)
	g := open(t, "anthropic", p, egress.Policy{})
	body := `{ "model":"m", "max_tokens":1e2, "messages":[{"role":"user","content":"\u00e9 é"}], "tools":[{"name":"t","input_schema":{}},{"type":"custom","name":"u"}],"mcp_servers":[]}`
	status, answer := g.do(t, "POST", "/anthropic/v1/messages?beta=true", body, http.Header{
		"Authorization": {"Bearer guest"}, "X-Api-Key": {"guest"}, "Cookie": {"a=b"}, "X-Forwarded-For": {"1.2.3.4"}, "Content-Type": {"application/json"},
		"Anthropic-Version": {"2023-06-01"}, "Anthropic-Beta": {"claude-code-20250219, unknown-2030-01-01,interleaved-thinking-2025-05-14"},
	})
	if status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	r := p.requests[0]
	if p.bodies[0] != body {
		t.Errorf("body changed: %s", p.bodies[0])
	}
	if r.URL.RequestURI() != "/v1/messages?beta=true" || r.Header.Get("X-Api-Key") != canary || r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" || r.Header.Get("X-Forwarded-For") != "" {
		t.Errorf("request: %s %v", r.URL, r.Header)
	}
	if b := r.Header.Get("Anthropic-Beta"); b != "claude-code-20250219,interleaved-thinking-2025-05-14" {
		t.Errorf("betas: %s", b)
	}
	if d := g.last(); d.Verdict != egress.Allowed || d.Tokens != 17 || d.BytesIn == 0 || d.BytesOut != int64(len(body)) {
		t.Errorf("decision: %+v", d)
	}
	if strings.Contains(fmt.Sprint(egress.NewKey(canary)), canary) || strings.Contains(fmt.Sprintf("%#v", egress.NewKey(canary)), canary) {
		t.Error("a key prints")
	}
}

func TestRefuses(t *testing.T) {
	msg := func(extra string) string {
		return `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]` + extra + `}`
	}
	resp := func(extra string) string { return `{"model":"m","store":false,"input":"x"` + extra + `}` }
	for name, c := range map[string]struct {
		provider, method, path, body string
		want                         egress.Verdict
	}{
		"web search":            {"anthropic", "POST", "/v1/messages", msg(`,"tools":[{"type":"web_search_20250305","name":"web_search"}]`), egress.RefusedServerTool},
		"web fetch":             {"anthropic", "POST", "/v1/messages", msg(`,"tools":[{"name":"a"},{"type":"web_fetch_20250910","name":"f"}]`), egress.RefusedServerTool},
		"code execution":        {"anthropic", "POST", "/v1/messages", msg(`,"tools":[{"type":"code_execution_20250825","name":"c"}]`), egress.RefusedServerTool},
		"mcp servers":           {"anthropic", "POST", "/v1/messages", msg(`,"mcp_servers":[{"type":"url","url":"https://x","name":"x"}]`), egress.RefusedMCP},
		"container":             {"anthropic", "POST", "/v1/messages", msg(`,"container":"c1"`), egress.RefusedServerTool},
		"unknown member":        {"anthropic", "POST", "/v1/messages", msg(`,"new_thing":1`), egress.RefusedMember},
		"duplicate member":      {"anthropic", "POST", "/v1/messages", msg(`,"model":"n"`), egress.RefusedBody},
		"duplicate by escape":   {"anthropic", "POST", "/v1/messages", msg(`,"mode\u006c":"n"`), egress.RefusedBody},
		"not JSON":              {"anthropic", "POST", "/v1/messages", `{"model"`, egress.RefusedBody},
		"trailing":              {"anthropic", "POST", "/v1/messages", msg("") + "{}", egress.RefusedBody},
		"bad UTF-8":             {"anthropic", "POST", "/v1/messages", msg(",\"metadata\":\"\xff\""), egress.RefusedBody},
		"image by url":          {"anthropic", "POST", "/v1/messages", `{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https://x"}}]}]}`, egress.RefusedSource},
		"document by file":      {"anthropic", "POST", "/v1/messages", `{"messages":[{"role":"user","content":[{"type":"document","source":{"type":"file","file_id":"f"}}]}]}`, egress.RefusedSource},
		"nested in tool result": {"anthropic", "POST", "/v1/messages", `{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"url","url":"https://x"}}]}]}]}`, egress.RefusedSource},
		"container upload":      {"anthropic", "POST", "/v1/messages", `{"messages":[{"role":"user","content":[{"type":"container_upload","file_id":"f"}]}]}`, egress.RefusedSource},
		"files api":             {"anthropic", "POST", "/v1/files", `{}`, egress.RefusedPath},
		"batches":               {"anthropic", "POST", "/v1/messages/batches", `{}`, egress.RefusedPath},
		"dot segments":          {"anthropic", "POST", "/v1/messages/../files", msg(""), egress.RefusedPath},
		"double slash":          {"anthropic", "POST", "//v1/messages", msg(""), egress.RefusedPath},
		"escaped":               {"anthropic", "POST", "/v1/mess%61ges", msg(""), egress.RefusedPath},
		"query":                 {"anthropic", "POST", "/v1/messages?x=1", msg(""), egress.RefusedPath},
		"other method":          {"anthropic", "DELETE", "/v1/models/x", "", egress.RefusedPath},
		"stored":                {"openai", "POST", "/v1/responses", `{"model":"m","input":"x"}`, egress.RefusedStored},
		"store true":            {"openai", "POST", "/v1/responses", `{"model":"m","input":"x","store":true}`, egress.RefusedStored},
		"background":            {"openai", "POST", "/v1/responses", resp(`,"background":true`), egress.RefusedStored},
		"previous response":     {"openai", "POST", "/v1/responses", resp(`,"previous_response_id":"r"`), egress.RefusedStored},
		"stored prompt":         {"openai", "POST", "/v1/responses", resp(`,"prompt":{"id":"p"}`), egress.RefusedStored},
		"openai web search":     {"openai", "POST", "/v1/responses", resp(`,"tools":[{"type":"web_search"}]`), egress.RefusedServerTool},
		"openai mcp":            {"openai", "POST", "/v1/responses", resp(`,"tools":[{"type":"mcp","server_url":"https://x"}]`), egress.RefusedServerTool},
		"inside a namespace":    {"openai", "POST", "/v1/responses", resp(`,"tools":[{"type":"namespace","name":"n","tools":[{"type":"mcp"}]}]`), egress.RefusedServerTool},
		"image address":         {"openai", "POST", "/v1/responses", `{"model":"m","store":false,"input":[{"role":"user","content":[{"type":"input_image","image_url":"https://x"}]}]}`, egress.RefusedSource},
		"file address":          {"openai", "POST", "/v1/responses", `{"model":"m","store":false,"input":[{"role":"user","content":[{"type":"input_file","file_url":"https://x"}]}]}`, egress.RefusedSource},
		"tools of an item":      {"openai", "POST", "/v1/responses", `{"model":"m","store":false,"input":[{"type":"additional_tools","tools":[{"type":"web_search"}]}]}`, egress.RefusedServerTool},
		"an item's mcp server":  {"openai", "POST", "/v1/responses", `{"model":"m","store":false,"input":[{"role":"user","content":"x"},{"type":"additional_tools","tools":[{"type":"namespace","tools":[{"type":"mcp","server_url":"https://x"}]}]}]}`, egress.RefusedServerTool},
		"the provider's search": {"openai", "POST", "/v1/responses", resp(`,"tools":[{"type":"tool_search"}]`), egress.RefusedServerTool},
		"item reference":        {"openai", "POST", "/v1/responses", `{"model":"m","store":false,"input":[{"type":"item_reference","id":"x"}]}`, egress.RefusedStored},
		"chat image address":    {"openai", "POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x"}}]}]}`, egress.RefusedSource},
		"chat web search":       {"openai", "POST", "/v1/chat/completions", `{"model":"m","messages":[],"web_search_options":{}}`, egress.RefusedMember},
		"openai files":          {"openai", "POST", "/v1/files", `{}`, egress.RefusedPath},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t)
			g := open(t, c.provider, p, egress.Policy{})
			status, answer := g.do(t, c.method, "/"+c.provider+c.path, c.body, nil)
			if status < 400 || len(p.requests) > 0 {
				t.Fatalf("passed: %d", status)
			}
			var shape struct{ Error struct{ Message string } }
			if json.Unmarshal([]byte(answer), &shape) != nil || shape.Error.Message == "" {
				t.Errorf("not the provider's error form: %s", answer)
			}
			if d := g.last(); d.Verdict != c.want {
				t.Errorf("verdict %s (%s), want %s", d.Verdict, d.Reason, c.want)
			}
		})
	}
}

func TestPasses(t *testing.T) {
	for name, c := range map[string]struct{ provider, method, path, body string }{
		"inline image":       {"anthropic", "POST", "/v1/messages", `{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="}}]}]}`},
		"tool input":         {"anthropic", "POST", "/v1/messages", `{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"n","input":{"source":{"type":"url","url":"https://x"}}}]}]}`},
		"count tokens":       {"anthropic", "POST", "/v1/messages/count_tokens", `{"messages":[]}`},
		"head":               {"anthropic", "HEAD", "/", ""},
		"models":             {"openai", "GET", "/v1/models", ""},
		"inline openai":      {"openai", "POST", "/v1/responses", `{"model":"m","store":false,"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AA=="}]}]}`},
		"function output":    {"openai", "POST", "/v1/responses", `{"model":"m","store":false,"background":false,"previous_response_id":null,"input":[{"type":"function_call_output","call_id":"c","output":"https://x"}],"tools":[{"type":"function","name":"f"},{"type":"namespace","name":"n","tools":[{"type":"function","name":"g"}]}]}`},
		"client tool search": {"openai", "POST", "/v1/responses", `{"model":"m","store":false,"input":[{"type":"additional_tools","tools":[{"type":"function","name":"f"}]}],"tools":[{"type":"tool_search","execution":"client"}]}`},
		"chat":               {"openai", "POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"include_usage":true},"store":false}`},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t)
			g := open(t, c.provider, p, egress.Policy{})
			if status, answer := g.do(t, c.method, "/"+c.provider+c.path, c.body, nil); status != 200 || len(p.requests) != 1 {
				t.Fatalf("%d %s", status, answer)
			}
			want := canary
			if c.provider == "openai" {
				if got := p.requests[0].Header.Get("Authorization"); got != "Bearer "+want {
					t.Errorf("authorization %q", got)
				}
			}
		})
	}
}

func TestProfileLetsAFeatureIn(t *testing.T) {
	p := newProvider(t)
	g := open(t, "openai", p, egress.Policy{Allow: []string{"web_search"}})
	body := `{"model":"m","store":false,"input":"x","tools":[{"type":"web_search"}]}`
	if status, answer := g.do(t, "POST", "/openai/v1/responses", body, nil); status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
}

func TestOtherProviderAndOff(t *testing.T) {
	p := newProvider(t)
	g := open(t, "anthropic", p, egress.Policy{})
	if status, _ := g.do(t, "GET", "/openai/v1/models", "", nil); status != 403 || g.last().Verdict != egress.RefusedOff {
		t.Errorf("another provider: %d", status)
	}
	if status, _ := g.do(t, "GET", "/", "", nil); status != 404 {
		t.Errorf("root: %d", status)
	}
	g.Revoke(true)
	if status, _ := g.do(t, "GET", "/anthropic/v1/models", "", nil); status != 403 {
		t.Errorf("revoked: %d", status)
	}
	g.Revoke(false)
	if status, _ := g.do(t, "GET", "/anthropic/v1/models", "", nil); status != 200 {
		t.Errorf("restored: %d", status)
	}
}

func TestBudgets(t *testing.T) {
	p := newProvider(t)
	g := open(t, "anthropic", p, egress.Policy{MaxTokens: 20})
	body := `{"messages":[]}`
	for range 2 {
		if status, _ := g.do(t, "POST", "/anthropic/v1/messages", body, nil); status != 200 {
			t.Fatalf("within the budget: %d", status)
		}
	}
	if status, _ := g.do(t, "POST", "/anthropic/v1/messages", body, nil); status != 429 || g.last().Verdict != egress.RefusedSize {
		t.Errorf("over the budget: %d", status)
	}
}

// A stream arrives unbuffered: the first event is read while the provider still holds the second one back.
func TestStreamsUnbuffered(t *testing.T) {
	p := newProvider(t)
	release := make(chan struct{})
	p.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: one\n\n")
		w.(http.Flusher).Flush()
		<-release
		fmt.Fprint(w, "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":5}}\n\n")
	}
	g := open(t, "anthropic", p, egress.Policy{})
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://bridge/anthropic/v1/messages", strings.NewReader(`{"messages":[],"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := g.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	first := make([]byte, len("data: one\n\n"))
	if _, err := io.ReadFull(r.Body, first); err != nil || string(first) != "data: one\n\n" {
		t.Fatalf("first event: %q %v", first, err)
	}
	close(release)
	if _, err := io.ReadAll(r.Body); err != nil {
		t.Fatal(err)
	}
}

// A redirect would take the request, and maybe the key, elsewhere: the guest gets an error, the other place nothing.
func TestNeverFollowsOrHandsOnARedirect(t *testing.T) {
	other := newProvider(t)
	p := newProvider(t)
	p.answer = func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}
	g := open(t, "anthropic", p, egress.Policy{})
	if status, answer := g.do(t, "POST", "/anthropic/v1/messages", `{"messages":[]}`, nil); status != 502 || strings.Contains(answer, other.URL) {
		t.Errorf("%d %s", status, answer)
	}
	if len(other.requests) != 0 {
		t.Error("followed")
	}
}

func TestCookiesOfTheProviderStayOutside(t *testing.T) {
	p := newProvider(t)
	p.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "a=b")
		w.WriteHeader(200)
	}
	g := open(t, "anthropic", p, egress.Policy{})
	req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://bridge/anthropic/v1/models", nil)
	r, err := g.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if len(r.Header["Set-Cookie"]) > 0 {
		t.Error("a cookie came through")
	}
}

func TestSourceValidation(t *testing.T) {
	for name, s := range map[string]egress.Source{
		"two":      {Provider: "anthropic", Env: "A", File: "b"},
		"none":     {Provider: "anthropic"},
		"provider": {Provider: "x", Env: "A"},
		"auth":     {Provider: "openai", Env: "A", Auth: "basic"},
		"url":      {Provider: "openai", Env: "A", URL: "ftp://x"},
		"userinfo": {Provider: "openai", Env: "A", URL: "https://u:p@x"},
	} {
		if s.Validate(name) == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if err := (egress.Source{Provider: "openai", Env: "A"}).Validate("ok"); err != nil {
		t.Error(err)
	}
}

func FuzzRulings(f *testing.F) {
	f.Add("anthropic", "/v1/messages", `{"messages":[{"content":[{"type":"image","source":{"type":"url"}}]}]}`)
	f.Add("openai", "/v1/responses", `{"store":false,"tools":[{"type":"namespace","tools":[{"type":"mcp"}]}]}`)
	f.Fuzz(func(t *testing.T, provider, path, body string) {
		r := egress.Rule(provider, "POST", path, "", []byte(body))
		if r.Verdict != egress.Allowed {
			return
		}
		if !json.Valid([]byte(body)) {
			t.Fatal("let through what is not JSON")
		}
		if strings.Contains(body, `"type":"url","url"`) && provider == "anthropic" && strings.Contains(body, `"source":{"type":"url"`) && !strings.Contains(body, "input") {
			t.Fatalf("let an address through: %s", body)
		}
	})
}

package upstream

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport.dev/worker/netguard"
)

// platform is a receiver of callbacks that checks signatures as Standard Webhooks receivers do.
type platform struct {
	key []byte

	mu     sync.Mutex
	bodies []string
	answer func(http.ResponseWriter)
}

func (p *platform) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	id, stamp := r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp")
	m := hmac.New(sha256.New, p.key)
	fmt.Fprintf(m, "%s.%s.%s", id, stamp, body)
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	switch age := time.Since(time.Unix(seconds, 0)); {
	case r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json":
		http.Error(w, "not a callback", http.StatusUnsupportedMediaType)
		return
	case err != nil, age > 5*time.Minute, age < -5*time.Minute, id == "",
		r.Header.Get("webhook-signature") != "v1,"+base64.StdEncoding.EncodeToString(m.Sum(nil)):
		http.Error(w, "bad signature", http.StatusUnauthorized)
		return
	}
	p.mu.Lock()
	p.bodies = append(p.bodies, string(body))
	answer := p.answer
	p.mu.Unlock()
	answer(w)
}

func TestCallback(t *testing.T) {
	key := []byte("0123456789abcdef0123456789abcdef")
	p := &platform{key: key}
	srv := httptest.NewServer(p)
	defer srv.Close()
	c := New(&netguard.Guard{}, "test")
	defer c.Close()
	secret, err := SigningKey("whsec_" + base64.StdEncoding.EncodeToString(key))
	if err != nil {
		t.Fatal(err)
	}
	tg := &Target{Origin: srv.URL, Path: "/agent-tools?x=1", Allow: []string{"127.0.0.0/8"}, PlainHTTP: true, Credential: secret}
	send := func(write bool) Outcome {
		prepared, err := c.PrepareCallback(deadline(t), tg, &Callback{
			ID: "3fcall", Tool: "deploy", Arguments: []byte("{ \"n\":12345678901234567890 }"), Session: "s1", Owner: "local:ana", Write: write,
			Trace: "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01",
		}, Hooks{})
		if err != nil {
			t.Fatal(err)
		}
		return prepared.Send(deadline(t))
	}
	answer := func(status int, media, body string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			if media != "" {
				w.Header().Set("Content-Type", media)
			}
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	for name, tt := range map[string]struct {
		answer    func(http.ResponseWriter)
		failure   Failure
		transport Transport
		body      string
	}{
		"result":    {answer(200, "application/json", `{"content":[],"n":1.10}`), "", Answered, `{"content":[],"n":1.10}`},
		"structure": {answer(201, "application/json; charset=utf-8", ` [1, 2] `), "", Answered, ` [1, 2] `},
		"accepted":  {answer(202, "application/json", `{"queued":true}`), "", Answered, `{"queued":true}`},
		"nothing":   {answer(204, "", ""), FailNoAnswer, Answered, ""},
		"empty":     {answer(202, "", ""), FailNoAnswer, Answered, ""},
		"text":      {answer(200, "text/plain", "done"), FailMedia, Sent, ""},
		"bad json":  {answer(200, "application/json", `{"a":1,"a":2}`), FailJSON, Sent, ""},
		"refused":   {answer(422, "application/json", `{"error":"no"}`), FailStatus, Answered, ""},
		"broken":    {answer(500, "text/html", "<html>"), FailStatus, Answered, ""},
		"redirect": {func(w http.ResponseWriter) {
			w.Header().Set("Location", "/other")
			w.WriteHeader(http.StatusPermanentRedirect)
		}, FailStatus, Answered, ""},
		"too much":     {answer(200, "application/json", `"`+strings.Repeat("x", 2<<20)+`"`), FailOversize, Sent, ""},
		"event stream": {answer(200, "text/event-stream", "data: {}\n\n"), FailMedia, Sent, ""},
	} {
		for _, write := range []bool{true, false} {
			p.mu.Lock()
			p.answer, p.bodies = tt.answer, nil
			p.mu.Unlock()
			out := send(write)
			if out.Failure != tt.failure || out.Transport != tt.transport || string(out.Body) != tt.body || write && out.Reused {
				t.Errorf("%s: %+v %s", name, out, out.Body)
			}
			want := "{\"call\":\"3fcall\",\"tool\":\"deploy\",\"arguments\":{ \"n\":12345678901234567890 },\"session\":\"s1\",\"owner\":\"local:ana\"}"
			p.mu.Lock()
			if len(p.bodies) != 1 || p.bodies[0] != want {
				t.Errorf("%s: received %q", name, p.bodies)
			}
			p.mu.Unlock()
		}
	}
	tg.Credential, _ = SigningKey(strings.Repeat("x", 32))
	if out := send(true); out.Status != 401 || out.Failure != FailStatus {
		t.Errorf("a foreign key: %+v", out)
	}
}

// The vector of the Standard Webhooks specification.
func TestSignatureVector(t *testing.T) {
	key, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	got := signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got[2][1] != want {
		t.Errorf("signature %s, want %s", got[2][1], want)
	}
	if n := len(signature(nil, "a", time.Unix(0, 0), nil)); n != 2 {
		t.Errorf("without a key %d headers", n)
	}
}

func TestCallbackRefuses(t *testing.T) {
	c := New(&netguard.Guard{}, "test")
	defer c.Close()
	tg := &Target{Origin: "https://example.org", Path: "/"}
	for name, call := range map[string]Callback{
		"no id":        {Tool: "t", Arguments: []byte("{}")},
		"bad id":       {ID: "a\r\nb", Tool: "t", Arguments: []byte("{}")},
		"no tool":      {ID: "a", Arguments: []byte("{}")},
		"no arguments": {ID: "a", Tool: "t"},
		"injection":    {ID: "a", Tool: "t", Arguments: []byte(`{},"owner":"admin"`)},
		"array":        {ID: "a", Tool: "t", Arguments: []byte(`[]`)},
		"trace":        {ID: "a", Tool: "t", Arguments: []byte("{}"), Trace: "x\r\ny"},
	} {
		if _, err := c.PrepareCallback(context.Background(), tg, &call, Hooks{}); FailureOf(err) != FailRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// nowhere knows no name.
type nowhere struct{}

func (nowhere) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return nil, errors.New("no such host")
}

func TestCallRefuses(t *testing.T) {
	c := New(&netguard.Guard{Resolver: nowhere{}}, "test")
	defer c.Close()
	good := Call{ID: "a", Tool: "t", Arguments: []byte("{}")}
	for name, change := range map[string]func(*Call, *Target){
		"no id":         func(q *Call, _ *Target) { q.ID = "" },
		"bad id":        func(q *Call, _ *Target) { q.ID = `a"b` },
		"long id":       func(q *Call, _ *Target) { q.ID = strings.Repeat("a", 65) },
		"no tool":       func(q *Call, _ *Target) { q.Tool = "" },
		"long tool":     func(q *Call, _ *Target) { q.Tool = strings.Repeat("a", 513) },
		"no arguments":  func(q *Call, _ *Target) { q.Arguments = nil },
		"two values":    func(q *Call, _ *Target) { q.Arguments = []byte(`{}{}`) },
		"injection":     func(q *Call, _ *Target) { q.Arguments = []byte(`{},"name":"other"`) },
		"duplicates":    func(q *Call, _ *Target) { q.Arguments = []byte(`{"a":1,"a":2}`) },
		"bad utf-8":     func(q *Call, _ *Target) { q.Arguments = []byte("{\"a\":\"\xff\"}") },
		"bad state":     func(q *Call, _ *Target) { q.RequestState = []byte(`"x","y":1`) },
		"bad responses": func(q *Call, _ *Target) { q.InputResponses = []byte(`[]`) },
		"bad trace":     func(q *Call, _ *Target) { q.Trace = "00-x" },
		"bad schema":    func(q *Call, _ *Target) { q.Schema = []byte(`{`) },
		"unknown era":   func(_ *Call, g *Target) { g.Protocol = "2031-01-01" },
		"no origin":     func(_ *Call, g *Target) { g.Origin = "" },
		"no path":       func(_ *Call, g *Target) { g.Path = "" },
	} {
		call, tg := good, Target{Origin: "https://example.org", Path: "/", Protocol: Modern}
		change(&call, &tg)
		if _, err := c.Prepare(context.Background(), &tg, &call, Hooks{}); FailureOf(err) != FailRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	for want, tg := range map[Failure]Target{
		FailAddress: {Origin: "http://169.254.169.254", Path: "/latest/meta-data/", PlainHTTP: true, Protocol: Modern},
		FailResolve: {Origin: "https://nothing.invalid", Path: "/", Protocol: Modern},
		FailConnect: {Origin: "http://127.0.0.1:1", Path: "/", Allow: []string{"127.0.0.0/8"}, PlainHTTP: true, Protocol: Modern},
	} {
		if _, err := c.Prepare(deadline(t), &tg, &good, Hooks{}); FailureOf(err) != want {
			t.Errorf("%s: %v", want, err)
		}
	}
}

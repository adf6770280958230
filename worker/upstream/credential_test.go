package upstream

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
	"sallyport.dev/test/fixture/fault"
	"sallyport.dev/test/fixture/mcpserver"
)

const canary = `canary-7f3a"\secret/token`

func TestCredentialShowsNothing(t *testing.T) {
	header, err := Header("X-Api-Key", canary)
	if err != nil {
		t.Fatal(err)
	}
	bearer, err := Bearer("canary-7f3a")
	if err != nil {
		t.Fatal(err)
	}
	key, err := SigningKey("canary-7f3a-canary-7f3a-canary")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []Credential{header, bearer, key, None()} {
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "c", c, "in", struct{ C Credential }{c}, "target", Target{Credential: c}, "p", &c)
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "c", c, "target", Target{Credential: c})
		js, _ := json.Marshal(struct{ C Credential }{c})
		log.Write(js)
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%p"} {
			fmt.Fprintf(&log, verb+verb+verb, c, &c, Target{Credential: c})
		}
		if c.c != nil {
			fmt.Fprint(&log, c.identity())
		}
		for _, form := range []string{"canary", hexOf("canary"), base64.StdEncoding.EncodeToString([]byte("canary-"))} {
			if strings.Contains(log.String(), form) {
				t.Errorf("%q shows in %s", form, log.String())
			}
		}
	}
}

func hexOf(s string) string { return fmt.Sprintf("%x", s) }

func TestCredentialRefuses(t *testing.T) {
	for _, name := range []string{"", "Host", "content-length", "Transfer-Encoding", "Connection", "Mcp-Session-Id", "mcp-param-x", "Webhook-Id", "Cookie", "Idempotency-Key", "X Y", "X:Y", "X\r\nY"} {
		if _, err := Header(name, "canary"); errs.CodeOf(err) != errs.Invalid || strings.Contains(err.Error(), "canary") {
			t.Errorf("header %q: %v", name, err)
		}
	}
	for _, value := range []string{"", " canary", "canary ", "canary\r\nX: y", "canary\x00", "can\u00e4ry", "canary\x7f"} {
		if _, err := Header("X-Key", value); errs.CodeOf(err) != errs.Invalid || strings.Contains(err.Error(), "canary") {
			t.Errorf("value %q: %v", value, err)
		}
	}
	for _, token := range []string{"", "a b", "a\tb"} {
		if _, err := Bearer(token); err == nil {
			t.Errorf("token %q passed", token)
		}
	}
	for _, key := range []string{"", "short", "whsec_!!", "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 23)), strings.Repeat("x", 65)} {
		if _, err := SigningKey(key); err == nil {
			t.Errorf("key %q passed", key)
		}
	}
}

func TestScrubJSON(t *testing.T) {
	c, _ := Header("Authorization", "Bearer tok/en-12345678")
	for doc, want := range map[string]string{
		`{"a":"tok/en-12345678"}`:                                 `{"a":"[credential removed]"}`,
		`{"a":"x Bearer tok/en-12345678 y","b":1.0}`:              `{"a":"x Bearer [credential removed] y","b":1.0}`,
		`{"a":"tok\/en-12345678"}`:                                `{"a":"[credential removed]"}`,
		`{"a":["\u0074ok/en-1234567\u0038","\u0074"]}`:            `{"a":["[credential removed]","\u0074"]}`,
		`{"tok\u002fen-12345678":"\"tok/en-12345678\"","c":"\\"}`: `{"[credential removed]":"\"[credential removed]\"","c":"\\"}`,
		`{"a":"tok/en-1234567"}`:                                  `{"a":"tok/en-1234567"}`,
	} {
		got, found := c.scrubJSON([]byte(doc))
		if string(got) != want || found != (doc != want) {
			t.Errorf("%s became %s, %v", doc, got, found)
		}
		if strictjson.Check(got) != nil {
			t.Errorf("%s is no JSON", got)
		}
	}
	odd, _ := Header("X-Key", canary)
	doc := append(strictjson.AppendQuote([]byte(`{"a":`), canary), '}')
	if got, found := odd.scrubJSON(doc); !found || strings.Contains(string(got), "7f3a") {
		t.Errorf("%s", got)
	}
	if short, _ := Header("X-Key", "1234567"); len(short.secrets()) != 0 {
		t.Error("a short secret would match ordinary text")
	}
}

// A hostile server sends the credential back in every place that it has; it shows in none of ours.
func TestEchoedCredential(t *testing.T) {
	const token = "canary-echo-0123456789"
	s := mcpserver.Start(t, mcpserver.Options{Auth: mcpserver.Auth{Kind: mcpserver.Bearer, Secret: token}})
	c, tg := client(t, s), target(s, Modern)
	tg.Credential, _ = Bearer(token)
	out := dispatch(t, c, tg, &Call{ID: "echo", Tool: "echo_raw", Arguments: []byte(`{"x":"` + token + `"}`)}, Hooks{})
	if out.Failure != "" || !out.Redacted || out.Original == [32]byte{} || strings.Contains(string(out.Body), token) || !strings.Contains(string(out.Body), removed) {
		t.Errorf("%+v %s", out, out.Body)
	}
	for _, r := range []fault.Rule{
		{Kind: fault.Raw, Body: "HTTP/1.1 " + token + "\r\n\r\n"},
		{Kind: fault.Raw, Body: "HTTP/1.1 200 OK\r\nContent-Length: " + token + "\r\n\r\n"},
		{Kind: fault.Raw, Body: "HTTP/1.1 200 OK\r\n" + token + "\r\n\r\n"},
		{Kind: fault.Raw, Body: token},
		{Kind: fault.Status, Status: 401, Header: "WWW-Authenticate: Bearer error_description=" + token, Body: `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"` + token + `"}}`},
		{Kind: fault.Status, Status: 500, Body: token},
		{Kind: fault.RPCError, Code: -32000, Body: token},
		{Kind: fault.Redirect, Location: "http://other.example/?" + token},
	} {
		id := s.Fault(r)
		out := dispatch(t, c, tg, &Call{ID: "f", Tool: "echo", Arguments: []byte(`{"text":"x"}`)}, Hooks{})
		s.Faults.Remove(id)
		if text := fmt.Sprintf("%+v %s", out, out.Body); strings.Contains(text, token) {
			t.Errorf("%+v: it shows in %s", r, text)
		}
	}
	s.Fault(fault.Rule{Kind: fault.Status, Method: "server/discover", Status: 403, Header: "WWW-Authenticate: Bearer x=" + token, Body: token})
	tg.Protocol = ""
	_, err := c.Prepare(deadline(t), tg, readCall("p"), Hooks{})
	var e *Error
	if !errors.As(err, &e) || e.Failure != FailCredential || e.Challenge == "" || strings.Contains(fmt.Sprintf("%v %+v", err, e), token) {
		t.Errorf("%v", err)
	}
}

// A catalog that holds the credential is no catalog: it would be kept and served. Progress passes without it.
func TestEchoedCredentialBesideAnswers(t *testing.T) {
	const token = "canary-echo-0123456789"
	options := mcpserver.Options{Auth: mcpserver.Auth{Kind: mcpserver.Bearer, Secret: token}, Tools: []mcpserver.Tool{{
		Definition: `{"name":"chatty","description":"Chats.","inputSchema":{"type":"object"}}`, Stream: true,
		Run: func(c *mcpserver.Call) mcpserver.Answer {
			c.Progress(1, 2, strings.Repeat("x", progressText-len(token)+1)+token)
			return mcpserver.Text("done")
		},
	}}}
	for _, protocol := range []string{Modern, v20251125} {
		s := mcpserver.Start(t, options)
		c, tg := client(t, s), target(s, protocol)
		tg.Credential, _ = Bearer(token)
		var notes []string
		dispatch(t, c, tg, &Call{ID: "p", Tool: "chatty", Arguments: []byte(`{}`), Progress: true}, Hooks{Progress: func(p Progress) { notes = append(notes, p.Message) }})
		if len(notes) != 1 || strings.Contains(notes[0], token[:12]) {
			t.Errorf("%s: progress %q", protocol, notes)
		}
		if _, err := c.ListTools(deadline(t), tg); err != nil {
			t.Fatal(err)
		}
		for _, echo := range []string{token, "the key is " + token} {
			if err := s.Describe("chatty", echo); err != nil {
				t.Fatal(err)
			}
			list, err := c.ListTools(deadline(t), tg)
			if err == nil || strings.Contains(err.Error(), token) {
				t.Errorf("%s: %v, %v", protocol, list, err)
			}
		}
	}
}

// Two names that become one when the credential goes would be a document that two parsers read differently.
func TestScrubbedAnswerStaysStrict(t *testing.T) {
	c, _ := Bearer("canary-echo-0123456789")
	var out Outcome
	out.Transport = Answered
	out.setBody(c, []byte(`{"canary-echo-0123456789":1,"`+removed+`":2}`))
	if out.Failure != FailJSON || out.Body != nil || !out.Redacted {
		t.Errorf("%+v", out)
	}
}

func TestIdentity(t *testing.T) {
	a, _ := Bearer("one")
	b, _ := Bearer("two")
	a2, _ := Bearer("one")
	x, _ := Header("X", "Bearer one")
	if a.identity() != a2.identity() || a.identity() == b.identity() || a.identity() == x.identity() || a.identity() == None().identity() {
		t.Error("identities do not tell credentials apart")
	}
}

package upstream

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport.dev/test/fixture/fault"
	"sallyport.dev/test/fixture/mcpserver"
	"sallyport.dev/test/fixture/wire"
)

func rpcCount(s *mcpserver.Server, method string) int {
	return len(s.Recorder().Records(func(r *wire.Record) bool { return r.Note.RPC == method }))
}

// posted counts the requests whose body has a text in it.
func posted(s *mcpserver.Server, text string) int {
	return len(s.Recorder().Records(func(r *wire.Record) bool { return strings.Contains(string(r.Request.Body), text) }))
}

// age makes every session in memory look unchecked.
func age(c *Client) {
	for _, s := range c.sessions.slots {
		if s.s != nil {
			s.s.checked = time.Time{}
		}
	}
}

func TestSessionsAreSharedByTheirOwnerOnly(t *testing.T) {
	s := mcpserver.Start(t, mcpserver.Options{Eras: mcpserver.Legacy})
	c := client(t, s)
	var wg sync.WaitGroup
	for owner := range 3 {
		for n := range 8 {
			wg.Go(func() {
				tg := target(s, v20251125)
				tg.Owner = fmt.Sprint("owner ", owner)
				p, err := c.Prepare(t.Context(), tg, &Call{ID: fmt.Sprintf("c.%d.%d", owner, n), Tool: "echo", Arguments: []byte(`{"text":"x"}`)}, Hooks{})
				if err != nil {
					t.Error(err)
					return
				}
				if out := p.Send(t.Context()); out.Failure != "" {
					t.Errorf("%+v", out)
				}
			})
		}
	}
	wg.Wait()
	if n := rpcCount(s, "initialize"); n != 3 || s.Sessions() != 3 {
		t.Errorf("%d times initialize, %d sessions, for 3 owners", n, s.Sessions())
	}
	sessions := map[string]map[string]bool{}
	for _, r := range s.Calls("echo") {
		owner := strings.Split(string(r.Note.ID), ".")[1]
		if sessions[r.Note.Session] == nil {
			sessions[r.Note.Session] = map[string]bool{}
		}
		sessions[r.Note.Session][owner] = true
	}
	for id, owners := range sessions {
		if len(owners) != 1 {
			t.Errorf("session %s served %v", id, owners)
		}
	}
	// Another credential is another session, whoever claims to own it.
	tg := target(s, v20251125)
	tg.Owner = "owner 0"
	tg.Credential, _ = Bearer("another")
	dispatch(t, c, tg, &Call{ID: "other", Tool: "echo", Arguments: []byte(`{"text":"x"}`)}, Hooks{})
	if s.Sessions() != 4 {
		t.Error("a session was used with another credential")
	}
}

// A session that ended is found out before the call where it can be, and is final for the call where it cannot.
func TestSessionExpiry(t *testing.T) {
	s := mcpserver.Start(t, mcpserver.Options{Eras: mcpserver.Legacy})
	c, tg := client(t, s), target(s, v20251125)
	write := func(id string) Outcome {
		return dispatch(t, c, tg, &Call{ID: id, Tool: "create_issue", Arguments: []byte(writeArgs), Write: true}, Hooks{})
	}
	if out := write("w.1"); out.Failure != "" {
		t.Fatalf("%+v", out)
	}
	if n := rpcCount(s, "ping"); n != 0 {
		t.Errorf("%d pings for a fresh session", n)
	}
	age(c)
	if out := write("w.2"); out.Failure != "" || rpcCount(s, "ping") != 1 || rpcCount(s, "initialize") != 1 {
		t.Fatalf("%+v", out)
	}
	age(c)
	s.ExpireSessions()
	if out := write("w.3"); out.Failure != "" || rpcCount(s, "ping") != 2 || rpcCount(s, "initialize") != 2 {
		t.Fatalf("expired before Prepare: %+v", out)
	}
	p, err := c.Prepare(deadline(t), tg, &Call{ID: "w.4", Tool: "create_issue", Arguments: []byte(writeArgs), Write: true}, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	s.ExpireSessions()
	out := p.Send(deadline(t))
	if out.Failure != FailStatus || out.Status != 404 || out.Session != nil || posted(s, `"w.4"`) != 1 || rpcCount(s, "initialize") != 2 {
		t.Fatalf("expired after Prepare: %+v, %d calls", out, posted(s, `"w.4"`))
	}
	if out := write("w.5"); out.Failure != "" || rpcCount(s, "initialize") != 3 {
		t.Fatalf("after a 404: %+v", out)
	}
	if n := s.Effects().Count("create_issue"); n != 4 {
		t.Errorf("%d effects for 4 accepted calls", n)
	}
	// A refusal that is about the call leaves the session alone; a server may keep much in it.
	out = dispatch(t, c, tg, &Call{ID: "w.x", Tool: "create_issue", Arguments: []byte(`{"project":1}`), Write: true}, Hooks{})
	if out.Failure != "" || out.Session == nil || rpcCount(s, "initialize") != 3 {
		t.Errorf("refused arguments: %+v", out)
	}
	s.Fault(fault.Rule{Kind: fault.RPCError, Status: 400, Code: -32602, Body: "no", Times: 1})
	write("w.y")
	if out := write("w.z"); out.Failure != "" || rpcCount(s, "initialize") != 3 {
		t.Errorf("after an explained 400: %+v", out)
	}
	s.Fault(fault.Rule{Kind: fault.Status, Method: "ping", Status: 401, Times: 1})
	age(c)
	if _, err := c.Prepare(deadline(t), tg, writeCall("w.6"), Hooks{}); FailureOf(err) != FailCredential {
		t.Errorf("ping refused: %v", err)
	}
}

func TestSessionExport(t *testing.T) {
	s := mcpserver.Start(t, mcpserver.Options{Eras: mcpserver.Legacy})
	first, tg := client(t, s), target(s, v20251125)
	call := &Call{ID: "a", Tool: "echo", Arguments: []byte(`{"text":"x"}`)}
	p, err := first.Prepare(deadline(t), tg, call, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	exported := p.Session()
	out := p.Send(deadline(t))
	if out.Failure != "" || string(out.Session) != string(exported) || exported == nil {
		t.Fatalf("%+v, exported %d bytes", out, len(exported))
	}
	// Another worker goes on with it.
	second := client(t, s)
	call.ID, call.Session = "b", exported
	if out := dispatch(t, second, tg, call, Hooks{}); out.Failure != "" || rpcCount(s, "initialize") != 1 || string(out.Session) != string(exported) {
		t.Fatalf("%+v", out)
	}
	// It expired meanwhile: a new one, and an older export does not bring the dead one back.
	s.ExpireSessions()
	age(second)
	call.ID = "c"
	out = dispatch(t, second, tg, call, Hooks{})
	if out.Failure != "" || rpcCount(s, "initialize") != 2 || string(out.Session) == string(exported) {
		t.Fatalf("%+v", out)
	}
	call.ID = "d"
	if out := dispatch(t, second, tg, call, Hooks{}); out.Failure != "" || rpcCount(s, "initialize") != 2 {
		t.Fatalf("%+v", out)
	}
	if err := second.EndSession(deadline(t), tg, out.Session); err != nil || s.Sessions() != 0 {
		t.Errorf("%v, %d sessions", err, s.Sessions())
	}
	for _, bad := range []string{
		``, `{}`, `null`, `{"v":2,"protocol":"2025-11-25","id":"x","elicit":false}`, `{"v":1,"protocol":"2025-11-25","id":"x","elicit":0}`, `{"v":1,"protocol":"2026-07-28","id":"x","elicit":false}`, `{"v":1,"protocol":"2025-11-25","id":"x y","elicit":false}`,
		`{"v":1,"protocol":"2025-11-25","id":"x\r\ny","elicit":false}`, `{"v":1,"protocol":"2025-11-25","id":"x","elicit":false,"more":1}`, `{"v":1,"v":1,"protocol":"2025-11-25","id":"x","elicit":false}`,
	} {
		call.Session = []byte(bad)
		_, err := second.Prepare(deadline(t), tg, call, Hooks{})
		if FailureOf(err) != FailRequest {
			t.Errorf("session %s: %v", bad, err)
		}
	}
}

func TestInitializeFailures(t *testing.T) {
	for name, tt := range map[string]struct {
		rule fault.Rule
		want Failure
	}{
		"outage":           {fault.Rule{Kind: fault.Status, Method: "initialize", Status: 503}, FailInitialize},
		"refused":          {fault.Rule{Kind: fault.Status, Method: "initialize", Status: 403}, FailCredential},
		"redirect":         {fault.Rule{Kind: fault.Redirect, Method: "initialize", Location: "other"}, FailInitialize},
		"garbage":          {fault.Rule{Kind: fault.NotJSON, Method: "initialize"}, FailInitialize},
		"error":            {fault.Rule{Kind: fault.RPCError, Method: "initialize"}, FailInitialize},
		"note refused":     {fault.Rule{Kind: fault.Status, Method: "notifications/initialized", Status: 400}, FailInitialize},
		"dropped":          {fault.Rule{Kind: fault.Drop, Method: "initialize"}, FailInitialize},
		"unknown revision": {fault.Rule{Kind: fault.Raw, Method: "initialize", Body: "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + `{"jsonrpc":"2.0","id":"x","result":{"protocolVersion":"2030-01-01"}}`}, FailInitialize},
	} {
		t.Run(name, func(t *testing.T) {
			s := mcpserver.Start(t, mcpserver.Options{Eras: mcpserver.Legacy})
			s.Fault(tt.rule)
			c, tg := client(t, s), target(s, v20251125)
			_, err := c.Prepare(deadline(t), tg, writeCall("w"), Hooks{})
			if FailureOf(err) != tt.want {
				t.Errorf("%v", err)
			}
			if n := len(s.Calls("")); n != 0 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// A question that finds its connection dead is asked once more; a call never is.
func TestQuestionsSurviveDeadConnections(t *testing.T) {
	s := mcpserver.Start(t, mcpserver.Options{Eras: mcpserver.Legacy})
	c, tg := client(t, s), target(s, v20251125)
	dispatch(t, c, tg, &Call{ID: "a", Tool: "echo", Arguments: []byte(`{"text":"x"}`)}, Hooks{})
	age(c)
	s.Fault(fault.Rule{Kind: fault.Drop, Method: "ping", Times: 1})
	out := dispatch(t, c, tg, &Call{ID: "b", Tool: "create_issue", Arguments: []byte(writeArgs), Write: true}, Hooks{})
	if out.Failure != "" || rpcCount(s, "ping") != 2 {
		t.Errorf("%+v, %d pings", out, rpcCount(s, "ping"))
	}
	s.Fault(fault.Rule{Kind: fault.Drop, Times: 1})
	out = dispatch(t, c, tg, &Call{ID: "c", Tool: "echo", Arguments: []byte(`{"text":"x"}`)}, Hooks{})
	if out.Failure != FailReset || out.Transport != Sent || !out.Reused || len(s.Calls("echo")) != 2 {
		t.Errorf("a read on a dead connection: %+v, %d calls", out, len(s.Calls("echo")))
	}
}

func TestElicitation(t *testing.T) {
	accept := func(_ context.Context, params []byte) []byte {
		return []byte(`{"action":"accept","content":{"colour":"deep  red"}}`)
	}
	for _, protocol := range []string{v20251125, v20250618} {
		for name, tt := range map[string]struct {
			elicit bool
			ask    func(context.Context, []byte) []byte
			want   string
		}{
			"answered":     {true, accept, "colours: deep  red, deep  red"},
			"declined":     {true, func(context.Context, []byte) []byte { return nil }, "no colour was given"},
			"broken":       {true, func(context.Context, []byte) []byte { return []byte(`{"action":"accept"}{}`) }, "no colour was given"},
			"nobody":       {true, nil, "no colour was given"},
			"not declared": {false, accept, "this client cannot be asked"},
		} {
			t.Run(protocol+"/"+name, func(t *testing.T) {
				s := mcpserver.Start(t, mcpserver.Options{Eras: mcpserver.Legacy})
				c, tg := client(t, s), target(s, protocol)
				asked := 0
				hooks := Hooks{}
				if tt.ask != nil {
					hooks.Ask = func(ctx context.Context, params []byte) []byte {
						asked++
						if !strings.Contains(string(params), "Which colour?") {
							t.Errorf("asked %s", params)
						}
						return tt.ask(ctx, params)
					}
				}
				out := dispatch(t, c, tg, &Call{ID: "c", Tool: "choose", Arguments: []byte(`{"rounds":2}`), Elicit: tt.elicit}, hooks)
				if out.Failure != "" || !strings.Contains(string(out.Body), tt.want) {
					t.Errorf("%+v %s", out, out.Body)
				}
				if name == "answered" && asked != 2 || len(s.Calls("choose")) != 1 {
					t.Errorf("asked %d times, %d calls", asked, len(s.Calls("choose")))
				}
			})
		}
	}
}

// Requests of an old server that this client does not serve are answered with an error, by a POST of their own; on 2026-07-28 there are none.
func TestServerRequests(t *testing.T) {
	for _, protocol := range []string{v20251125, v20260728} {
		s := mcpserver.Start(t, mcpserver.Options{Framing: mcpserver.SSE})
		c, tg := client(t, s), target(s, protocol)
		s.Fault(fault.Rule{Kind: fault.ServerRequest})
		out := dispatch(t, c, tg, &Call{ID: "c", Tool: "echo", Arguments: []byte(`{"text":"x"}`)}, Hooks{})
		if out.Failure != "" {
			t.Errorf("%+v", out)
		}
		want := 1
		if protocol == Modern {
			want = 0
		}
		answers, err := s.Recorder().Wait(deadline(t), want, func(r *wire.Record) bool {
			return strings.Contains(string(r.Request.Body), `"error"`) && r.Request.Method == http.MethodPost
		})
		if err != nil || len(answers) != want {
			t.Errorf("%s: %d answers to the server", protocol, len(answers))
		}
		for _, a := range answers {
			if !strings.Contains(string(a.Request.Body), "-32601") {
				t.Errorf("answered %s", a.Request.Body)
			}
		}
	}
}

// input_required (SEP-2322): the answer is handed over as it came; the continuation is a call of its own, with a new id.
func TestContinuation(t *testing.T) {
	s := mcpserver.Start(t, mcpserver.Options{})
	c, tg := client(t, s), target(s, Modern)
	args := []byte(`{"service":"web","version":"1.2"}`)
	out := dispatch(t, c, tg, &Call{ID: "d.1", Tool: "deploy", Arguments: args, Write: true, Elicit: true}, Hooks{})
	m, err := parseMessage(out.Body)
	if err != nil || out.Failure != "" || text(m.result, "resultType") != "input_required" {
		t.Fatalf("%+v %s", out, out.Body)
	}
	state := appendText(nil, "x", text(m.result, "requestState"))
	state = state[len(`"x":`) : len(state)-1]
	out = dispatch(t, c, tg, &Call{
		ID: "d.2", Tool: "deploy", Arguments: args, Write: true, Elicit: true, RequestState: state,
		InputResponses: []byte(`{"confirm":{"action":"accept","content":{"service":"web"}}}`),
	}, Hooks{})
	if out.Failure != "" || !strings.Contains(string(out.Body), "deployed web 1.2") || s.Effects().Count("deploy") != 1 {
		t.Fatalf("%+v %s", out, out.Body)
	}
	out = dispatch(t, c, tg, &Call{ID: "d.3", Tool: "deploy", Arguments: args, Write: true}, Hooks{})
	if out.Failure != FailStatus || out.Status != 400 || !strings.Contains(string(out.Body), "-32021") {
		t.Errorf("without the capability: %+v %s", out, out.Body)
	}
}

// A task (SEP-2663): the call is answered with a handle, which is asked for with the same capabilities and its id in Mcp-Name.
func TestTask(t *testing.T) {
	s := mcpserver.Start(t, mcpserver.Options{})
	c, tg := client(t, s), target(s, Modern)
	made := func(id string) string {
		t.Helper()
		out := dispatch(t, c, tg, &Call{ID: id, Tool: "long_job", Arguments: []byte(`{"key":"` + id + `","title":"t"}`), Write: true}, Hooks{})
		m, err := parseMessage(out.Body)
		if err != nil || out.Failure != "" || text(m.result, "resultType") != "task" {
			t.Fatalf("%+v %s", out, out.Body)
		}
		return text(m.result, "taskId")
	}
	n := 0
	ask := func(task string, giveUp bool) message {
		t.Helper()
		n++
		out := dispatch(t, c, tg, &Call{ID: fmt.Sprintf("poll.%d", n), Task: task, GiveUp: giveUp}, Hooks{})
		m, err := parseMessage(out.Body)
		if err != nil || out.Failure != "" {
			t.Fatalf("%+v %s", out, out.Body)
		}
		return m
	}
	task := made("a")
	if m := ask(task, false); text(m.result, "status") != "working" {
		t.Fatalf("%s", m.raw)
	}
	s.Release("a")
	if err := s.Effects().Wait(deadline(t), "long_job", 1); err != nil {
		t.Fatal(err)
	}
	if m := ask(task, false); text(m.result, "status") != "completed" || !strings.Contains(string(m.result), "job 1 is done") {
		t.Fatalf("%s", m.raw)
	}
	other := made("b")
	if m := ask(other, true); m.fault != nil {
		t.Fatalf("%s", m.raw)
	}
	if m := ask(other, false); text(m.result, "status") != "cancelled" {
		t.Fatalf("%s", m.raw)
	}
	if m := ask("nobody's", false); m.code != codeParams {
		t.Fatalf("%s", m.raw)
	}
	old := mcpserver.Start(t, mcpserver.Options{Eras: mcpserver.Legacy})
	for name, bad := range map[string]*Call{"an old server": {ID: "x", Task: "t"}, "too long": {ID: "x", Task: strings.Repeat("x", MaxTask+1)}} {
		if p, err := client(t, old).Prepare(t.Context(), target(old, v20251125), bad, Hooks{}); err == nil {
			p.Close()
			t.Errorf("%s: prepared", name)
		}
	}
}

func TestProgress(t *testing.T) {
	for _, protocol := range []string{v20260728, v20251125} {
		s := mcpserver.Start(t, mcpserver.Options{})
		c, tg := client(t, s), target(s, protocol)
		var got []Progress
		out := dispatch(t, c, tg, &Call{ID: "p", Tool: "progress", Arguments: []byte(`{"steps":200}`), Progress: true}, Hooks{Progress: func(p Progress) { got = append(got, p) }})
		if out.Failure != "" || len(got) == 0 || got[0] != (Progress{1, 200, "step 1 of 200"}) || len(got) > 100 {
			t.Errorf("%+v, %d notes, %+v", out, len(got), got[:min(1, len(got))])
		}
		out = dispatch(t, c, tg, &Call{ID: "q", Tool: "progress", Arguments: []byte(`{"steps":2}`)}, Hooks{Progress: func(Progress) { t.Error("progress that was not asked for") }})
		if out.Failure != "" {
			t.Errorf("%+v", out)
		}
	}
}

// A connection opened under one policy, or with one credential, is never used under another.
func TestConnectionsAreNotShared(t *testing.T) {
	s := mcpserver.Start(t, mcpserver.Options{})
	c := client(t, s)
	read := func(tg *Target) (Outcome, error) {
		p, err := c.Prepare(deadline(t), tg, &Call{ID: "r", Tool: "echo", Arguments: []byte(`{"text":"x"}`)}, Hooks{})
		if err != nil {
			return Outcome{}, err
		}
		return p.Send(deadline(t)), nil
	}
	warm := func(n int) {
		if out, err := read(target(s, Modern)); err != nil || out.Failure != "" || out.Reused != (n > 0) {
			t.Fatalf("%+v, %v", out, err)
		}
	}
	warm(0)
	warm(1)
	narrow := target(s, Modern)
	narrow.Allow = nil
	if _, err := read(narrow); FailureOf(err) != FailAddress {
		t.Errorf("a connection that another policy opened served this one: %v", err)
	}
	other := target(s, Modern)
	other.Credential, _ = Bearer("somebody-else")
	if out, err := read(other); err != nil || out.Reused {
		t.Errorf("a connection of another credential was used: %+v, %v", out, err)
	}
	warm(2)
}

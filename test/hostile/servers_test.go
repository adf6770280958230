package hostile_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"sallyport.dev/test/fixture/fault"
	"sallyport.dev/test/fixture/mcpserver"
	"sallyport.dev/test/fixture/wire"
	"sallyport.dev/test/rig"
)

// hostility is one way in which a server is hostile, and what must come of it.
type hostility struct {
	name   string
	rule   fault.Rule
	write  string // the state of a write: never failed where something was sent
	read   string // and of a read
	line   string // what the journal says
	legacy string // and of a server of the old era, whose answers have other offsets
	large  bool   // it is played alone: memory is measured
}

const (
	lost  = "uncertain"
	fails = "failed"
)

func status(code int) string {
	return fmt.Sprintf("status: the server answered with a status (HTTP %d)", code)
}

// hostilities is the list.
func hostilities() []hostility {
	both := func(name string, r fault.Rule, line string, legacy ...string) hostility {
		h := hostility{name: name, rule: r, write: lost, read: fails, line: line, legacy: line}
		if len(legacy) > 0 {
			h.legacy = legacy[0]
		}
		return h
	}
	strict := func(detail string) string { return "json: what came is not one strict JSON-RPC answer: " + detail }
	gone := func(detail string) string { return "task: what became of the server's task is not known: " + detail }
	large := func(h hostility) hostility {
		h.large = true
		return h
	}
	list := []hostility{
		large(both("200 MB", fault.Rule{Kind: fault.Oversize}, "oversize: the answer is over a bound")),
		large(both("a gzip bomb", fault.Rule{Kind: fault.GzipBomb, Bytes: 256 << 20}, "encoding: the answer is compressed, which was not offered")),
		large(both("an endless event stream", fault.Rule{Kind: fault.EndlessSSE}, "oversize: the answer is over a bound")),
		both("a slow endless event stream", fault.Rule{Kind: fault.EndlessSSE, EveryMS: 20}, "timeout: no whole answer came in time"),
		both("a slow drip", fault.Rule{Kind: fault.Drip, Bytes: 1, EveryMS: 200}, "timeout: no whole answer came in time"),
		both("no byte", fault.Rule{Kind: fault.Never}, "timeout: no whole answer came in time"),
		both("a stream without an event", fault.Rule{Kind: fault.NeverSSE}, "timeout: no whole answer came in time"),
		both("gone before the answer", fault.Rule{Kind: fault.Drop}, "reset: the connection ended without an answer"),
		both("reset before the answer", fault.Rule{Kind: fault.Drop, Abrupt: true}, "reset: the connection ended without an answer"),
		both("half a head", fault.Rule{Kind: fault.CutAt, Bytes: 9}, "cut: the answer ended early"),
		both("a head alone", fault.Rule{Kind: fault.CutHead}, "cut: the answer ended early"),
		both("half a body", fault.Rule{Kind: fault.CutBody}, "cut: the answer ended early"),
		both("all but a byte", fault.Rule{Kind: fault.CutLast}, "cut: the answer ended early"),
		both("half an event", fault.Rule{Kind: fault.CutSSE}, "cut: the answer ended early"),
		both("a stream that ends", fault.Rule{Kind: fault.EndSSE}, "stream: the event stream ended without the answer"),
		both("a longer length", fault.Rule{Kind: fault.LongLength}, "cut: the answer ended early"),
		both("not HTTP", fault.Rule{Kind: fault.Raw, Body: "220 mail.example.org ESMTP\r\n"}, "http: what came is no HTTP/1.1 answer"),
		both("accepted", fault.Rule{Kind: fault.Accepted}, "no_answer: the server took it and gave no answer (HTTP 202)"),
		both("gzip", fault.Rule{Kind: fault.Gzip}, "encoding: the answer is compressed, which was not offered"),
		both("a sign-in page", fault.Rule{Kind: fault.HTML}, "media: what came is neither JSON nor an event stream"),
		both("an empty answer", fault.Rule{Kind: fault.Empty}, strict("invalid: json: unexpected end at byte 0")),
		both("not JSON", fault.Rule{Kind: fault.NotJSON}, strict("invalid: json: unexpected character at byte 0")),
		both("duplicate names", fault.Rule{Kind: fault.DuplicateNames}, strict("invalid: json: duplicate member name at byte 128"), strict("invalid: json: duplicate member name at byte 104")),
		both("bad UTF-8", fault.Rule{Kind: fault.BadUTF8}, strict("invalid: json: invalid UTF-8 at byte 133"), strict("invalid: json: invalid UTF-8 at byte 109")),
		both("garbage behind", fault.Rule{Kind: fault.GarbageAfter}, strict("invalid: json: text after the value at byte 128"), strict("invalid: json: text after the value at byte 104")),
		both("too deep", fault.Rule{Kind: fault.Deep}, strict("invalid: json: too many nested values at byte 236"), strict("invalid: json: too many nested values at byte 212")),
		both("result and error", fault.Rule{Kind: fault.Both}, strict("neither or both of result and error")),
		both("neither", fault.Rule{Kind: fault.Neither}, strict("neither or both of result and error")),
		both("another version", fault.Rule{Kind: fault.WrongVersion}, strict("not a JSON-RPC 2.0 message")),
		both("a batch", fault.Rule{Kind: fault.Batch}, strict("invalid: json: an object was expected")),
		both("somebody else's id", fault.Rule{Kind: fault.WrongID}, "id: what came answers another request"),
		both("id null", fault.Rule{Kind: fault.NullID}, "id: what came answers another request"),
		both("no id", fault.Rule{Kind: fault.NoID}, "id: what came answers another request"),
		both("the id as a text", fault.Rule{Kind: fault.StringID}, "id: what came answers another request"),
		both("a task nobody asked for", fault.Rule{Kind: fault.TaskHandle}, gone("the server does not know its task any more"), gone("servers of its revision have no tasks")),
		{name: "input_required", rule: fault.Rule{Kind: fault.InputRequired}, write: "abandoned", read: "abandoned", line: "nobody attends this session", legacy: "nobody attends this session"},
	}
	for _, code := range []int{301, 302, 307, 308} {
		for _, to := range []string{"self", "other", "metadata"} {
			list = append(list, both(fmt.Sprintf("%d to %s", code, to), fault.Rule{Kind: fault.Redirect, Status: code, Location: to}, status(code)))
		}
	}
	for _, code := range []int{400, 401, 403, 404, 429} {
		list = append(list, hostility{
			name: fmt.Sprintf("HTTP %d after the effect", code), rule: fault.Rule{Kind: fault.Status, Status: code}, write: "rejected", read: "rejected", line: status(code), legacy: status(code),
		})
	}
	for _, code := range []int{408, 409, 425, 500, 503} {
		list = append(list, both(fmt.Sprintf("HTTP %d after the effect", code), fault.Rule{Kind: fault.Status, Status: code}, status(code)))
	}
	return list
}

// toolName is a case's tool.
func (h *hostility) toolName(effect string) string {
	return effect[:1] + "_" + strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, strings.ToLower(h.name))
}

// server is a hostile one: an MCP server of one era and framing, with a tool for each case and effect.
type server struct {
	*mcpserver.Server
	name   string // mj, ms, lj, ls: modern or legacy, JSON or stream
	secret string
}

func startServer(t *testing.T, name string, list []hostility) *server {
	t.Helper()
	s := &server{name: name, secret: "s3cret-of-" + name}
	o := mcpserver.Options{Eras: mcpserver.Modern, Auth: mcpserver.Auth{Kind: mcpserver.Bearer, Secret: s.secret}, Recorder: wire.NewRecorder(wire.RecorderOptions{Answer: 1})}
	if name[0] == 'l' {
		o.Eras = mcpserver.Legacy
	}
	if name[1] == 's' {
		o.Framing = mcpserver.SSE
	}
	for i := range list {
		for _, effect := range []string{"read", "write"} {
			tool := list[i].toolName(effect)
			o.Tools = append(o.Tools, mcpserver.Tool{
				Definition: `{"name":"` + tool + `","description":"d","inputSchema":{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":false}}`,
				Run: func(c *mcpserver.Call) mcpserver.Answer {
					if effect == "write" {
						c.Commit()
					}
					return mcpserver.Text("done")
				},
			})
		}
	}
	s.Server = mcpserver.Start(t, o)
	for i := range list {
		for _, effect := range []string{"read", "write"} {
			rule := list[i].rule
			rule.Tool = list[i].toolName(effect)
			s.Fault(rule)
		}
	}
	return s
}

// connections are two to the same server: one waits long, because machines are busy, and one not, for the cases whose end is that time is over.
func (s *server) connections(list []hostility) []rig.Connection {
	patient := rig.Connection{Name: s.name, URL: s.URL(), Auth: "{type: bearer}", Secret: s.secret, Limits: "{timeout: 120s}"}
	short := patient
	short.Name, short.Limits = s.name+"-short", "{timeout: 2s}"
	for i := range list {
		to := &patient
		if list[i].endless() {
			to = &short
		}
		to.Reads = append(to.Reads, list[i].toolName("read"))
		to.Writes = append(to.Writes, list[i].toolName("write"))
	}
	return []rig.Connection{patient, short}
}

func (h *hostility) endless() bool { return strings.HasPrefix(h.line, "timeout:") }

// connection is the one that a case's tools belong to.
func (h *hostility) connection(s *server) string {
	if h.endless() {
		return s.name + "-short"
	}
	return s.name
}

// each calls f for each case of each server and each effect.
func each(list []hostility, servers []*server, f func(h *hostility, s *server, effect string)) {
	for i := range list {
		for at, s := range servers {
			switch {
			case !*all && (list[i].large || i%len(servers) != at):
				continue
			case list[i].large && (s.name == "ms" || s.name == "lj"):
				continue // mj and ls have both framings, and these take long
			}
			for _, effect := range []string{"write", "read"} {
				f(&list[i], s, effect)
			}
		}
	}
}

// A hostile server costs its own calls: each ends in the right state with a line that says what failed, after one request, and the credential went
// nowhere else.
func TestServers(t *testing.T) {
	list := hostilities()
	var servers []*server
	var connections []rig.Connection
	for _, name := range []string{"mj", "ms", "lj", "ls"} {
		s := startServer(t, name, list)
		servers, connections = append(servers, s), append(connections, s.connections(list)...)
	}
	metadata := watch(t, "169.254.169.254:80")
	r := installation(t, rig.Options{})
	if err := r.Configure(t.Context(), connections, profiles(connections)); err != nil {
		t.Fatal(err)
	}
	session, err := r.Open(t.Context(), rig.SessionOptions{Profile: "work"})
	if err != nil {
		t.Fatal(err)
	}
	var said sync.Map // by server and tool: what the model read
	call := func(h *hostility, s *server, effect string) {
		got, err := session.Call(t.Context(), strings.ReplaceAll(h.connection(s), "-", "_")+"_"+h.toolName(effect), `{"n":1}`)
		if err != nil {
			got.Text = "no answer: " + err.Error()
		}
		said.Store(s.name+"/"+h.toolName(effect), got.Text)
	}
	// Those whose answers are large, one by one, with the memory that they take; then the others beside each other.
	each(list, servers, func(h *hostility, s *server, effect string) {
		if !h.large {
			return
		}
		calm(t, r, rig.Worker, rig.Control)
		call(h, s, effect)
		worker, control := peak(t, r, rig.Worker), peak(t, r, rig.Control)
		t.Logf("memory: %-28s %s %-5s worker %d MiB, control %d MiB at most", h.name, s.name, effect, worker, control)
		if worker > mostWorker || control > mostControl {
			t.Errorf("%s of %s took %d MiB of the worker and %d MiB of control", h.name, s.name, worker, control)
		}
	})
	var wg sync.WaitGroup
	room := make(chan struct{}, 40)
	each(list, servers, func(h *hostility, s *server, effect string) {
		if h.large {
			return
		}
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			call(h, s, effect)
		})
	})
	wg.Wait()
	rows := 0
	each(list, servers, func(h *hostility, s *server, effect string) {
		text, _ := said.Load(s.name + "/" + h.toolName(effect))
		h.check(t, r, s, effect, text.(string))
		rows++
	})
	t.Logf("%d rows of hostile servers", rows)
	for _, s := range servers {
		s.leaks(t)
	}
	if n := metadata.connections(); n != 0 {
		t.Errorf("%d connections came to the metadata address", n)
	}
	if strings.Contains(r.Log(), "s3cret-of-") {
		t.Error("a credential stands in a log")
	}
}

// mostWorker and mostControl are the MiB that hostile answers may make of a process. An answer of 64 MiB leaves as much behind while it grows, and the
// collector takes what the one before left while the next one comes.
const (
	mostWorker  = 352
	mostControl = 128
)

// check compares what the model, the journal and the server say of a case.
func (h *hostility) check(t *testing.T, r *rig.Rig, s *server, effect, said string) {
	t.Helper()
	tool := h.toolName(effect)
	e := journal(t, r, h.connection(s), tool)
	state, line := h.write, h.line
	if effect == "read" {
		state = h.read
	}
	if s.name[0] == 'l' {
		line = h.legacy
	}
	requests := len(s.Calls(tool))
	t.Logf("%-26s %s %-5s %-9s %d sent  %s", h.name, s.name, effect, e.GetCall().GetState(), requests, e.line())
	if e.GetCall().GetState() != state || e.line() != line {
		t.Errorf("%s of %s, %s: the journal says %s, %q; want %s, %q", h.name, s.name, effect, e.GetCall().GetState(), e.line(), state, line)
	}
	if requests != 1 {
		t.Errorf("%s of %s, %s: %d requests", h.name, s.name, effect, requests)
	}
	if strings.Contains(said, "s3cret") || strings.Contains(e.line(), "s3cret") {
		t.Errorf("%s of %s, %s: a credential is told: %s", h.name, s.name, effect, said)
	}
}

// leaks looks for a credential at a place that is not its own.
func (s *server) leaks(t *testing.T) {
	t.Helper()
	for _, rec := range s.Recorder().Records(func(*wire.Record) bool { return true }) {
		if rec.Listener == "other" {
			t.Errorf("%s: a redirect was followed: %s", s.name, rec.Request.Head)
		}
		if got := rec.Request.Headers.Value("Authorization"); got != "Bearer "+s.secret {
			t.Errorf("%s: a request with the credential %q", s.name, got)
		}
	}
}

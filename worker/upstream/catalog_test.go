package upstream

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"sallyport.dev/errs"
	"sallyport.dev/test/fixture/fault"
	"sallyport.dev/test/fixture/mcpserver"
)

func TestListTools(t *testing.T) {
	want := map[string]string{}
	for _, tool := range mcpserver.DefaultTools() {
		var d struct{ Name string }
		if err := json.Unmarshal([]byte(tool.Definition), &d); err != nil {
			t.Fatal(err)
		}
		want[d.Name] = tool.Definition
	}
	for _, protocol := range []string{"", v20260728, v20251125, v20250326} {
		for _, page := range []int{0, 1, 7} {
			for _, frame := range []string{"json", "sse"} {
				t.Run(fmt.Sprintf("%s/page %d/%s", protocol, page, frame), func(t *testing.T) {
					s := mcpserver.Start(t, mcpserver.Options{PageSize: page, Framing: framing(frame)})
					c := client(t, s)
					list, err := c.ListTools(deadline(t), target(s, protocol))
					if err != nil {
						t.Fatal(err)
					}
					if len(list.Tools) != len(want) || !slices.IsSortedFunc(list.Tools, func(a, b CatalogTool) int { return strings.Compare(a.Name, b.Name) }) {
						t.Errorf("%d tools of %d", len(list.Tools), len(want))
					}
					for _, tool := range list.Tools {
						if string(tool.Raw) != want[tool.Name] {
							t.Errorf("%s: %s", tool.Name, tool.Raw)
						}
					}
					var doc struct {
						V     int
						Tools []json.RawMessage
					}
					if err := json.Unmarshal(list.Bytes(), &doc); err != nil || doc.V != 1 || len(doc.Tools) != len(want) {
						t.Errorf("%v: %s", err, list.Bytes())
					}
					if n := rpcCount(s, "tools/list"); page == 1 && n != len(want) || n != list.Pages {
						t.Errorf("%d questions, %d pages", n, list.Pages)
					}
				})
			}
		}
	}
}

func TestListToolsRefuses(t *testing.T) {
	repeat := mcpserver.Start(t, mcpserver.Options{PageSize: 5, RepeatCursor: true})
	c := client(t, repeat)
	if _, err := c.ListTools(deadline(t), target(repeat, Modern)); err == nil || !strings.Contains(errs.Message(err), "circle") {
		t.Errorf("a cursor that repeats: %v", err)
	}
	s := mcpserver.Start(t, mcpserver.Options{PageSize: 3})
	c = client(t, s)
	for name, r := range map[string]fault.Rule{
		"cut on page 2":     {Kind: fault.CutBody, Method: "tools/list", Skip: 1},
		"error on page 2":   {Kind: fault.RPCError, Method: "tools/list", Skip: 1},
		"outage on page 2":  {Kind: fault.Status, Status: 503, Method: "tools/list", Skip: 1},
		"oversize":          {Kind: fault.Oversize, Method: "tools/list", Bytes: 5 << 20},
		"redirect":          {Kind: fault.Redirect, Method: "tools/list"},
		"duplicate members": {Kind: fault.DuplicateNames, Method: "tools/list"},
	} {
		id := s.Fault(r)
		list, err := c.ListTools(deadline(t), target(s, Modern))
		s.Faults.Remove(id)
		if err == nil || list != nil {
			t.Errorf("%s: %v", name, list)
		}
	}
	if list, err := c.ListTools(deadline(t), target(s, Modern)); err != nil || len(list.Tools) == 0 {
		t.Errorf("afterwards: %v", err)
	}
}

// listed asks a server whose answers to tools/list are made by page.
func listed(t *testing.T, page func(n int) string) (list *Catalog, err error) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		p := &pipes{serve: func(_ int, c net.Conn) {
			requests(c, func(_ int, _ *http.Request, body []byte) bool {
				n++
				m, _ := parseMessage(body)
				result := page(n)
				out := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.id, result)
				_, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(out), out)
				return err == nil
			})
		}}
		list, err = pipeClient(t, p).ListTools(t.Context(), pipeTarget())
	})
	return list, err
}

func TestCatalogBounds(t *testing.T) {
	tools := func(from, n, size int) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `{"name":"t%d","description":"%s"}`, from+i, strings.Repeat("x", size))
		}
		return b.String()
	}
	for name, tt := range map[string]struct {
		page func(n int) string
		code errs.Code
	}{
		"512 tools": {func(int) string { return `{"tools":[` + tools(0, 512, 1) + `]}` }, ""},
		"513 tools": {func(int) string { return `{"tools":[` + tools(0, 513, 1) + `]}` }, errs.Oversize},
		"too many bytes": {func(n int) string {
			return `{"tools":[` + tools(n*10, 10, 100<<10) + fmt.Sprintf(`],"nextCursor":"%d"}`, n)
		}, errs.Oversize},
		"too many pages": {func(n int) string { return `{"tools":[],"nextCursor":"` + fmt.Sprint(n) + `"}` }, errs.Oversize},
		"64 pages": {func(n int) string {
			return `{"tools":[` + tools(n, 1, 1) + `]` + map[bool]string{true: `,"nextCursor":"` + fmt.Sprint(n) + `"}`, false: `}`}[n < 64]
		}, ""},
		"null cursor": {func(int) string { return `{"tools":[],"nextCursor":null}` }, ""},
		"empty cursor": {func(n int) string {
			return map[bool]string{true: `{"tools":[],"nextCursor":""}`, false: `{"tools":[]}`}[n == 1]
		}, ""},
		"empty cursors":    {func(n int) string { return `{"tools":[],"nextCursor":""}` }, errs.Unreachable},
		"cursor no text":   {func(int) string { return `{"tools":[],"nextCursor":7}` }, errs.Unreachable},
		"cursor too long":  {func(int) string { return `{"tools":[],"nextCursor":"` + strings.Repeat("x", maxCursor+1) + `"}` }, errs.Unreachable},
		"no list":          {func(int) string { return `{}` }, errs.Unreachable},
		"list is no list":  {func(int) string { return `{"tools":{}}` }, errs.Unreachable},
		"tool is no tool":  {func(int) string { return `{"tools":["x"]}` }, errs.Unreachable},
		"null tool":        {func(int) string { return `{"tools":[null]}` }, errs.Unreachable},
		"tool has no name": {func(int) string { return `{"tools":[{"name":""}]}` }, errs.Unreachable},
		"twice":            {func(int) string { return `{"tools":[{"name":"a"},{"name":"b"},{"name":"a"}]}` }, errs.Unreachable},
	} {
		list, err := listed(t, tt.page)
		if errs.CodeOf(err) != tt.code || (list == nil) != (tt.code != "") {
			t.Errorf("%s: %v, %v", name, list != nil, err)
		}
	}
	list, err := listed(t, func(int) string {
		return `{"tools":[{"name":"b"},{"name":"a","inputSchema":{"properties":{"n":{"type":"number","x-mcp-header":"N"}}}},{"name":"c"}]}`
	})
	if err != nil || len(list.Tools) != 2 || len(list.Excluded) != 1 || list.Excluded[0].Name != "a" || list.Excluded[0].Reason == "" {
		t.Errorf("invalid annotations: %+v, %v", list, err)
	}
}

func TestProbe(t *testing.T) {
	names := func(p *Report) string {
		var out []string
		for _, s := range p.Steps {
			out = append(out, fmt.Sprintf("%s=%v", s.Name, s.OK))
		}
		return strings.Join(out, " ")
	}
	for _, era := range []mcpserver.Era{mcpserver.Modern, mcpserver.Legacy, mcpserver.Both} {
		for _, secure := range []bool{false, true} {
			s := mcpserver.Start(t, mcpserver.Options{Eras: era, TLS: secure, Auth: mcpserver.Auth{Kind: mcpserver.HeaderAuth, Name: "X-Key", Secret: "canary-probe"}})
			c, tg := client(t, s), target(s, v20250326) // a test believes nothing of what is configured
			network := map[bool]string{false: "resolve=true address=true connect=true", true: "resolve=true address=true connect=true tls=true"}[secure]
			tg.Callback = true
			p, err := c.Probe(deadline(t), tg)
			if err != nil || !p.OK() || names(p) != network || s.Recorder().Total() != 0 {
				t.Errorf("a callback: %v %s", err, names(p))
			}
			tg.Callback = false
			p, err = c.Probe(deadline(t), tg)
			if err != nil || p.OK() || !p.NeedsCredential || p.Challenge == "" || names(p) != network+" authenticate=false" {
				t.Errorf("without a credential: %v %s", err, names(p))
			}
			tg.Credential, _ = Header("X-Key", "canary-probe")
			p, err = c.Probe(deadline(t), tg)
			if err != nil || !p.OK() || names(p) != network+" authenticate=true protocol=true tools=true" || p.Tools == nil || len(p.Tools.Tools) == 0 {
				t.Fatalf("%v %s", err, names(p))
			}
			want := map[mcpserver.Era]string{mcpserver.Modern: v20260728, mcpserver.Both: v20260728, mcpserver.Legacy: v20251125}[era]
			if p.Protocol != want || !strings.Contains(string(p.ServerInfo), `"name"`) || p.Address.Port() == 0 {
				t.Errorf("%s, server %s, address %s", p.Protocol, p.ServerInfo, p.Address)
			}
			if n := len(s.Calls("")); n != 0 {
				t.Errorf("a probe made %d calls", n)
			}
		}
	}
}

func TestProbeFailures(t *testing.T) {
	s := mcpserver.Start(t, mcpserver.Options{TLS: true})
	trusting := client(t, s)
	plain := mcpserver.Start(t, mcpserver.Options{})
	other := New(trusting.guard, "test")
	defer other.Close()
	distrusting := client(t, plain)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + l.Addr().String()
	l.Close()
	for name, tt := range map[string]struct {
		c    *Client
		tg   Target
		last string
		text string
	}{
		"unknown root": {distrusting, *target(s, ""), "tls", "not trusted"},
		"not https":    {trusting, func() Target { tg := *target(plain, ""); tg.Origin = "https" + tg.Origin[4:]; return tg }(), "tls", "handshake"},
		"nobody":       {distrusting, Target{Origin: closed, Path: "/", Allow: []string{"127.0.0.0/8"}, PlainHTTP: true}, "connect", "does not answer"},
		"private":      {distrusting, Target{Origin: closed, Path: "/", PlainHTTP: true}, "address", "network.allow"},
		"plain":        {distrusting, Target{Origin: closed, Path: "/", Allow: []string{"127.0.0.0/8"}}, "address", "network.http"},
		"metadata":     {distrusting, Target{Origin: "http://169.254.169.254", Path: "/", PlainHTTP: true}, "address", "metadata"},
		"no such path": {distrusting, func() Target { tg := *target(plain, ""); tg.Path = "/nothing"; return tg }(), "protocol", "HTTP 404"},
	} {
		p, err := tt.c.Probe(deadline(t), &tt.tg)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		last := p.Steps[len(p.Steps)-1]
		if last.OK || last.Name != tt.last || !strings.Contains(last.Message, tt.text) {
			t.Errorf("%s: %+v", name, p.Steps)
		}
	}
	for _, bad := range []Target{
		{},
		{Origin: "https://x"},
		{Origin: "https://x", Path: "y"},
		{Origin: "https://x/y", Path: "/"},
		{Origin: "https://x", Path: "/ "},
		{Origin: "https://x", Path: "/#x"},
		{Origin: "https://x", Path: "/\r\nX: y"},
		{Origin: "https://x", Path: "/", Allow: []string{"0.0.0.0/0"}},
	} {
		if _, err := trusting.Probe(deadline(t), &bad); FailureOf(err) != FailRequest {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// A server of 2024-11-05 is recognised, so that a person learns what is wrong.
func TestProbeOldTransport(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "event: endpoint\ndata: /messages?session=1\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})}
	go srv.Serve(l)
	defer srv.Close()
	c := New(nil, "test")
	c.guard = client(t, mcpserver.Start(t, mcpserver.Options{})).guard
	defer c.Close()
	p, err := c.Probe(deadline(t), &Target{Origin: "http://" + l.Addr().String(), Path: "/sse", Allow: []string{"127.0.0.0/8"}, PlainHTTP: true})
	if err != nil || p.OK() || !strings.Contains(p.Steps[len(p.Steps)-1].Message, "HTTP+SSE") {
		t.Errorf("%v %+v", err, p)
	}
}

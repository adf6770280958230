package upstream

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"sallyport.dev/worker/netguard"
)

// TestOfficialServer speaks to the official SDK's server: a peer that was written by others.
func TestOfficialServer(t *testing.T) {
	for name, opts := range map[string]*mcp.StreamableHTTPOptions{
		"sessions/sse":   {},
		"sessions/json":  {JSONResponse: true},
		"stateless/sse":  {Stateless: true},
		"stateless/json": {Stateless: true, JSONResponse: true},
	} {
		t.Run(name, func(t *testing.T) {
			var effects atomic.Int32
			server := mcp.NewServer(&mcp.Implementation{Name: "peer", Version: "1"}, nil)
			server.AddTool(&mcp.Tool{Name: "pay", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				effects.Add(1)
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(r.Params.Arguments)}}}, nil
			})
			server.AddTool(&mcp.Tool{Name: "ask", InputSchema: map[string]any{"type": "object"}}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				answer, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "Which?", RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{"colour": map[string]any{"type": "string"}}}})
				if err != nil {
					return nil, err
				}
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf("%s %v", answer.Action, answer.Content["colour"])}}}, nil
			})
			srv := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, opts))
			defer func() {
				srv.Close()
				for session := range server.Sessions() {
					session.Close()
				}
			}()
			c := New(&netguard.Guard{}, "test")
			defer c.Close()
			tg := &Target{Origin: srv.URL, Path: "/", Allow: []string{"127.0.0.0/8"}, PlainHTTP: true, Owner: "o"}
			report, err := c.Probe(deadline(t), tg)
			if err != nil || !report.OK() || len(report.Tools.Tools) != 2 {
				t.Fatalf("%v %+v", err, report)
			}
			want := map[bool]string{true: v20260728, false: v20251125}[opts.Stateless]
			if report.Protocol != want {
				t.Errorf("speaks %s, want %s", report.Protocol, want)
			}
			for i := range 3 {
				args := fmt.Sprintf(`{"amount": 1.10, "n":%d}`, i)
				out := dispatch(t, c, tg, &Call{ID: fmt.Sprintf("p.%d", i), Tool: "pay", Arguments: []byte(args), Write: true}, Hooks{})
				if out.Failure != "" || !strings.Contains(string(out.Body), strings.ReplaceAll(args, `"`, `\"`)) || effects.Load() != int32(i+1) {
					t.Fatalf("%+v %s, %d effects", out, out.Body, effects.Load())
				}
			}
			if want == Modern || opts.JSONResponse { // nothing can be asked there
				return
			}
			out := dispatch(t, c, tg, &Call{ID: "a", Tool: "ask", Arguments: []byte(`{}`), Elicit: true}, Hooks{Ask: func(context.Context, []byte) []byte {
				return []byte(`{"action":"accept","content":{"colour":"red"}}`)
			}})
			if out.Failure != "" || !strings.Contains(string(out.Body), "accept red") {
				t.Errorf("%+v %s", out, out.Body)
			}
		})
	}
}

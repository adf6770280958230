package main

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sallyport.dev/guest/fakehost"
	"sallyport.dev/relay"
)

// The official SDK's client, which nobody here wrote, speaks each revision that it knows with the program.
func TestOfficialClient(t *testing.T) {
	for _, version := range []string{"2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"} {
		t.Run(version, func(t *testing.T) {
			h := session(t, func(h *fakehost.Host, c fakehost.Call) {
				var args struct{ Do string }
				if err := json.Unmarshal(c.Arguments, &args); err != nil {
					t.Error(err)
				}
				var err error
				switch args.Do {
				case "progress":
					if err = h.Progress(c, 1, 1, 2, "half"); err == nil {
						<-half
						err = h.Answer(c, `{"content":[{"type":"text","text":"done"}]}`)
					}
				case "fail":
					err = h.Answer(c, `{"content":[{"type":"text","text":"no"}],"isError":true}`)
				case "hang":
				default:
					err = h.Answer(c, `{"content":[{"type":"text","text":"`+c.Tool+`"}]}`)
				}
				if err != nil {
					t.Error(err)
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			client := mcp.NewClient(&mcp.Implementation{Name: "sdk", Version: "1"}, &mcp.ClientOptions{
				ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
					if r.Params.Message == "half" && r.Params.Progress == 1 && r.Params.Total == 2 {
						half <- struct{}{}
					}
				},
			})
			cs, err := client.Connect(ctx, &mcp.CommandTransport{Command: exec.Command(programs.guest, "shim", "--in", h.In(), "--out", h.Out())}, &mcp.ClientSessionOptions{ProtocolVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			if got := cs.InitializeResult().ProtocolVersion; got != version {
				t.Errorf("speaks %s", got)
			}
			list, err := cs.ListTools(ctx, nil)
			if err != nil || len(list.Tools) != 1 || list.Tools[0].Name != "echo" {
				t.Fatalf("%+v, %v", list, err)
			}
			call := func(ctx context.Context, do string, meta mcp.Meta) (*mcp.CallToolResult, error) {
				return cs.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"do": do}, Meta: meta})
			}
			if r, err := call(ctx, "", nil); err != nil || r.IsError || r.Content[0].(*mcp.TextContent).Text != "echo" {
				t.Errorf("%+v, %v", r, err)
			}
			if r, err := call(ctx, "fail", nil); err != nil || !r.IsError {
				t.Errorf("%+v, %v", r, err)
			}
			if r, err := call(ctx, "progress", mcp.Meta{"progressToken": "t"}); err != nil || r.IsError {
				t.Errorf("%+v, %v", r, err)
			}
			_, err = cs.CallTool(ctx, &mcp.CallToolParams{Name: "other"})
			if wire, ok := errors.AsType[*jsonrpc.Error](err); !ok || wire.Code != -32602 {
				t.Errorf("an unknown tool: %v", err)
			}
			hang, give := context.WithCancel(ctx)
			hung := make(chan error, 1)
			go func() {
				_, err := call(hang, "hang", nil)
				hung <- err
			}()
			seen(t, h, calls(4))
			give()
			if err := <-hung; err == nil {
				t.Error("a cancelled call returned a result")
			}
			if s := seen(t, h, func(s fakehost.Seen) bool { return len(s.Cancels) == 1 }); s.Cancels[0].Why != relay.WhyHarness {
				t.Errorf("cancelled by %s", s.Cancels[0].Why)
			}
			if err := cs.Close(); err != nil && !strings.Contains(err.Error(), "signal") {
				t.Error(err)
			}
		})
	}
}

// half is passed from the client's progress handler to the host: only then it answers.
var half = make(chan struct{}, 1)

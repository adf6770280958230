package upstream

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"testing"

	"sallyport.dev/test/fixture/mcpserver"
)

// BenchmarkRead is a read over a warm connection; BenchmarkDirect the same request by net/http, which knows nothing of a call: the difference is
// what this package adds.
func BenchmarkRead(b *testing.B) {
	for _, frame := range []string{"json", "sse"} {
		for _, protocol := range []string{v20260728, v20251125} {
			b.Run(frame+"/"+protocol, func(b *testing.B) {
				s := mcpserver.Start(b, mcpserver.Options{Framing: framing(frame), Recorder: mcpserver.CountOnly()})
				c, tg := client(b, s), target(s, protocol)
				call := &Call{Tool: "echo", Arguments: []byte(`{"text":"` + mcpserver.Filler(1024) + `"}`)}
				b.ReportAllocs()
				for n := 0; b.Loop(); n++ {
					call.ID = "r." + strconv.Itoa(n)
					p, err := c.Prepare(b.Context(), tg, call, Hooks{})
					if err != nil {
						b.Fatal(err)
					}
					if out := p.Send(b.Context()); out.Failure != "" {
						b.Fatalf("%+v", out)
					}
				}
			})
		}
	}
}

// BenchmarkReadParallel is many reads at once.
func BenchmarkReadParallel(b *testing.B) {
	s := mcpserver.Start(b, mcpserver.Options{Recorder: mcpserver.CountOnly()})
	c, tg := client(b, s), target(s, Modern)
	args := []byte(`{"text":"` + mcpserver.Filler(1024) + `"}`)
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			p, err := c.Prepare(b.Context(), tg, &Call{ID: "r", Tool: "echo", Arguments: args}, Hooks{})
			if err != nil {
				b.Error(err)
				return
			}
			if out := p.Send(b.Context()); out.Failure != "" {
				b.Errorf("%+v", out)
				return
			}
		}
	})
}

func BenchmarkDirect(b *testing.B) {
	s := mcpserver.Start(b, mcpserver.Options{Recorder: mcpserver.CountOnly()})
	client := s.Client()
	defer client.CloseIdleConnections()
	body := []byte(`{"jsonrpc":"2.0","id":"r","method":"tools/call","params":{"name":"echo","arguments":{"text":"` + mcpserver.Filler(1024) + `"},"_meta":{` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`)
	b.ReportAllocs()
	for b.Loop() {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, s.URL(), bytes.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		for name, value := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": Modern, "Mcp-Method": "tools/call", "Mcp-Name": "echo"} {
			req.Header.Set(name, value)
		}
		resp, err := client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			b.Fatal(err, resp.Status)
		}
		resp.Body.Close()
	}
}

// BenchmarkWrite is a write: a fresh connection each time.
func BenchmarkWrite(b *testing.B) {
	for _, secure := range []bool{false, true} {
		b.Run("tls="+strconv.FormatBool(secure), func(b *testing.B) {
			s := mcpserver.Start(b, mcpserver.Options{TLS: secure, Recorder: mcpserver.CountOnly()})
			c, tg := client(b, s), target(s, Modern)
			call := &Call{Tool: "create_issue", Arguments: []byte(writeArgs), Write: true}
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				call.ID = "w." + strconv.Itoa(n)
				p, err := c.Prepare(b.Context(), tg, call, Hooks{})
				if err != nil {
					b.Fatal(err)
				}
				if out := p.Send(b.Context()); out.Failure != "" {
					b.Fatalf("%+v", out)
				}
			}
		})
	}
}

// BenchmarkBig is a large answer.
func BenchmarkBig(b *testing.B) {
	for _, frame := range []string{"json", "sse"} {
		b.Run(frame, func(b *testing.B) {
			s := mcpserver.Start(b, mcpserver.Options{Framing: framing(frame), Recorder: mcpserver.CountOnly()})
			c, tg := client(b, s), target(s, Modern)
			tg.Limits.Result = 64 << 20
			call := &Call{ID: "b", Tool: "big", Arguments: []byte(`{"bytes":1048576}`)}
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			for b.Loop() {
				p, err := c.Prepare(b.Context(), tg, call, Hooks{})
				if err != nil {
					b.Fatal(err)
				}
				if out := p.Send(b.Context()); out.Failure != "" {
					b.Fatalf("%+v", out)
				}
			}
		})
	}
}

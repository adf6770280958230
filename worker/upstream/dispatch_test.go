package upstream

import (
	"fmt"
	"strings"
	"testing"

	"sallyport.dev/test/fixture/mcpserver"
)

func framing(name string) mcpserver.Framing {
	if name == "sse" {
		return mcpserver.SSE
	}
	return mcpserver.JSON
}

// The whole matrix of eras, framings and transports: one call on the wire, with the approved bytes, and the server's answer byte for byte.
func TestDispatch(t *testing.T) {
	for _, protocol := range protocols {
		for _, frame := range []string{"json", "sse"} {
			for _, secure := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/tls=%v", protocol, frame, secure), func(t *testing.T) {
					s := mcpserver.Start(t, mcpserver.Options{Framing: framing(frame), TLS: secure, Auth: mcpserver.Auth{Kind: mcpserver.Bearer, Secret: "canary-token-1"}, Prime: true})
					c, tg := client(t, s), target(s, protocol)
					tg.Credential, _ = Bearer("canary-token-1")
					for name, want := range map[string]string{"numbers": mcpserver.NumbersResult, "unknown": mcpserver.UnknownResult, "unicode": mcpserver.UnicodeResult, "fail": mcpserver.ErrorResult} {
						out := dispatch(t, c, tg, &Call{ID: "read." + name, Tool: name, Arguments: []byte("{}")}, Hooks{})
						if out.Failure != "" || out.Transport != Answered || out.Status != 200 || out.Protocol != protocol {
							t.Fatalf("%s: %+v", name, out)
						}
						if !strings.Contains(string(out.Body), want[1:len(want)-1]) || !strings.Contains(string(out.Body), `"id":"read.`+name+`"`) {
							t.Errorf("%s: the bytes changed:\n%s\nwant\n%s", name, out.Body, want)
						}
					}
					args := "{ \"title\":\"Gr\\u00fc\\u00dfe\",\n\t\"project\" : \"web\", \"estimate\":1.10 }"
					var sent int64
					out := dispatch(t, c, tg, &Call{ID: "call.1", Tool: "create_issue", Arguments: []byte(args), Write: true, Trace: "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"},
						Hooks{Sent: func(n int64) { sent = n }})
					if out.Failure != "" || out.Transport != Answered || out.Reused || out.Bytes == 0 || sent != out.Bytes {
						t.Fatalf("%+v, sent %d", out, sent)
					}
					if n := s.CallsWith("create_issue", args); n != 1 || len(s.Calls("create_issue")) != 1 || s.Effects().Count("create_issue") != 1 {
						t.Errorf("%d calls with these bytes, %d calls, %d effects", n, len(s.Calls("create_issue")), s.Effects().Count("create_issue"))
					}
					rec := s.Calls("create_issue")[0]
					if rec.Nth != 1 {
						t.Errorf("the write was request %d of its connection", rec.Nth)
					}
					for _, r := range s.Recorder().Records(nil) {
						if r.Refused != "" || r.Note.Refused != "" {
							t.Errorf("refused: %s %s", r.Refused, r.Note.Refused)
						}
					}
				})
			}
		}
	}
}

// Without a settled protocol the era is found by asking, never by the call.
func TestEra(t *testing.T) {
	for name, tt := range map[string]struct {
		opts mcpserver.Options
		want string
	}{
		"modern only": {mcpserver.Options{Eras: mcpserver.Modern}, v20260728},
		"both":        {mcpserver.Options{}, v20260728},
		"old only":    {mcpserver.Options{Eras: mcpserver.Legacy}, v20251125},
		"older":       {mcpserver.Options{Eras: mcpserver.Legacy, Versions: []string{v20250618}}, v20250618},
		"oldest":      {mcpserver.Options{Eras: mcpserver.Legacy, Versions: []string{v20250326}, Stateless: true}, v20250326},
	} {
		t.Run(name, func(t *testing.T) {
			s := mcpserver.Start(t, tt.opts)
			c, tg := client(t, s), target(s, "")
			for i := range 2 {
				out := dispatch(t, c, tg, &Call{ID: fmt.Sprintf("w.%d", i), Tool: "create_issue", Arguments: []byte(writeArgs), Write: true}, Hooks{})
				if out.Failure != "" || out.Protocol != tt.want {
					t.Fatalf("%+v", out)
				}
			}
			probes := 0
			for _, r := range s.Recorder().Records(nil) {
				switch r.Note.RPC {
				case "server/discover", "initialize":
					probes++
				case "tools/call":
					if r.Nth != 1 {
						t.Errorf("a write was request %d of its connection", r.Nth)
					}
				}
			}
			if most := map[bool]int{true: 1, false: 2}[tt.want == Modern]; probes > most {
				t.Errorf("%d questions about the era for two calls", probes)
			}
		})
	}
}

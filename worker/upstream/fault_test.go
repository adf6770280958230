package upstream

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"sallyport.dev/test/fixture/fault"
	"sallyport.dev/test/fixture/mcpserver"
)

// Every fault around the moment of the effect: exactly one call on the wire, at most one effect, and the facts as they were.
func TestFaults(t *testing.T) {
	tests := []struct {
		name      string
		rule      fault.Rule
		failure   Failure
		or        []Failure // which clock or bound is met first is the machine's speed; TestClocks tells them apart
		status    int
		transport Transport // Sent where it is not said
		body      bool      // a body is handed over
		frames    string    // "json", "sse", or "" for both
		modern    bool      // the fault exists in this era only
		tls       bool      // as well over TLS
		short     bool      // with clocks that run out
	}{
		{name: "dropped", rule: fault.Rule{Kind: fault.Drop}, failure: FailReset, tls: true},
		{name: "reset", rule: fault.Rule{Kind: fault.Drop, Abrupt: true}, failure: FailReset, tls: true},
		{name: "cut status line", rule: fault.Rule{Kind: fault.CutAt, Bytes: 10}, failure: FailCut},
		{name: "cut head", rule: fault.Rule{Kind: fault.CutAt, Bytes: 30}, failure: FailCut},
		{name: "cut after head", rule: fault.Rule{Kind: fault.CutHead}, failure: FailCut, status: 200, tls: true},
		{name: "cut body", rule: fault.Rule{Kind: fault.CutBody}, failure: FailCut, status: 200, tls: true},
		{name: "cut last byte", rule: fault.Rule{Kind: fault.CutLast}, failure: FailCut, status: 200, tls: true},
		{name: "cut event", rule: fault.Rule{Kind: fault.CutSSE}, failure: FailCut, status: 200, frames: "sse", tls: true},
		{name: "reset event", rule: fault.Rule{Kind: fault.CutSSE, Abrupt: true}, failure: FailReset, status: 200, frames: "sse"},
		{name: "cut stream", rule: fault.Rule{Kind: fault.CutSSEHead}, failure: FailCut, status: 200, frames: "sse"},
		{name: "stream ends", rule: fault.Rule{Kind: fault.EndSSE}, failure: FailStream, status: 200, frames: "sse"},
		{name: "never", rule: fault.Rule{Kind: fault.Never}, failure: FailSilence, or: []Failure{FailTimeout}, tls: true, short: true},
		{name: "silent stream", rule: fault.Rule{Kind: fault.NeverSSE}, failure: FailSilence, or: []Failure{FailTimeout}, status: 200, frames: "sse", short: true},
		{name: "endless stream", rule: fault.Rule{Kind: fault.EndlessSSE}, failure: FailOversize, or: []Failure{FailTimeout, FailSilence}, status: 200, frames: "sse", short: true},
		{name: "drip", rule: fault.Rule{Kind: fault.Drip, Bytes: 1, EveryMS: 20}, failure: FailTimeout, or: []Failure{FailSilence}, frames: "json", short: true},
		{name: "long length", rule: fault.Rule{Kind: fault.LongLength}, failure: FailCut, status: 200, frames: "json"},
		{name: "oversize", rule: fault.Rule{Kind: fault.Oversize, Bytes: 2 << 20}, failure: FailOversize, status: 200},
		{name: "gzip", rule: fault.Rule{Kind: fault.Gzip}, failure: FailEncoding, status: 200},
		{name: "gzip bomb", rule: fault.Rule{Kind: fault.GzipBomb, Bytes: 4 << 20}, failure: FailEncoding, status: 200},
		{name: "accepted", rule: fault.Rule{Kind: fault.Accepted}, failure: FailNoAnswer, status: 202, transport: Answered},
		{name: "empty", rule: fault.Rule{Kind: fault.Empty}, failure: FailJSON, status: 200},
		{name: "html", rule: fault.Rule{Kind: fault.HTML}, failure: FailMedia, status: 200},
		{name: "not http", rule: fault.Rule{Kind: fault.Raw, Body: "SSH-2.0-OpenSSH_9.9\r\n\r\n"}, failure: FailHTTP},
		{name: "http 0.9", rule: fault.Rule{Kind: fault.Raw, Body: "<html>hello</html>\r\n\r\n"}, failure: FailHTTP},
		{name: "http 2", rule: fault.Rule{Kind: fault.Raw, Body: "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"}, failure: FailHTTP},
		{name: "switching protocols", rule: fault.Rule{Kind: fault.Raw, Body: "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"}, failure: FailHTTP},
		{name: "two lengths", rule: fault.Rule{Kind: fault.Raw, Body: "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n{} x"}, failure: FailHTTP},
		{name: "bad chunks", rule: fault.Rule{Kind: fault.Raw, Body: "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"}, failure: FailHTTP, status: 200},
		{name: "endless head", rule: fault.Rule{Kind: fault.Raw, Body: "HTTP/1.1 200 OK\r\n" + repeat("X-Filler: "+mcpserver.Filler(1000)+"\r\n", 100)}, failure: FailOversize},
		{name: "endless interim", rule: fault.Rule{Kind: fault.Raw, Body: repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 3000)}, failure: FailOversize},

		{name: "wrong id", rule: fault.Rule{Kind: fault.WrongID}, failure: FailID, status: 200},
		{name: "null id", rule: fault.Rule{Kind: fault.NullID}, failure: FailID, status: 200},
		{name: "no id", rule: fault.Rule{Kind: fault.NoID}, failure: FailID, status: 200},
		{name: "id in quotes", rule: fault.Rule{Kind: fault.StringID}, failure: FailID, status: 200},
		{name: "duplicate names", rule: fault.Rule{Kind: fault.DuplicateNames}, failure: FailJSON, status: 200},
		{name: "bad utf-8", rule: fault.Rule{Kind: fault.BadUTF8}, failure: FailJSON, status: 200},
		{name: "garbage after", rule: fault.Rule{Kind: fault.GarbageAfter}, failure: FailJSON, status: 200},
		{name: "not json", rule: fault.Rule{Kind: fault.NotJSON}, failure: FailJSON, status: 200},
		{name: "batch", rule: fault.Rule{Kind: fault.Batch}, failure: FailJSON, status: 200},
		{name: "both", rule: fault.Rule{Kind: fault.Both}, failure: FailJSON, status: 200},
		{name: "neither", rule: fault.Rule{Kind: fault.Neither}, failure: FailJSON, status: 200},
		{name: "wrong version", rule: fault.Rule{Kind: fault.WrongVersion}, failure: FailJSON, status: 200},
		{name: "deep", rule: fault.Rule{Kind: fault.Deep}, failure: FailJSON, status: 200},
		{name: "foreign answer first", rule: fault.Rule{Kind: fault.ForeignFirst}, failure: FailID, status: 200, frames: "sse"},

		{name: "early hints", rule: fault.Rule{Kind: fault.EarlyHints}, status: 200, transport: Answered, body: true, tls: true},
		{name: "unknown member", rule: fault.Rule{Kind: fault.UnknownMember}, status: 200, transport: Answered, body: true},
		{name: "no result type", rule: fault.Rule{Kind: fault.NoResultType}, status: 200, transport: Answered, body: true, modern: true},
		{name: "unknown result type", rule: fault.Rule{Kind: fault.UnknownResultType}, status: 200, transport: Answered, body: true, modern: true},
		{name: "input required", rule: fault.Rule{Kind: fault.InputRequired}, status: 200, transport: Answered, body: true, modern: true},
		{name: "rpc error", rule: fault.Rule{Kind: fault.RPCError}, status: 200, transport: Answered, body: true},
		{name: "rpc error refused", rule: fault.Rule{Kind: fault.RPCError, Status: 400, Code: -32602, Body: "no"}, failure: FailStatus, status: 400, transport: Answered, body: true, frames: "json"},
		{name: "two answers", rule: fault.Rule{Kind: fault.TwoAnswers}, status: 200, transport: Answered, body: true, frames: "sse"},
		{name: "server request", rule: fault.Rule{Kind: fault.ServerRequest}, status: 200, transport: Answered, body: true, frames: "sse"},
	}
	for _, style := range []string{"crlf", "cr", "lines", "comments", "bom", "nospace", "fields"} {
		last := tests[0]
		last.name, last.rule = "style "+style, fault.Rule{Kind: fault.Style, Body: style}
		last.failure, last.status, last.transport, last.body, last.frames, last.tls = "", 200, Answered, true, "sse", false
		tests = append(tests, last)
	}
	for _, status := range []int{201, 204, 300, 304, 307, 308, 400, 401, 403, 404, 405, 406, 408, 409, 413, 415, 422, 425, 429, 500, 502, 503, 504, 599} {
		last := tests[0]
		last.name, last.rule = fmt.Sprintf("status %d", status), fault.Rule{Kind: fault.Status, Status: status, Body: "no", Location: "other"}
		if status == 204 || status == 304 {
			last.rule.Body = ""
		}
		last.failure, last.status, last.transport, last.tls = FailStatus, status, Answered, false
		tests = append(tests, last)
	}
	for _, location := range []string{"self", "other", "metadata"} {
		last := tests[0]
		last.name, last.rule = "redirect "+location, fault.Rule{Kind: fault.Redirect, Location: location}
		last.failure, last.status, last.transport, last.tls = FailStatus, 307, Answered, false
		tests = append(tests, last)
	}

	for _, protocol := range []string{v20260728, v20251125} {
		for _, frame := range []string{"json", "sse"} {
			for _, secure := range []bool{false, true} {
				n := 0
				s := mcpserver.Start(t, mcpserver.Options{Framing: framing(frame), TLS: secure})
				c, tg := client(t, s), target(s, protocol)
				for _, tt := range tests {
					if tt.frames != "" && tt.frames != frame || tt.modern && protocol != Modern || secure && !tt.tls {
						continue
					}
					for _, write := range []bool{true, false} {
						tool := map[bool]string{true: "create_issue", false: "echo_raw"}[write]
						t.Run(fmt.Sprintf("%s/%s/tls=%v/%s/write=%v", protocol, frame, secure, tt.name, write), func(t *testing.T) {
							n++
							before, effects := len(s.Calls("")), s.Effects().Count("")
							id := s.Fault(tt.rule)
							defer s.Faults.Remove(id)
							tg.Limits = Limits{}
							if tt.short {
								tg.Limits = Limits{Answer: 500 * time.Millisecond, Silence: 200 * time.Millisecond}
							}
							out := dispatch(t, c, tg, &Call{ID: fmt.Sprintf("c.%d", n), Tool: tool, Arguments: []byte(writeArgs), Write: write}, Hooks{})
							want := tt.transport
							if want == "" {
								want = Sent
							}
							status := tt.status
							if tt.short {
								status = out.Status // how far the head came is the machine's speed
							}
							if slices.Contains(tt.or, out.Failure) {
								out.Failure = tt.failure
							}
							if out.Failure != tt.failure || out.Status != status || out.Transport != want || out.Bytes == 0 || (len(out.Body) > 0) != tt.body {
								t.Errorf("got %s %s %d, %d bytes, body %.80q (%s), want %s %s %d", out.Transport, out.Failure, out.Status, out.Bytes, out.Body, out.Detail, want, tt.failure, status)
							}
							calls := s.Calls("")[before:]
							if len(calls) != 1 || string(calls[0].Note.Arguments) != writeArgs {
								t.Errorf("%d calls on the wire", len(calls))
							}
							if n := s.Effects().Count("") - effects; n > 1 {
								t.Errorf("%d effects", n)
							}
							if write && (calls[0].Nth != 1 || out.Reused) {
								t.Errorf("the write was request %d of its connection", calls[0].Nth)
							}
							for _, r := range calls {
								if r.Listener == "other" {
									t.Error("a redirect was followed")
								}
							}
						})
					}
				}
			}
		}
	}
}

func repeat(s string, n int) string {
	out := make([]byte, 0, len(s)*n)
	for range n {
		out = append(out, s...)
	}
	return string(out)
}

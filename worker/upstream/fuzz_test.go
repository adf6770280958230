package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"sallyport.dev/relay/strictjson"
)

// naiveEvents reads an event stream in the plainest way: all lines, then all events.
func naiveEvents(stream string) (events []string, cut bool) {
	stream = strings.ReplaceAll(strings.ReplaceAll(stream, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(stream, "\n")
	last := lines[len(lines)-1] // without an end: not a line
	lines = lines[:len(lines)-1]
	var data []string
	kind := ""
	for i, line := range lines {
		if i == 0 {
			line = strings.TrimPrefix(line, "\uFEFF")
		}
		if line == "" {
			if text := strings.Join(data, "\n"); text != "" && (kind == "" || kind == "message") {
				events = append(events, text)
			}
			data, kind = nil, ""
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "data":
			data = append(data, value)
		case "event":
			kind = value
		}
	}
	return events, last != "" || data != nil
}

func FuzzEvents(f *testing.F) {
	for _, s := range []string{
		"data: {}\n\n", "data:a\r\ndata: b\r\n\r\n", "data\r\rdata: x\r\r", "\uFEFFdata: x\n\n", ": c\nevent: ping\ndata: x\n\nevent: message\ndata: y\n\n",
		"id: 1\nretry: 5\ndata: \n\n", "data: cut", "data: cut\n", "data: a\n\r\ndata: b\n\r", "event: x\n", "data:  two\n\n", "\r\n\r\n", "datax: 1\n\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, stream string) {
		want, cut := naiveEvents(stream)
		for _, r := range []io.Reader{strings.NewReader(stream), iotest.OneByteReader(strings.NewReader(stream))} {
			e := eventReader{in: bufio.NewReaderSize(r, 16), most: 1 << 20, total: 1 << 20}
			var got []string
			var err error
			for {
				var data []byte
				if data, err = e.next(); err != nil {
					break
				}
				got = append(got, string(data))
			}
			if !slices.Equal(got, want) || errors.Is(err, io.ErrUnexpectedEOF) != cut || !cut && !errors.Is(err, io.EOF) {
				t.Fatalf("%q: %q, %v, want %q, cut %v", stream, got, err, want, cut)
			}
		}
		small := eventReader{in: bufio.NewReaderSize(strings.NewReader(stream), 16), most: 8, total: 64}
		for {
			data, err := small.next()
			if err != nil {
				break
			}
			if len(data) > 8 {
				t.Fatalf("%d bytes beyond a bound of 8", len(data))
			}
		}
	})
}

func FuzzMessage(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":"c","result":{}}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}`, `{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":"c","result":{},"result":{}}`, `{"jsonrpc":"2.0","id":"\u0063","result":{"a":[1e400,{"b":null}]}} `, `[]`, `{`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := parseMessage(raw)
		if err != nil {
			return
		}
		if !jsontext.Value(raw).IsValid() {
			t.Fatalf("accepted %q, which jsontext refuses", raw)
		}
		if m.isResponse() && m.method != "" || m.result != nil && m.fault != nil {
			t.Fatalf("%q is two things at once", raw)
		}
		if m.answers("c") && m.fault == nil {
			var id string
			if s, ok := strictjson.Unquote(m.id); ok {
				id = s
			}
			if id != "c" {
				t.Fatalf("%q answers c", raw)
			}
		}
	})
}

// canned is a connection that has its answer ready; its clocks stand still.
type canned struct {
	io.Reader
	wrote bytes.Buffer
}

func (c *canned) Write(b []byte) (int, error)      { return c.wrote.Write(b) }
func (c *canned) Close() error                     { return nil }
func (c *canned) LocalAddr() net.Addr              { return nil }
func (c *canned) RemoteAddr() net.Addr             { return nil }
func (c *canned) SetDeadline(time.Time) error      { return nil }
func (c *canned) SetReadDeadline(time.Time) error  { return nil }
func (c *canned) SetWriteDeadline(time.Time) error { return nil }

// gate lets reads pass once it is open: an answer must not come before the question.
type gate struct {
	open chan struct{}
	r    io.Reader
}

func (g *gate) Read(p []byte) (int, error) {
	<-g.open
	return g.r.Read(p)
}

// opening gate on write
type gated struct {
	canned
	open chan struct{}
	done bool
}

func (g *gated) Write(b []byte) (int, error) {
	if !g.done {
		g.done = true
		defer close(g.open)
	}
	return g.canned.Write(b)
}

func FuzzAnswer(f *testing.F) {
	const ok = `{"jsonrpc":"2.0","id":"c","result":{"content":[]}}`
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n" + ok,
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n32\r\n" + ok + "\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hi\n\ndata: " + ok + "\n\n",
		"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n" + ok,
		"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + ok,
		"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 307 T\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\nContent-Length: 67\r\n\r\n" + `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"nope"}}`,
		"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 2", "", "\r\n",
	} {
		f.Add([]byte(s), uint8(0))
		f.Add([]byte(s), uint8(1))
		f.Add([]byte(s), uint8(4)) // as the answer of a callback
	}
	f.Fuzz(func(t *testing.T, answer []byte, mode uint8) {
		open := make(chan struct{})
		conn := &gated{open: open}
		conn.Reader = &gate{open, bytes.NewReader(answer)}
		if mode&1 != 0 {
			conn.Reader = &gate{open, iotest.OneByteReader(bytes.NewReader(answer))}
		}
		c := New(nil, "test")
		c.dial = func(context.Context, *route) (*meter, net.Conn, netip.AddrPort, error) {
			m := &meter{Conn: conn}
			return m, m, netip.AddrPort{}, nil
		}
		defer c.Close()
		tg := pipeTarget()
		tg.Limits.Result = 1 << 10
		if mode&2 != 0 {
			tg.Protocol = batchedIn
		}
		callback := mode&4 != 0
		var p *Prepared
		var err error
		if callback {
			p, err = c.PrepareCallback(t.Context(), tg, &Callback{ID: "c", Tool: "t", Arguments: []byte(`{}`), Write: true}, Hooks{})
		} else {
			call := writeCall("c")
			if tg.Protocol != Modern {
				call.Session = (&session{revision: batchedIn}).export()
			}
			p, err = c.Prepare(t.Context(), tg, call, Hooks{})
		}
		if err != nil {
			t.Fatal(err)
		}
		out := p.Send(t.Context())
		if out.Bytes == 0 || out.Transport == NotSent {
			t.Fatalf("the request was written, and the outcome says %+v", out)
		}
		if bytes.Count(conn.wrote.Bytes(), []byte("tools/call")) != bytes.Count(p.x.wire, []byte("tools/call")) || callback && !bytes.Equal(conn.wrote.Bytes(), p.x.wire) {
			t.Fatal("the request was written more than once")
		}
		if out.Failure == "" && !acceptable(out, answer, callback) {
			t.Fatalf("accepted %+v, body %q", out, out.Body)
		}
		if out.Transport == Answered && out.Status == 0 || out.Body != nil && out.Failure != "" && out.Failure != FailStatus {
			t.Fatalf("%+v, body %q", out, out.Body)
		}
	})
}

// acceptable reports whether an answer may be taken for the call's: it is whole, strict, ours, and stands in what the server sent.
func acceptable(out Outcome, answer []byte, callback bool) bool {
	if out.Transport != Answered || !bytes.Contains(flat(answer), flat(out.Body)) {
		return false
	}
	if callback {
		return out.Status/100 == 2 && strictjson.Check(out.Body) == nil
	}
	m, err := parseMessage(out.Body)
	return err == nil && out.Status == 200 && m.isResponse() && m.answers("c")
}

// flat drops what chunks and lines of an event stream put between the bytes of an answer.
func flat(b []byte) []byte {
	return bytes.Map(func(r rune) rune {
		if strings.ContainsRune("\r\n 0123456789abcdefABCDEFdata:;", r) {
			return -1
		}
		return r
	}, b)
}

func FuzzScrub(f *testing.F) {
	f.Add(`{"a":"tok\/en-12345678"}`)
	f.Add(`{"a":["\u0074ok/en-1234567\u0038"]}`)
	f.Fuzz(func(t *testing.T, doc string) {
		if strictjson.Check([]byte(doc)) != nil {
			return
		}
		c, _ := Bearer("tok/en-12345678")
		out, found := c.scrubJSON([]byte(doc))
		if !found && string(out) != doc {
			t.Fatalf("%q changed to %q without a word", doc, out)
		}
		for dec := jsontext.NewDecoder(bytes.NewReader(out), jsontext.AllowDuplicateNames(true)); ; {
			token, err := dec.ReadToken()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatalf("%q became %q: %v", doc, out, err)
			}
			if token.Kind() == '"' && strings.Contains(token.String(), "tok/en-12345678") {
				t.Fatalf("%q kept it: %q", doc, out)
			}
		}
	})
}

package shim

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/guest/fakehost"
	"sallyport.dev/relay"
	"sallyport.dev/relay/strictjson"
)

func calls(n int) func(fakehost.Seen) bool {
	return func(s fakehost.Seen) bool { return len(s.Calls) >= n }
}

func acks(n int) func(fakehost.Seen) bool {
	return func(s fakehost.Seen) bool { return len(s.Acks) >= n }
}

func cancels(n int) func(fakehost.Seen) bool {
	return func(s fakehost.Seen) bool { return len(s.Cancels) >= n }
}

// text returns the text of the one block that a result of our own has.
func text(t *testing.T, line string) string {
	t.Helper()
	result, _ := strictjson.Lookup([]byte(line), "result")
	content, _ := strictjson.Lookup(result, "content")
	for at := range strictjson.ElementSpans(content) {
		raw, _ := strictjson.Lookup(content[at.Value:at.End], "text")
		text, _ := strictjson.Unquote(raw)
		if failed, _ := strictjson.Lookup(result, "isError"); string(failed) != "true" {
			t.Errorf("not marked as an error: %s", line)
		}
		return text
	}
	t.Fatalf("no text in %s", line)
	return ""
}

func want(t *testing.T, got string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			t.Errorf("%q is missing in %q", part, got)
		}
	}
}

// Arguments and results are bytes: what a float or a decoder would change survives.
func TestRoundTripIsExact(t *testing.T) {
	values := []string{
		`{}`, `{ }`, `{"n":9007199254740993}`, `{"n":12345678901234567890123456789}`, `{"n":1e400,"m":-0,"x":1.10,"y":1E+2}`,
		`{"b":1,"a":2}`, `{"s":"\u00e9\/\ud83d\ude00é😀"}`, `{"deep":` + strings.Repeat("[", 90) + strings.Repeat("]", 90) + `}`,
		`{"":{"":[]}}`, "{\t\"t\"\t:\t1}", `{"null":null,"t":true}`, `{"html":"<&>\u2028 "}`,
	}
	h := host(t, func(h *fakehost.Host, c fakehost.Call) {
		if err := h.Answer(c, `{"content":[],"echo":`+string(c.Arguments)+`}`); err != nil {
			t.Error(err)
		}
	}, "echo")
	p := open(t, h.In(), h.Out()).hello()
	for i, v := range values {
		id := strconv.Itoa(i + 1)
		if got, want := p.ask(call(id, "echo", v)), `{"jsonrpc":"2.0","id":`+id+`,"result":{"content":[],"echo":`+v+`}}`; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	s := seen(t, h, acks(len(values)))
	for i, c := range s.Calls {
		if string(c.Arguments) != values[i] {
			t.Errorf("the host got %s, not %s", c.Arguments, values[i])
		}
		if c.Shim != s.Calls[0].Shim || c.ID == s.Calls[0].ID && i > 0 {
			t.Error("a call of another shim, or with the id of another call")
		}
	}
}

func TestManyCallsAtOnce(t *testing.T) {
	const n = relay.MaxInFlight
	release := make(chan struct{})
	h := host(t, func(h *fakehost.Host, c fakehost.Call) {
		<-release
		if err := h.Answer(c, `{"content":[],"echo":`+string(c.Arguments)+`}`); err != nil {
			t.Error(err)
		}
	}, "echo")
	p := open(t, h.In(), h.Out()).hello()
	for i := range n {
		p.send(call(strconv.Itoa(i+1), "echo", fmt.Sprintf(`{"i":%d}`, i+1)))
	}
	seen(t, h, calls(n))
	// One over the session's bound is refused at once, and the pipe still serves.
	want(t, text(t, p.ask(call("65", "echo", `{}`))), "did not run echo", "(busy)")
	if got := p.ask(`{"jsonrpc":"2.0","id":"p","method":"ping"}`); got != `{"jsonrpc":"2.0","id":"p","result":{}}` {
		t.Error(got)
	}
	close(release)
	answered := map[string]bool{}
	for range n {
		line := p.line()
		id, _ := strictjson.Lookup([]byte(line), "id")
		if line != fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[],"echo":{"i":%s}}}`, id, id) {
			t.Fatalf("the answer of another call: %s", line)
		}
		answered[string(id)] = true
	}
	if len(answered) != n {
		t.Fatalf("%d of %d calls were answered", len(answered), n)
	}
	seen(t, h, acks(n))
}

// gatedWriter holds each write until it is let through, or fails it.
type gatedWriter struct {
	begun chan string
	let   chan error
}

func (g *gatedWriter) Write(p []byte) (int, error) {
	g.begun <- string(p)
	if err := <-g.let; err != nil {
		return len(p) / 2, err
	}
	return len(p), nil
}

// run starts a server with a gated output; it has made its handshake.
func gated(t *testing.T, h *fakehost.Host) (*gatedWriter, io.Writer, chan error) {
	t.Helper()
	out := &gatedWriter{begun: make(chan string), let: make(chan error)}
	inR, inW := io.Pipe()
	log := &lockedBuffer{}
	s := New(Config{In: inR, Out: out, Log: log, RelayIn: h.In(), RelayOut: h.Out(), Build: "test"})
	done := make(chan error, 1)
	go func() { done <- s.Run(context.Background()); inR.Close() }()
	t.Cleanup(func() {
		inW.Close()
		if t.Failed() {
			t.Logf("the server's log:\n%s", log)
		}
	})
	go io.WriteString(inW, legacyHello+"\n")
	<-out.begun
	out.let <- nil
	return out, inW, done
}

// An ack before the line is out would let the host forget a result that nobody has.
func TestAckFollowsTheWholeLine(t *testing.T) {
	h := host(t, answering(t, `{"content":[]}`), "echo")
	out, in, done := gated(t, h)
	go io.WriteString(in, call("1", "echo", "{}")+"\n")
	if line := <-out.begun; !strings.HasSuffix(line, "\n") || strings.Count(line, "\n") != 1 {
		t.Fatalf("not one whole line in one write: %q", line)
	}
	names, err := os.ReadDir(filepath.Join(h.Out(), relay.NewDir))
	if err != nil {
		t.Fatal(err)
	}
	if len(names) > 0 || len(h.Seen().Acks) > 0 {
		t.Fatalf("published before the line was out: %v, %v", names, h.Seen().Acks)
	}
	out.let <- nil
	seen(t, h, acks(1))
	in.(io.Closer).Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A harness whose end is gone has left, even while our input stays open.
func TestABrokenPipeEndsTheServer(t *testing.T) {
	h := host(t, func(h *fakehost.Host, c fakehost.Call) {
		if string(c.Arguments) == `{"answer":true}` {
			if err := h.Answer(c, `{"content":[]}`); err != nil {
				t.Error(err)
			}
		}
	}, "echo")
	out, in, done := gated(t, h)
	go io.WriteString(in, call("1", "echo", `{"answer":false}`)+"\n"+call("2", "echo", `{"answer":true}`)+"\n")
	<-out.begun
	out.let <- io.ErrClosedPipe // in the middle of the line
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s := seen(t, h, cancels(1))
	if s.Cancels[0].Why != relay.WhyClosed || string(s.Calls[0].Arguments) == `{"answer":true}` && s.Cancels[0].ID == s.Calls[0].ID {
		t.Errorf("cancels %+v", s.Cancels)
	}
	if len(s.Acks) > 0 {
		t.Errorf("a line that was cut was acknowledged")
	}
}

func TestSignalDetachesEveryCall(t *testing.T) {
	const n = 10
	h := host(t, nil, "echo")
	p := open(t, h.In(), h.Out()).hello()
	for i := range n {
		p.send(call(strconv.Itoa(i), "echo", "{}"))
	}
	seen(t, h, calls(n))
	p.stop() // as the process does on a signal; the pipe stays open
	if err := <-p.done; err != nil {
		t.Fatal(err)
	}
	s := seen(t, h, cancels(n))
	ids := map[string]bool{}
	for _, c := range s.Cancels {
		if c.Why != relay.WhyClosed {
			t.Errorf("cancelled by %s", c.Why)
		}
		ids[c.ID] = true
	}
	if len(ids) != n {
		t.Errorf("%d of %d calls were detached", len(ids), n)
	}
}

func TestArgumentsOverTheBound(t *testing.T) {
	h := host(t, answering(t, `{"content":[]}`), "echo")
	p := open(t, h.In(), h.Out()).hello()
	fits := `{"x":"` + strings.Repeat("x", relay.MaxArguments-8) + `"}`
	want(t, p.ask(call("1", "echo", fits)), `"id":1,"result":{"content":[]}`)
	want(t, text(t, p.ask(call("2", "echo", strings.Replace(fits, "x\":\"", "x\":\"y", 1)))), "1048577 bytes", "at most 1048576", "(oversize)")
	h.Session.Limits.Arguments = 10
	if err := h.PublishSession(); err != nil {
		t.Fatal(err)
	}
	want(t, text(t, p.ask(call("3", "echo", `{"x":"xxxx"}`))), "12 bytes", "at most 10")
	if n := len(h.Seen().Calls); n != 1 {
		t.Errorf("%d calls reached the host", n)
	}
}

func TestLineOverTheBound(t *testing.T) {
	h := host(t, answering(t, `{"content":[]}`), "echo")
	p := open(t, h.In(), h.Out()).hello()
	p.send(call(`"big"`, "echo", `{"x":"`+strings.Repeat("x", relay.MaxLine)+`"}`))
	want(t, p.line(), `"id":"big","error":{"code":-32600,`, "longer than 8388608 bytes")
	want(t, p.ask(call("2", "echo", "{}")), `"id":2,"result":{"content":[]}`)
}

// What a shim refuses by itself it tells the host, in as few words as there are, and not without end.
func TestTellsWhatItRefuses(t *testing.T) {
	h := host(t, answering(t, `{"content":[]}`), "echo")
	p := open(t, h.In(), h.Out(), func(s *Server) { s.telling = relay.NewAllowance(4, time.Hour) }).hello()
	p.send(call("1", "echo", `{"x":"`+strings.Repeat("x", relay.MaxLine)+`"}`))
	want(t, p.line(), "longer than 8388608 bytes")
	want(t, p.ask(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","name":"drop_all"}}`), `"code":-32700`)
	want(t, p.ask(call("3", "drop_all", "{}")), "unknown tool")
	want(t, p.ask(call("4", "echo", `{"x":"`+strings.Repeat("x", relay.MaxArguments)+`"}`)), "(oversize)")
	for range 10 {
		want(t, p.ask(call("5", "drop_all", "{}")), "unknown tool")
	}
	want(t, p.ask(call("6", "echo", "{}")), `"result":{"content":[]}`)
	got := seen(t, h, func(s fakehost.Seen) bool { return len(s.Refused) == 4 && len(s.Calls) == 1 }).Refused
	for i, w := range []relay.Refused{{Code: errs.Oversize}, {Code: errs.Invalid}, {Code: errs.UnknownTool, Tool: "drop_all"}, {Code: errs.Oversize, Tool: "echo"}} {
		if !slices.ContainsFunc(got, func(r relay.Refused) bool { return r.Code == w.Code && r.Tool == w.Tool && r.More == 0 }) {
			t.Errorf("the host was not told of refusal %d, %+v: %+v", i, w, got)
		}
	}
}

func TestDuplicateOpenID(t *testing.T) {
	h := host(t, nil, "echo")
	p := open(t, h.In(), h.Out()).hello()
	p.send(call("1", "echo", `{"first":true}`))
	s := seen(t, h, calls(1))
	if got := p.ask(call("1", "echo", `{"second":true}`)); strings.Contains(got, `"id"`) || !strings.Contains(got, "-32600") {
		t.Fatalf("an error that the first request would take for its answer: %s", got)
	}
	if err := h.Answer(s.Calls[0], `{"content":[]}`); err != nil {
		t.Fatal(err)
	}
	want(t, p.line(), `"id":1,"result"`)
	p.end()
	if n := len(h.Seen().Calls); n != 1 {
		t.Errorf("%d calls reached the host", n)
	}
}

// Progress that does not grow is left out, and none follows the answer.
func TestProgress(t *testing.T) {
	h := host(t, nil, "echo")
	p := open(t, h.In(), h.Out()).hello()
	p.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","_meta":{"progressToken":1e1}}}`)
	c := seen(t, h, calls(1)).Calls[0]
	publish := func(n int64, progress float64) {
		if err := h.Progress(c, n, progress, 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	publish(1, 2)
	want(t, p.line(), `"params":{"progressToken":1e1,"progress":2}`)
	publish(2, 2)
	publish(3, 2.5)
	want(t, p.line(), `"params":{"progressToken":1e1,"progress":2.5}`)
	if err := h.Answer(c, `{"content":[]}`); err != nil {
		t.Fatal(err)
	}
	want(t, p.line(), `"id":1,"result"`)
	publish(4, 3)
	want(t, p.ask(`{"jsonrpc":"2.0","id":2,"method":"ping"}`), `"id":2`)
}

func TestSubscriptionsAreBounded(t *testing.T) {
	p := open(t, "nowhere", "nowhere")
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	listen := func(id int) string {
		return p.ask(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"subscriptions/listen","params":{"notifications":{},%s}}`, id, meta))
	}
	for i := range maxSubscriptions {
		want(t, listen(i), "acknowledged")
	}
	want(t, listen(maxSubscriptions), "too many subscriptions")
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0}}`)
	want(t, listen(maxSubscriptions), "acknowledged")
	if n := strings.Count(p.end(), `"resultType":"complete"`); n != maxSubscriptions {
		t.Errorf("%d subscriptions ended in good order", n)
	}
}

// A batch is answered once whatever its order, also when its calls end from several goroutines.
func TestBatchCountsDown(t *testing.T) {
	var out strings.Builder
	b := newBatch(&lineWriter{w: &out}, 50)
	var wg sync.WaitGroup
	after := 0
	for i := range 50 {
		wg.Go(func() {
			if i%5 == 0 {
				b.skip()
				return
			}
			b.answer([]byte(strconv.Itoa(i)), func() { after++ })
		})
	}
	wg.Wait()
	var all [][]byte
	all, err := strictjson.Array([]byte(out.String()), nil)
	if err != nil || len(all) != 40 || after != 40 || strings.Count(out.String(), "\n") != 1 {
		t.Fatalf("%d answers, %d afterwards, %v: %q", len(all), after, err, out.String())
	}
}

package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sallyport.dev/test/fixture/wire"
)

// pipes is a server at the other end of net.Pipe, for tests in which time is made: each connection is served by serve.
type pipes struct {
	mu    sync.Mutex
	conns []net.Conn
	wg    sync.WaitGroup
	serve func(n int, conn net.Conn)
}

func (p *pipes) dial(context.Context, *route) (*meter, net.Conn, netip.AddrPort, error) {
	ours, theirs := net.Pipe()
	p.mu.Lock()
	p.conns = append(p.conns, theirs)
	n := len(p.conns)
	p.mu.Unlock()
	p.wg.Go(func() {
		defer theirs.Close()
		p.serve(n, theirs)
	})
	m := &meter{Conn: ours}
	return m, m, netip.MustParseAddrPort("192.0.2.1:443"), nil
}

func (p *pipes) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// pipeClient is a client of p inside a synctest bubble.
func pipeClient(t *testing.T, p *pipes) *Client {
	c := New(nil, "test")
	c.dial = p.dial
	t.Cleanup(func() { c.Close(); p.wg.Wait() })
	return c
}

func pipeTarget() *Target {
	return &Target{Origin: "https://example.org", Path: "/mcp", Protocol: Modern}
}

// requests reads requests off conn and calls answer for each, until the peer leaves or answer returns false.
func requests(conn net.Conn, answer func(n int, r *http.Request, body []byte) bool) {
	in := bufio.NewReader(conn)
	for n := 1; ; n++ {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || !answer(n, r, body) {
			return
		}
	}
}

func jsonAnswer(id string) string {
	body := `{"jsonrpc":"2.0","id":"` + id + `","result":{"resultType":"complete","content":[]}}`
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func readCall(id string) *Call { return &Call{ID: id, Tool: "t", Arguments: []byte("{}")} }

func writeCall(id string) *Call {
	return &Call{ID: id, Tool: "t", Arguments: []byte("{}"), Write: true}
}

func prepare(t *testing.T, c *Client, call *Call) *Prepared {
	t.Helper()
	p, err := c.Prepare(t.Context(), pipeTarget(), call, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A write never takes a connection that carried a request; it takes a spare, but only a young one.
func TestWritesNeverReuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		seen := map[string]string{} // id -> connection.request
		p := &pipes{}
		p.serve = func(conn int, c net.Conn) {
			requests(c, func(n int, r *http.Request, body []byte) bool {
				m, err := parseMessage(body)
				if err != nil {
					t.Error(err)
				}
				id := string(m.id[1 : len(m.id)-1])
				mu.Lock()
				seen[id] = fmt.Sprintf("%d.%d", conn, n)
				mu.Unlock()
				_, err = io.WriteString(c, jsonAnswer(id))
				return err == nil
			})
		}
		c := pipeClient(t, p)
		send := func(call *Call) Outcome {
			out := prepare(t, c, call).Send(t.Context())
			if out.Failure != "" {
				t.Fatalf("%s: %+v", call.ID, out)
			}
			synctest.Wait()
			return out
		}
		send(readCall("r1"))  // opens 1
		send(readCall("r2"))  // 1 again
		send(writeCall("w1")) // opens 2
		<-time.After(spareLife)
		send(writeCall("w2")) // opens 3, though 1 and 2 rest
		<-time.After(spareLife)
		prepare(t, c, writeCall("unsent")).Close() // opens 4, which becomes a spare
		send(writeCall("w3"))                      // 4
		<-time.After(spareLife)
		prepare(t, c, writeCall("unsent")).Close() // opens 5
		<-time.After(spareLife)
		send(writeCall("w4")) // opens 6: the spare is too old, and closed
		send(writeCall("w5")) // opens 7, and 8 as a spare, because writes follow each other
		send(writeCall("w6")) // 8, and opens 9
		for id, want := range map[string]string{"r1": "1.1", "r2": "1.2", "w1": "2.1", "w2": "3.1", "w3": "4.1", "w4": "6.1", "w5": "7.1", "w6": "8.1"} {
			if seen[id] != want {
				t.Errorf("%s went as %s (connection.request), want %s", id, seen[id], want)
			}
		}
		if p.count() != 9 {
			t.Errorf("%d connections, want 9", p.count())
		}
		if out := send(readCall("r3")); !out.Reused {
			t.Error("a read did not use a resting connection")
		}
		<-time.After(idleLife)
		synctest.Wait()
		if c.pool.count != 0 {
			t.Errorf("%d connections rest for ever", c.pool.count)
		}
	})
}

// The clocks: a whole answer in time, no silence, and what a person is asked does not count as silence.
func TestClocks(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
	event := "data: {\"jsonrpc\":\"2.0\",\"id\":\"c\",\"result\":{}}\n\n"
	for name, tt := range map[string]struct {
		serve   func(w io.Writer, end <-chan struct{})
		cancel  time.Duration
		failure Failure
		after   time.Duration
	}{
		"silence at once": {func(_ io.Writer, end <-chan struct{}) { <-end }, 0, FailSilence, 10 * time.Second},
		"silence later":   {func(w io.Writer, end <-chan struct{}) { io.WriteString(w, head); <-end }, 0, FailSilence, 10 * time.Second},
		"comments are life": {func(w io.Writer, end <-chan struct{}) {
			io.WriteString(w, head)
			ticks(w, ":\n", 4*time.Second, 3, end)
			io.WriteString(w, event)
		}, 0, "", 12 * time.Second},
		"never whole": {func(w io.Writer, end <-chan struct{}) {
			io.WriteString(w, head)
			ticks(w, ":\n", 4*time.Second, 30, end)
		}, 0, FailTimeout, 60 * time.Second},
		"slow drip": {func(w io.Writer, end <-chan struct{}) { ticks(w, "H", 9*time.Second, 1, end); <-end }, 0, FailSilence, 19 * time.Second},
		"cancelled": {func(_ io.Writer, end <-chan struct{}) { <-end }, 3 * time.Second, FailCancelled, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &pipes{}
				ended := make(chan struct{})
				p.serve = func(_ int, c net.Conn) {
					requests(c, func(int, *http.Request, []byte) bool {
						tt.serve(c, ended)
						return false
					})
				}
				c := pipeClient(t, p)
				target := pipeTarget()
				target.Limits = Limits{Silence: 10 * time.Second, Answer: time.Minute}
				call, err := c.Prepare(t.Context(), target, readCall("c"), Hooks{})
				if err != nil {
					t.Fatal(err)
				}
				ctx := t.Context()
				if tt.cancel > 0 {
					var stop context.CancelFunc
					ctx, stop = context.WithCancel(ctx)
					time.AfterFunc(tt.cancel, stop)
				}
				start := time.Now()
				out := call.Send(ctx)
				if out.Failure != tt.failure || time.Since(start) != tt.after || out.Bytes == 0 {
					t.Errorf("%s after %v with %d bytes, want %s after %v", out.Failure, time.Since(start), out.Bytes, tt.failure, tt.after)
				}
				close(ended)
			})
		})
	}
}

// ticks writes text every so often; an error ends it (the peer left).
func ticks(w io.Writer, text string, every time.Duration, n int, end <-chan struct{}) {
	for range n {
		select {
		case <-time.After(every):
		case <-end:
			return
		}
		if _, err := io.WriteString(w, text); err != nil {
			return
		}
	}
}

// A server that reads slowly: the request's own time is bounded too, and bytes that left are counted.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{}
		end := make(chan struct{})
		p.serve = func(_ int, c net.Conn) {
			io.ReadFull(c, make([]byte, 100))
			<-end
		}
		c := pipeClient(t, p)
		out := prepare(t, c, writeCall("c")).Send(t.Context())
		close(end)
		if out.Failure != FailWrite || out.Transport != Sent || out.Bytes != 100 {
			t.Errorf("%+v", out)
		}
	})
}

// A server that refuses by the head, and reads no further: its answer is read although the request was not whole.
func TestEarlyAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{}
		end := make(chan struct{})
		p.serve = func(_ int, c net.Conn) {
			io.ReadFull(c, make([]byte, 100))
			io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nno\n")
			<-end
		}
		c := pipeClient(t, p)
		start := time.Now()
		out := prepare(t, c, writeCall("c")).Send(t.Context())
		close(end)
		if out.Failure != FailStatus || out.Status != 413 || out.Transport != Answered || out.Bytes != 100 || time.Since(start) > 2*earlyGrace {
			t.Errorf("%+v after %v", out, time.Since(start))
		}
	})
}

// broken is a connection whose writes fail after so many bytes.
type broken struct {
	net.Conn
	left int
}

func (b *broken) Write(p []byte) (int, error) {
	if len(p) <= b.left {
		b.left -= len(p)
		return b.Conn.Write(p)
	}
	n := b.left
	b.left = 0
	if n > 0 {
		if _, err := b.Conn.Write(p[:n]); err != nil {
			return 0, err
		}
	}
	return n, errors.New("no buffer space")
}

// Only a kernel that took nothing is proof; a single byte is not.
func TestNotSentNeedsProof(t *testing.T) {
	for left, want := range map[int]Transport{0: NotSent, 1: Sent, 50: Sent} {
		synctest.Test(t, func(t *testing.T) {
			p := &pipes{serve: func(_ int, c net.Conn) { io.Copy(io.Discard, c) }}
			c := pipeClient(t, p)
			c.dial = func(ctx context.Context, r *route) (*meter, net.Conn, netip.AddrPort, error) {
				m, _, addr, err := p.dial(ctx, r)
				m.Conn = &broken{m.Conn, left}
				return m, m, addr, err
			}
			out := prepare(t, c, writeCall("c")).Send(t.Context())
			if out.Transport != want || out.Bytes != int64(left) || out.Failure != FailWrite {
				t.Errorf("%d bytes taken: %+v", left, out)
			}
		})
	}
}

// The same beneath TLS: a record that left in part is no proof, though nobody can open it.
func TestNotSentNeedsProofTLS(t *testing.T) {
	authority, err := wire.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Leaf("example.org")
	if err != nil {
		t.Fatal(err)
	}
	for left, want := range map[int]Transport{0: NotSent, 1: Sent} {
		p := &pipes{serve: func(_ int, c net.Conn) {
			io.Copy(io.Discard, tls.Server(c, &tls.Config{Certificates: []tls.Certificate{leaf}, MinVersion: tls.VersionTLS12}))
		}}
		c := pipeClient(t, p)
		c.dial = func(ctx context.Context, r *route) (*meter, net.Conn, netip.AddrPort, error) {
			m, _, addr, err := p.dial(ctx, r)
			if err != nil {
				return nil, nil, addr, err
			}
			b := &broken{m.Conn, 1 << 20}
			m.Conn = b
			stream := tls.Client(m, &tls.Config{ServerName: "example.org", RootCAs: authority.Pool(), MinVersion: tls.VersionTLS12})
			err = stream.HandshakeContext(ctx)
			b.left = left
			return m, stream, addr, err
		}
		out := prepare(t, c, writeCall("c")).Send(deadline(t))
		if out.Transport != want || (out.Bytes == 0) != (want == NotSent) || out.Failure != FailWrite {
			t.Errorf("%d bytes taken: %+v", left, out)
		}
	}
}

// A connection that ends between Prepare and Send costs nothing: no byte is written on it.
func TestClosedBeforeSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{serve: func(_ int, c net.Conn) { <-time.After(time.Second) }}
		c := pipeClient(t, p)
		call := prepare(t, c, writeCall("c"))
		<-time.After(2 * time.Second)
		synctest.Wait()
		if out := call.Send(t.Context()); out.Transport != NotSent || out.Bytes != 0 || out.Failure != FailReset {
			t.Errorf("%+v", out)
		}
	})
	synctest.Test(t, func(t *testing.T) { // or the server speaks out of turn
		p := &pipes{serve: func(_ int, c net.Conn) { io.WriteString(c, jsonAnswer("c")) }}
		c := pipeClient(t, p)
		call := prepare(t, c, writeCall("c"))
		synctest.Wait()
		if out := call.Send(t.Context()); out.Transport != NotSent || out.Bytes != 0 {
			t.Errorf("%+v", out)
		}
	})
}

// Send sends once, whatever is called in which order.
func TestSendOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls sync.Map
		p := &pipes{serve: func(conn int, c net.Conn) {
			requests(c, func(n int, _ *http.Request, _ []byte) bool {
				calls.Store([2]int{conn, n}, true)
				_, err := io.WriteString(c, jsonAnswer("c"))
				return err == nil
			})
		}}
		c := pipeClient(t, p)
		call := prepare(t, c, writeCall("c"))
		var wg sync.WaitGroup
		var mu sync.Mutex
		sent := 0
		for range 10 {
			wg.Go(func() {
				if out := call.Send(t.Context()); out.Bytes > 0 {
					mu.Lock()
					sent++
					mu.Unlock()
				} else if out.Transport != NotSent || out.Failure != FailClosed {
					t.Errorf("%+v", out)
				}
				call.Close()
			})
		}
		wg.Wait()
		n := 0
		calls.Range(func(any, any) bool { n++; return true })
		if sent != 1 || n != 1 {
			t.Errorf("%d sends, %d requests", sent, n)
		}
		closed := prepare(t, c, writeCall("d"))
		closed.Close()
		if out := closed.Send(t.Context()); out.Transport != NotSent || out.Failure != FailClosed {
			t.Errorf("after Close: %+v", out)
		}
		ctx, cancel := context.WithCancel(t.Context())
		over := prepare(t, c, writeCall("e"))
		cancel()
		if out := over.Send(ctx); out.Transport != NotSent || out.Failure != FailCancelled {
			t.Errorf("after cancellation: %+v", out)
		}
	})
}

package shim

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/guest/fakehost"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipe is a harness's end of a server that runs in this process.
type pipe struct {
	t      *testing.T
	server *Server
	in     *io.PipeWriter
	out    *bufio.Reader
	outEnd *io.PipeReader
	done   chan error
	stop   context.CancelFunc
	log    *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// open starts a server on in and out, which is ended with the test.
func open(t *testing.T, relayIn, relayOut string, change ...func(*Server)) *pipe {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	p := &pipe{t: t, in: inW, out: bufio.NewReaderSize(outR, 1<<20), outEnd: outR, done: make(chan error, 1), log: &lockedBuffer{}}
	p.server = New(Config{In: inR, Out: outW, Log: p.log, RelayIn: relayIn, RelayOut: relayOut, Build: "test"})
	for _, f := range change {
		f(p.server)
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() {
		err := p.server.Run(ctx)
		outW.Close()
		inR.Close()
		p.done <- err
		close(p.done)
	}()
	t.Cleanup(func() {
		inW.Close()
		outR.Close()
		stop()
		<-p.done
		if t.Failed() {
			t.Logf("the server's log:\n%s", p.log)
		}
	})
	return p
}

// send writes one line.
func (p *pipe) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// line returns the next line that the server writes.
func (p *pipe) line() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("the server's output ended: %v", err)
	}
	return strings.TrimSuffix(line, "\n")
}

// ask sends a line and returns the next one that comes back.
func (p *pipe) ask(line string) string {
	p.t.Helper()
	p.send(line)
	return p.line()
}

// end closes the harness's end and returns what the server still wrote.
func (p *pipe) end() string {
	p.t.Helper()
	p.in.Close()
	rest, err := io.ReadAll(p.out)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := <-p.done; err != nil {
		p.t.Errorf("Run: %v", err)
	}
	return string(rest)
}

const legacyHello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"tester","version":"1"}}}`

// hello makes the handshake of 2025-11-25 as a client that nothing is known about.
func (p *pipe) hello() *pipe {
	p.t.Helper()
	p.ask(legacyHello)
	p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return p
}

// host serves a session with these tools until the test ends; a broken rule fails the test.
func host(t *testing.T, handle fakehost.Handle, tools ...string) *fakehost.Host {
	t.Helper()
	raw := make([][]byte, len(tools))
	for i, tool := range tools {
		raw[i] = []byte(tool)
		if !strings.HasPrefix(tool, "{") {
			raw[i] = []byte(`{"name":"` + tool + `","inputSchema":{"type":"object"}}`)
		}
	}
	h, err := fakehost.New(t.TempDir(), raw, handle)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.Close()
		if broken := h.Seen().Broken; len(broken) > 0 {
			t.Errorf("the guest broke rules: %q", broken)
		}
	})
	return h
}

// seen waits until the host saw enough. The bound is only for a test that fails.
func seen(t *testing.T, h *fakehost.Host, enough func(fakehost.Seen) bool) fakehost.Seen {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := h.Wait(ctx, enough)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// answering answers every call with the same result.
func answering(t *testing.T, result string) fakehost.Handle {
	return func(h *fakehost.Host, c fakehost.Call) {
		if err := h.Answer(c, result); err != nil {
			t.Errorf("answer: %v", err)
		}
	}
}

func call(id, tool, arguments string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + arguments + `}}`
}

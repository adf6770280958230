package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"time"

	"sallyport.dev/test/rig"
)

// front serves an MCP server that speaks over a pipe as one that speaks over HTTP: it passes messages on, and knows of them only what it needs to
// bring an answer back to who waits for it. Each session of the old era has a process of its own; requests of the new era share them.
type front struct {
	start func(context.Context) (*exec.Cmd, error)
	ctx   context.Context // the processes' life

	mu       sync.Mutex
	sessions map[string]*process
	shared   []*process
	spare    *process // started ahead: the suite waits 5 s for some answers, and a sandbox may start slower on a busy machine
}

// next is a process that nobody uses. f.mu is held.
func (f *front) next() (*process, error) {
	p := f.spare
	var err error
	if p == nil {
		if p, err = f.spawn(); err != nil {
			return nil, err
		}
	}
	f.spare, err = f.spawn()
	return p, err
}

// process is one server behind the front.
type process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	writing sync.Mutex
	ended   chan struct{}

	mu   sync.Mutex
	open map[string]*stream // by the raw id of the request
}

// stream is where the messages about one request go. The last one is its answer.
type stream struct {
	lines chan []byte
	token string // raw progress token
}

// envelope is what the front reads of a message.
type envelope struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Error  *struct {
		Code int `json:"code"`
	} `json:"error"`
	Params struct {
		ProgressToken json.RawMessage `json:"progressToken"`
		Meta          struct {
			ProgressToken json.RawMessage `json:"progressToken"`
			Subscription  json.RawMessage `json:"io.modelcontextprotocol/subscriptionId"`
		} `json:"_meta"`
	} `json:"params"`
}

func (f *front) spawn() (*process, error) {
	cmd, err := f.start(f.ctx)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, ended: make(chan struct{}), open: map[string]*stream{}}
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go p.read(out)
	return p, nil
}

func (p *process) read(out io.Reader) {
	defer close(p.ended)
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			p.cmd.Wait() //nolint:errcheck // its pipe's end says it
			return
		}
		p.route(line)
	}
}

// route brings a message to the request that it is about; one that is about none is dropped.
func (p *process) route(line []byte) {
	var m envelope
	if json.Unmarshal(line, &m) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.Method == "" {
		if s := p.open[string(m.ID)]; s != nil {
			delete(p.open, string(m.ID))
			s.lines <- line
			close(s.lines)
		}
		return
	}
	for id, s := range p.open {
		if s.token != "" && s.token == string(m.Params.ProgressToken) || id == string(m.Params.Meta.Subscription) {
			select {
			case s.lines <- line:
			default: // nobody reads it
			}
		}
	}
}

// request registers a request and writes it. It reports false where one of this id is open.
func (p *process) request(m *envelope, body []byte) (*stream, bool, error) {
	s := &stream{lines: make(chan []byte, 256), token: string(m.Params.Meta.ProgressToken)}
	p.mu.Lock()
	if p.open[string(m.ID)] != nil {
		p.mu.Unlock()
		return nil, false, nil
	}
	p.open[string(m.ID)] = s
	p.mu.Unlock()
	return s, true, p.write(body)
}

func (p *process) write(message []byte) error {
	var line []byte
	for _, c := range message { // a message is a line of the pipe
		if c != '\n' && c != '\r' {
			line = append(line, c)
		}
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	_, err := p.in.Write(append(line, '\n'))
	return err
}

// close ends the process by its pipe, as a harness does.
func (p *process) close() {
	p.in.Close() //nolint:errcheck // its end is what is waited for
	select {
	case <-p.ended:
	case <-time.After(rig.Patience):
		p.cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-p.ended
	}
}

// close ends every process.
func (f *front) close() {
	f.mu.Lock()
	all := f.shared
	for _, p := range f.sessions {
		all = append(all, p)
	}
	if f.spare != nil {
		all = append(all, f.spare)
	}
	f.sessions, f.shared, f.spare = map[string]*process{}, nil, nil
	f.mu.Unlock()
	var ending sync.WaitGroup
	for _, p := range all {
		ending.Go(p.close)
	}
	ending.Wait()
}

const sessionHeader = "Mcp-Session-Id"

// ServeHTTP is Streamable HTTP, as far as messages go: no stream of GET, no resumption, and no check of the headers that repeat what a body says.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	session := r.Header.Get(sessionHeader)
	f.mu.Lock()
	p := f.sessions[session]
	f.mu.Unlock()
	switch {
	case session != "" && p == nil:
		http.Error(w, "no such session", http.StatusNotFound)
		return
	case r.Method == http.MethodDelete && p != nil:
		f.mu.Lock()
		delete(f.sessions, session)
		f.mu.Unlock()
		p.close()
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", "POST, DELETE")
		http.Error(w, "POST messages here", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 8<<20))
	var m envelope
	if err == nil {
		err = json.Unmarshal(body, &m)
	}
	if err != nil {
		reply(w, http.StatusBadRequest, []byte(`{"jsonrpc":"2.0","error":{"code":-32700,"message":"the body is not one message"}}`))
		return
	}
	if err := f.message(w, r, p, &m, body); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
	}
}

func reply(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(body) //nolint:errcheck // the client is gone
}

// message passes one message on; p is its session's process, nil where it names none.
func (f *front) message(w http.ResponseWriter, r *http.Request, p *process, m *envelope, body []byte) error {
	if m.ID == nil || m.Method == "" {
		if p != nil {
			if err := p.write(body); err != nil {
				return err
			}
		}
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	if p != nil {
		s, ok, err := p.request(m, body)
		if !ok && err == nil {
			err = errors.New("a request of this id is open")
		}
		if err != nil {
			return err
		}
		return p.answer(w, r, m, s, false)
	}
	if m.Method == "initialize" {
		id := rand.Text()
		f.mu.Lock()
		p, err := f.next()
		if err == nil {
			f.sessions[id] = p
		}
		f.mu.Unlock()
		if err != nil {
			return err
		}
		w.Header().Set(sessionHeader, id)
		s, _, err := p.request(m, body)
		if err != nil {
			return err
		}
		return p.answer(w, r, m, s, false)
	}
	p, s, err := f.sharing(m, body)
	if err != nil {
		return err
	}
	return p.answer(w, r, m, s, true)
}

// sharing hands a request to the first process in which no request of its id is open: clients that do not know of each other choose the same ids.
func (f *front) sharing(m *envelope, body []byte) (*process, *stream, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.shared {
		if s, ok, err := p.request(m, body); ok || err != nil {
			return p, s, err
		}
	}
	p, err := f.next()
	if err != nil {
		return nil, nil, err
	}
	f.shared = append(f.shared, p)
	s, _, err := p.request(m, body)
	return p, s, err
}

// statuses are those of 2026-07-28 for errors of the protocol; everything else is 200.
var statuses = map[int]int{-32700: 400, -32600: 400, -32602: 400, -32020: 400, -32021: 400, -32022: 400, -32601: 404}

// answer brings back what comes for a request: one message as JSON, more of them as an event stream. A client that leaves a request of the new era
// cancels it.
func (p *process) answer(w http.ResponseWriter, r *http.Request, m *envelope, s *stream, modern bool) error {
	events := false
	for {
		select {
		case line, more := <-s.lines:
			switch {
			case !more:
				return nil
			case !events && p.last(s):
				status := http.StatusOK
				var said envelope
				if json.Unmarshal(line, &said) == nil && said.Error != nil && modern && statuses[said.Error.Code] != 0 {
					status = statuses[said.Error.Code]
				}
				reply(w, status, line)
				return nil
			case !events:
				events = true
				w.Header().Set("Content-Type", "text/event-stream")
				w.WriteHeader(http.StatusOK)
			}
			fmt.Fprintf(w, "event: message\ndata: %s\n", line) //nolint:errcheck // the client is gone
			fmt.Fprintln(w)                                    //nolint:errcheck // the same
			http.NewResponseController(w).Flush()              //nolint:errcheck // the same
		case <-p.ended:
			return errors.New("the server's pipe ended")
		case <-r.Context().Done():
			if !modern {
				return nil
			}
			p.mu.Lock()
			delete(p.open, string(m.ID))
			p.mu.Unlock()
			return p.write(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, m.ID))
		}
	}
}

// last reports whether nothing follows what was just taken from s.
func (p *process) last(s *stream) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, open := range p.open {
		if open == s {
			return false
		}
	}
	return len(s.lines) == 0
}

package rig

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"sync"
)

// Shim is an MCP client of a shim over its standard streams: a harness, in the era of initialize. Calls may be made concurrently.
type Shim struct {
	cmd *exec.Cmd
	in  io.WriteCloser

	sending sync.Mutex

	mu      sync.Mutex
	next    int64
	waiting map[int64]chan []byte
	notes   [][]byte // notifications, as they came
	over    error    // why no more lines come

	once sync.Once
	err  error // of Close
}

// StartShim starts any program that is an MCP server on its standard streams.
func StartShim(cmd *exec.Cmd) (*Shim, error) { return startShim(cmd) }

func startShim(cmd *exec.Cmd) (*Shim, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := startForGood(cmd); err != nil {
		return nil, err
	}
	s := &Shim{cmd: cmd, in: in, waiting: map[int64]chan []byte{}}
	go s.read(out)
	return s, nil
}

// PID is the started process: the shim, or the supervisor of a session's first one.
func (s *Shim) PID() int { return s.cmd.Process.Pid }

// Close closes the pipe and waits until the process ended. A second Close does nothing.
func (s *Shim) Close() error {
	s.once.Do(func() {
		s.in.Close() //nolint:errcheck // its end is what is waited for
		s.err = ended(s.cmd)
	})
	return s.err
}

// Kill ends the process dead in its tracks.
func (s *Shim) Kill() error {
	err := s.cmd.Process.Kill()
	return errors.Join(err, s.Close())
}

// read hands each answer to who waits for it.
func (s *Shim) read(out io.Reader) {
	lines := bufio.NewReaderSize(out, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			s.mu.Lock()
			s.over = fmt.Errorf("the shim's pipe ended: %w", err)
			for id, w := range s.waiting {
				close(w)
				delete(s.waiting, id)
			}
			s.mu.Unlock()
			return
		}
		s.line(line)
	}
}

func (s *Shim) line(line []byte) {
	id, ok := answers(line)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ok {
		s.notes = append(s.notes, line)
		return
	}
	if w := s.waiting[id]; w != nil {
		delete(s.waiting, id)
		w <- line
	}
}

// answers returns the id of a response. The shim writes it first; whatever does not begin so is read as JSON.
func answers(line []byte) (int64, bool) {
	if rest, ok := bytes.CutPrefix(line, []byte(`{"jsonrpc":"2.0","id":`)); ok {
		if end := bytes.IndexByte(rest, ','); end > 0 {
			if id, err := strconv.ParseInt(string(rest[:end]), 10, 64); err == nil {
				return id, true
			}
		}
	}
	var m struct {
		ID     *int64
		Method string
	}
	if err := json.Unmarshal(line, &m); err != nil || m.ID == nil || m.Method != "" {
		return 0, false
	}
	return *m.ID, true
}

// Notes returns the notifications that came so far.
func (s *Shim) Notes() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([][]byte(nil), s.notes...)
}

// Pending is a request that was written.
type Pending struct {
	ID     int64
	shim   *Shim
	answer chan []byte
}

// Send writes a request; params are JSON.
func (s *Shim) Send(method string, params []byte) (*Pending, error) {
	p := &Pending{shim: s, answer: make(chan []byte, 1)}
	s.mu.Lock()
	if s.over != nil {
		s.mu.Unlock()
		return nil, s.over
	}
	s.next++
	p.ID = s.next
	s.waiting[p.ID] = p.answer
	s.mu.Unlock()
	line := make([]byte, 0, len(params)+len(method)+64)
	line = append(line, `{"jsonrpc":"2.0","id":`...)
	line = strconv.AppendInt(line, p.ID, 10)
	line = append(append(append(line, `,"method":"`...), method...), `","params":`...)
	line = append(append(line, params...), '}', '\n')
	return p, s.write(line)
}

// Notify writes a notification; params are JSON.
func (s *Shim) Notify(method string, params []byte) error {
	return s.write(fmt.Appendf(nil, "{\"jsonrpc\":\"2.0\",\"method\":%q,\"params\":%s}\n", method, params))
}

func (s *Shim) write(line []byte) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	_, err := s.in.Write(line)
	return err
}

// Wait returns the whole line of the answer.
func (p *Pending) Wait(ctx context.Context) ([]byte, error) {
	select {
	case line, ok := <-p.answer:
		if !ok {
			p.shim.mu.Lock()
			defer p.shim.mu.Unlock()
			return nil, p.shim.over
		}
		return line, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Request sends a request and waits for its answer's line.
func (s *Shim) Request(ctx context.Context, method string, params []byte) ([]byte, error) {
	p, err := s.Send(method, params)
	if err != nil {
		return nil, err
	}
	return p.Wait(ctx)
}

// Initialize does the handshake of 2025-11-25.
func (s *Shim) Initialize(ctx context.Context) error {
	line, err := s.Request(ctx, "initialize", []byte(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"rig","version":"1"}}`))
	if err != nil {
		return err
	}
	if !bytes.Contains(line, []byte(`"protocolVersion":"2025-11-25"`)) {
		return fmt.Errorf("initialize was answered by %s", line)
	}
	return s.Notify("notifications/initialized", []byte(`{}`))
}

// Result is the answer of tools/call.
type Result struct {
	Raw     json.RawMessage // the CallToolResult, as it came
	Text    string          // of its text blocks, a line each
	IsError bool
	Error   json.RawMessage // the JSON-RPC error in place of a result
}

// CallParams are the params of tools/call for arguments that are JSON.
func CallParams(tool, arguments string) []byte {
	return fmt.Appendf(nil, `{"name":%q,"arguments":%s}`, tool, arguments)
}

// Call calls a tool and reads the answer.
func (s *Shim) Call(ctx context.Context, tool, arguments string) (Result, error) {
	line, err := s.Request(ctx, "tools/call", CallParams(tool, arguments))
	if err != nil {
		return Result{}, err
	}
	return ReadResult(line)
}

// ReadResult reads the line of an answer to tools/call.
func ReadResult(line []byte) (Result, error) {
	var m struct{ Result, Error json.RawMessage }
	if err := json.Unmarshal(line, &m); err != nil {
		return Result{}, fmt.Errorf("the answer is not JSON: %w: %s", err, line)
	}
	r := Result{Raw: m.Result, Error: m.Error}
	if m.Result == nil {
		return r, nil
	}
	var result struct {
		Content []struct{ Type, Text string }
		IsError bool
	}
	if err := json.Unmarshal(m.Result, &result); err != nil {
		return r, fmt.Errorf("the result is not one of a tool: %w: %s", err, line)
	}
	r.IsError = result.IsError
	for i, c := range result.Content {
		if i > 0 {
			r.Text += "\n"
		}
		r.Text += c.Text
	}
	return r, nil
}

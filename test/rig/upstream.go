package rig

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Upstream is the fixture MCP server as a process.
type Upstream struct {
	URL     string // of the MCP endpoint
	Control string // of the endpoint that steers it; its package says what there is
	CA      []byte // PEM, with --tls
	cmd     *exec.Cmd
	stdin   io.Closer
}

// StartUpstream starts it with these flags; secret is what --auth wants. It returns once it serves.
func StartUpstream(ctx context.Context, p Programs, secret string, args ...string) (*Upstream, error) {
	cmd := exec.Command(p.Path("fixture-mcp"), append([]string{"--stdin"}, args...)...) //nolint:noctx // it lives until Close
	cmd.Env = append(os.Environ(), "FIXTURE_SECRET="+secret)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
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
	u := &Upstream{cmd: cmd, stdin: stdin}
	kill := context.AfterFunc(ctx, func() { cmd.Process.Kill() }) //nolint:errcheck // it may have ended
	defer kill()
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var ready struct{ URL, Control string }
	if err == nil {
		err = json.Unmarshal(line, &ready)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("fixture-mcp did not say where it serves: %w", err), u.Close())
	}
	u.URL, u.Control = ready.URL, ready.Control
	if ready.Control != "" {
		var info struct{ CA string }
		if err := u.Steer(ctx, http.MethodGet, "/info", nil, &info); err != nil {
			return nil, errors.Join(err, u.Close())
		}
		u.CA = []byte(info.CA)
	}
	return u, nil
}

// PID is its process.
func (u *Upstream) PID() int { return u.cmd.Process.Pid }

// Kill ends it dead in its tracks, and returns once it is gone.
func (u *Upstream) Kill() error {
	err := u.cmd.Process.Kill()
	u.cmd.Wait() //nolint:errcheck // it was killed; its pipes are closed with that
	if errors.Is(err, os.ErrProcessDone) {
		return nil // a test killed it
	}
	return err
}

// Close ends it.
func (u *Upstream) Close() error {
	u.stdin.Close()                                                   //nolint:errcheck // it ends by that, or has ended
	late := time.AfterFunc(Patience, func() { u.cmd.Process.Kill() }) //nolint:errcheck // it may have ended
	defer late.Stop()
	return u.cmd.Wait()
}

// Steer asks the steering endpoint; body and answer are JSON, either may be nil.
func (u *Upstream) Steer(ctx context.Context, method, path string, body, into any) error {
	var in bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&in).Encode(body); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, u.Control+path, &in)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		return fmt.Errorf("fixture %s %s: %s: %s", method, path, resp.Status, strings.TrimSpace(string(text)))
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// Count says how often the server saw a call of exactly these argument bytes, and how often it did what they mean.
func (u *Upstream) Count(ctx context.Context, tool, arguments string) (requests, effects int, err error) {
	var n struct{ Requests, Effects int }
	err = u.Steer(ctx, http.MethodPost, "/count", map[string]string{"tool": tool, "arguments": arguments}, &n)
	return n.Requests, n.Effects, err
}

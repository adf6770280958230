package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"sallyport.dev/test/rig"
)

// What is called: 1 KiB comes back, as in the measurements of other proxies.
const (
	readTool  = "big"
	readArgs  = `{"bytes":1024}`
	writeTool = "create_issue"
	secret    = "bench-secret-90d2"
)

// inFlight is how many calls are made at once for throughput.
const inFlight = 64

// path is the whole way: control, worker and host as processes, an MCP server as upstream, and sessions with the guest's own shim as a process.
type path struct {
	rig      *rig.Rig
	upstream *rig.Upstream // nil where the official SDK's server stands in its place
	sdk      *sdkServer
	direct   *direct
	sessions []*rig.Session
	next     atomic.Int64 // makes every write another one

	controlMetrics, hostMetrics string
}

// options of a path.
type options struct {
	record bool     // the upstream keeps every request
	sdk    bool     // the upstream is the official Go SDK's server
	env    []string // of every program
}

const policy = `profiles:
  bench:
    attached: allow
    sandbox: {driver: process, closed: "no"}
    grants:
      - {tools: [tracker/big], rule: allow}
standing:
  bench: {profile: bench, tools: [tracker/create_issue], calls: 1000000000, until: %s, reason: "measured"}
`

func openPath(ctx context.Context, p rig.Programs, sessions int, o options) (_ *path, err error) {
	w := &path{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	url := ""
	if o.sdk {
		if w.sdk, err = startSDK(ctx); err != nil {
			return nil, err
		}
		url = w.sdk.url
	} else {
		args := []string{"--auth", "bearer", "--era", "modern"}
		if !o.record {
			args = append(args, "--no-record")
		}
		if w.upstream, err = rig.StartUpstream(ctx, p, secret, args...); err != nil {
			return nil, err
		}
		url = w.upstream.URL
	}
	w.direct = newDirect(url, secret)
	if w.controlMetrics, err = freeAddress(); err != nil {
		return nil, err
	}
	if w.hostMetrics, err = freeAddress(); err != nil {
		return nil, err
	}
	w.rig, err = rig.Start(ctx, rig.Options{Programs: p, Apart: true, LogLevel: "warn", Env: o.env, Args: map[string][]string{
		rig.Control: {"--metrics", w.controlMetrics}, rig.Host: {"--metrics", w.hostMetrics},
	}})
	if err != nil {
		return nil, err
	}
	err = w.rig.Configure(ctx, []rig.Connection{{
		Name: "tracker", URL: url, Auth: "{type: bearer}", Secret: secret, Limits: "{concurrent: 256}", Reads: []string{readTool},
		Writes: []string{writeTool},
	}}, fmt.Sprintf(policy, time.Now().AddDate(0, 1, 0).Format(time.DateOnly)))
	if err != nil {
		return nil, err
	}
	for range sessions {
		s, err := w.rig.Open(ctx, rig.SessionOptions{Profile: "bench", Harness: "bench"})
		if err != nil {
			return nil, err
		}
		w.sessions = append(w.sessions, s)
	}
	return w, nil
}

func (w *path) close() error {
	var failed []error
	if w.rig != nil {
		failed = append(failed, w.rig.Close())
	}
	if w.direct != nil {
		w.direct.close()
	}
	if w.upstream != nil {
		failed = append(failed, w.upstream.Close())
	}
	if w.sdk != nil {
		failed = append(failed, w.sdk.close())
	}
	return errors.Join(failed...)
}

var (
	failedResult = []byte(`"isError":true`)
	someResult   = []byte(`"result":`)
	readLine     = callParams("tracker_big", readArgs)
)

func callParams(tool, arguments string) []byte { return rig.CallParams(tool, arguments) }

// through sends one request to a shim and looks at its answer.
func through(ctx context.Context, s *rig.Shim, params []byte) error {
	line, err := s.Request(ctx, "tools/call", params)
	if err != nil {
		return err
	}
	if bytes.Contains(line, failedResult) || !bytes.Contains(line, someResult) {
		return errors.New("the call came to: " + string(line[:min(len(line), 500)]))
	}
	return nil
}

// read is a governed read over one session's shim.
func (w *path) read(s *rig.Session) call {
	return func(ctx context.Context) error { return through(ctx, s.Shim, readLine) }
}

// write is a governed write over one session's shim: its arguments are new each time, or it would be the same call again.
func (w *path) write(s *rig.Session) call {
	return func(ctx context.Context) error {
		return through(ctx, s.Shim, callParams("tracker_create_issue", w.issue()))
	}
}

func (w *path) issue() string {
	return `{"project":"web","title":"bench ` + strconv.FormatInt(w.next.Add(1), 10) + `"}`
}

func (w *path) directRead(ctx context.Context) error { return w.direct.call(ctx, readTool, readArgs) }

func (w *path) directWrite(ctx context.Context) error {
	return w.direct.call(ctx, writeTool, w.issue())
}

// spread gives each of n callers its session in turn.
func (w *path) spread(n int, of func(*rig.Session) call) []call {
	all := make([]call, n)
	for i := range all {
		all[i] = of(w.sessions[i%len(w.sessions)])
	}
	return all
}

func same(n int, f call) []call {
	all := make([]call, n)
	for i := range all {
		all[i] = f
	}
	return all
}

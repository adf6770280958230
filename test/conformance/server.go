package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"

	"sallyport.dev/test/fixture/mcpserver"
	"sallyport.dev/test/rig"
)

// servers runs the server scenarios. One Sallyport serves them all: its upstream is the fixture with the suite's tools, and each shim is the agent of
// a sandbox of its own, closed, with nothing else in it.
func servers(ctx context.Context, suite installation, programs rig.Programs, runs []run, whole bool) (err error) {
	upstream, err := mcpserver.New(mcpserver.Options{Tools: mcpserver.ConformanceTools()})
	if err != nil {
		return err
	}
	defer upstream.Close()
	r, err := rig.Start(ctx, rig.Options{Programs: programs})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	server := rig.Connection{Name: "server", URL: upstream.URL()}
	server.Review = func(names []string) (reads []string) {
		for _, name := range names {
			reads = append(reads, name+"="+name)
		}
		return reads
	}
	err = r.Configure(ctx, []rig.Connection{server}, "profiles:\n  suite:\n    grants:\n      - {tools: [\"server/*\"], rule: allow}\n")
	if err != nil {
		return err
	}
	work := r.Path("work")
	if err := os.Mkdir(work, 0o755); err != nil {
		return err
	}
	f := &front{ctx: ctx, sessions: map[string]*process{}, start: func(ctx context.Context) (*exec.Cmd, error) {
		return r.Command(ctx, "run", "--profile", "suite", "--workspace", work, "--", "/bin/sh", "-c", "exec /run/sallyport/in/bin/sallyport-guest shim"), nil
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	web := &http.Server{Handler: f} //nolint:gosec // the suite is its only client
	go web.Serve(l)                 //nolint:errcheck // it ends by Close
	defer web.Close()
	defer f.close()
	url := fmt.Sprintf("http://%s/mcp", l.Addr())
	slices.SortStableFunc(runs, func(a, b run) int { return cmp.Or(-strings.Compare(a.suite, b.suite), strings.Compare(a.spec, b.spec)) })
	if whole {
		return suite.tryAll(ctx, runs, "server", "--url", url)
	}
	return suite.tryEach(ctx, runs, "server", "--url", url)
}

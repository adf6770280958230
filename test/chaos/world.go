package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"sallyport.dev/test/rig"
)

// Parts that are stopped, beside those of [rig].
const (
	guest      = "guest"      // the shim that a harness started
	supervisor = "supervisor" // the session's parent
	server     = "upstream"
)

// world is one installation with an upstream of its own, used for one point after the other.
type world struct {
	programs rig.Programs
	rig      *rig.Rig
	dir      string
	proxy    *proxy
	upstream *rig.Upstream
	args     []string // of the upstream, which is started again at the same addresses
}

const secret = "the-credential-of-the-upstream"

const policy = `profiles:
  asks:
    attended: true
    hold: 30s
    grants:
      - {tools: [tracker/echo], rule: allow}
      - {tools: [tracker/create_issue], rule: ask}
`

// newWorld starts everything.
func newWorld(ctx context.Context, programs rig.Programs) (_ *world, err error) {
	w := &world{programs: programs}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.dir, err = os.MkdirTemp("", "sallyport-chaos-"); err != nil {
		return nil, err
	}
	w.args = []string{"--auth", "bearer", "--name", proxyHost, "--effects", filepath.Join(w.dir, "effects")}
	if w.upstream, err = rig.StartUpstream(ctx, programs, secret, w.args...); err != nil {
		return nil, err
	}
	mcp, err := url.Parse(w.upstream.URL)
	if err != nil {
		return nil, err
	}
	steer, err := url.Parse(w.upstream.Control)
	if err != nil {
		return nil, err
	}
	w.args = append(w.args, "--listen", mcp.Host, "--control", steer.Host)
	if w.proxy, err = startProxy(context.WithoutCancel(ctx), mcp.Host); err != nil {
		return nil, err
	}
	if w.rig, err = rig.Start(ctx, rig.Options{Programs: programs, Apart: true}); err != nil {
		return nil, err
	}
	if err := os.Mkdir(w.rig.Path("work"), 0o755); err != nil {
		return nil, err
	}
	mcp.Host = w.proxy.address()
	return w, w.rig.Configure(ctx, []rig.Connection{{
		Name: "tracker", URL: mcp.String(), Auth: "{type: bearer}", Secret: secret, Limits: "{timeout: 30s}",
		Reads: []string{"echo"}, Writes: []string{"create_issue"},
	}}, policy)
}

func (w *world) close() error {
	var failed []error
	if w.rig != nil {
		failed = append(failed, w.rig.Close())
	}
	if w.proxy != nil {
		failed = append(failed, w.proxy.close())
	}
	if w.upstream != nil {
		failed = append(failed, w.upstream.Close())
	}
	return errors.Join(append(failed, os.RemoveAll(w.dir))...)
}

// killed brings a part back after it was killed, and waits until all are linked again. Guests and supervisors are brought back by who needs them.
func (w *world) killed(ctx context.Context, part string) error {
	switch part {
	case rig.Control, rig.Worker, rig.Host:
		if err := w.rig.KillPart(ctx, part); err != nil {
			return err
		}
		if err := w.rig.StartPart(ctx, part); err != nil {
			return err
		}
	case server:
		if err := w.upstream.Kill(); err != nil {
			return err
		}
		var err error
		if w.upstream, err = rig.StartUpstream(ctx, w.programs, secret, w.args...); err != nil {
			return err
		}
	}
	return nil
}

// linked waits until worker and host are linked.
func (w *world) linked(ctx context.Context) error {
	return errors.Join(w.rig.AwaitLink(ctx, rig.Worker), w.rig.AwaitLink(ctx, rig.Host))
}

// stopFor lets a process stand for a time, as a machine that sleeps does.
func stopFor(ctx context.Context, pid int, d time.Duration) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, d)
	return syscall.Kill(pid, syscall.SIGCONT)
}

// pause lets a time pass in which the other parts go on: what is waited for here is the time itself.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// until asks again and again until ok.
func until(ctx context.Context, what string, ok func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		}
	}
	return nil
}

// count says how often the upstream did what these arguments mean. It asks an upstream that may just be starting.
func (w *world) count(ctx context.Context, arguments string) (effects int, err error) {
	var refused *net.OpError
	for range 50 {
		if _, effects, err = w.upstream.Count(ctx, "create_issue", arguments); !errors.As(err, &refused) {
			return effects, err
		}
		pause(ctx, 50*time.Millisecond)
	}
	return effects, err
}

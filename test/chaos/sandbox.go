package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"sallyport.dev/relay"
	"sallyport.dev/test/rig"
)

// sandbox is a session in a real sandbox, and the harness in it: a shell that starts the shim again when it is gone, as Claude Code and Pi do, and says so.
type sandbox struct {
	*rig.Shim
	session string
	stderr  *bytes.Buffer
	gone    atomic.Int64 // so many shims were noticed to be gone
}

const harness = `tr -d '\n' </run/sallyport/in/session.json; echo
while :; do /run/sallyport/in/bin/sallyport-guest shim --in /run/sallyport/in --out /run/sallyport/out; echo "{\"gone\":$?}"; done`

var errGone = errors.New("the shim is gone")

// open opens a session and initializes its shim.
func (r *run) open(ctx context.Context) error {
	// Its parent is killed by who wants that, and by close.
	cmd := r.w.rig.Command(context.WithoutCancel(ctx), "run", "--profile", "asks", "--workspace", r.w.rig.Path("work"), "--", "/bin/sh", "-c", harness)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	shim, err := rig.StartShim(cmd)
	if err != nil {
		return err
	}
	b := &sandbox{Shim: shim, stderr: &stderr}
	r.boxes = append(r.boxes, b)
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	if err := until(ctx, "the sandbox", func() bool { return len(b.Notes()) > 0 }); err != nil {
		b.close()
		return fmt.Errorf("%w\n%s", err, stderr.String())
	}
	var in struct{ Session string }
	if err := json.Unmarshal(b.Notes()[0], &in); err != nil {
		return err
	}
	b.session = in.Session
	return b.Initialize(ctx)
}

func (r *run) box() *sandbox { return r.boxes[len(r.boxes)-1] }

// respawn does what a harness does whose shim is gone: it talks to the next one; and whoever starts harnesses starts one where it is gone itself.
func (r *run) respawn(ctx context.Context) error {
	if r.point.victim == supervisor {
		return r.open(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	return r.box().Initialize(ctx)
}

// request calls a tool and waits for its answer, or for the news that the shim is gone.
func (b *sandbox) request(ctx context.Context, params []byte) ([]byte, error) {
	p, err := b.Send("tools/call", params)
	if err != nil {
		return nil, err
	}
	over, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-over.Done():
				return
			case <-tick.C:
			}
			if gone := int64(len(b.Notes()) - 1); gone > b.gone.Load() {
				b.gone.Store(gone)
				stop(errGone)
				return
			}
		}
	}()
	line, err := p.Wait(over)
	if err != nil && errors.Is(context.Cause(over), errGone) {
		err = errGone
	}
	return line, err
}

// guest is the process of the shim, as the host sees it.
func (b *sandbox) guest() (int, error) {
	for found := []string{strconv.Itoa(b.PID())}; len(found) > 0; {
		pid := found[0]
		found = found[1:]
		line, err := os.ReadFile("/proc/" + pid + "/cmdline")
		if err == nil && strings.HasPrefix(string(line), "/run/sallyport/in/"+relay.BinDir+"/sallyport-guest\x00shim\x00") {
			return strconv.Atoi(pid)
		}
		tasks, err := filepath.Glob("/proc/" + pid + "/task/*/children")
		if err != nil {
			return 0, err
		}
		for _, task := range tasks {
			if children, err := os.ReadFile(task); err == nil {
				found = append(found, strings.Fields(string(children))...)
			}
		}
	}
	return 0, errors.New("the sandbox has no shim")
}

// close ends the session. How its parent ended is not looked at: it may have been killed.
func (b *sandbox) close() { b.Kill() } //nolint:errcheck // see above

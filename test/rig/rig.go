// Package rig starts a whole Sallyport on this machine for tests and measurements: the real programs, each as its own process, over a state
// directory of their own, with the fixture MCP server as upstream. Nothing in it waits for time to pass: it waits until what it started says that
// it serves. Whatever it made is gone after Close.
package rig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/relay/hostside"
)

// Patience bounds every wait for a process to serve, or to end.
const Patience = 30 * time.Second

// Options of a [Rig].
type Options struct {
	Programs Programs
	// Dir is where everything goes; "" is a new temporary directory, removed by Close.
	Dir string
	// Apart starts control, worker and host each as a process of the rig's own instead of under sallyport up: then one of them can be
	// killed, and started again, by itself.
	Apart bool
	// Env is added to the environment of every program.
	Env []string
	// LogLevel of the parts; "" is info.
	LogLevel string
	// Args are added to the arguments of a part by its name: control, worker, host. Apart only.
	Args map[string][]string
	// Host is what stands in host.yaml.
	Host string
}

// Rig is one running Sallyport. Its methods may be called concurrently, but for Close.
type Rig struct {
	opts Options
	dir  string
	api  sallyportv1connect.OperatorClient
	log  *logFile

	mu       sync.Mutex
	parts    map[string]*part
	sessions []*Session
	closed   bool
}

// Start makes an installation and starts its parts; it returns once all of them serve.
func Start(ctx context.Context, o Options) (*Rig, error) {
	dir := o.Dir
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "sallyport-rig-"); err != nil {
			return nil, err
		}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	r := &Rig{opts: o, dir: dir, parts: map[string]*part{}}
	if err := r.start(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Rig) start(ctx context.Context) error {
	err := os.MkdirAll(r.dir, 0o700)
	if err != nil {
		return err
	}
	if r.log, err = newLogFile(r.Path("log")); err != nil {
		return err
	}
	r.api = operator(filepath.Join(r.State(), "run", "control.sock"))
	if _, err := r.CLI(ctx, "", "--quiet", "init", "-f", "sallyport.yaml"); err != nil {
		return err
	}
	if r.opts.Host != "" {
		if err := os.WriteFile(filepath.Join(r.State(), "host", "host.yaml"), []byte(r.opts.Host), 0o600); err != nil {
			return err
		}
	}
	if !r.opts.Apart {
		return r.StartPart(ctx, Up)
	}
	for _, name := range []string{Control, Worker, Host} {
		if err := r.StartPart(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// Path is a path below the rig's directory.
func (r *Rig) Path(name string) string { return filepath.Join(r.dir, name) }

// State is the state directory.
func (r *Rig) State() string { return r.Path("s") }

// Log is what the parts logged so far.
func (r *Rig) Log() string { return r.log.text() }

// Operator is the people's API, as the user that runs the rig.
func (r *Rig) Operator() sallyportv1connect.OperatorClient { return r.api }

// Close ends every session and every part, and removes what was made. What could not be ended or removed is in the error.
func (r *Rig) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	sessions := r.sessions
	r.mu.Unlock()
	var failed []error
	for _, s := range sessions {
		failed = append(failed, s.Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if r.running(Host) || r.running(Up) {
		// The host removes a session's directory once its supervisor is gone.
		failed = append(failed, until(ctx, "the host to remove the sessions' directories", func() (bool, error) {
			return len(r.sessionDirs()) == 0, nil
		}))
	}
	for _, name := range []string{Up, Host, Worker, Control} {
		failed = append(failed, r.StopPart(ctx, name))
	}
	for _, dir := range r.sessionDirs() { // of a host that was killed
		failed = append(failed, hostside.Folder{Root: dir}.Remove())
	}
	failed = append(failed, r.log.close(), os.RemoveAll(r.dir))
	return errors.Join(failed...)
}

func (r *Rig) sessionDirs() []string {
	root := filepath.Join(r.State(), "host", "sessions")
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return []string{root}
	}
	var dirs []string
	for _, e := range entries {
		dirs = append(dirs, filepath.Join(root, e.Name()))
	}
	return dirs
}

// until asks again and again until ok or an error, or ctx ends.
func until(ctx context.Context, what string, ok func() (bool, error)) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		done, err := ok()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"sallyport.dev/cmd/sallyport/up"
	"sallyport.dev/telemetry"
	"sallyport.dev/worker"
)

type workerCmd struct {
	Join     string             `help:"Join a control plane with this one-time token, from sallyport enrol." placeholder:"TOKEN" env:"SALLYPORT_JOIN"`
	Confine  string             `help:"report (confine what this kernel can, and say what is open), require, or off." enum:"report,require,off" default:"report"`
	Port     []uint16           `help:"TCP ports that connections use. Default: any." placeholder:"PORT"`
	Capacity int                `help:"Dispatches at once. Default: enough for one machine." placeholder:"N"`
	Life     time.Duration      `help:"End and be replaced after so long; 0 never." default:"24h"`
	Log      telemetry.LogFlags `embed:"" prefix:"log-"`
}

// Run runs a worker until it is told to end, or should be replaced by a fresh process.
func (c *workerCmd) Run(ctx context.Context, g *Globals) error {
	state, err := g.stateDir()
	if err != nil {
		return err
	}
	if err := makeState(state); err != nil {
		return err
	}
	log := c.Log.Logger(g.err).With("part", "worker")
	err = worker.Run(ctx, worker.Config{
		State: filepath.Join(state, "worker"), Token: c.Join, Build: buildName(), Capacity: c.Capacity, Confine: worker.Confinement(c.Confine),
		Ports: c.Port, Life: c.Life, Log: log, Opened: ready(log), PoolKey: givenKey(os.Getenv("CREDENTIALS_DIRECTORY")),
	})
	if errors.Is(err, worker.ErrReplace) {
		return nil // whoever supervises starts a fresh one
	}
	return err
}

// givenKey is the pool key among the credentials that systemd gives a service (LoadCredential=pool.key:…), or "" where it gives none. One that is there and
// cannot be read is the worker's error, not another key.
func givenKey(dir string) string {
	if dir == "" {
		return ""
	}
	path := filepath.Join(dir, "pool.key")
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return path
}

// ready tells whoever supervises this process that it holds what is its own.
func ready(log *slog.Logger) func() {
	return func() {
		if err := up.Ready(); err != nil {
			log.Warn("the supervisor was not told that this process is ready", "err", err)
		}
	}
}

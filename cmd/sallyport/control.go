package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sallyport.dev/cmd/sallyport/up"
	"sallyport.dev/control/call"
	"sallyport.dev/control/server"
	"sallyport.dev/control/sqlstore"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/identity/enrol"
	"sallyport.dev/identity/statefile"
	"sallyport.dev/telemetry"
)

// localName is the name of this machine's own parts.
const localName = "local"

type controlCmd struct {
	Listen  string             `help:"Where hosts and workers of other machines dial: ADDR:PORT. Default: this machine only." placeholder:"ADDR"`
	Name    string             `help:"This control node's name." default:"local"`
	Domain  string             `help:"The trust domain." default:"${domain}"`
	Metrics string             `help:"Serve Prometheus metrics on this loopback address." placeholder:"ADDR"`
	Local   bool               `help:"Give this machine's own worker and host their identities." hidden:""`
	Log     telemetry.LogFlags `embed:"" prefix:"log-"`
}

// Run runs control until it is told to end.
func (c *controlCmd) Run(ctx context.Context, g *Globals) error {
	log := c.Log.Logger(g.err).With("part", "control")
	state, err := g.stateDir()
	if err != nil {
		return err
	}
	if err := makeState(state); err != nil {
		return err
	}
	keys, err := openKeys(state, c.Domain)
	if err != nil {
		return err
	}
	defer keys.dir.Close()
	store, err := sqlstore.Open(ctx, sqlstore.Options{Dir: keys.dir.Path(""), Key: keys.journal, Audit: keys.audit, Node: c.Name, Log: log})
	if err != nil {
		return err
	}
	defer store.Close()

	id, err := identity.Name{Role: identity.Control, Name: c.Name, Domain: c.Domain}.ID()
	if err != nil {
		return err
	}
	material, err := enrol.Issue(keys.ca, id, time.Now())
	if err != nil {
		return err
	}
	source, err := identity.NewSource(material, time.Now())
	if err != nil {
		return err
	}
	linkSocket, err := g.socket("link.sock")
	if err != nil {
		return err
	}
	address := c.Listen
	if address == "" {
		address = "unix:" + linkSocket
	}
	health := store.Health()
	srv := server.New(server.Config{
		Build: buildName(), Node: c.Name, Source: source, CA: keys.ca, Root: keys.root, Key: keys.node, Address: address,
		Durable: health.Durable, Fsync: time.Duration(health.FsyncUS) * time.Microsecond, Log: log,
	}, server.StoresOf(store))
	pipeline := call.New(call.Config{
		Run: health.Run, Store: store, Sessions: store, Credentials: store, Workers: srv.Workers(), Signer: srv.Signer(), Hosts: srv.Hosts(),
		Log: log, Observe: srv.Observe,
	})
	srv.Attach(pipeline)
	if err := pipeline.Start(ctx); err != nil {
		return err
	}
	defer pipeline.Stop()
	if c.Local {
		if err := localIdentities(ctx, srv, keys, state, linkSocket, c.Name); err != nil {
			return err
		}
	}
	return c.serve(ctx, g, srv, pipeline, store, source, keys, linkSocket, log)
}

// localIdentities gives this machine's own worker and host their identities: by files, because whoever runs this owns the CA.
func localIdentities(ctx context.Context, srv *server.Server, keys *controlKeys, state, linkSocket, node string) error {
	control, err := identity.Name{Role: identity.Control, Name: node, Domain: keys.ca.Domain()}.ID()
	if err != nil {
		return err
	}
	nodes := []enrol.Node{{ID: control.String(), Address: "unix:" + linkSocket}}
	for part, name := range map[string]identity.Name{
		"worker": {Role: identity.Worker, Pool: "default", Name: localName, Domain: keys.ca.Domain()},
		"host":   {Role: identity.Host, Name: localName, Domain: keys.ca.Domain()},
	} {
		if err := srv.EnrolLocal(ctx, name); errs.Is(err, errs.NotAllowed) {
			continue // removed on purpose: it stays so until it is enrolled with a token
		} else if err != nil {
			return err
		}
		dir, err := statefile.Open(filepath.Join(state, part))
		if err != nil {
			return err
		}
		id, err := name.ID()
		if err == nil {
			_, _, err = enrol.Local(dir, keys.ca, id, nodes, keys.root.Public())
		}
		dir.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *controlCmd) serve(ctx context.Context, g *Globals, srv *server.Server, pipeline *call.Pipeline, store *sqlstore.Store, source *identity.Source, keys *controlKeys, linkSocket string, log *slog.Logger) error {
	controlSocket, err := g.socket("control.sock")
	if err != nil {
		return err
	}
	people, err := listenUnix(controlSocket)
	if err != nil {
		return err
	}
	links, err := listenUnix(linkSocket)
	if err != nil {
		people.Close()
		return err
	}
	listeners := []net.Listener{links}
	if c.Listen != "" {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen)
		if err != nil {
			people.Close()
			links.Close()
			return errs.Wrap(errs.Unavailable, c.Listen+" cannot be listened on: another program has the port, or the address is not this machine's", err)
		}
		listeners = append(listeners, l)
	}
	// Calls go on while a drain lets answers come in: the pipeline and the Links end after the people's API.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	errc := make(chan error, 4)
	wg.Go(func() { errc <- srv.ServeLinks(serving, listeners...) })
	wg.Go(func() { errc <- srv.ServePeople(ctx, people) })
	wg.Go(func() { errc <- c.renew(serving, source, keys) })
	if c.Metrics != "" {
		l, err := telemetry.ListenLoopback(ctx, c.Metrics)
		if err != nil {
			return err
		}
		wg.Go(func() { errc <- telemetry.ServeMetrics(serving, l) })
	}
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	log.Info("control serves", "build", buildName(), "socket", controlSocket, "listen", c.Listen)
	for err == nil {
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-store.Failed():
			err = errs.New(errs.NotDurable, "the store cannot write durably any more; control ends so that it starts anew")
		case got := <-errc:
			if err = got; got == nil && ctx.Err() == nil {
				err = errs.New(errs.Internal, "a part of control ended by itself")
			}
		case <-tick.C:
			srv.Tick()
		}
	}
	if ctx.Err() != nil {
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), up.Drain)
		if n := pipeline.Drain(drain); n > 0 {
			log.Warn("calls that were sent have no answer yet", "calls", n)
		}
		cancel()
		err = nil
	}
	stop()
	wg.Wait()
	log.Info("control ended")
	return err
}

// renew keeps control's own certificate fresh: it holds the CA.
func (c *controlCmd) renew(ctx context.Context, source *identity.Source, keys *controlKeys) error {
	r := &identity.Renewer{Source: source, Ask: func(_ context.Context, csr []byte) (chain, ca []byte, err error) {
		chain, err = keys.ca.Issue(csr, source.ID(), time.Now())
		return chain, keys.ca.Bundle(), err
	}, Keep: func(identity.Material) error { return nil }}
	err := r.Run(ctx)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// listenUnix binds a socket of mode 0600 in a directory of mode 0700, and takes the place of one that nobody serves any more.
func listenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, errs.Wrap(errs.NotAllowed, "the socket's directory cannot be made", err)
	}
	if info, err := os.Stat(filepath.Dir(path)); err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, errs.Newf(errs.NotAllowed, "others can enter %s: chmod 700 %s", filepath.Dir(path), filepath.Dir(path))
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil { //nolint:noctx // a second at most
		c.Close()
		return nil, errs.Newf(errs.Conflict, "another sallyport serves %s: end it first, or name another --state", path)
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, errs.Wrap(errs.NotAllowed, "the old socket cannot be removed", err)
	}
	l, err := net.Listen("unix", path) //nolint:noctx // binding does not wait
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, fmt.Sprintf("%s cannot be bound", path), err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

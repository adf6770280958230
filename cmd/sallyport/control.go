package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
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
	listenFlags
	webFlags
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
	controlSocket, err := g.socket("control.sock")
	if err != nil {
		return err
	}
	linkSocket, err := g.socket("link.sock")
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
	defer func() {
		if err := store.Close(); err != nil {
			log.Error("the store was not closed well; it is checked at the next start", "err", err)
		}
	}()

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
	// Everything is bound before anything is started: what is in the way shows at once, and nothing is left half open.
	var opened listeners
	l := controlListeners{people: opened.unix(ctx, controlSocket), links: []net.Listener{opened.unix(ctx, linkSocket)}, metrics: opened.metrics(ctx, c.Metrics), web: c.open(ctx, &opened, keys.dir.Path("web-port"))}
	address := "unix:" + linkSocket
	if c.Listen != "" {
		tcp := opened.tcp(ctx, c.Listen)
		l.links = append(l.links, tcp)
		if tcp != nil {
			address = c.dialed(tcp.Addr())
		}
	}
	if opened.err != nil {
		opened.close()
		return opened.err
	}
	defer opened.close()
	health := store.Health()
	srv := server.New(server.Config{
		Build: buildName(), Node: c.Name, Source: source, CA: keys.ca, Root: keys.root, Key: keys.node, Address: address, Dir: keys.dir.Path(""), Web: l.web.address(),
		Durable: health.Durable, Fsync: time.Duration(health.FsyncUS) * time.Microsecond, Log: log,
	}, server.StoresOf(store))
	pipeline := call.New(call.Config{
		Run: health.Run, Store: store, Sessions: store, Credentials: srv.Credentials(), Workers: srv.Workers(), Signer: srv.Signer(), Hosts: srv.Hosts(),
		Log: log, Observe: srv.Observe, Timed: srv.Timed,
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
	log.Info("control serves", "build", buildName(), "socket", controlSocket, "address", address)
	return c.serve(ctx, srv, pipeline, store, source, keys, l, log)
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

// controlListeners are what control serves on.
type controlListeners struct {
	people  net.Listener
	links   []net.Listener
	metrics net.Listener // nil without
	web     *web         // nil without
}

func (c *controlCmd) serve(
	ctx context.Context, srv *server.Server, pipeline *call.Pipeline, store *sqlstore.Store, source *identity.Source, keys *controlKeys, l controlListeners, log *slog.Logger,
) error {
	// Calls go on while a drain lets answers come in: the pipeline and the Links end after the people's API.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	errc := make(chan error, 5)
	wg.Go(func() { errc <- srv.ServeLinks(serving, l.links...) })
	wg.Go(func() { errc <- srv.ServePeople(ctx, l.people) })
	wg.Go(func() { errc <- c.renew(serving, source, keys) })
	if l.metrics != nil {
		wg.Go(func() { errc <- telemetry.ServeMetrics(serving, l.metrics) })
	}
	if l.web != nil {
		wg.Go(func() { errc <- l.web.serve(ctx, srv, log) })
	}
	wg.Go(func() { srv.CheckCatalogs(serving, catalogCheck) })
	ready(log)()
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	var err error
	for err == nil {
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-store.Failed():
			err = errs.New(errs.NotDurable, "the store cannot write durably any more; control ends so that it starts anew")
		case <-pipeline.Done():
			err = errs.New(errs.Fenced, "another control run took the calls over; this one ends")
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

// catalogCheck is how often a server's tools are compared with what was reviewed.
const catalogCheck = 6 * time.Hour

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

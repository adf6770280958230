// Package server is the outside of control: the Links of hosts and workers (gRPC, mTLS), enrolment (Connect, TLS) and the people's API (Connect, on
// a Unix socket or over HTTPS). It authenticates, bounds, translates and hands on; every decision is somebody else's.
package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/connection"
	"sallyport.dev/control/grant"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/machine"
	"sallyport.dev/control/person"
	"sallyport.dev/control/revocation"
	"sallyport.dev/control/session"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/identity/link"
	"sallyport.dev/intent"
)

// Wire is the number of the wire formats of this build: Wire and Wire-1 are served.
const Wire = 1

// Bounds of the HTTP side.
const (
	maxRequest     = 16 << 20
	headerTime     = 10 * time.Second
	idleTime       = 2 * time.Minute
	shutdownTime   = 10 * time.Second
	nodeKeyRenewal = intent.NodeKeyLife / 2
)

// Stores are the capabilities' stores, all on one database.
type Stores struct {
	Calls       call.Store
	Journal     call.Journal
	Inbox       inbox.Store
	Grants      grant.Store
	Sessions    session.Store
	Revocations revocation.Store
	Connections connection.Store
	Machines    machine.Store
	People      person.Store
	Audit       Exporter
	Backup      Backuper
}

// Config is what a control node is.
type Config struct {
	Build  string
	Node   string // the control node's name
	Source *identity.Source
	CA     *identity.CA
	Root   intent.SigningKey // intent root
	Key    intent.SigningKey // this node's, certified by the root
	// Address is where enrolled machines dial this node: host:port, or unix:PATH.
	Address string
	// Web is where browsers reach the console, or empty: scheme, host and port alone.
	Web string
	// Dir is control's own directory, where a backup lies while it is sent.
	Dir string
	// Durable says that the store proved its durability; Fsync how long a durable commit of its own took at start.
	Durable bool
	Fsync   time.Duration
	Log     *slog.Logger
}

// Server is one control node's outside.
type Server struct {
	cfg      Config
	stores   Stores
	log      *slog.Logger
	pipeline Pipeline
	workers  *workers
	hosts    *hosts
	events   *events
	jobs     *jobs
	signIns  *connection.SignIns
	renewer  *connection.Renewer

	backup sync.Mutex // one at a time

	keyMu   sync.Mutex
	nodeKey intent.NodeKey

	historyMu sync.Mutex
	history   revocation.History
	historyAt time.Time
}

// Pipeline is what the server needs of the call pipeline.
type Pipeline interface {
	call.HostEvents
	call.WorkerEvents
	Operations
}

// New makes a server. The pipeline is attached with [Server.Attach] before anything is served: each needs the other.
func New(cfg Config, stores Stores) *Server {
	s := &Server{cfg: cfg, stores: stores, log: cfg.Log, workers: newWorkers(cfg.Key), hosts: newHosts(), events: newEvents()}
	s.jobs = newJobs(s)
	s.signIns = &connection.SignIns{Store: stores.Connections, Workers: s.jobs}
	s.renewer = connection.NewRenewer(stores.Connections, s.jobs, func(ctx context.Context) (*control.Policy, error) { return stores.Calls.Policy(ctx, nil) },
		func() { s.changed("config", "credential renewed") }, cfg.Log)
	s.certify(time.Now())
	return s
}

// Attach gives the server its pipeline.
func (s *Server) Attach(p Pipeline) { s.pipeline = p }

// Workers is the pipeline's way to workers.
func (s *Server) Workers() call.Workers { return s.workers }

// Signer signs intents.
func (s *Server) Signer() call.Signer { return s.workers }

// Hosts is the pipeline's way to hosts.
func (s *Server) Hosts() call.Hosts { return s.hosts }

// Credentials is what calls authenticate with: renewed ahead of their expiry while [Server.ServeLinks] runs.
func (s *Server) Credentials() call.Credentials { return s.renewer }

// Publish hands an event to watchers. It never blocks.
func (s *Server) Publish(e Event) { s.events.publish(e) }

// ServeLinks serves hosts, workers and joiners on the listeners (which it owns) until ctx ends.
func (s *Server) ServeLinks(ctx context.Context, listeners ...net.Listener) error {
	g := grpc.NewServer(append(link.ServerOptions(), grpc.MaxConcurrentStreams(64))...)
	sallyportv1.RegisterHostServer(g, &hostService{s: s})
	sallyportv1.RegisterWorkerServer(g, &workerService{s: s})
	mux := http.NewServeMux()
	joins := connect.NewServer(s.safeErrors)
	sallyportv1connect.RegisterJoinHandler(joins, &joinService{s: s})
	connecthttp.Mount(mux, joins, connecthttp.WithReadMaxBytes(64<<10))
	web := &http.Server{Handler: withPeer(mux), ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, ReadTimeout: headerTime, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}

	if err := s.renewer.Start(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	renewing, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { s.renewer.Run(renewing) })
	errc := make(chan error, 2*len(listeners))
	var links []*link.Listener
	for _, l := range listeners {
		ll := link.Listen(l, s.cfg.Source, s.authorize, s.log)
		links = append(links, ll)
		wg.Go(func() { errc <- g.Serve(ll.Links) })
		wg.Go(func() {
			if err := web.Serve(ll.Joins); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
				errc <- err
			}
		})
	}
	renew := time.NewTicker(nodeKeyRenewal)
	defer renew.Stop()
	var err error
	for err == nil {
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case err = <-errc:
		case now := <-renew.C:
			s.certify(now)
			s.workers.broadcast(&sallyportv1.Job{Job: &sallyportv1.Job_Keys{Keys: s.nodeKeys()}})
		}
	}
	for _, l := range links {
		l.Close()
	}
	g.Stop()
	web.Close()
	stop()
	wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// authorize decides about a certificate at the handshake: a host or worker of ours that was not removed. Every Link asks again.
func (s *Server) authorize(id spiffeid.ID) error {
	name, err := identity.ParseID(id)
	if err != nil {
		return err
	}
	if name.Role == identity.Control {
		return errs.New(errs.NotAllowed, "a control node does not dial control")
	}
	ctx, cancel := context.WithTimeout(context.Background(), headerTime)
	defer cancel()
	m, err := s.stores.Machines.Machine(ctx, id.String())
	if err != nil {
		return err
	}
	if m.Removed {
		return errs.New(errs.NotAllowed, "this identity was removed; enrol it again")
	}
	return nil
}

func (s *Server) certify(now time.Time) {
	s.keyMu.Lock()
	defer s.keyMu.Unlock()
	s.nodeKey = s.cfg.Root.Certify(s.cfg.Key.Public(), now.Add(intent.NodeKeyLife))
}

func (s *Server) nodeKeys() *sallyportv1.Keys {
	s.keyMu.Lock()
	defer s.keyMu.Unlock()
	k := s.nodeKey
	return &sallyportv1.Keys{
		Keys:         []*sallyportv1.NodeKey{{KeyId: k.ID, PublicKey: k.Public, NotAfterUnix: k.NotAfter.Unix(), Signature: k.Signature}},
		ControlNodes: []string{s.cfg.Node},
	}
}

// cachedHistory is the store's history, at most a second old: peers are told where the store is, and never less than they know.
func (s *Server) cachedHistory() revocation.History {
	s.historyMu.Lock()
	defer s.historyMu.Unlock()
	if time.Since(s.historyAt) > time.Second {
		if h, err := s.stores.Revocations.History(context.Background()); err == nil {
			s.history, s.historyAt = h, time.Now()
		}
	}
	return s.history
}

func (s *Server) incarnation() string { return s.cachedHistory().Incarnation }

func (s *Server) highWater() *sallyportv1.HighWater {
	h := s.cachedHistory()
	return &sallyportv1.HighWater{Incarnation: h.Incarnation, Counter: h.Counter, Checkpoint: s.stores.Audit.Checkpoint()}
}

// Tick tells every peer how far the store is, so that one that was restored from an older copy is found out by any of them. The caller runs it
// every few seconds.
func (s *Server) Tick() {
	hw := s.highWater()
	s.hosts.broadcast(&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_HighWater{HighWater: hw}})
	s.workers.broadcast(&sallyportv1.Job{Job: &sallyportv1.Job_HighWater{HighWater: hw}})
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

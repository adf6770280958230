// Package worker is the one part that reaches out with a connection's credential. It dials control, executes signed intents, each once (executor), and
// holds nothing but the key that opens credentials (keyring). It has no listener, no database, and no will of its own; it is confined (confine).
package worker

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/identity/enrol"
	"sallyport.dev/identity/statefile"
	"sallyport.dev/intent"
	"sallyport.dev/worker/confine"
	"sallyport.dev/worker/executor"
	"sallyport.dev/worker/keyring"
	"sallyport.dev/worker/link"
	"sallyport.dev/worker/netguard"
	"sallyport.dev/worker/oauth"
	"sallyport.dev/worker/upstream"
)

// Drain is how long a worker that ends waits for answers. What was dispatched and has none is then uncertain.
const Drain = 10 * time.Second

// renewWait bounds the renewal at the start: an old identity is good enough to begin with.
const renewWait = 5 * time.Second

// lockFile admits one process to a worker's directory. That a worker's identity came up as another run proves to control that the former run is gone,
// so the lock is held until the process ends.
const lockFile = "lock"

// ErrReplace says that this process should be replaced by a fresh one: it lived as long as it should, or remembers as much as it should. Nothing is
// wrong, and nothing is under way.
var ErrReplace = errors.New("the worker ended to be replaced by a fresh process")

// Confinement says what a worker does where the kernel cannot confine it wholly.
type Confinement string

// Confinements.
const (
	ConfineReport  Confinement = "report"  // confine what can be, run on, and say what is open (the default)
	ConfineRequire Confinement = "require" // end when anything is open
	ConfineOff     Confinement = "off"     // do not confine: for debuggers and tests
)

// Config is one worker.
type Config struct {
	State    string // the worker's own directory, STATE/worker; its parent must exist
	Token    string // enrolment token, used when the directory holds no valid identity
	Build    string
	PoolKey  string        // file that holds the pool key, in place of the directory's own; "": that one, made at the first start
	Capacity int           // intents at once; 0: executor.DefaultCapacity
	Confine  Confinement   // "": ConfineReport
	Ports    []uint16      // TCP ports that connections use; empty: any. Control's port and DNS are added
	Life     time.Duration // after which Run drains and returns ErrReplace; 0: never
	Guard    *netguard.Guard
	Opened   func() // called once when the worker holds its directory and is confined; nil: nobody wants to know
	Log      *slog.Logger
}

// Run runs a worker until ctx ends, drains, and returns nil; or until it should be replaced, and returns [ErrReplace]. Errors: [errs.NotFound] when the
// machine is not enrolled and there is no token, [errs.NotAllowed], [errs.Conflict] when another process has the directory, [errs.Invalid],
// [errs.Unreachable] when joining fails.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	w, err := open(ctx, cfg)
	if err != nil {
		return err
	}
	defer w.close()
	if cfg.Opened != nil {
		cfg.Opened()
	}
	return w.run(ctx)
}

// worker is what a running worker holds.
type worker struct {
	cfg       Config
	dir       *statefile.Dir
	lock      *os.File
	source    *identity.Source
	enrolment enrol.Enrolment
	name      identity.Name
	keys      *keyring.Keyring
	slot      *enrol.Slot
	statm     *os.File
	report    confine.Report
	runID     string
	client    *upstream.Client
	executor  *executor.Executor
	ring      *intent.Ring
}

// open reads and makes every file that the worker needs, and then confines the process: no file is opened for writing afterwards.
func open(ctx context.Context, cfg Config) (w *worker, err error) {
	w = &worker{cfg: cfg, runID: newRun()}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.dir, err = statefile.Open(cfg.State); err != nil {
		return w, err
	}
	if w.lock, err = w.dir.Lock(lockFile); err != nil {
		return w, err
	}
	if err := w.identify(ctx); err != nil {
		return w, err
	}
	created := false
	keys, err := poolKey(cfg, w.dir)
	if err != nil {
		return w, err
	}
	if w.keys, created, err = keyring.Open(keys); err != nil {
		return w, err
	}
	log := cfg.Log.With("id", w.source.ID().String())
	if created {
		log.Warn("a new pool key was made; put the same pool.key on every worker of the pool, and compare its fingerprint where you seal credentials",
			"pool", w.name.Pool, "fingerprint", w.keys.Public().Fingerprint())
	} else {
		log.Info("pool key", "pool", w.name.Pool, "fingerprint", w.keys.Public().Fingerprint())
	}
	if w.slot, err = enrol.OpenSlot(w.dir); err != nil {
		return w, err
	}
	w.statm, _ = os.Open("/proc/self/statm") // for Health; a system without it reports 0
	if err := w.confine(log); err != nil {
		return w, err
	}
	guard := guardOf(cfg)
	w.client = upstream.New(guard, cfg.Build)
	w.ring = intent.NewRing(w.enrolment.IntentRoot)
	w.executor = executor.New(executor.Config{
		Run: w.runID, Pool: w.name.Pool, Ring: w.ring, Keyring: w.keys, Upstream: executor.NewUpstream(w.client), OAuth: oauth.New(guard),
		Capacity: cfg.Capacity, Log: cfg.Log,
	})
	return w, nil
}

// maxPoolKey bounds the file of a pool key, in bytes.
const maxPoolKey = 16 << 10

// poolKey is where the pool key comes from. A key that was to be given and is not there is an error: another one would open nothing.
func poolKey(cfg Config, own *statefile.Dir) (keyring.Files, error) {
	if cfg.PoolKey == "" {
		return own, nil
	}
	f, err := os.Open(cfg.PoolKey)
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, "the pool key that was to be given cannot be read", err)
	}
	defer f.Close()
	pem, err := io.ReadAll(io.LimitReader(f, maxPoolKey+1))
	if err != nil || len(pem) == 0 || len(pem) > maxPoolKey {
		return nil, errs.Wrap(errs.Invalid, "the pool key that was to be given cannot be read", err)
	}
	return keyring.Given{PEM: pem}, nil
}

func guardOf(cfg Config) *netguard.Guard {
	if cfg.Guard != nil {
		return cfg.Guard
	}
	return &netguard.Guard{}
}

// identify loads the worker's identity, joins with the token when there is none that is valid, and renews one that is half over while files may still be
// written.
func (w *worker) identify(ctx context.Context) (err error) {
	w.source, w.enrolment, err = enrol.Load(w.dir, time.Now())
	if err != nil && w.cfg.Token != "" {
		w.source, w.enrolment, err = enrol.Join(ctx, w.cfg.Token, w.dir)
	}
	if err != nil {
		return err
	}
	if w.name, err = identity.ParseID(w.source.ID()); err != nil {
		return err
	}
	if w.name.Role != identity.Worker {
		return errs.Newf(errs.NotAllowed, "%s is enrolled as a %s, not as a worker; use another --state", w.cfg.State, w.name.Role)
	}
	if from, to := w.source.Validity(); identity.Due(from, to, time.Now()) {
		ctx, cancel := context.WithTimeout(ctx, renewWait)
		defer cancel()
		if err := w.renew(ctx); err != nil {
			w.cfg.Log.Warn("identity not renewed at the start; it is tried again", "err", err)
		}
	}
	return nil
}

func (w *worker) renew(ctx context.Context) error {
	req, err := identity.NewRequest()
	if err != nil {
		return err
	}
	chain, ca, err := enrol.Asker(w.source, w.enrolment.Control)(ctx, req.CSR)
	if err != nil {
		return err
	}
	m, err := req.Accept(chain, ca, w.source.ID(), time.Now())
	if err != nil {
		return err
	}
	if err := enrol.Keep(w.dir, w.enrolment, m); err != nil {
		return err
	}
	return w.source.Replace(m, time.Now())
}

// confine takes away what the worker does not need, and says what was reached.
func (w *worker) confine(log *slog.Logger) error {
	if w.cfg.Confine == ConfineOff {
		w.report = confine.None("the worker was started with its confinement off")
		log.Warn("confinement", "level", w.report.String())
		return nil
	}
	c := confine.Config{}
	ports := slices.Clone(w.cfg.Ports)
	for _, n := range w.enrolment.Control {
		if path, ok := strings.CutPrefix(n.Address, "unix:"); ok {
			c.UnixDir = directory(path)
		} else if len(ports) > 0 {
			ports = append(ports, portOf(n.Address))
		}
	}
	if len(ports) > 0 {
		const dns = 53
		c.Ports = append(ports, dns)
	}
	w.report = confine.Apply(c)
	if w.report.Whole() {
		log.Info("confinement", "level", w.report.String())
		return nil
	}
	if w.cfg.Confine == ConfineRequire {
		return errs.Newf(errs.NotAllowed, "the worker must be confined and is not: %s", w.report)
	}
	log.Warn("confinement", "level", w.report.String())
	return nil
}

func directory(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "."
}

func portOf(address string) uint16 {
	_, port, _ := strings.Cut(address[strings.LastIndexByte(address, ']')+1:], ":")
	n, _ := strconv.ParseUint(port, 10, 16)
	return uint16(n)
}

func newRun() string {
	var b [17]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))[:26]
}

// run keeps the Links up until the worker ends.
func (w *worker) run(ctx context.Context) error {
	// The Links outlive ctx: answers that come in while the worker drains must reach control.
	linked, unlink := context.WithCancel(context.WithoutCancel(ctx))
	defer unlink()
	var parts sync.WaitGroup
	defer parts.Wait()
	defer unlink()
	failed := make(chan error, len(w.enrolment.Control)+1)
	high := &link.HighWater{}
	for _, n := range w.enrolment.Control {
		id, err := spiffeid.FromString(n.ID)
		if err != nil {
			return errs.Wrap(errs.Invalid, "the enrolment names a control node that is none; enrol again", err)
		}
		parts.Go(func() {
			failed <- link.Run(linked, link.Config{
				Control: id, Address: n.Address, Source: w.source, Executor: w.executor, Ring: w.ring, HighWater: high, Hello: w.hello, Health: w.health, Log: w.cfg.Log,
			})
		})
	}
	renewer := &identity.Renewer{Source: w.source, Ask: enrol.Asker(w.source, w.enrolment.Control), Keep: w.slot.Keep, Log: w.cfg.Log}
	parts.Go(func() { failed <- renewer.Run(linked) })

	err := w.wait(ctx, failed)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), Drain)
	defer cancel()
	if left := w.executor.Drain(drain); left > 0 {
		w.cfg.Log.Warn("the worker ends while intents have no acknowledged outcome", "intents", left)
	}
	return err
}

// wait returns why the worker ends: nil for ctx.
func (w *worker) wait(ctx context.Context, failed <-chan error) error {
	var life <-chan time.Time
	if w.cfg.Life > 0 {
		t := time.NewTimer(w.cfg.Life)
		defer t.Stop()
		life = t.C
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	case <-life:
		return ErrReplace
	case <-w.executor.Full():
		return ErrReplace
	}
}

func (w *worker) hello() *sallyportv1.WorkerHello {
	return &sallyportv1.WorkerHello{
		Pool: w.name.Pool, Run: w.runID, Build: w.cfg.Build, Wire: link.Wire, ProtectedVersion: intent.Protected, Confinement: w.report.String(),
		OpenIntents: w.executor.Open(), PoolKey: w.keys.Public().Bytes(), PoolKeyFingerprint: w.keys.Public().Fingerprint(), Capacity: int32(w.executor.Capacity()),
	}
}

func (w *worker) health() *sallyportv1.Health {
	counters := w.executor.Counters()
	return &sallyportv1.Health{InFlight: counters["intents_running"], RssBytes: rss(w.statm), Counters: counters}
}

// rss reads the resident size from a file that was opened before the process was confined.
func rss(statm *os.File) int64 {
	if statm == nil {
		return 0
	}
	var b [128]byte
	n, _ := statm.ReadAt(b[:], 0)
	fields := strings.Fields(string(b[:n]))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// close ends what still runs and releases everything, the lock last.
func (w *worker) close() {
	if w.executor != nil {
		w.executor.Close()
	}
	if w.client != nil {
		w.client.Close()
	}
	if w.keys != nil {
		w.keys.Close()
	}
	if w.statm != nil {
		w.statm.Close()
	}
	if w.slot != nil {
		_ = w.slot.Close()
	}
	if w.lock != nil {
		w.lock.Close()
	}
	if w.dir != nil {
		_ = w.dir.Close()
	}
}

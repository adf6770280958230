package daemon

import (
	"context"
	"crypto"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/host/egress"
	"sallyport.dev/host/gate"
	"sallyport.dev/host/link"
	"sallyport.dev/host/runner"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/proc"
	"sallyport.dev/relay/hostside"
	"sallyport.dev/telemetry"
)

// Options are what a daemon needs.
type Options struct {
	Build     string
	Protected int32
	Conn      grpc.ClientConnInterface // to control, as this host
	Dir       string                   // STATE/host
	Config    Config
	Drivers   sandbox.Registry
	GatePath  string // gate.sock, as supervisors dial it
	// Key returns this host's identity key (ECDSA), which countersigns checkpoints; nil: none are.
	Key func() (crypto.Signer, error)
	// Guest returns the guest's programs by name.
	Guest func(name string) ([]byte, error)
	Log   *slog.Logger
}

// Times of the daemon.
const (
	openTime  = 20 * time.Second // one request to control
	endTime   = 20 * time.Second // tearing down what a session left
	stopGrace = 5 * time.Second  // for an agent whose session control ended
	// farewellTime is for telling control of a session that ended with this daemon: control may end, too.
	farewellTime = 2 * time.Second
)

var callSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
	Name: "sallyport_host_call_seconds", Help: "From seeing a call's record to publishing its result.", Buckets: telemetry.FineBuckets,
})

func init() { telemetry.Registry.MustRegister(callSeconds) }

// Daemon serves the sandboxes of one host. Safe for concurrent use.
type Daemon struct {
	opts      Options
	log       *slog.Logger
	control   sallyportv1.HostClient
	runner    *runner.Runner
	hub       *gate.Hub
	transport *http.Transport
	tmpfs     bool

	mu       sync.Mutex
	sessions map[string]*session
	made     map[string]bool // sessions that are being made ready, or taken back
	revoked  map[string]bool // egress credentials by name
	mark     *sallyportv1.HighWater
	// witnessed is the checkpoint that was countersigned last.
	witnessed []byte
	ctx       context.Context
	work      sync.WaitGroup
}

// New makes a daemon. Nothing runs before Run.
func New(opts Options) *Daemon {
	d := &Daemon{
		opts: opts, log: opts.Log, control: sallyportv1.NewHostClient(opts.Conn), transport: egress.NewTransport(), tmpfs: hostside.MayMount(),
		sessions: map[string]*session{}, made: map[string]bool{}, revoked: map[string]bool{}, hub: gate.NewHub(opts.Log),
	}
	d.mark = readMark(filepath.Join(opts.Dir, markFile))
	d.runner = runner.New(runner.Config{
		Link: link.New(link.Config{Conn: opts.Conn, Build: opts.Build, Protected: opts.Protected, Log: opts.Log}), Log: opts.Log,
		HighWater: d.highWater, Changed: d.changed, Frame: d.frame, Exceeded: d.exceeded,
		Answered: func(took time.Duration) { callSeconds.Observe(took.Seconds()) },
	})
	return d
}

// Run serves requests (host.sock), supervisors (gate.sock) and the Link until ctx ends; it owns both listeners. Sandboxes that run then go on: their
// supervisors come back to the next daemon.
func (d *Daemon) Run(ctx context.Context, l, gates net.Listener) error {
	if err := os.MkdirAll(d.sessionsDir(), 0o700); err != nil {
		return errs.Wrap(errs.NotAllowed, "the sessions' directory cannot be made", err)
	}
	d.ctx = ctx
	d.reap()
	d.work.Go(func() { d.reaper(ctx) })
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	linked := make(chan error, 1)
	d.work.Go(func() { linked <- d.runner.Run(ctx) })
	d.work.Go(func() {
		if err := d.hub.Serve(ctx, gates); err != nil {
			d.log.Error("gate.sock failed", "err", err)
		}
	})
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil {
				d.log.Error("host.sock failed", "err", err)
			}
			break
		}
		d.work.Go(func() { d.serve(ctx, c) })
	}
	d.mu.Lock()
	for _, s := range d.sessions {
		s.unbridge()
	}
	d.mu.Unlock()
	d.hub.Close()
	d.work.Wait()
	d.transport.CloseIdleConnections()
	if err := <-linked; err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

func (d *Daemon) sessionsDir() string { return filepath.Join(d.opts.Dir, "sessions") }

func (d *Daemon) session(id string) *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sessions[id]
}

// serve answers one request.
func (d *Daemon) serve(ctx context.Context, c net.Conn) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	var r Request
	answer := reply{}
	parent, err := d.parent(c)
	if err == nil {
		err = c.SetDeadline(time.Now().Add(requestTime))
	}
	if err == nil {
		err = readLine(c, &r)
	}
	if err == nil && r.V != protocolVersion {
		err = errs.New(errs.TooOld, "this sallyport and the host that runs are of different builds; use the same")
	}
	if err == nil {
		switch r.Op {
		case "":
			answer.Opened, err = d.open(ctx, r, parent)
		case opRemove:
			err = d.removeSandbox(ctx, r.Session)
			answer.Removed = err == nil
		default:
			err = errs.New(errs.TooOld, "this sallyport asks for what the host that runs does not know; use the same build")
		}
	}
	if err != nil {
		d.log.Info("request refused", "op", r.Op, "profile", r.Profile, "session", r.Session, "err", err)
		answer = reply{Code: errs.CodeOf(err), Message: errs.Message(err)}
	}
	if err := c.SetDeadline(time.Now().Add(requestTime)); err != nil {
		return
	}
	if err := writeLine(c, answer); err != nil {
		d.log.Debug("an answer was not read", "err", err)
	}
}

// parent is the process at the other end, of this host's own user.
func (d *Daemon) parent(c net.Conn) (proc.ID, error) {
	id, uid, err := gate.Peer(c)
	if err != nil {
		return id, errs.Wrap(errs.NotAllowed, "the caller cannot be known", err)
	}
	if uid != os.Geteuid() {
		return id, errs.New(errs.NotAllowed, "only the user that runs this host starts sandboxes on it")
	}
	return id, nil
}

// refused turns an answer of control into ours.
func refused(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return errs.Wrap(errs.Unreachable, "control does not answer", err)
	}
	known := map[codes.Code]errs.Code{
		codes.InvalidArgument: errs.Invalid, codes.NotFound: errs.NotFound, codes.Aborted: errs.Conflict, codes.PermissionDenied: errs.NotAllowed,
		codes.FailedPrecondition: errs.Unavailable, codes.ResourceExhausted: errs.Busy, codes.Unauthenticated: errs.NotAllowed,
	}
	if code, ok := known[st.Code()]; ok {
		return errs.Wrap(code, st.Message(), err)
	}
	return errs.Wrap(errs.Unreachable, "control does not answer; is it up?", err)
}

// changed handles what control says of a session.
func (d *Daemon) changed(c *sallyportv1.SessionChange) {
	s := d.session(c.GetSession())
	if s == nil || c.GetEpoch() != 0 && c.GetEpoch() != s.state.Epoch {
		return
	}
	switch c.GetChange() {
	case "close", "revoked":
		d.log.Info("control ended a session", "session", c.GetSession(), "change", c.GetChange(), "reason", c.GetReason())
		d.stop(s, c.GetReason())
	}
}

// frame handles frames that are not about a call.
func (d *Daemon) frame(f *sallyportv1.ControlFrame) {
	switch f := f.GetFrame().(type) {
	case *sallyportv1.ControlFrame_Welcome:
		d.remember(f.Welcome.GetHighWater())
	case *sallyportv1.ControlFrame_HighWater:
		d.remember(f.HighWater)
		d.witness(f.HighWater.GetCheckpoint())
	case *sallyportv1.ControlFrame_Egress:
		d.revoke(f.Egress.GetRevoked())
	}
}

func (d *Daemon) exceeded(id string, err error) {
	if s := d.session(id); s != nil {
		d.log.Warn("a guest exceeded its bounds; its session ends", "session", id, "err", err)
		d.stop(s, errs.Message(err))
	}
}

// revoke withdraws model sources by name, at once.
func (d *Daemon) revoke(names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.revoked = map[string]bool{}
	for _, n := range names {
		d.revoked[n] = true
	}
	for _, s := range d.sessions {
		if s.gateway != nil {
			s.gateway.Revoke(d.revoked[s.state.Source])
		}
	}
}

// record hands an egress decision to the log and to control.
func (d *Daemon) record(e egress.Decision) {
	d.log.Info("egress", "session", e.Session, "kind", e.Kind, "target", e.Target, "verdict", string(e.Verdict), "reason", e.Reason,
		"bytes_in", e.BytesIn, "bytes_out", e.BytesOut, "tokens", e.Tokens)
	f := &sallyportv1.HostFrame{Frame: &sallyportv1.HostFrame_Egress{Egress: &sallyportv1.EgressDecisions{Decisions: []*sallyportv1.EgressDecision{{
		Session: e.Session, AtUnixNano: e.At.UnixNano(), Kind: e.Kind, Target: e.Target, Verdict: string(e.Verdict), Reason: e.Reason,
		BytesIn: e.BytesIn, BytesOut: e.BytesOut, Tokens: e.Tokens,
	}}}}}
	if err := d.runner.Send(f); err != nil {
		d.log.Warn("an egress decision did not reach control", "session", e.Session, "err", err)
	}
}

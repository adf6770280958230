package gate

import (
	"context"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/proc"
)

// Patience of the host.
const (
	defaultTimeout = 20 * time.Second // for the gate record, and for control's answer
	proofTimeout   = 10 * time.Second
	endTimeout     = 20 * time.Second // for a supervisor that was told to end; then it is killed
)

// Box is one sandbox whose gate a [Hub] guards. Functions are called from the hub's goroutines, one at a time for each box.
type Box struct {
	Session  string
	Epoch    int64
	Closed   sandbox.Closed // what the driver promises
	Demanded sandbox.Closed // what the policy demands
	Insecure bool           // the user's word that no sandbox is wanted
	Policy   string         // digest of the policy, for control
	// Supervisor is the process that may open it: the one that the host started, or that asked for the session ([Peer]).
	Supervisor proc.ID
	// Known is what an earlier process of this host saw when it opened the gate; nil: it is shut.
	Known *Known
	// Timeout bounds the waiting for the record and for control, each; 0: 20 s.
	Timeout time.Duration

	// Record waits for the sandbox's gate record and returns it, and the probe as it was written.
	Record func(ctx context.Context) (Record, []byte, error)
	// Confirm asks control, by compare-and-set, whether epoch, owner and policy are as they should be; the text says why not.
	Confirm func(ctx context.Context, c Confirm) (bool, string, error)
	// Opening is called before Open and keeps what must be known after a restart of the host.
	Opening func(Known) error
	// Open opens the gate.
	Open func() error
	// Recover ends what is left of the sandbox and returns nil only when nothing of it runs.
	Recover func(ctx context.Context) error
	// Ended is called once, last.
	Ended func(Result)
}

// Known is how an open sandbox is known again.
type Known struct {
	Key        string  `json:"key"` // fingerprint
	Supervisor proc.ID `json:"supervisor"`
	Child      proc.ID `json:"child"`
	NetNS      string  `json:"net_ns"`
}

// Confirm is what control is asked about.
type Confirm struct {
	Session string
	Epoch   int64
	Parent  string // [Proof.Parent]
	Policy  string
	Probe   []byte
}

// Result is how a sandbox ended.
type Result struct {
	Ended
	Lost    bool     // its supervisor went away without a word
	Refused *Refusal // its gate never opened
	Err     error    // absence is not proven
}

// Hub guards the gates of a host's sandboxes. All methods may be called concurrently.
type Hub struct {
	log      *slog.Logger
	life     context.Context
	close    context.CancelFunc
	watchers sync.WaitGroup

	mu    sync.Mutex
	boxes map[string]*guarded
}

// NewHub returns a hub without sandboxes.
func NewHub(log *slog.Logger) *Hub {
	h := &Hub{log: log, boxes: make(map[string]*guarded)}
	h.life, h.close = context.WithCancel(context.Background())
	return h
}

// Close stops guarding. Sandboxes go on; a later hub that admits them with what was [Known] finds them again.
func (h *Hub) Close() {
	h.close()
	h.watchers.Wait()
}

// guarded is a box and where it stands.
type guarded struct {
	Box
	hub  *Hub
	turn sync.Mutex // one connection at a time goes through the gate

	mu      sync.Mutex
	known   *Known
	conn    *conn
	refused *Refusal
	ended   *Ended
	over    chan struct{} // closed when a supervisor said that it ended
	done    chan struct{} // closed after Ended was called
}

// Admit begins to guard a sandbox: from now on its supervisor may prove itself. Errors: [errs.Conflict] where the session has one already.
func (h *Hub) Admit(b Box) error {
	if b.Timeout == 0 {
		b.Timeout = defaultTimeout
	}
	g := &guarded{Box: b, hub: h, known: b.Known, over: make(chan struct{}), done: make(chan struct{})}
	h.mu.Lock()
	if _, taken := h.boxes[b.Session]; taken {
		h.mu.Unlock()
		return errs.New(errs.Conflict, "the session has a sandbox already")
	}
	h.boxes[b.Session] = g
	h.mu.Unlock()
	h.watchers.Go(g.watch)
	return nil
}

// Stop asks the supervisor of a session to end its sandbox and returns when it is gone. A supervisor that does not answer is killed, and the
// sandbox with it. Errors: [errs.NotFound]; what [Box.Recover] returns.
func (h *Hub) Stop(ctx context.Context, session string, why StopReason) error {
	g := h.find(session)
	if g == nil {
		return errs.New(errs.NotFound, "the session has no sandbox here")
	}
	g.mu.Lock()
	c := g.conn
	g.mu.Unlock()
	if c == nil || c.send(envelope{Stop: why.wire()}) != nil {
		g.kill()
	}
	g.endSoon(why.Grace + endTimeout)
	select {
	case <-g.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Sessions returns the sessions that have a sandbox.
func (h *Hub) Sessions() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for id := range h.boxes {
		all = append(all, id)
	}
	return all
}

func (h *Hub) find(session string) *guarded {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boxes[session]
}

// Serve accepts supervisors until ctx ends or l fails, and returns when all their connections are closed. It owns l. Sandboxes go on without
// it: their supervisors come back to the next.
func (h *Hub) Serve(ctx context.Context, l net.Listener) error {
	var all sync.WaitGroup
	defer all.Wait()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return errs.Wrap(errs.Internal, "supervisors can no longer be accepted", err)
		}
		all.Go(func() { h.ServeConn(ctx, c) })
	}
}

// ServeConn serves one supervisor until it, or ctx, ends. It owns c.
func (h *Hub) ServeConn(ctx context.Context, nc net.Conn) {
	defer nc.Close()
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	c := newConn(nc)
	peer, uid, err := Peer(nc)
	if err != nil || uid != os.Geteuid() {
		h.log.Warn("a supervisor of another user", "uid", uid, "err", err)
		return
	}
	challenge := newChallenge()
	if err := c.send(envelope{Challenge: challenge}); err != nil {
		return
	}
	_ = c.SetReadDeadline(time.Now().Add(proofTimeout))
	e, err := c.receive()
	if err != nil || e.Statement == nil {
		h.log.Warn("a supervisor proved nothing", "pid", peer.PID, "err", err)
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	proof, signed, err := readProof(e.Statement, e.Signature, challenge)
	if err != nil {
		h.log.Warn("a supervisor's proof cannot be read", "pid", peer.PID, "err", err)
		return
	}
	g := h.find(proof.Session)
	if g == nil {
		_ = c.send(envelope{Refused: &Refusal{Code: errs.NotFound, Reason: ParentUnknown, Message: "this host does not know the session"}})
		return
	}
	g.serve(ctx, c, Facts{
		Session: g.Session, Epoch: g.Epoch, Parent: g.Supervisor, Closed: g.Closed, Demanded: g.Demanded, Insecure: g.Insecure,
		Signed: signed, Proof: proof, Peer: peer,
	})
}

// serve takes one supervisor through the gate, or takes back one that went through before, and then listens to it.
func (g *guarded) serve(ctx context.Context, c *conn, f Facts) {
	g.turn.Lock()
	refusal := g.pass(ctx, &f)
	if refusal == nil {
		g.mu.Lock()
		if g.conn != nil {
			_ = g.conn.Close() // the same supervisor, come back before its old connection was seen to be dead
		}
		g.conn = c
		g.mu.Unlock()
		if err := c.send(envelope{Open: true}); err != nil {
			_ = c.Close()
		}
	}
	g.turn.Unlock()
	if refusal != nil {
		g.hub.log.Warn("a gate stays shut", "session", g.Session, "reason", refusal.Reason, "facts", f.String())
		_ = c.send(envelope{Refused: refusal})
		if decideParent(f) != Opens {
			return // somebody else's word changes nothing for the sandbox
		}
		g.mu.Lock()
		g.refused = refusal
		g.mu.Unlock()
		g.endSoon(endTimeout)
	}
	for {
		e, err := c.receive()
		if err != nil {
			break
		}
		if e.Ended != nil {
			g.mu.Lock()
			if g.ended == nil {
				g.ended = e.Ended
				close(g.over)
			}
			g.mu.Unlock()
			break
		}
	}
	g.mu.Lock()
	if g.conn == c {
		g.conn = nil
	}
	g.mu.Unlock()
}

// pass is the one place where a gate is opened. It fills in f as far as it looked.
func (g *guarded) pass(ctx context.Context, f *Facts) *Refusal {
	refuse := func(r Reason, err error) *Refusal {
		refusal := &Refusal{Code: errs.NotAllowed, Reason: r, Message: r.Sentence()}
		if err != nil {
			refusal.Message += ": " + errs.Message(err)
			g.hub.log.Warn("the gate's check failed", "session", g.Session, "err", err)
		}
		return refusal
	}
	g.mu.Lock()
	known := g.known
	g.mu.Unlock()
	if known != nil {
		f.Key = known.Key
	}
	if r := decideParent(*f); r != Opens {
		return refuse(r, nil)
	}
	g.look(f)
	if r := decideSandbox(*f); r != Opens {
		return refuse(r, nil)
	}
	if known != nil {
		if f.Child != known.Child || f.ChildNetNS != known.NetNS {
			return refuse(ChildUnknown, nil)
		}
		return nil // it went through the gate before; nothing is opened a second time
	}

	wait, cancel := context.WithTimeout(ctx, g.Timeout)
	record, probe, err := g.Record(wait)
	cancel()
	if err != nil {
		return refuse(RecordMissing, err)
	}
	f.Record = &record
	g.look(f) // again: the record took its time
	trial := *f
	trial.Control = true
	if r := Decide(trial); r != Opens {
		return refuse(r, nil) // control is not asked to confirm what cannot open
	}
	wait, cancel = context.WithTimeout(ctx, g.Timeout)
	confirmed, why, err := g.Confirm(wait, Confirm{Session: g.Session, Epoch: g.Epoch, Parent: f.Proof.Parent(), Policy: g.Policy, Probe: probe})
	cancel()
	f.Control = confirmed && err == nil
	if err == nil && !confirmed && why != "" {
		err = errs.New(errs.NotAllowed, why)
	}
	if r := Decide(*f); r != Opens {
		return refuse(r, err)
	}
	now := Known{Key: f.Proof.Fingerprint(), Supervisor: f.Peer, Child: f.Child, NetNS: f.ChildNetNS}
	if g.Opening != nil {
		if err := g.Opening(now); err != nil {
			return &Refusal{Code: errs.CodeOf(err), Reason: ControlRefused, Message: errs.Message(err)}
		}
	}
	if err := g.Open(); err != nil {
		return &Refusal{Code: errs.CodeOf(err), Reason: ControlRefused, Message: errs.Message(err)}
	}
	g.mu.Lock()
	g.known = &now
	g.mu.Unlock()
	return nil
}

// look fills in what the kernel says about the sandbox now.
func (g *guarded) look(f *Facts) {
	f.Child, f.Below, f.ChildNetNS, f.Interfaces, f.NoRoutes = proc.ID{}, false, "", nil, false
	pid := f.Proof.Sandbox.PID
	s, err := proc.Read(pid)
	if err != nil || !proc.Runs(pid) {
		return
	}
	f.Child = s.ID
	f.Below = proc.Below(pid, f.Peer.PID, 3)
	f.OwnNetNS, _ = proc.Namespace(os.Getpid(), "net")
	f.ChildNetNS, _ = proc.Namespace(pid, "net")
	f.Interfaces, _ = proc.Interfaces(pid)
	routes, err := proc.Routes(pid)
	f.NoRoutes = err == nil && routes == 0
}

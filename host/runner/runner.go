package runner

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/host/link"
	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

// Config is what a [Runner] needs. Functions are called from the runner's goroutines and must not block; those that are nil are not called.
type Config struct {
	Link link.Link
	Log  *slog.Logger

	// HighWater says the newest history of control's store that this host has seen.
	HighWater func() *sallyportv1.HighWater
	// Changed tells that control opened, parked, resumed, closed or revoked a session. The runner goes on serving it until Remove.
	Changed func(*sallyportv1.SessionChange)
	// Frame gets the frames that are not the runner's: welcome, origins, egress policy, high water, checkpoints. They come in control's order.
	Frame func(*sallyportv1.ControlFrame)
	// Answered tells how long a call took at this host, from the moment that its record was seen until its result was published.
	Answered func(took time.Duration)
	// Exceeded tells that a guest exceeded a bound of its directory. It is no longer served; its sandbox is to be ended.
	Exceeded func(session string, err error)

	Watcher *hostside.Watcher // nil: a new one
}

// Bounds of what a runner holds.
const (
	sessionHeld   = 2 << 20   // bytes of records of one session that control has not journaled
	totalHeld     = 256 << 20 // the same of all sessions
	maxOther      = 1024      // frames that are not of calls and wait to be sent
	maxOtherBytes = 64 << 10  // of one of them
	batchFrames   = 64
	batchBytes    = 1 << 20
	turnFrames    = 8  // frames of one session in a row
	turnCalls     = 32 // claims of one session in a row
	turnNotes     = 128
)

// Runner serves the relay directories of a host's sessions. All methods may be called concurrently.
type Runner struct {
	cfg     Config
	watcher *hostside.Watcher
	work    *queue // sessions whose directory is to be looked at
	ready   *queue // sessions that have frames to send
	held    atomic.Int64
	batches assemblies
	callers callers

	mu       sync.RWMutex
	sessions map[string]*session
	starved  map[*session]bool // sessions that wait for room in held
	up       bool

	otherMu sync.Mutex
	other   []*sallyportv1.HostFrame
	health  *sallyportv1.HostFrame // the newest, where it was not sent
	late    atomic.Int64           // results that came for no call
	audits  uint64                 // for the one that audits
}

// New returns a runner without sessions.
func New(cfg Config) *Runner {
	if cfg.Watcher == nil {
		cfg.Watcher = hostside.NewWatcher()
	}
	return &Runner{
		cfg: cfg, watcher: cfg.Watcher, work: newQueue(), ready: newQueue(),
		sessions: make(map[string]*session), starved: make(map[*session]bool), batches: newAssemblies(),
	}
}

// Session is what the runner needs to know of a sandbox's session.
type Session struct {
	ID     string
	Epoch  int64
	Folder hostside.Folder // as [hostside.Folder.Create] made it, or as an earlier process of this host left it
	Owners []uint32        // user ids, as this host sees them, that may run in the sandbox
	Open   bool            // there is no gate, or it is open already
}

// Add begins to serve a session. What an earlier process of the host had taken and not answered is taken up again. Until [Runner.Open] of a
// session that is not open, its gate record is all that is looked at. Errors: [errs.Conflict] where it is served already, and those of
// [hostside.Open].
func (r *Runner) Add(cfg Session) error {
	if !relay.ValidID(cfg.ID) {
		return errs.New(errs.Invalid, "a session's id is 26 characters of lower-case base32")
	}
	if r.session(cfg.ID) != nil { // before its directories are touched
		return errs.New(errs.Conflict, "the session is served already")
	}
	s, err := newSession(r, cfg)
	if err != nil {
		return err
	}
	r.mu.Lock()
	if _, served := r.sessions[cfg.ID]; served {
		r.mu.Unlock()
		s.close()
		return errs.New(errs.Conflict, "the session is served already")
	}
	r.sessions[cfg.ID] = s
	r.mu.Unlock()
	s.start()
	return nil
}

// Remove ends the serving of a session. Its unfinished calls stay with control; nothing more is published. A session that is not served is
// removed already.
func (r *Runner) Remove(id string) {
	r.mu.Lock()
	s := r.sessions[id]
	delete(r.sessions, id)
	delete(r.starved, s)
	r.mu.Unlock()
	if s != nil {
		r.callers.forget(s)
		s.close()
	}
}

// Open tells that the session's gate is open: from now on its calls are taken. Errors: [errs.NotFound].
func (r *Runner) Open(id string) error {
	s := r.session(id)
	if s == nil {
		return notServed
	}
	s.mu.Lock()
	s.open = true
	s.mu.Unlock()
	s.wake(hostside.WakeCheck)
	return nil
}

// Send queues a frame that is not of a call: a witness, egress decisions. Errors: [errs.Busy] where control does not take them; [errs.Invalid],
// [errs.Oversize] for a frame that a Link cannot carry: sent, it would end the Link of all sessions.
func (r *Runner) Send(frame *sallyportv1.HostFrame) error {
	encoded, err := proto.Marshal(frame)
	switch {
	case err != nil:
		return errs.Wrap(errs.Invalid, "the frame cannot be sent", err)
	case len(encoded) > maxOtherBytes:
		return errs.Newf(errs.Oversize, "the frame has %d bytes, at most %d are sent", len(encoded), maxOtherBytes)
	}
	r.otherMu.Lock()
	defer r.otherMu.Unlock()
	if len(r.other) >= maxOther {
		return errs.New(errs.Busy, "control does not take frames")
	}
	r.other = append(r.other, frame)
	r.ready.wake()
	return nil
}

// Run serves until ctx ends, and returns ctx's error. What was taken and not answered is found again by the next process that adds the
// session's folder.
func (r *Runner) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.cfg.Link.Run(ctx, (*peer)(r)) })
	for range max(2, min(4, runtime.GOMAXPROCS(0))) {
		group.Go(func() error { return r.serve(ctx) })
	}
	group.Go(func() error { return r.every(ctx, healthEvery, r.reportHealth) })
	group.Go(func() error { return r.every(ctx, auditEvery, r.audit) })
	err := group.Wait()
	r.shut()
	return err
}

// shut closes every session, so that nothing of them runs after Run.
func (r *Runner) shut() {
	r.mu.Lock()
	all := r.sessions
	r.sessions = make(map[string]*session)
	clear(r.starved)
	r.mu.Unlock()
	for _, s := range all {
		s.close()
	}
	r.watcher.Close()
}

func (r *Runner) every(ctx context.Context, d time.Duration, do func()) error {
	ticker := time.NewTicker(d)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
			do()
		}
	}
}

var notServed = errs.New(errs.NotFound, "the session is not served by this host")

func (r *Runner) session(id string) *session {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.sessions[id]
}

// at returns the session where it is served in that epoch; a frame of any other is of the past.
func (r *Runner) at(id string, epoch int64) *session {
	if s := r.session(id); s != nil && s.epoch == epoch {
		return s
	}
	return nil
}

func (r *Runner) all() []*session {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := make([]*session, 0, len(r.sessions))
	for _, s := range r.sessions {
		all = append(all, s)
	}
	return all
}

// hold counts bytes that wait to be journaled, and reports whether more may be taken.
func (r *Runner) room() bool { return r.held.Load() < totalHeld }

// starve remembers a session that found no room; release wakes it.
func (r *Runner) starve(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions[s.id] == s {
		r.starved[s] = true
	}
}

func (r *Runner) release(bytes int) {
	before := r.held.Add(-int64(bytes)) + int64(bytes)
	if before < totalHeld {
		return
	}
	r.mu.Lock()
	waiting := r.starved
	r.starved = make(map[*session]bool)
	r.mu.Unlock()
	for s := range waiting {
		s.wake(hostside.WakeEvent)
	}
}

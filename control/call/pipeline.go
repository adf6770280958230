package call

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// Times of the pipeline. Bounds: docs/journal.md.
const (
	retryPause    = 100 * time.Millisecond
	maxAttempts   = 2
	startWindow   = 30 * time.Second // from signing to the last Go
	runGone       = 15 * time.Second // an unreachable run is waited for
	lookAgain     = 15 * time.Second // a waiting call reads its row, whoever forgot to wake it
	beat          = 10 * time.Second // progress while a person thinks
	leaseTTL      = 30 * time.Second
	leaseRenewal  = 10 * time.Second
	orphanSearch  = 30 * time.Second
	storeRetry    = 50 * time.Millisecond
	storeRetryTop = 2 * time.Second
	busyTime      = 2 * time.Second  // a worker that is busy is waited for
	paceTime      = 10 * time.Second // a connection whose rate is used up is waited for
	maxRulings    = 16               // a call is put to the rules again as often as they change under it
	sessionIdle   = time.Hour        // a session that nobody used is forgotten here; its rows stay
)

// MaxOpenQuestions is how many questions of one session may be open.
const MaxOpenQuestions = 5

// Config is what a pipeline works with.
type Config struct {
	Run         string // this control run: the lease of its calls; a fresh id for each process
	Store       Store
	Sessions    Sessions
	Credentials Credentials
	Workers     Workers
	Signer      Signer
	Hosts       Hosts
	Log         *slog.Logger
	// Observe, when set, is told of every committed step of a call, without bodies' meaning: for metrics and watchers. It must not block.
	Observe func(c *control.Call, s control.Step)
	// Timed, when set, is told how long a part of a call took here. It must not block.
	Timed func(part Part, took time.Duration)
}

// Pipeline drives calls. Safe for concurrent use. It implements [HostEvents] and [WorkerEvents].
type Pipeline struct {
	cfg   Config
	rules rules
	reg   registry

	policy      atomic.Pointer[control.Policy]
	credentials credentialCache
	published   publications
	slots       slots
	traffic     traffic

	sessionsMu sync.Mutex
	sessions   map[string]*sessionState

	life     context.Context
	end      context.CancelFunc
	draining atomic.Bool

	workMu sync.Mutex
	over   bool
	work   sync.WaitGroup
}

// spawn runs f, unless the pipeline was stopped: then nothing new begins, and the host attaches to another run.
func (p *Pipeline) spawn(f func()) {
	p.workMu.Lock()
	defer p.workMu.Unlock()
	if !p.over {
		p.work.Go(f)
	}
}

// New makes a pipeline. Nothing runs before [Pipeline.Start].
func New(cfg Config) *Pipeline {
	p := &Pipeline{cfg: cfg, sessions: map[string]*sessionState{}, published: publications{wake: make(chan struct{}, 1)}}
	p.life, p.end = context.WithCancel(context.Background())
	return p
}

// Start takes over what earlier runs left unfinished, and drives it. It must return before any Link is served, so that an outcome that a worker
// kept finds its call.
func (p *Pipeline) Start(ctx context.Context) error {
	if err := p.cfg.Store.Renew(ctx, p.cfg.Run, leaseTTL); err != nil {
		return err
	}
	if _, err := p.current(ctx); err != nil {
		return err
	}
	if err := p.recover(ctx); err != nil {
		return err
	}
	p.spawn(p.keep)
	p.spawn(p.keepPublished)
	return nil
}

// Stop ends every driver where it stands and waits for them. What was dispatched and has no answer is adopted, attested, and if that fails
// uncertain, when a pipeline starts again.
func (p *Pipeline) Stop() {
	p.workMu.Lock()
	p.over = true
	p.workMu.Unlock()
	p.end()
	p.work.Wait()
}

// Done is closed when the pipeline was stopped, or stopped itself because another control run took its calls over: then this process must end.
func (p *Pipeline) Done() <-chan struct{} { return p.life.Done() }

// Drain takes no new record and dispatches nothing more, and waits until what is out was settled, or ctx ends. It reports how many attempts are still
// out: [Pipeline.Stop] follows, and what then has no answer is asked for by the next run.
func (p *Pipeline) Drain(ctx context.Context) int {
	p.draining.Store(true)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		n := 0
		p.reg.eachAttempt(func(string, attemptOf) { n++ })
		if n == 0 {
			return 0
		}
		select {
		case <-ctx.Done():
			return n
		case <-tick.C:
		}
	}
}

// keep renews the lease, notices a policy that nobody announced, and finds calls of this run that no driver has.
func (p *Pipeline) keep() {
	renew := time.NewTicker(leaseRenewal)
	defer renew.Stop()
	search := time.NewTicker(orphanSearch)
	defer search.Stop()
	for {
		select {
		case <-p.life.Done():
			return
		case <-renew.C:
			err := p.cfg.Store.Renew(p.life, p.cfg.Run, leaseTTL)
			if errs.Is(err, errs.Fenced) {
				p.cfg.Log.Error("another control run took over; this one stops", "err", err)
				p.end()
				return
			}
			if err != nil && p.life.Err() == nil {
				p.cfg.Log.Warn("the lease was not renewed", "err", err)
			}
			before := p.policy.Load()
			if now, err := p.current(p.life); err == nil && now != before {
				p.tellPolicy()
			}
		case <-search.C:
			if err := p.recover(p.life); err != nil && p.life.Err() == nil {
				p.cfg.Log.Warn("unfinished calls were not looked for", "err", err)
			}
			p.forgetSessions()
		}
	}
}

// recover adopts calls of dead runs, and finds those of this run that nobody drives.
func (p *Pipeline) recover(ctx context.Context) error {
	const page = 256
	for {
		rows, err := p.cfg.Store.Adopt(ctx, p.cfg.Run, page)
		if err != nil {
			return err
		}
		for _, row := range rows {
			p.resume(ctx, row)
		}
		if len(rows) < page {
			break
		}
	}
	filter := Filter{Org: control.Org, States: Unfinished, Limit: 500}
	for {
		rows, next, err := p.cfg.Store.ListCalls(ctx, filter)
		if err != nil {
			return err
		}
		for _, row := range rows {
			if row.Lease != p.cfg.Run || p.reg.find(row.ID) != nil {
				continue
			}
			whole, err := p.cfg.Store.Call(ctx, row.ID)
			if err != nil {
				return err
			}
			if whole.State.Unfinished() && whole.Lease == p.cfg.Run {
				p.resume(ctx, whole)
			}
		}
		if next == "" {
			return nil
		}
		filter.Cursor = next
	}
}

// Unfinished are the states of calls that somebody drives.
var Unfinished = []journal.State{
	journal.Admitted, journal.Asking, journal.Approved, journal.Dispatching, journal.Retrying, journal.InputWanted, journal.Working,
}

// resume drives a row that stands in the journal.
func (p *Pipeline) resume(ctx context.Context, row *control.Call) {
	s, err := p.session(ctx, row.Session, 0)
	if err != nil {
		p.cfg.Log.Error("a call's session cannot be read", "call", row.ID, "err", err)
		return
	}
	l, mine := p.reg.claim(&live{id: row.ID, session: row.Session, digest: row.RecordDigest, box: newMailbox()})
	if !mine {
		return
	}
	s.moved(row)
	d := &driver{p: p, l: l, s: s, row: row, bound: s.tool(row.Name), adopted: true}
	d.expectAdopted()
	p.spawn(func() { d.run(p.life) })
}

// current returns the policy that stands now.
func (p *Pipeline) current(ctx context.Context) (*control.Policy, error) {
	have := p.policy.Load()
	now, err := p.cfg.Store.Policy(ctx, have)
	if err != nil {
		return nil, err
	}
	if now != have {
		p.policy.Store(now)
	}
	return now, nil
}

// PolicyChanged looks at every waiting call again: the configuration, a grant, a switch, a credential or a session changed.
func (p *Pipeline) PolicyChanged() {
	if _, err := p.current(p.life); err != nil && !errors.Is(err, context.Canceled) {
		p.cfg.Log.Warn("the policy cannot be read", "err", err)
	}
	p.tellPolicy()
}

func (p *Pipeline) tellPolicy() { p.reg.each(func(l *live) { l.box.put(toldPolicy{}) }) }

// Wake looks at a call's row again: a decision was written.
func (p *Pipeline) Wake(callID string) {
	if l := p.reg.find(callID); l != nil {
		l.box.put(toldWake{})
	}
}

func (p *Pipeline) forgetSessions() {
	now := time.Now()
	p.sessionsMu.Lock()
	defer p.sessionsMu.Unlock()
	for id, s := range p.sessions {
		s.mu.Lock()
		idle := s.inFlight == 0 && now.Sub(s.used) > sessionIdle
		s.mu.Unlock()
		if idle {
			delete(p.sessions, id)
		}
	}
}

var (
	_ HostEvents   = (*Pipeline)(nil)
	_ WorkerEvents = (*Pipeline)(nil)
)

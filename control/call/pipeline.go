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
	"sallyport.dev/relay"
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
	approvalGrace = time.Minute // an approved call may run at least this long
	maxRulings    = 16          // a call is put to the rules again as often as they change under it
	sessionIdle   = time.Hour   // a session that nobody used is forgotten here; its rows stay
)

// MaxOpenQuestions is how many questions of one session may be open.
const MaxOpenQuestions = 5

// Credentials finds what a dispatch authenticates with.
type Credentials interface {
	// Credential returns the newest version for (connection, subject), sealed bytes included, refreshed where its expiry is near. Errors:
	// [errs.NotFound] or [errs.NotConnected] when there is none.
	Credential(ctx context.Context, connection, subject string) (*control.Credential, error)
}

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
}

// Pipeline drives calls. Safe for concurrent use. It implements [HostEvents] and [WorkerEvents].
type Pipeline struct {
	cfg   Config
	rules rules
	reg   registry

	policy      atomic.Pointer[control.Policy]
	credentials credentialCache

	sessionsMu sync.Mutex
	sessions   map[string]*sessionState

	life context.Context
	end  context.CancelFunc

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
	p := &Pipeline{cfg: cfg, sessions: map[string]*sessionState{}}
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

// Drain waits until nothing is dispatched any more, or ctx ends. It reports how many attempts are still out.
func (p *Pipeline) Drain(ctx context.Context) int {
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
	filter := Filter{Org: control.Org, States: unfinished, Limit: 500}
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

var unfinished = []journal.State{
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
	if row.State == journal.Dispatching && row.Intent != "" {
		p.reg.expect(row.Intent, attemptOf{l: l, run: row.Run, worker: row.Worker})
	}
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

// credentialCache keeps credentials of one policy generation: every change of one makes the next.
type credentialCache struct {
	mu         sync.Mutex
	generation int64
	all        map[CredentialRef]*control.Credential
}

// credential returns what a dispatch authenticates with now, or nil when there is none.
func (p *Pipeline) credential(ctx context.Context, policy *control.Policy, connection, subject string, now time.Time) (*control.Credential, error) {
	const ahead = time.Minute // a credential that ends sooner is asked for again: whoever keeps them refreshes it
	key := CredentialRef{Connection: connection, Subject: subject}
	c := &p.credentials
	c.mu.Lock()
	if c.generation != policy.Generation {
		c.generation, c.all = policy.Generation, map[CredentialRef]*control.Credential{}
	}
	got := c.all[key]
	c.mu.Unlock()
	if got != nil && (got.ExpiresAt.IsZero() || now.Add(ahead).Before(got.ExpiresAt)) {
		return got, nil
	}
	got, err := p.cfg.Credentials.Credential(ctx, connection, subject)
	if errs.Is(err, errs.NotFound) || errs.Is(err, errs.NotConnected) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.generation == policy.Generation {
		c.all[key] = got
	}
	return got, nil
}

// Submit implements [HostEvents].
func (p *Pipeline) Submit(s Submission) {
	rec, err := relay.ParseCall(s.Record)
	if err != nil {
		// Without an id there is nobody to answer; the host refuses such a record itself, so this is a host of another build.
		p.cfg.Log.Warn("a record was refused", "host", s.Host, "session", s.Session, "err", err)
		return
	}
	digest := control.Sum(s.Record)
	w := &waiter{
		addr: Address{Host: s.Host, Session: s.Session, Epoch: s.Epoch, Record: rec.ID}, digest: digest, shim: rec.Shim, progress: rec.Progress, kind: byRecord,
	}
	l := &live{id: control.CallID(s.Session, rec.ID), session: s.Session, digest: digest, box: newMailbox()}
	for {
		got, mine := p.reg.claim(l)
		if mine {
			break
		}
		if got.digest != digest {
			p.spawn(func() { p.conflict(p.life, got.id, w) })
			return
		}
		if got.box.put(toldAttach{w}) {
			p.cfg.Hosts.Journaled(w.addr, digest)
			return
		}
		p.reg.drop(got)
	}
	d := &driver{p: p, l: l}
	p.spawn(func() { d.begin(p.life, s, &rec, w) })
}

// Attach implements [HostEvents].
func (p *Pipeline) Attach(a Address) {
	p.spawn(func() { p.attach(p.life, a) })
}

// Cancel implements [HostEvents].
func (p *Pipeline) Cancel(a Address, why CancelWhy) {
	id := control.CallID(a.Session, a.Record)
	told := toldCancel{record: a.Record, why: why}
	if l := p.reg.find(id); l != nil && l.box.put(told) {
		return
	}
	p.spawn(func() {
		alias, err := p.cfg.Store.Alias(p.life, id)
		if err != nil {
			return // over already: its result is on the way
		}
		if l := p.reg.find(alias.Call); l != nil {
			l.box.put(told)
		}
	})
}

// Acknowledge implements [HostEvents].
func (p *Pipeline) Acknowledge(a Address) {
	p.sessionsMu.Lock()
	s := p.sessions[a.Session]
	p.sessionsMu.Unlock()
	record := control.CallID(a.Session, a.Record)
	if s != nil {
		if o, ok := s.taken(record); ok {
			if o.final {
				if o.of != nil {
					o.of.forget(o.call)
				}
				p.cfg.Store.Deliver(Delivered{Call: o.call, Delivery: journal.DeliveryAcknowledged})
			}
			return
		}
	}
	// Handed over by an earlier run: the row knows whether its end was published.
	p.spawn(func() { p.acknowledgeRow(p.life, record, s) })
}

func (p *Pipeline) acknowledgeRow(ctx context.Context, record string, s *sessionState) {
	id := record
	if alias, err := p.cfg.Store.Alias(ctx, record); err == nil {
		id = alias.Call
	}
	row, err := p.cfg.Store.Call(ctx, id)
	if err != nil || row.Delivery != journal.DeliveryPublished || row.State.Unfinished() {
		return
	}
	if s != nil {
		s.forget(id)
	}
	p.cfg.Store.Deliver(Delivered{Call: id, Delivery: journal.DeliveryAcknowledged})
}

// RunUp implements [WorkerEvents].
func (p *Pipeline) RunUp(r Run, open []string) {
	p.reg.eachAttempt(func(_ string, a attemptOf) {
		if a.run == r.ID || a.worker == r.Worker {
			a.l.box.put(toldRunUp{r})
		}
	})
	// What the run keeps and nobody here expects is late evidence, or settled: asking makes the outcome come again.
	for _, id := range open {
		if _, expected := p.reg.attempt(id); !expected {
			if err := p.cfg.Workers.Attest(r.ID, id); err != nil {
				p.cfg.Log.Debug("a run that came up is gone again", "run", r.ID)
				return
			}
		}
	}
}

// RunDown implements [WorkerEvents].
func (p *Pipeline) RunDown(run string) {
	p.reg.eachAttempt(func(_ string, a attemptOf) {
		if a.run == run {
			a.l.box.put(toldRunDown{run})
		}
	})
}

// tell hands an event to the driver that expects it from this very run.
func (p *Pipeline) tell(run, intent string, m any) bool {
	a, ok := p.reg.attempt(intent)
	return ok && a.run == run && a.l.box.put(m)
}

// Ready implements [WorkerEvents].
func (p *Pipeline) Ready(run string, r Ready) { p.tell(run, r.Intent, toldReady{r}) }

// Sent implements [WorkerEvents]. How far the bytes came is in the outcome; until then a call that was released counts as sent.
func (p *Pipeline) Sent(string, string, int64) {}

// Progressed implements [WorkerEvents].
func (p *Pipeline) Progressed(run, intent string, g Progress) {
	p.tell(run, intent, toldProgress{intent, g})
}

// Outcome implements [WorkerEvents].
func (p *Pipeline) Outcome(run string, o Outcome) {
	if !p.tell(run, o.Intent, toldOutcome{run, o}) {
		p.spawn(func() { p.late(p.life, run, o) })
	}
}

// Attested implements [WorkerEvents].
func (p *Pipeline) Attested(run, intent string, a Attestation) {
	if !p.tell(run, intent, toldAttested{intent, a}) && a == NotStarted {
		p.spawn(func() {
			p.late(p.life, run, Outcome{Intent: intent, Transport: journal.TransportNotSent, Failure: journal.FailClosed})
		})
	}
}

var (
	_ HostEvents   = (*Pipeline)(nil)
	_ WorkerEvents = (*Pipeline)(nil)
)

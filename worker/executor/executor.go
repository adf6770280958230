package executor

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"time"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/worker/keyring"
	"sallyport.dev/worker/oauth"
)

// Defaults and bounds.
const (
	DefaultCapacity = 256
	// firstByte is how long after Go the first byte may leave, by the monotonic clock: a process that was stopped in between must not wake up and
	// send what a person withdrew meanwhile.
	firstByte = 2 * time.Second
	// maxKept and maxKeptBytes bound outcomes that control has not acknowledged. Beyond, nothing new is taken.
	maxKept      = 8192
	maxKeptBytes = 256 << 20
)

// Link is the way to the control node from which an intent came. Its methods do not block. [sallyport.dev/worker/link] implements it.
type Link interface {
	// Push queues frames, in order. It reports false when the Link is gone.
	Push(frames ...*sallyportv1.WorkerFrame) bool
	// PushBody queues frames that belong together, in order among themselves; other frames may overtake them.
	PushBody(frames ...*sallyportv1.WorkerFrame) bool
	// VerifyMAC checks an encoded intent under the key of the Link's TLS session.
	VerifyMAC(encoded, mac []byte) bool
}

// Config is what an executor works with.
type Config struct {
	Run      string // random per process: the audience of intents
	Pool     string
	Ring     *intent.Ring // control's keys
	Keyring  *keyring.Keyring
	Upstream Upstream
	OAuth    *oauth.Client // sign-ins; nil: this worker does none
	Capacity int           // intents that run at once; 0: DefaultCapacity
	Log      *slog.Logger
}

// Executor executes intents. Safe for concurrent use.
type Executor struct {
	cfg   Config
	stats Stats
	life  context.Context
	end   context.CancelFunc
	work  sync.WaitGroup
	stall func() // tests: a process that is stopped between Go and the first byte

	mu        sync.Mutex
	entries   map[string]*entry
	ended     *ended
	running   int // entries from preparing to sending
	keptBytes int
	draining  bool
	idle      chan struct{} // closed when draining and nothing runs or is kept
	full      chan struct{} // closed when the run should be replaced
}

// entry is one intent from its arrival until its outcome is acknowledged.
type entry struct {
	in      intent.Intent
	encoded []byte
	job     *sallyportv1.IntentJob
	link    Link // from which control last spoke of it; nil: lost
	state   state
	arrived time.Time
	started time.Time // Go, with the monotonic clock
	late    *time.Timer

	ctx      context.Context // ends when the entry is dropped or aborted
	cancel   context.CancelFunc
	released chan struct{}
	ready    *sallyportv1.Ready
	outcome  *sallyportv1.Outcome
	release  func() // gives back the memory of a long answer; nil: none
}

// New makes an executor. Close it after [Executor.Drain].
func New(cfg Config) *Executor {
	if cfg.Capacity <= 0 {
		cfg.Capacity = DefaultCapacity
	}
	x := &Executor{cfg: cfg, entries: map[string]*entry{}, ended: newEnded(), idle: make(chan struct{}), full: make(chan struct{})}
	x.life, x.end = context.WithCancel(context.Background())
	return x
}

// Capacity returns how many intents run at once.
func (x *Executor) Capacity() int { return x.cfg.Capacity }

// Full is closed when this run remembers so many writes that it should be replaced by a fresh one.
func (x *Executor) Full() <-chan struct{} { return x.full }

// Open returns the intents whose outcome control has not acknowledged, and those under way: for Hello.
func (x *Executor) Open() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	ids := make([]string, 0, len(x.entries))
	for id := range x.entries {
		ids = append(ids, id)
	}
	return ids
}

// Attach makes l the way of everything whose Link was lost, and sends what control may have missed: readiness and outcomes.
func (x *Executor) Attach(l Link) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.entries {
		if e.link != nil {
			continue
		}
		e.link = l
		switch e.state {
		case ready:
			x.do(e, announce)
		case finished:
			x.do(e, report)
		}
	}
}

// Detach says that l is gone. What runs goes on.
func (x *Executor) Detach(l Link) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.entries {
		if e.link == l {
			e.link = nil
		}
	}
}

// Intent takes an intent from l. What is not authentic, for somebody else, or too late is refused before it touches any state but the memory of its
// own id.
func (x *Executor) Intent(l Link, job *sallyportv1.IntentJob) {
	arrived := time.Now()
	in, err := intent.Parse(job.GetIntent())
	if err != nil {
		// Without an id there is nothing to answer about; control asks for an attestation and learns that it never started.
		x.cfg.Log.Error("intent refused", "err", err)
		x.stats.refused.Add(1)
		return
	}
	verdict := intent.Check(&in, x.authenticity(l, job), intent.Beside{
		Arguments: job.GetArguments(), Meta: job.GetMeta(), Tool: job.GetTool(), Upstream: job.GetUpstreamSession(), TLS: job.GetTls(),
	}, intent.Self{Run: x.cfg.Run, Pool: x.cfg.Pool}, arrived)
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.entries[in.ID]; e != nil {
		x.repeated(l, e, job, verdict)
		return
	}
	switch s := x.ended.get(in.ID); {
	case s != absent:
		x.step(&entry{in: in, state: s, link: l}, intentEvent(job))
	case verdict != intent.Accepted:
		x.cfg.Log.Error("intent refused", "intent", in.ID, "verdict", verdict.String())
		x.refuse(l, &in, "intent", errs.Message(verdict.Err()))
	case x.draining:
		x.refuse(l, &in, "busy", "the worker is shutting down")
	case x.running >= x.cfg.Capacity || len(x.entries) >= maxKept || x.keptBytes >= maxKeptBytes:
		x.refuse(l, &in, "busy", "the worker is busy")
	default:
		e := &entry{in: in, encoded: job.GetIntent(), job: job, link: l, arrived: arrived, started: arrived, released: make(chan struct{})}
		e.ctx, e.cancel = context.WithCancel(x.life)
		x.entries[in.ID] = e
		x.running++
		x.stats.taken.Add(1)
		e.late = time.AfterFunc(time.Until(time.UnixMilli(in.StartBefore))+time.Millisecond, func() { x.late(e) })
		x.step(e, intentEvent(job))
	}
}

func intentEvent(job *sallyportv1.IntentJob) event {
	if job.GetGo() {
		return onIntentGo
	}
	return onIntent
}

func (x *Executor) authenticity(l Link, job *sallyportv1.IntentJob) intent.Authenticity {
	if job.GetKeyId() == intent.LinkKeyID {
		if l.VerifyMAC(job.GetIntent(), job.GetSignature()) {
			return intent.ByMAC
		}
		return intent.NotAuthentic
	}
	if x.cfg.Ring.Verify(job.GetKeyId(), job.GetIntent(), job.GetSignature(), time.Now()) {
		return intent.BySignature
	}
	return intent.NotAuthentic
}

// repeated attaches a second frame of one intent. It must be authentic and the same; whether its time is over does not matter any more.
func (x *Executor) repeated(l Link, e *entry, job *sallyportv1.IntentJob, verdict intent.Verdict) {
	known := verdict == intent.Accepted || verdict == intent.Expired
	if !known || !bytes.Equal(e.encoded, job.GetIntent()) {
		x.cfg.Log.Error("a second intent of one id is another", "intent", e.in.ID, "verdict", verdict.String())
		x.stats.refused.Add(1)
		return
	}
	e.link = l
	x.step(e, intentEvent(job))
}

// refuse answers an intent that was not begun, and remembers that it never will be: the answer must stay true.
func (x *Executor) refuse(l Link, in *intent.Intent, failure, detail string) {
	x.stats.refused.Add(1)
	x.ended.put(in.ID, closed, x.until(in))
	x.ended.expire(time.Now())
	l.Push(outcomeFrame(unsent(in.ID, failure, detail)))
}

// Go releases the bytes of a prepared intent.
func (x *Executor) Go(l Link, id string) { x.told(l, id, onGo) }

// Attest answers what became of an intent, and closes it when it has not gone.
func (x *Executor) Attest(l Link, id string) { x.told(l, id, onAttest) }

// CloseIntent ends an intent that has not gone, and stops waiting for a read's answer.
func (x *Executor) CloseIntent(l Link, id, reason string) {
	x.cfg.Log.Info("intent closed by control", "intent", id, "reason", reason)
	x.told(l, id, onClose)
}

// told handles what control says of an intent by its id.
func (x *Executor) told(l Link, id string, ev event) {
	if !intent.IsID(id) {
		x.cfg.Log.Error("control names an intent that is none", "event", ev.String())
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.entries[id]
	if e == nil {
		s := x.ended.get(id)
		e = &entry{in: intent.Intent{ID: id}, state: s, link: l}
		x.step(e, ev)
		if s == absent && e.state == closed {
			x.ended.put(id, closed, x.until(&e.in))
		}
		return
	}
	e.link = l
	if ev == onGo && intent.CheckGo(&e.in, time.Now()) != intent.Accepted {
		ev = onLate
	}
	x.step(e, ev)
}

// Ack forgets an outcome that control settled.
func (x *Executor) Ack(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.entries[id]
	if e == nil || e.state != finished {
		return
	}
	if e.outcome.GetTransport() == sallyportv1.Transport_TRANSPORT_NOT_SENT {
		x.step(e, onAckUnsent)
	} else {
		x.step(e, onAck)
	}
}

// settle takes a transition that ends with an outcome. Late, closed or dropped meanwhile: then the outcome is nobody's.
func (x *Executor) settle(e *entry, ev event, o *sallyportv1.Outcome) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := next(e.state, ev); ok {
		e.outcome = o
		x.step(e, ev)
		return
	}
	e.free()
}

// free gives back the memory of a long answer.
func (e *entry) free() {
	if e.release != nil {
		e.release()
		e.release = nil
	}
}

func (x *Executor) late(e *entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.step(e, onLate)
}

// step takes one transition of the table, under the lock: frames of one intent leave in the order of its transitions.
func (x *Executor) step(e *entry, ev event) {
	st, ok := next(e.state, ev)
	if !ok {
		return
	}
	from := e.state
	e.state = st.to
	switch {
	case st.to == finished && from != finished && e.outcome == nil: // late: the one way to finish without having tried
		e.outcome = unsent(e.in.ID, "late", "start_before passed before the bytes were released")
	case ev == onGo:
		e.started = time.Now()
	}
	for _, a := range st.do {
		x.do(e, a)
	}
	x.account(e, from)
}

// account keeps counts, timers and memory in step with a transition.
func (x *Executor) account(e *entry, from state) {
	if from == e.state || x.entries[e.in.ID] != e {
		return
	}
	active := func(s state) bool { return s == preparing || s == armed || s == ready || s == sending }
	if active(from) && !active(e.state) {
		x.running--
		e.late.Stop()
		e.job = nil // arguments and credential are not needed any more
	}
	if e.state == finished {
		x.keptBytes += keptBytes(e.outcome)
		x.stats.finished(e.outcome)
	}
	if e.state == closed || e.state == forgotten {
		if from == finished {
			x.keptBytes -= keptBytes(e.outcome)
		}
		delete(x.entries, e.in.ID)
		e.free()
		until := x.until(&e.in)
		if e.state == forgotten && e.in.Effect == intent.Write {
			until = time.Time{}
		}
		x.ended.put(e.in.ID, e.state, until)
		x.ended.expire(time.Now())
	}
	x.signal()
}

// until is how long an ended intent is remembered.
func (x *Executor) until(in *intent.Intent) time.Time {
	until := time.Now().Add(remember)
	if start := time.UnixMilli(in.StartBefore).Add(intent.Leeway); start.After(until) {
		return start
	}
	return until
}

func (x *Executor) signal() {
	if x.draining && len(x.entries) == 0 {
		select {
		case <-x.idle:
		default:
			close(x.idle)
		}
	}
	if x.ended.full() {
		select {
		case <-x.full:
		default:
			close(x.full)
		}
	}
}

// farewell is how long a run that closed intents by itself stays to say so: a Go for one of them may be on its way, and without an answer to it
// nobody could know any more that nothing was sent.
const farewell = time.Second

// Drain takes no new intents and waits until everything that runs has an outcome that control acknowledged, or ctx ends. What was not released is
// closed at once, and control is given a moment to hear of it. It reports how many intents are left.
func (x *Executor) Drain(ctx context.Context) int {
	x.mu.Lock()
	x.draining = true
	closed := false
	for _, e := range x.entries {
		if e.state == preparing || e.state == ready {
			x.step(e, onClose)
			closed = true
		}
	}
	x.signal()
	x.mu.Unlock()
	select {
	case <-x.idle:
	case <-ctx.Done():
	}
	if closed {
		stay := time.NewTimer(farewell)
		defer stay.Stop()
		select {
		case <-stay.C:
		case <-ctx.Done():
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.entries)
}

// Close ends what still runs, without waiting for answers, and waits for its goroutines.
func (x *Executor) Close() {
	x.end()
	x.work.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.entries {
		if e.late != nil {
			e.late.Stop()
		}
	}
}

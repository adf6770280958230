package server

import (
	"bytes"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control/call"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
)

// workers is the set of worker runs whose Link is up. It implements [call.Workers] and [call.Signer].
type workers struct {
	key intent.SigningKey // this node's

	mu   sync.RWMutex
	runs map[string]*workerLink // by run
	last map[string]string      // worker's SPIFFE id: the run that came up last
	seen map[string]string      // run: its worker
	two  map[string]bool        // workers of which a second process was found
}

func newWorkers(key intent.SigningKey) *workers {
	return &workers{key: key, runs: map[string]*workerLink{}, last: map[string]string{}, seen: map[string]string{}, two: map[string]bool{}}
}

// times of an intent; zero for what did not happen on this Link.
type times struct{ submitted, ready time.Time }

// workerLink is one run's Link.
type workerLink struct {
	run      string
	worker   string // SPIFFE id
	name     string
	pool     string
	capacity int
	mac      intent.LinkKey
	hello    *sallyportv1.WorkerHello
	out      *outbox[*sallyportv1.Job]
	stop     func()

	mu   sync.Mutex
	open map[string]times // intents that hold a place: from Submit to outcome, close or attested not started
}

func (l *workerLink) hold(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.capacity {
		return false
	}
	l.open[id] = times{submitted: time.Now()}
	return true
}

// release gives up an intent's place and returns its times.
func (l *workerLink) release(id string) times {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.open[id]
	delete(l.open, id)
	return t
}

// prepared notes that a write's worker stands ready.
func (l *workerLink) prepared(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t, ok := l.open[id]; ok {
		t.ready = time.Now()
		l.open[id] = t
	}
}

// released notes that a write's bytes were released: its barrier is durable.
func (l *workerLink) released(id string) {
	l.mu.Lock()
	ready := l.open[id].ready
	l.mu.Unlock()
	if !ready.IsZero() {
		partBarrier.Observe(time.Since(ready).Seconds())
	}
}

func (l *workerLink) load() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// up registers a Link; a former Link of the same worker ends. A run that another one of the same worker replaced does not come back: where it does,
// two processes have one identity, and that one of them came up proves nothing about the other any more. Nor does a worker come up beside others of its
// pool that have another key: it could open nothing, and what is sealed to its key the others could not. Errors: [errs.Conflict].
func (w *workers) up(l *workerLink) error {
	w.mu.Lock()
	if of, known := w.seen[l.run]; known && (of != l.worker || w.last[l.worker] != l.run) {
		w.two[l.worker] = w.two[l.worker] || of == l.worker
		w.mu.Unlock()
		return errs.New(errs.Conflict, "another process has this worker's identity: its state directory was copied; remove the worker, then enrol each machine under a name of its own")
	}
	for _, o := range w.runs {
		if o.pool == l.pool && o.worker != l.worker && !bytes.Equal(o.hello.GetPoolKey(), l.hello.GetPoolKey()) {
			w.mu.Unlock()
			return errs.Newf(errs.Conflict, "worker %s of pool %s has another pool key; copy its worker/pool.key to this worker, then start it again", o.name, l.pool)
		}
	}
	w.seen[l.run] = l.worker
	var former []*workerLink
	for _, o := range w.runs {
		if o.worker == l.worker {
			former = append(former, o)
		}
	}
	w.runs[l.run] = l
	w.last[l.worker] = l.run
	w.mu.Unlock()
	for _, o := range former {
		o.stop()
	}
	return nil
}

// down forgets a Link. It reports whether it was still the run's current one.
func (w *workers) down(l *workerLink) bool {
	l.out.close()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs[l.run] != l {
		return false
	}
	delete(w.runs, l.run)
	return true
}

func (w *workers) link(run string) *workerLink {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.runs[run]
}

// Pick implements [call.Workers]: the least loaded run of the pool. That a switch ends a worker's Link comes after the switch: until then its row
// alone says that nothing goes there any more.
func (w *workers) Pick(pool string, withdrawn func(worker string) bool) (call.Run, error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	var best *workerLink
	load, lives := 0, false
	for _, l := range w.runs {
		if l.pool != pool || withdrawn(l.worker) {
			continue
		}
		lives = true
		if n := l.load(); n < l.capacity && (best == nil || n < load) {
			best, load = l, n
		}
	}
	switch {
	case best != nil:
		return call.Run{ID: best.run, Worker: best.worker}, nil
	case lives:
		return call.Run{}, errs.Newf(errs.Busy, "every worker of pool %s is busy; try again in a moment", pool)
	default:
		return call.Run{}, errs.Newf(errs.Unreachable, "no worker of pool %s is up; start one with sallyport worker", pool)
	}
}

// Submit implements [call.Workers].
func (w *workers) Submit(run string, j call.Job) error {
	l := w.link(run)
	if l == nil {
		return errs.New(errs.Unreachable, "the worker's link is down")
	}
	if !l.hold(j.Intent) {
		return errs.New(errs.Busy, "the worker is busy; try again in a moment")
	}
	frames, size := jobFrames(j)
	if !l.out.push(size, frames...) {
		l.release(j.Intent)
		return errs.New(errs.Unreachable, "the worker's link is down")
	}
	return nil
}

// jobFrames is an intent with what travels beside it; arguments over 256 KiB come in chunks before it.
func jobFrames(j call.Job) (frames []*sallyportv1.Job, size int) {
	in := &sallyportv1.IntentJob{
		Intent: j.Encoded, Signature: j.Signature, KeyId: j.KeyID, Arguments: j.Beside.Arguments, SealedCredential: j.Sealed, Go: j.Go,
		Meta: j.Beside.Meta, Tool: j.Beside.Tool, UpstreamSession: j.Beside.Upstream, Tls: j.Beside.TLS,
	}
	size = len(j.Encoded) + len(j.Beside.Arguments) + len(j.Beside.Tool) + len(j.Beside.TLS) + len(j.Sealed) + 512
	if len(in.Arguments) > chunkBytes {
		digest := sha256.Sum256(in.Arguments)
		at := int64(0)
		for piece := range slices.Chunk(in.Arguments, chunkBytes) {
			frames = append(frames, &sallyportv1.Job{Job: &sallyportv1.Job_Chunk{Chunk: &sallyportv1.WorkerChunk{Digest: digest[:], Offset: at, Data: piece}}})
			at += int64(len(piece))
		}
		in.Arguments = nil
	}
	return append(frames, &sallyportv1.Job{Job: &sallyportv1.Job_Intent{Intent: in}}), size
}

func (w *workers) send(run string, j *sallyportv1.Job) error {
	l := w.link(run)
	if l == nil || !l.out.push(64, j) {
		return errs.New(errs.Unreachable, "the worker's link is down")
	}
	return nil
}

// Go implements [call.Workers].
func (w *workers) Go(run, id string) error {
	if l := w.link(run); l != nil {
		l.released(id)
	}
	return w.send(run, &sallyportv1.Job{Job: &sallyportv1.Job_Go{Go: &sallyportv1.Go{Intent: id}}})
}

// Attest implements [call.Workers].
func (w *workers) Attest(run, id string) error {
	return w.send(run, &sallyportv1.Job{Job: &sallyportv1.Job_Attest{Attest: &sallyportv1.Attest{Intent: id}}})
}

// Close implements [call.Workers].
func (w *workers) Close(run, id, reason string) {
	// A lost frame does no harm: the intent's start_before ends it.
	_ = w.send(run, &sallyportv1.Job{Job: &sallyportv1.Job_Close{Close: &sallyportv1.CloseIntent{Intent: id, Reason: reason}}})
	if l := w.link(run); l != nil {
		l.release(id)
	}
}

// Acknowledge implements [call.Workers].
func (w *workers) Acknowledge(run, id string) {
	// A lost frame does no harm: the worker sends the outcome again with its next Hello.
	if l := w.link(run); l != nil {
		l.out.ride(64, &sallyportv1.Job{Job: &sallyportv1.Job_Ack{Ack: &sallyportv1.OutcomeAck{Intent: id}}})
	}
}

// Live implements [call.Workers].
func (w *workers) Live(run string) bool { return w.link(run) != nil }

// Dead implements [call.Workers]. A worker's state directory admits one process, so another run of the same identity proves that the former one
// is gone, unless a copy of the directory was found out.
func (w *workers) Dead(worker, run string) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	last, known := w.last[worker]
	return known && last != run && !w.two[worker]
}

// Sign implements [call.Signer]: a MAC under the Link's own key for a read's call, the node's signature for everything else.
func (w *workers) Sign(run string, in *intent.Intent) (encoded, signature []byte, keyID string, err error) {
	encoded, err = intent.Encode(*in)
	if err != nil {
		return nil, nil, "", err
	}
	if in.Kind == intent.Call && in.Effect == "read" {
		l := w.link(run)
		if l == nil {
			return nil, nil, "", errs.New(errs.Unreachable, "the worker's link is down")
		}
		return encoded, l.mac.MAC(encoded), intent.LinkKeyID, nil
	}
	return encoded, w.key.Sign(encoded), w.key.ID(), nil
}

// broadcast queues a job at every run.
func (w *workers) broadcast(j *sallyportv1.Job) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for _, l := range w.runs {
		l.out.push(128, j)
	}
}

// disconnect ends the Link of a worker whose identity was withdrawn.
func (w *workers) disconnect(worker string) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for _, l := range w.runs {
		if l.worker == worker {
			l.stop()
		}
	}
}

// poolKey returns the sealing key of a pool, from a run whose Link is up. Errors: [errs.Unreachable].
func (w *workers) poolKey(pool string) ([]byte, error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for _, l := range w.runs {
		if l.pool == pool && len(l.hello.GetPoolKey()) > 0 {
			return l.hello.GetPoolKey(), nil
		}
	}
	return nil, errs.Newf(errs.Unreachable, "no worker of pool %s is up; start one with sallyport worker", pool)
}

func (w *workers) links() []*workerLink {
	w.mu.RLock()
	defer w.mu.RUnlock()
	out := make([]*workerLink, 0, len(w.runs))
	for _, l := range w.runs {
		out = append(out, l)
	}
	return out
}

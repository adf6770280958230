package call_test

import (
	"fmt"
	"sync"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/relay"
)

// fakeWorkers is one worker of pool "default", as strict as a real one: it parses and checks each intent, executes it once, keeps outcomes until they
// are acknowledged, attests, and its Link can be cut. What the upstream does is the plan's to say.
type fakeWorkers struct {
	mu       sync.Mutex
	events   call.WorkerEvents
	key      intent.SigningKey
	worker   string
	run      string
	up       bool
	dead     map[string]bool
	entries  map[string]*fakeIntent
	queue    chan func()
	plan     func(in *intent.Intent) plan
	sent     map[string]int // by call: attempts of it that sent a byte
	attempts map[string]int // by call: intents that were released
	broken   []string       // what control did that no control may do
	refuse   error          // of Pick
	cutReady bool           // Prepare never gets ready
	dropGo   bool           // Go is lost on the way
	meta     map[string][]byte
	trust    []byte          // what came beside the last intent
	polls    []intent.Intent // questions about tasks that were released
	held     map[chan struct{}]bool
}

// plan is what becomes of a dispatch.
type plan struct {
	prepare call.Outcome  // a failure before anything was sent; Failure "" is success
	outcome call.Outcome  // once it was released
	hold    chan struct{} // released, and no outcome before it is closed
	mute    bool          // the outcome is kept and not reported: only an attestation or a reconnect brings it
}

type fakeIntent struct {
	in      intent.Intent
	state   string // ready, sending, finished, closed
	outcome call.Outcome
}

func newFakeWorkers() *fakeWorkers {
	key, err := intent.GenerateKey()
	if err != nil {
		panic(err)
	}
	w := &fakeWorkers{
		key: key, worker: "spiffe://sallyport.internal/worker/default/one", run: control.NewID(), up: true, dead: map[string]bool{},
		entries: map[string]*fakeIntent{}, queue: make(chan func(), 4096), sent: map[string]int{}, attempts: map[string]int{}, held: map[chan struct{}]bool{}, meta: map[string][]byte{},
	}
	w.plan = func(*intent.Intent) plan { return plan{outcome: answered(`{"content":[{"type":"text","text":"ok"}]}`)} }
	return w
}

func answered(result string) call.Outcome {
	return call.Outcome{Transport: journal.TransportAnswered, Status: 200, Bytes: 100, Body: []byte(`{"jsonrpc":"2.0","id":1,"result":` + result + `}`)}
}

func lost() call.Outcome {
	return call.Outcome{Transport: journal.TransportSent, Bytes: 100, Failure: journal.FailReset}
}

func unsent(f journal.Failure) call.Outcome {
	return call.Outcome{Transport: journal.TransportNotSent, Failure: f}
}

// serve delivers events in order, as a Link does, until stop.
func (w *fakeWorkers) serve(stop <-chan struct{}) {
	for {
		select {
		case f := <-w.queue:
			f()
		case <-stop:
			return
		}
	}
}

func (w *fakeWorkers) emit(f func(e call.WorkerEvents)) {
	w.queue <- func() {
		w.mu.Lock()
		e := w.events
		w.mu.Unlock()
		f(e)
	}
}

func (w *fakeWorkers) bad(what string) { w.broken = append(w.broken, what) }

// Pick implements call.Workers.
func (w *fakeWorkers) Pick(pool string, withdrawn func(worker string) bool) (call.Run, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return call.Run{}, w.refuse
	}
	if pool != "default" || !w.up || withdrawn(w.worker) {
		return call.Run{}, errs.New(errs.Unreachable, "no worker lives")
	}
	return call.Run{ID: w.run, Worker: w.worker}, nil
}

// Sign implements call.Signer.
func (w *fakeWorkers) Sign(_ string, in *intent.Intent) ([]byte, []byte, string, error) {
	b, err := intent.Encode(*in)
	if err != nil {
		return nil, nil, "", err
	}
	return b, w.key.Sign(b), w.key.ID(), nil
}

// Submit implements call.Workers.
func (w *fakeWorkers) Submit(run string, j call.Job) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.up || run != w.run {
		return errs.New(errs.Unreachable, "the link is down")
	}
	in, err := intent.Parse(j.Encoded)
	if err != nil {
		w.bad("an intent does not parse: " + err.Error())
		return nil
	}
	if v := intent.Check(&in, intent.BySignature, j.Beside, intent.Self{Run: w.run, Pool: "default"}, time.Now()); v != intent.Accepted {
		w.bad("an intent is " + v.String())
		return nil
	}
	if in.ID != j.Intent || w.entries[in.ID] != nil {
		w.bad("an intent came twice")
		return nil
	}
	if j.Go && in.Effect == intent.Write {
		w.bad("a write was released without a barrier between")
	}
	e := &fakeIntent{in: in, state: "ready"}
	w.entries[in.ID] = e
	w.meta[in.ID], w.trust = j.Beside.Meta, j.Beside.TLS
	p := w.plan(&in)
	if p.prepare.Failure != "" {
		w.finish(e, p.prepare, false)
		return nil
	}
	if j.Go {
		w.release(e, p)
		return nil
	}
	if !w.cutReady {
		w.emit(func(ev call.WorkerEvents) { ev.Ready(run, call.Ready{Intent: in.ID}) })
	}
	return nil
}

// release sends the bytes. The caller holds the lock.
func (w *fakeWorkers) release(e *fakeIntent, p plan) {
	e.state = "sending"
	if e.in.Kind == intent.Call {
		w.attempts[e.in.Call]++
	} else {
		w.polls = append(w.polls, e.in)
	}
	run := w.run
	if e.in.Kind == intent.Call && p.outcome.Transport != journal.TransportNotSent {
		w.sent[e.in.Call]++
		id := e.in.ID
		w.emit(func(ev call.WorkerEvents) { ev.Sent(run, id, 100) })
	}
	if p.hold == nil {
		w.finish(e, p.outcome, p.mute)
		return
	}
	w.held[p.hold] = true
	go func() {
		<-p.hold
		w.mu.Lock()
		defer w.mu.Unlock()
		if e.state == "sending" && w.run == run {
			w.finish(e, p.outcome, p.mute)
		}
	}()
}

func (w *fakeWorkers) finish(e *fakeIntent, o call.Outcome, mute bool) {
	e.state, e.outcome = "finished", o
	e.outcome.Intent = e.in.ID
	if w.up && !mute {
		w.report(e)
	}
}

func (w *fakeWorkers) report(e *fakeIntent) {
	run, o := w.run, e.outcome
	w.emit(func(ev call.WorkerEvents) { ev.Outcome(run, o) })
}

// Go implements call.Workers.
func (w *fakeWorkers) Go(run, id string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.up || run != w.run {
		return errs.New(errs.Unreachable, "the link is down")
	}
	e := w.entries[id]
	switch {
	case w.dropGo:
	case e == nil:
		w.bad("go for an intent that never came")
	case e.state != "ready":
		w.bad("go for an intent that is " + e.state)
	case time.Now().UnixMilli() > e.in.StartBefore:
		w.finish(e, unsent(journal.FailLate), false)
	default:
		w.release(e, w.plan(&e.in))
	}
	return nil
}

// Attest implements call.Workers.
func (w *fakeWorkers) Attest(run, id string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.up || run != w.run {
		return errs.New(errs.Unreachable, "the link is down")
	}
	e := w.entries[id]
	if e == nil {
		e = &fakeIntent{state: "closed"}
		w.entries[id] = e
	}
	switch e.state {
	case "ready", "closed":
		e.state = "closed"
		w.emit(func(ev call.WorkerEvents) { ev.Attested(run, id, call.NotStarted) })
	case "sending":
		w.emit(func(ev call.WorkerEvents) { ev.Attested(run, id, call.Running) })
	case "finished":
		w.emit(func(ev call.WorkerEvents) { ev.Attested(run, id, call.Finished) })
		w.report(e)
	}
	return nil
}

// Close implements call.Workers.
func (w *fakeWorkers) Close(run, id, _ string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entries[id]
	if !w.up || run != w.run || e == nil {
		return
	}
	switch {
	case e.state == "ready":
		e.state = "closed"
	case e.state == "sending" && e.in.Effect == intent.Read:
		w.finish(e, call.Outcome{Transport: journal.TransportSent, Bytes: 100, Failure: journal.FailCancelled}, false)
	}
}

// Acknowledge implements call.Workers.
func (w *fakeWorkers) Acknowledge(run, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.entries[id]; e != nil && run == w.run && e.state == "finished" {
		delete(w.entries, id)
		w.entries[id] = &fakeIntent{state: "acknowledged", in: e.in}
	}
}

// Live implements call.Workers.
func (w *fakeWorkers) Live(run string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.up && run == w.run
}

// Dead implements call.Workers.
func (w *fakeWorkers) Dead(worker, run string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return worker == w.worker && w.dead[run]
}

// cut loses the Link; join brings it back; restart is another run of the same worker.
func (w *fakeWorkers) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up = false
	run := w.run
	w.emit(func(ev call.WorkerEvents) { ev.RunDown(run) })
}

func (w *fakeWorkers) join() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up = true
	var open []string
	for id, e := range w.entries {
		if e.state == "ready" || e.state == "sending" || e.state == "finished" {
			open = append(open, id)
		}
	}
	r := call.Run{ID: w.run, Worker: w.worker}
	w.emit(func(ev call.WorkerEvents) { ev.RunUp(r, open) })
	for _, e := range w.entries {
		if e.state == "finished" {
			w.report(e)
		}
	}
}

func (w *fakeWorkers) restart() {
	w.mu.Lock()
	w.up = false
	old := w.run
	w.dead[old] = true
	w.run = control.NewID()
	w.entries = map[string]*fakeIntent{}
	w.emit(func(ev call.WorkerEvents) { ev.RunDown(old) })
	w.mu.Unlock()
	w.join()
}

// fakeHosts keeps what hosts are told.
type fakeHosts struct {
	mu        sync.Mutex
	up        bool
	full      bool              // long results find no room
	files     map[string][]byte // by digest
	journaled map[string]map[control.Digest]bool
	results   map[string]relay.Result
	progress  map[string][]call.Progress
	count     map[string]int
	news      chan struct{}
	broken    []string
}

func newFakeHosts() *fakeHosts {
	return &fakeHosts{
		up: true, journaled: map[string]map[control.Digest]bool{}, results: map[string]relay.Result{}, progress: map[string][]call.Progress{}, count: map[string]int{},
		news: make(chan struct{}, 1), files: map[string][]byte{},
	}
}

// Journaled implements call.Hosts.
func (h *fakeHosts) Journaled(to call.Address, digest control.Digest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.journaled[to.Record] == nil {
		h.journaled[to.Record] = map[control.Digest]bool{}
	}
	h.journaled[to.Record][digest] = true
}

// Progress implements call.Hosts.
func (h *fakeHosts) Progress(to call.Address, p call.Progress) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.progress[to.Record]; len(old) > 0 && p.Progress <= old[len(old)-1].Progress {
		h.broken = append(h.broken, fmt.Sprintf("progress of %s fell: %+v after %+v", to.Record, p, old[len(old)-1]))
	}
	h.progress[to.Record] = append(h.progress[to.Record], p)
}

// Result implements call.Hosts.
func (h *fakeHosts) Result(to call.Address, record []byte, files []*call.File) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.up {
		return errs.New(errs.Unreachable, "the link is down")
	}
	if h.full && len(files) > 0 {
		return errs.New(errs.Busy, "too much is on its way")
	}
	for _, f := range files {
		var whole []byte
		for piece := range f.Pieces() {
			if len(piece) == 0 || len(piece) > 256<<10 {
				h.broken = append(h.broken, fmt.Sprintf("a piece of %d bytes", len(piece)))
			}
			whole = append(whole, piece...)
		}
		if int64(len(whole)) != f.Size || control.Sum(whole) != f.Digest {
			h.broken = append(h.broken, "a file is not what its digest says")
		}
		h.files[f.Digest.String()] = whole
	}
	r, err := relay.ParseResult(record)
	if err != nil {
		h.broken = append(h.broken, "a result does not parse: "+err.Error())
		return nil
	}
	if !h.journaled[to.Record][control.Digest(r.Call)] {
		h.broken = append(h.broken, "a result of another record than was journaled")
	}
	h.results[to.Record] = r
	h.count[to.Record]++
	select {
	case h.news <- struct{}{}:
	default:
	}
	return nil
}

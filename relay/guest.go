package relay

import (
	"context"
	"sync"
	"time"

	"sallyport.dev/errs"
)

// Guest is the guest's end of a relay directory: it publishes calls and waits for their results. Its methods may be called concurrently.
//
// While a call waits, results are noticed by a watch and by polling, whichever comes first: some file systems (gVisor, virtio-fs) hide the
// host's writes from watches. A guest that waits for nothing costs nothing.
type Guest struct {
	in, out string
	shim    string

	mu       sync.Mutex
	waiting  map[string]*Pending
	watch    *watch
	poll     *time.Timer
	interval time.Duration
	trusted  bool // the watch announced the last result before polling found it
	acks     bool // the file that acks are links of exists
	closed   bool
}

// NewGuest returns the guest's end below in and out ([GuestIn] and [GuestOut] in a sandbox). Nothing is touched before the first call.
func NewGuest(in, out string) *Guest {
	return &Guest{in: in, out: out, shim: NewID(), waiting: make(map[string]*Pending)}
}

// Shim returns the id of this process, which stands in each of its calls.
func (g *Guest) Shim() string { return g.shim }

// Session reads session.json. Errors: those of [Read] and [ParseSession].
func (g *Guest) Session() (Session, error) {
	data, err := Read(g.in+"/"+SessionName, MaxSession)
	if err != nil {
		return Session{}, err
	}
	return ParseSession(data)
}

// Tools reads tools.json. Errors: those of [Read] and [ParseTools].
func (g *Guest) Tools() ([]Tool, error) {
	data, err := Read(g.in+"/"+ToolsName, MaxTools)
	if err != nil {
		return nil, err
	}
	return ParseTools(data)
}

// Call publishes c and returns what waits for its result. It fills in Shim, and ID where it is empty. Errors: those of [AppendCall] and
// [Publish]; the call was then not made.
func (g *Guest) Call(c *Call) (*Pending, error) {
	c.Shim = g.shim
	if c.ID == "" {
		c.ID = NewID()
	}
	record, err := AppendCall(make([]byte, 0, len(c.Arguments)+512), c)
	if err != nil {
		return nil, err
	}
	p := &Pending{guest: g, id: c.ID, session: c.Session, epoch: c.Epoch, digest: Sum(record), done: make(chan struct{})}
	if c.Progress {
		p.progress = make(chan Progress, 1)
	}
	if err := g.expect(p); err != nil {
		return nil, err
	}
	if err := g.publish(CallName(c.ID), record); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Ack tells the host that the whole result of id was handed to the harness. Errors: those of [Publish].
func (g *Guest) Ack(id string) error {
	// An ack says everything by its name, so all acks of a process are links of one empty file: one system call each.
	file := g.out + "/" + TmpDir + "/" + g.shim + ".acks"
	g.mu.Lock()
	defer g.mu.Unlock()
	for attempt := 0; ; attempt++ {
		if !g.acks {
			if err := writeNew(file, nil); err != nil && errs.CodeOf(publishError(err)) != errs.Conflict {
				return publishError(err)
			}
			g.acks = true
		}
		err := publishError(link(file, g.out+"/"+NewDir+"/"+AckName(id)))
		if err == nil || errs.Is(err, errs.Conflict) || attempt == 1 {
			return err
		}
		// Somebody cleared tmp/ (a resumed session does): make the file again, once.
		g.acks = false
	}
}

// Refused publishes that the guest refused something by itself; its id is made here. Errors: those of [AppendRefused] and [Publish].
func (g *Guest) Refused(r *Refused) error {
	told := *r
	told.ID = NewID()
	record, err := AppendRefused(nil, &told)
	if err != nil {
		return err
	}
	return g.publish(RefusedName(told.ID), record)
}

// Gate publishes gate.json. Errors: those of [AppendGate] and [Publish].
func (g *Guest) Gate(gate *Gate) error {
	record, err := AppendGate(nil, gate)
	if err != nil {
		return err
	}
	return g.publish(GateName, record)
}

// Close ends the watch and every wait; a second one does nothing. What was published stays published.
func (g *Guest) Close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	if g.poll != nil {
		g.poll.Stop()
	}
	for _, p := range g.waiting {
		p.finish(Result{}, errs.New(errs.Unavailable, "the relay was closed"))
	}
	w := g.watch
	g.mu.Unlock()
	if w == nil {
		return nil
	}
	return w.close()
}

func (g *Guest) publish(name string, record []byte) error {
	return Publish(g.out+"/"+TmpDir+"/"+name, g.out+"/"+NewDir+"/"+name, record)
}

// Pending is a published call whose result has not been taken.
type Pending struct {
	guest    *Guest
	id       string
	session  string
	epoch    int64
	digest   Digest
	progress chan Progress
	seen     int64 // newest progress delivered; under guest.mu

	done   chan struct{} // closed once result and err are set
	result Result
	err    error
}

// ID returns the call's id.
func (p *Pending) ID() string { return p.id }

// Progress returns where the newest progress arrives, one that was not taken is replaced; nil where the call gave no token.
func (p *Pending) Progress() <-chan Progress { return p.progress }

// Wait returns the call's result; it may be called again. Errors: ctx's; [errs.Conflict] where the result answers another record of the same
// id; those of [ParseResult] where it is broken; [errs.Unavailable] after Guest.Close.
func (p *Pending) Wait(ctx context.Context) (Result, error) {
	select {
	case <-p.done:
		return p.result, p.err
	default:
	}
	select {
	case <-p.done:
		return p.result, p.err
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
}

// Cancel tells the host that nobody waits any more, and why. It does not end Wait: the host answers with what is known. Errors: those of
// [AppendCancel] and [Publish]; a second cancel of a call may be a conflict.
func (p *Pending) Cancel(why Why) error {
	record, err := AppendCancel(nil, &Cancel{Session: p.session, Epoch: p.epoch, ID: p.id, Why: why})
	if err != nil {
		return err
	}
	return p.guest.publish(CancelName(p.id), record)
}

// Close stops waiting. It tells the host nothing.
func (p *Pending) Close() {
	g := p.guest
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.waiting, p.id)
}

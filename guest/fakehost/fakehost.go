// Package fakehost serves a relay directory as a host does, with answers that a test gives. It is as strict as the real thing: it claims
// through relay/hostside, refuses records of another session or epoch and ids that come twice, and notes every rule that a guest breaks.
//
// It is imported by tests alone.
package fakehost

import (
	"context"
	"fmt"
	"os"
	"sync"

	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

// Call is a call that the host claimed.
type Call struct {
	relay.Call
	Record []byte
	Digest relay.Digest
}

// Seen is everything that a guest published so far.
type Seen struct {
	Calls   []Call
	Cancels []relay.Cancel
	Acks    []string
	Gates   []relay.Gate
	Refused []relay.Refused // by the guest itself
	Broken  []string        // rules that the guest broke
}

// Host serves one session.
type Host struct {
	Session relay.Session

	folder hostside.Folder
	box    *hostside.Box
	ledger *hostside.Ledger
	handle func(*Host, Call)

	watcher *hostside.Watcher
	watch   *hostside.Watch
	stop    context.CancelFunc
	work    sync.WaitGroup

	mu      sync.Mutex
	seen    Seen
	changed chan struct{} // closed and replaced at every change
}

// Handle answers a call, now or later; it runs in a goroutine of its own.
type Handle func(h *Host, c Call)

// New makes the tree below dir, with session.json and tools.json, and serves nothing yet. Tools are raw, as in tools.json.
func New(dir string, tools [][]byte, handle Handle) (*Host, error) {
	h := &Host{
		Session: relay.Session{
			V: relay.Version, Session: relay.NewID(), Epoch: 1, Build: "test", Server: "sallyport", Await: "await_call",
			HoldMS: 45_000, TimeoutMS: 120_000, Limits: relay.DefaultLimits(),
		},
		folder: hostside.Folder{Root: dir}, ledger: hostside.NewLedger(), handle: handle, changed: make(chan struct{}),
	}
	if err := h.folder.Create(os.Getuid(), os.Getgid(), false); err != nil {
		return nil, err
	}
	list, err := relay.AppendTools(nil, tools)
	if err == nil {
		err = h.folder.Publish(relay.ToolsName, list, 0o644)
	}
	if err == nil {
		err = h.PublishSession()
	}
	return h, err
}

// In is the half that the host writes, as a guest is given it.
func (h *Host) In() string { return h.folder.In() }

// Out is the half that the guest writes.
func (h *Host) Out() string { return h.folder.Out() }

// PublishSession writes session.json from h.Session.
func (h *Host) PublishSession() error {
	data, err := relay.AppendSession(nil, &h.Session)
	if err != nil {
		return err
	}
	return h.folder.Publish(relay.SessionName, data, 0o644)
}

// PublishFile writes a file of the host's own into in/.
func (h *Host) PublishFile(name string, data []byte, perm os.FileMode) error {
	return h.folder.Publish(name, data, perm)
}

// Start serves until Close.
func (h *Host) Start() error {
	box, err := hostside.Open(h.folder, uint32(os.Getuid()))
	if err != nil {
		return err
	}
	h.box = box
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	wakes := make(chan hostside.Wake, 1)
	h.watcher = hostside.NewWatcher()
	h.watch = h.watcher.Add(box, func(w hostside.Wake) {
		select {
		case wakes <- w:
		default: // one is on its way; a lost reason costs a late look at the directory itself, which tests do not replace
		}
	})
	h.work.Go(func() {
		buffer := make([]byte, 32<<10)
		for {
			select {
			case <-ctx.Done():
				return
			case w := <-wakes:
				h.look(w, buffer)
			}
		}
	})
	return nil
}

// Close stops serving, as a host does that is stopped: the directory stays.
func (h *Host) Close() {
	if h.stop == nil {
		return
	}
	h.stop()
	h.watch.Close()
	h.watcher.Close()
	h.work.Wait()
	h.box.Close()
	h.stop = nil
}

func (h *Host) look(w hostside.Wake, buffer []byte) {
	if err := h.watch.Before(w); err != nil {
		h.broke("%v", err)
		return
	}
	useful := 0
	junk, full, err := h.box.List(buffer, func(kind relay.Kind, name, id string) bool {
		c, why, err := h.box.Claim(kind, name, id)
		switch {
		case err != nil:
			h.broke("claim %s: %v", kindName(kind), err)
		case why == hostside.Gone:
		case why != hostside.Taken:
			h.broke("%s refused: %v", kindName(kind), why)
		default:
			useful++
			h.take(&c)
		}
		return true
	})
	if err != nil || full || junk > 0 {
		h.broke("listing: %d entries that are no records, full %v, %v", junk, full, err)
	}
	h.mu.Lock()
	active := h.ledger.Flying() > 0
	h.mu.Unlock()
	h.watch.After(hostside.Listing{Useful: useful, Junk: junk, Active: active})
}

func kindName(kind relay.Kind) string {
	switch kind {
	case relay.KindCall:
		return "a call"
	case relay.KindCancel:
		return "a cancel"
	case relay.KindAck:
		return "an ack"
	case relay.KindRefused:
		return "a refusal"
	default:
		return "gate.json"
	}
}

// take judges a claimed record and passes it on.
func (h *Host) take(c *hostside.Claimed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.notify()
	broke := func(format string, args ...any) { h.seen.Broken = append(h.seen.Broken, fmt.Sprintf(format, args...)) }
	if err := h.box.Settle(c); err != nil {
		broke("settle: %v", err)
	}
	switch c.Kind {
	case relay.KindCall:
		call, err := relay.ParseCall(c.Record)
		if err != nil {
			broke("call: %v", err)
			return
		}
		if call.ID != c.ID || call.Session != h.Session.Session || call.Epoch != h.Session.Epoch {
			broke("call %s of another name, session or epoch", c.ID)
			return
		}
		if v := h.ledger.Admit(call.ID, c.Digest); v != hostside.Fresh {
			broke("call %s: %v", c.ID, v)
			return
		}
		seen := Call{Call: call, Record: c.Record, Digest: c.Digest}
		h.seen.Calls = append(h.seen.Calls, seen)
		if h.handle != nil {
			h.work.Go(func() { h.handle(h, seen) })
		}
	case relay.KindCancel:
		cancel, err := relay.ParseCancel(c.Record)
		if err != nil || cancel.ID != c.ID || cancel.Session != h.Session.Session || cancel.Epoch != h.Session.Epoch {
			broke("cancel %s: %v, or of another name, session or epoch", c.ID, err)
			return
		}
		h.seen.Cancels = append(h.seen.Cancels, cancel)
	case relay.KindRefused:
		refused, err := relay.ParseRefused(c.Record)
		if err != nil || refused.ID != c.ID || refused.Session != h.Session.Session || refused.Epoch != h.Session.Epoch {
			broke("refusal %s: %v, or of another name, session or epoch", c.ID, err)
			return
		}
		h.seen.Refused = append(h.seen.Refused, refused)
	case relay.KindAck:
		if !h.ledger.Acknowledged(c.ID) {
			broke("ack %s of a result that was not there to read", c.ID)
			return
		}
		if err := h.box.Retract(c.ID); err != nil {
			broke("retract: %v", err)
		}
		h.seen.Acks = append(h.seen.Acks, c.ID)
	case relay.KindGate:
		gate, err := relay.ParseGate(c.Record)
		if err != nil || gate.Session != h.Session.Session || gate.Epoch != h.Session.Epoch {
			broke("gate.json: %v, or of another session or epoch", err)
			return
		}
		h.seen.Gates = append(h.seen.Gates, gate)
	}
}

// Answer publishes result, a CallToolResult, as the answer to c.
func (h *Host) Answer(c Call, result string) error {
	return h.AnswerAs(relay.Result{V: relay.Version, ID: c.ID, Call: c.Digest, State: "answered", Result: []byte(result)})
}

// AnswerAs publishes a result record as it is.
func (h *Host) AnswerAs(r relay.Result) error {
	record, err := relay.AppendResult(nil, &r)
	if err != nil {
		return err
	}
	return h.AnswerRaw(r.ID, record)
}

// AnswerRaw publishes bytes under the name of id's result.
func (h *Host) AnswerRaw(id string, record []byte) error {
	h.mu.Lock()
	h.ledger.Published(id)
	h.mu.Unlock()
	return h.box.PublishResult(id, record)
}

// Progress publishes the n-th progress of c.
func (h *Host) Progress(c Call, n int64, progress, total float64, message string) error {
	record, err := relay.AppendProgress(nil, &relay.Progress{V: relay.Version, ID: c.ID, N: n, Progress: progress, Total: total, Message: message})
	if err != nil {
		return err
	}
	return h.box.PublishProgress(c.ID, record)
}

// Wait returns what was seen once it satisfies enough, or the context's error.
func (h *Host) Wait(ctx context.Context, enough func(Seen) bool) (Seen, error) {
	for {
		h.mu.Lock()
		seen, changed := h.seen, h.changed
		h.mu.Unlock()
		if enough(seen) {
			return seen, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return seen, fmt.Errorf("the guest did not get that far: %d calls, %d cancels, %d acks, broken %q", len(seen.Calls), len(seen.Cancels), len(seen.Acks), seen.Broken)
		}
	}
}

// Seen returns what was seen so far.
func (h *Host) Seen() Seen {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen
}

func (h *Host) broke(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen.Broken = append(h.seen.Broken, fmt.Sprintf(format, args...))
	h.notify()
}

// notify wakes every Wait; h.mu is held.
func (h *Host) notify() {
	close(h.changed)
	h.changed = make(chan struct{})
}

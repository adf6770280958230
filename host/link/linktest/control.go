// Package linktest is a control of one process's memory, as strict as the real one: it refuses what control would refuse, and reports what a host
// must never do.
package linktest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/host/link"
	"sallyport.dev/relay"
)

// ChunkBytes is the largest record that travels whole.
const ChunkBytes = 256 << 10

// Protected is the version of protected calls that the control speaks.
const Protected = 1

// Control is a [link.Link] whose other end is a test. Its state outlives lost streams and restarted hosts, as control's does. It is safe for
// concurrent use.
type Control struct {
	report func(error) // a host broke the rules

	mu       sync.Mutex
	calls    map[key]*Call
	streams  int
	stream   *stream // nil while there is none
	refuse   error   // why no stream is to be had
	changed  chan struct{}
	received []*sallyportv1.HostFrame
	gates    map[string]*sallyportv1.HostGate
	onCall   func(*Call)
}

type key struct{ session, id string }

// Call is a call that the host sent.
type Call struct {
	Session string
	Epoch   int64
	Record  relay.Call
	Digest  relay.Digest

	control   *Control
	state     State
	journaled bool
	told      bool // the host has received that it is journaled
	results   int
	result    []byte
}

// State is what came for a call so far.
type State struct {
	Sent     int // as a call
	Attached int
	Acked    int
	Cancels  []sallyportv1.CancelWhy
	WaitedMS int64 // of the last frame
}

// Cancelled reports whether the call was cancelled for that reason.
func (s State) Cancelled(why sallyportv1.CancelWhy) bool { return slices.Contains(s.Cancels, why) }

// State returns what came for the call so far. Inside Await, ask the view.
func (k *Call) State() State {
	k.control.mu.Lock()
	defer k.control.mu.Unlock()
	return (*View)(k.control).State(k)
}

// State returns what came for the call so far.
func (v *View) State(k *Call) State {
	s := k.state
	s.Cancels = slices.Clone(s.Cancels)
	return s
}

type stream struct {
	send   chan []*sallyportv1.ControlFrame
	stop   context.CancelCauseFunc
	closed <-chan struct{}
}

// New returns a control that the host can reach. Report is called with each breach of the rules; it may be called from any goroutine.
func New(report func(error)) *Control {
	return &Control{report: report, calls: make(map[key]*Call), changed: make(chan struct{}), gates: make(map[string]*sallyportv1.HostGate)}
}

// Run implements [link.Link]. Lost streams are opened again at once.
func (c *Control) Run(ctx context.Context, p link.Peer) error {
	for ctx.Err() == nil {
		if err := c.reachable(ctx); err != nil {
			break
		}
		c.once(ctx, p)
	}
	return ctx.Err()
}

// reachable waits until streams are to be had.
func (c *Control) reachable(ctx context.Context) error {
	for {
		c.mu.Lock()
		refuse, changed := c.refuse, c.changed
		c.mu.Unlock()
		if refuse == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func (c *Control) once(ctx context.Context, p link.Peer) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	s := &stream{send: make(chan []*sallyportv1.ControlFrame, 1024), stop: stop, closed: ctx.Done()}
	hello := p.Hello()
	c.mu.Lock()
	if c.refuse != nil {
		c.mu.Unlock()
		return
	}
	c.stream = s
	c.streams++
	c.notify()
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.stream = nil
		c.notify()
		c.mu.Unlock()
	}()
	for _, at := range hello.GetSessions() {
		if !relay.ValidID(at.GetSession()) || at.GetEpoch() < 1 {
			c.breach("hello names a session that cannot be: %v", at)
		}
	}
	p.Up(&sallyportv1.Welcome{Build: "test", Wire: link.Wire, ProtectedVersion: Protected, Node: "test"})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for {
			frames, err := p.Next(ctx)
			if err != nil {
				return err
			}
			c.receive(frames)
		}
	})
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case frames := <-s.send:
				if err := p.Receive(frames); err != nil {
					c.breach("the host refuses control's frames: %w", err)
					return err
				}
				c.arrived(frames)
			}
		}
	})
	p.Down(group.Wait())
}

// arrived notes what the host knows by now.
func (c *Control) arrived(frames []*sallyportv1.ControlFrame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range frames {
		if j := f.GetJournaled(); j != nil {
			c.calls[key{j.GetSession(), j.GetRecordId()}].told = true
		}
	}
}

func (c *Control) breach(format string, args ...any) { c.report(fmt.Errorf(format, args...)) }

// notify wakes every Await; c.mu is held.
func (c *Control) notify() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Break ends the stream, if there is one. With a reason no new one is to be had until Mend.
func (c *Control) Break(refuse error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = refuse
	if c.stream != nil {
		c.stream.stop(errs.New(errs.Unreachable, "the test cut the stream"))
	}
	c.notify()
}

// Mend lets the host connect again.
func (c *Control) Mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = nil
	c.notify()
}

// Forget says that the host lost what it knew of its calls: its process ended, or it stopped serving. It may send records again that control has
// journaled.
func (c *Control) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.calls {
		k.told = false
	}
}

// OnCall has f called with each new call, on the stream's goroutine; f may answer it.
func (c *Control) OnCall(f func(*Call)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onCall = f
}

// Await waits until done reports true, asking again whenever something came or changed. Done is called with the control locked.
func (c *Control) Await(ctx context.Context, done func(*View) bool) error {
	for {
		c.mu.Lock()
		ok, changed := done((*View)(c)), c.changed
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(errors.New("nothing of the kind came"), ctx.Err())
		case <-changed:
		}
	}
}

// View is the control as Await shows it.
type View Control

// Call returns the call of a record id, nil where none came.
func (v *View) Call(session, id string) *Call { return v.calls[key{session, id}] }

// All returns every call that came.
func (v *View) All() []*Call { return slices.Collect(maps.Values(v.calls)) }

// Calls returns how many calls came.
func (v *View) Calls() int { return len(v.calls) }

// Linked reports whether there is a stream.
func (v *View) Linked() bool { return v.stream != nil }

// Streams returns how many streams there were.
func (v *View) Streams() int { return v.streams }

// Frames returns every frame that came, calls left out.
func (v *View) Frames() []*sallyportv1.HostFrame { return v.received }

// Gate returns the question for a session's gate, nil where none came.
func (v *View) Gate(session string) *sallyportv1.HostGate { return v.gates[session] }

// Push sends frames to the host, and reports whether there is a stream to send them on.
func (c *Control) Push(frames ...*sallyportv1.ControlFrame) bool {
	c.mu.Lock()
	s := c.stream
	c.mu.Unlock()
	if s == nil {
		return false
	}
	select {
	case s.send <- frames:
		return true
	case <-s.closed:
		return false
	}
}

// Journal tells the host that the call is journaled.
func (k *Call) Journal() bool {
	k.control.mu.Lock()
	k.journaled = true
	k.control.mu.Unlock()
	return k.control.Push(k.journaledFrame())
}

func (k *Call) journaledFrame() *sallyportv1.ControlFrame {
	return &sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Journaled{Journaled: &sallyportv1.Journaled{
		Session: k.Session, Epoch: k.Epoch, RecordId: k.Record.ID, RecordDigest: k.Digest[:],
	}}}
}

// Answer settles the call with a CallToolResult, and sends it.
func (k *Call) Answer(state, result string, files ...File) bool {
	record, err := relay.AppendResult(nil, &relay.Result{ID: k.Record.ID, Call: k.Digest, State: state, Result: []byte(result)})
	if err != nil {
		k.control.breach("the test's result: %w", err)
		return false
	}
	k.control.mu.Lock()
	k.journaled, k.result = true, record
	k.results++
	k.control.mu.Unlock()
	return k.control.Push(append([]*sallyportv1.ControlFrame{k.journaledFrame()}, k.resultFrames(record, files)...)...)
}

// File is a body that a result names.
type File []byte

func (k *Call) resultFrames(record []byte, files []File) (frames []*sallyportv1.ControlFrame) {
	f := &sallyportv1.CallResult{Session: k.Session, Epoch: k.Epoch, RecordId: k.Record.ID}
	frames = append(frames, &sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Result{Result: f}})
	if len(record) <= ChunkBytes {
		f.Record = record
	} else {
		sum := sha256.Sum256(record)
		f.ChunkedDigest, f.ChunkedSize = sum[:], int64(len(record))
		frames = append(frames, Chunks(record)...)
	}
	for _, file := range files {
		sum := sha256.Sum256(file)
		f.Files = append(f.Files, &sallyportv1.ResultFile{Digest: sum[:], Size: int64(len(file))})
		frames = append(frames, Chunks(file)...)
	}
	return frames
}

// Chunks cuts a body.
func Chunks(body []byte) (frames []*sallyportv1.ControlFrame) {
	sum := sha256.Sum256(body)
	for at := 0; at < len(body); at += ChunkBytes {
		frames = append(frames, &sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Chunk{Chunk: &sallyportv1.Chunk{
			Digest: sum[:], Offset: int64(at), Data: body[at:min(at+ChunkBytes, len(body))],
		}}})
	}
	return frames
}

// Progress sends progress of the call.
func (k *Call) Progress(progress, total float64, message string) bool {
	return k.control.Push(&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Progress{Progress: &sallyportv1.CallProgress{
		Session: k.Session, Epoch: k.Epoch, RecordId: k.Record.ID, Progress: progress, Total: total, Message: message,
	}}})
}

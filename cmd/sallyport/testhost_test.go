package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	hostlink "sallyport.dev/host/link"
	"sallyport.dev/identity"
	"sallyport.dev/identity/enrol"
	"sallyport.dev/identity/link"
	"sallyport.dev/identity/statefile"
	"sallyport.dev/intent"
	"sallyport.dev/relay"
)

// testHost is a host of control without sandboxes: it joins with a real token, keeps a real Link, and sends the records that a guest would write.
type testHost struct {
	conn   *grpc.ClientConn
	dir    *statefile.Dir
	stop   context.CancelFunc
	done   chan struct{}
	linked chan struct{} // closed when control welcomed the host

	mu       sync.Mutex
	up       bool          // the Link stands
	changed  chan struct{} // closed, and replaced, by everything that control says
	out      []*sallyportv1.HostFrame
	more     chan struct{}
	gates    map[string]*sallyportv1.GateAnswer
	results  map[string]relay.Result
	sessions map[string]sessionOf // by id
	ended    map[string]string    // sessions that control ended: why
}

type sessionOf struct {
	epoch  int64
	policy string
	tools  []byte
}

// joinHost enrols with a token and links.
func joinHost(ctx context.Context, token, dir string) (*testHost, error) {
	d, err := statefile.Open(dir)
	if err != nil {
		return nil, err
	}
	source, e, err := enrol.Join(ctx, token, d)
	if err != nil {
		d.Close()
		return nil, err
	}
	conn, err := dialControl(source, e)
	if err != nil {
		d.Close()
		return nil, err
	}
	running, stop := context.WithCancel(context.Background())
	h := &testHost{
		conn: conn, dir: d, stop: stop, done: make(chan struct{}), linked: make(chan struct{}), changed: make(chan struct{}), more: make(chan struct{}, 1),
		gates: map[string]*sallyportv1.GateAnswer{}, results: map[string]relay.Result{}, sessions: map[string]sessionOf{}, ended: map[string]string{},
	}
	go func() {
		defer close(h.done)
		client := hostlink.New(hostlink.Config{Conn: conn, Build: buildName(), Protected: intent.Protected, Log: slog.New(slog.DiscardHandler)})
		client.Run(running, h) //nolint:errcheck // it ends when it is told to
	}()
	select {
	case <-h.linked:
		return h, nil
	case <-ctx.Done():
		h.close()
		return nil, fmt.Errorf("the host is not linked: %w", ctx.Err())
	}
}

func dialControl(source *identity.Source, e enrol.Enrolment) (*grpc.ClientConn, error) {
	control, err := spiffeid.FromString(e.Control[0].ID)
	if err != nil {
		return nil, err
	}
	return link.Dial(source, control, e.Control[0].Address)
}

func (h *testHost) close() {
	h.stop()
	<-h.done
	h.conn.Close()
	h.dir.Close()
}

// Hello implements link.Peer.
func (h *testHost) Hello() *sallyportv1.HostHello {
	h.mu.Lock()
	defer h.mu.Unlock()
	hello := &sallyportv1.HostHello{}
	for id, s := range h.sessions {
		hello.Sessions = append(hello.Sessions, &sallyportv1.SessionAt{Session: id, Epoch: s.epoch})
	}
	return hello
}

// Up implements link.Peer.
func (h *testHost) Up(*sallyportv1.Welcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.linked:
	default:
		close(h.linked)
	}
	h.up = true
	close(h.changed)
	h.changed = make(chan struct{})
}

// Down implements link.Peer.
func (h *testHost) Down(error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.up = false
}

// Next implements link.Peer.
func (h *testHost) Next(ctx context.Context) ([]*sallyportv1.HostFrame, error) {
	for {
		h.mu.Lock()
		out := h.out
		h.out = nil
		h.mu.Unlock()
		if len(out) > 0 {
			return out, nil
		}
		select {
		case <-h.more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (h *testHost) send(f *sallyportv1.HostFrame) {
	h.mu.Lock()
	h.out = append(h.out, f)
	h.mu.Unlock()
	select {
	case h.more <- struct{}{}:
	default:
	}
}

// Receive implements link.Peer.
func (h *testHost) Receive(frames []*sallyportv1.ControlFrame) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range frames {
		switch f := f.GetFrame().(type) {
		case *sallyportv1.ControlFrame_Gate:
			h.gates[f.Gate.GetSession()] = f.Gate
		case *sallyportv1.ControlFrame_Session:
			h.ended[f.Session.GetSession()] = f.Session.GetReason()
		case *sallyportv1.ControlFrame_Result:
			r, err := relay.ParseResult(f.Result.GetRecord())
			if err != nil {
				return err
			}
			h.results[f.Result.GetRecordId()] = r
		}
	}
	close(h.changed)
	h.changed = make(chan struct{})
	return nil
}

// wait asks again after everything that control says.
func (h *testHost) wait(ctx context.Context, what string, is func() bool) error {
	for {
		h.mu.Lock()
		ok, changed := is(), h.changed
		h.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		}
	}
}

// open opens a session with an owner's ticket, and its gate. Where control was started again, it waits for the Link: a session that is opened before
// the Link's hello would be one that the hello does not know.
func (h *testHost) open(ctx context.Context, profile, ticket string, attended bool) (string, error) {
	if err := h.wait(ctx, "the link", func() bool { return h.up }); err != nil {
		return "", err
	}
	r, err := sallyportv1.NewHostClient(h.conn).OpenSession(ctx, &sallyportv1.OpenSessionRequest{
		Profile: profile, OwnerTicket: ticket, Attended: attended, Harness: "claude",
		Facts: &sallyportv1.DriverFacts{Driver: "bwrap", Closed: "proven", Build: buildName(), Bounds: "cgroup"},
	})
	if err != nil {
		return "", err
	}
	id := r.GetSession()
	h.mu.Lock()
	h.sessions[id] = sessionOf{r.GetEpoch(), r.GetPolicyDigest(), r.GetToolsJson()}
	h.mu.Unlock()
	h.send(&sallyportv1.HostFrame{Frame: &sallyportv1.HostFrame_Gate{Gate: &sallyportv1.HostGate{
		Session: id, Epoch: r.GetEpoch(), Parent: "a supervisor of the tests", PolicyDigest: r.GetPolicyDigest(), Probe: []byte("{}"),
	}}})
	if err := h.wait(ctx, "the gate", func() bool { return h.gates[id] != nil }); err != nil {
		return "", err
	}
	if !h.gates[id].GetOpen() {
		return "", errors.New("the gate stays shut: " + h.gates[id].GetReason())
	}
	return id, nil
}

// call sends one record and returns its id.
func (h *testHost) call(session, tool, arguments string) (string, error) {
	h.mu.Lock()
	s, ok := h.sessions[session]
	h.mu.Unlock()
	if !ok {
		return "", errs.Newf(errs.NotFound, "the host has no session %s", session)
	}
	id := relay.NewID()
	record, err := relay.AppendCall(nil, &relay.Call{
		V: relay.Version, Session: session, Epoch: s.epoch, Shim: relay.NewID(), ID: id, Tool: tool, Arguments: []byte(arguments),
		TimeoutMS: (2 * time.Minute).Milliseconds(),
	})
	if err != nil {
		return "", err
	}
	h.record(session, record)
	return id, nil
}

// record sends the bytes of a record.
func (h *testHost) record(session string, record []byte) {
	h.mu.Lock()
	epoch := h.sessions[session].epoch
	h.mu.Unlock()
	h.send(&sallyportv1.HostFrame{Frame: &sallyportv1.HostFrame_Call{Call: &sallyportv1.HostCall{Session: session, Epoch: epoch, Record: record}}})
}

// hello opens another Link of this host with a hello of a build that speaks these versions, and returns how control takes it.
func (h *testHost) hello(ctx context.Context, wire, protected int32) error {
	stream, err := sallyportv1.NewHostClient(h.conn).Link(ctx)
	if err != nil {
		return err
	}
	defer stream.CloseSend()
	if err := stream.Send(&sallyportv1.HostFrames{Frames: []*sallyportv1.HostFrame{{Frame: &sallyportv1.HostFrame_Hello{
		Hello: &sallyportv1.HostHello{Build: "v0.0.1", Wire: wire, ProtectedVersion: protected},
	}}}}); err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// result waits for the result of a record and returns what a model reads of it.
func (h *testHost) result(ctx context.Context, record string) (text string, isError bool, err error) {
	if err := h.wait(ctx, "the result of "+record, func() bool { return h.results[record].ID != "" }); err != nil {
		return "", false, err
	}
	h.mu.Lock()
	r := h.results[record]
	h.mu.Unlock()
	var body struct {
		IsError bool
		Content []struct{ Text string }
	}
	if err := json.Unmarshal(r.Result, &body); err != nil {
		return "", false, err
	}
	for _, c := range body.Content {
		text += c.Text
	}
	return text, body.IsError, nil
}

// acknowledge says that the agent has the result of a record.
func (h *testHost) acknowledge(session, record string) {
	h.mu.Lock()
	epoch := h.sessions[session].epoch
	h.mu.Unlock()
	h.send(&sallyportv1.HostFrame{Frame: &sallyportv1.HostFrame_Ack{Ack: &sallyportv1.HostAck{Session: session, Epoch: epoch, RecordId: record}}})
}

func hostDir(work, name string) string { return filepath.Join(work, "host-"+name) }

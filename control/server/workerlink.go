package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/machine"
	"sallyport.dev/control/revocation"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/identity/link"
	"sallyport.dev/intent"
)

// workerService serves the Links of workers.
type workerService struct {
	sallyportv1.UnimplementedWorkerServer
	s *Server
}

// caller is who dialed, as their certificate says.
type caller struct {
	id    spiffeid.ID
	name  identity.Name
	state tls.ConnectionState
}

// callerOf returns the caller of a mutually authenticated connection, if they have the role, are not removed and not revoked.
func (s *Server) callerOf(ctx context.Context, role identity.Role) (caller, error) {
	other, err := link.OtherEnd(ctx)
	if err != nil {
		return caller{}, status.Error(codes.Unauthenticated, errs.Message(err))
	}
	id := other.ID
	name, err := identity.ParseID(id)
	if err != nil || name.Role != role {
		return caller{}, status.Errorf(codes.PermissionDenied, "this is for a %s", role)
	}
	m, err := s.stores.Machines.Machine(ctx, id.String())
	if err != nil || m.Removed {
		return caller{}, status.Error(codes.PermissionDenied, "this identity was removed; enrol it again")
	}
	// A name that was removed and enrolled again is another machine: certificates of the former one are no good.
	if leaf := other.State.PeerCertificates[0]; leaf.NotBefore.Add(identity.Backdate + time.Minute).Before(m.Since) {
		return caller{}, status.Error(codes.PermissionDenied, "this identity was replaced by a newer enrolment")
	}
	if why := s.revoked(ctx, id.String(), name); why != "" {
		return caller{}, status.Error(codes.PermissionDenied, why)
	}
	return caller{id: id, name: name, state: other.State}, nil
}

// revoked says why a machine may not be linked now, or "".
func (s *Server) revoked(ctx context.Context, id string, name identity.Name) string {
	switches, err := s.stores.Revocations.Switches(ctx, false)
	if err != nil {
		return "the store does not answer"
	}
	for _, w := range switches {
		if string(w.Kind) == string(name.Role) && w.Name == id {
			return fmt.Sprintf("access of this %s was withdrawn; sallyport restore %s %s gives it back", name.Role, name.Role, name.Name)
		}
	}
	return ""
}

// Link implements sallyport.v1.Worker.
func (w *workerService) Link(stream grpc.BidiStreamingServer[sallyportv1.WorkerFrames, sallyportv1.Jobs]) error {
	s := w.s
	who, err := s.callerOf(stream.Context(), identity.Worker)
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if len(first.GetFrames()) == 0 || first.GetFrames()[0].GetHello() == nil {
		return status.Error(codes.InvalidArgument, "the first frame of a link is its hello")
	}
	hello := first.GetFrames()[0].GetHello()
	if err := checkHello(hello.GetWire(), hello.GetProtectedVersion(), hello.GetBuild()); err != nil {
		return err
	}
	if hello.GetPool() != who.name.Pool || hello.GetRun() == "" || hello.GetCapacity() < 1 {
		return status.Error(codes.InvalidArgument, "the hello does not fit the worker's identity")
	}
	mac, err := intent.ExportLinkKey(who.state)
	if err != nil {
		return status.Error(codes.Unauthenticated, errs.Message(err))
	}
	if err := s.checkHighWater(stream.Context(), "worker "+who.name.Name, hello.GetHighWater()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	l := &workerLink{
		run: hello.GetRun(), worker: who.id.String(), name: who.name.Name, pool: who.name.Pool, capacity: int(hello.GetCapacity()), mac: mac,
		hello: hello, out: newOutbox[*sallyportv1.Job](), stop: cancel, open: map[string]times{},
	}
	for _, id := range hello.GetOpenIntents() {
		l.open[id] = times{}
	}
	l.out.push(1024,
		&sallyportv1.Job{Job: &sallyportv1.Job_Welcome{Welcome: &sallyportv1.WorkerWelcome{
			Build: s.cfg.Build, Wire: Wire, ProtectedVersion: intent.Protected, Node: s.cfg.Node, Incarnation: s.incarnation(),
		}}},
		&sallyportv1.Job{Job: &sallyportv1.Job_Keys{Keys: s.nodeKeys()}},
		&sallyportv1.Job{Job: &sallyportv1.Job_HighWater{HighWater: s.highWater()}},
	)
	if err := s.workers.up(l); err != nil {
		s.log.Error("worker refused", "worker", l.name, "run", l.run, "err", err)
		return status.Error(codes.FailedPrecondition, errs.Message(err))
	}
	s.stores.Machines.Seen(l.worker, machine.Sight{Run: l.run, Build: hello.GetBuild(), Confinement: hello.GetConfinement(), PoolKey: hello.GetPoolKey()})
	s.log.Info("worker linked", "worker", l.name, "pool", l.pool, "run", l.run, "confinement", hello.GetConfinement(), "build", hello.GetBuild())
	s.events.publish(Event{Kind: "machine", ID: l.worker, State: "up"})
	s.pipeline.RunUp(call.Run{ID: l.run, Worker: l.worker}, hello.GetOpenIntents())
	defer func() {
		if s.workers.down(l) {
			s.pipeline.RunDown(l.run)
			s.jobs.runDown(l.run)
		}
		s.events.publish(Event{Kind: "machine", ID: l.worker, State: "lost"})
		s.log.Info("worker link ended", "worker", l.name, "run", l.run)
	}()
	go func() {
		defer cancel()
		for {
			jobs, ok := l.out.next(ctx)
			if !ok || stream.Send(&sallyportv1.Jobs{Jobs: jobs}) != nil {
				return
			}
		}
	}()
	var parts chunks
	for _, f := range first.GetFrames()[1:] {
		if err := w.frame(l, &parts, f); err != nil {
			return linkError(s.log, "worker "+l.name, err)
		}
	}
	return receive(ctx, stream.Recv, func(m *sallyportv1.WorkerFrames) error {
		for _, f := range m.GetFrames() {
			if err := w.frame(l, &parts, f); err != nil {
				return linkError(s.log, "worker "+l.name, err)
			}
		}
		return nil
	})
}

// receive hands on what comes until the stream or ctx ends; nothing is handled after it returned. Recv cannot be interrupted, so it has a goroutine of
// its own; that one handles what it receives, because handing each message to another costs more than most messages do.
func receive[M any](ctx context.Context, recv func() (M, error), handle func(M) error) error {
	var mu sync.Mutex
	over := false
	next := func() error {
		m, err := recv()
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if over {
			return io.EOF
		}
		return handle(m)
	}
	ended := make(chan error, 1)
	go func() {
		for {
			if err := next(); err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	case <-ctx.Done():
		mu.Lock()
		defer mu.Unlock()
		over = true
		return status.Error(codes.Canceled, "the link was ended by control")
	}
}

func linkError(log *slog.Logger, who string, err error) error {
	log.Error("link broke the contract", "who", who, "err", err)
	return status.Error(codes.InvalidArgument, errs.Message(err))
}

func (w *workerService) frame(l *workerLink, parts *chunks, f *sallyportv1.WorkerFrame) error {
	p := w.s.pipeline
	switch f := f.GetFrame().(type) {
	case *sallyportv1.WorkerFrame_Ready:
		l.prepared(f.Ready.GetIntent())
		p.Ready(l.run, call.Ready{Intent: f.Ready.GetIntent(), Upstream: f.Ready.GetUpstreamSession(), Took: micros(f.Ready.GetPrepareUs())})
	case *sallyportv1.WorkerFrame_Sent:
		p.Sent(l.run, f.Sent.GetIntent(), f.Sent.GetBytes())
	case *sallyportv1.WorkerFrame_Progress:
		p.Progressed(l.run, f.Progress.GetIntent(), call.Progress{Progress: f.Progress.GetProgress(), Total: f.Progress.GetTotal(), Message: f.Progress.GetMessage()})
	case *sallyportv1.WorkerFrame_Chunk:
		return parts.add(f.Chunk.GetDigest(), f.Chunk.GetOffset(), f.Chunk.GetSize(), f.Chunk.GetData())
	case *sallyportv1.WorkerFrame_Outcome:
		o := f.Outcome
		if len(o.GetChunkedDigest()) > 0 {
			body, err := parts.take(o.GetChunkedDigest(), o.GetChunkedSize())
			if err != nil {
				return err
			}
			o.Body = body
		}
		took := l.release(o.GetIntent())
		if w.s.jobs.outcome(l.run, o) {
			return nil
		}
		workerTook(took.submitted, o.GetTimings())
		transport, ok := transports[o.GetTransport()]
		if !ok {
			return errs.New(errs.Invalid, "an outcome without a transport")
		}
		p.Outcome(l.run, call.Outcome{
			Intent: o.GetIntent(), Transport: transport, Bytes: o.GetBytesWritten(), Status: int(o.GetHttpStatus()),
			Failure: journal.Failure(o.GetFailure()), Body: o.GetBody(), Detail: o.GetDetail(), Upstream: o.GetUpstreamSession(),
			Challenge: o.GetChallenge(), Redacted: sum(o.GetRedactedDigest()),
		})
	case *sallyportv1.WorkerFrame_Attested:
		a, ok := attestations[f.Attested.GetState()]
		if !ok {
			return errs.New(errs.Invalid, "an attestation without a state")
		}
		if a == call.NotStarted {
			l.release(f.Attested.GetIntent())
		}
		p.Attested(l.run, f.Attested.GetIntent(), a)
	case *sallyportv1.WorkerFrame_Health:
		w.s.stores.Machines.Seen(l.worker, machine.Sight{Run: l.run, Build: l.hello.GetBuild(), Confinement: l.hello.GetConfinement(), PoolKey: l.hello.GetPoolKey()})
	case *sallyportv1.WorkerFrame_Hello:
		return errs.New(errs.Invalid, "a second hello on one link")
	default:
		// A newer worker's frame that this build does not know carries nothing that was asked for (wire N-1).
		w.s.log.Debug("unknown frame of a worker", "worker", l.name)
	}
	return nil
}

// sum is a digest of a frame, zero where it has none.
func sum(b []byte) (d control.Digest) {
	if len(b) == len(d) {
		copy(d[:], b)
	}
	return d
}

var transports = map[sallyportv1.Transport]journal.Transport{
	sallyportv1.Transport_TRANSPORT_NOT_SENT: journal.TransportNotSent,
	sallyportv1.Transport_TRANSPORT_SENT:     journal.TransportSent,
	sallyportv1.Transport_TRANSPORT_ANSWERED: journal.TransportAnswered,
}

var attestations = map[sallyportv1.AttestState]call.Attestation{
	sallyportv1.AttestState_ATTEST_STATE_NOT_STARTED: call.NotStarted,
	sallyportv1.AttestState_ATTEST_STATE_RUNNING:     call.Running,
	sallyportv1.AttestState_ATTEST_STATE_FINISHED:    call.Finished,
}

// checkHello refuses peers that cannot be served: wire N and N-1 are, a protected number is never negotiated down.
func checkHello(wire, protected int32, build string) error {
	if wire != Wire && wire != Wire-1 {
		return status.Errorf(codes.FailedPrecondition, "build %s speaks wire version %d, this control %d and %d: upgrade the older side", build, wire, Wire, Wire-1)
	}
	if protected != intent.Protected {
		return status.Errorf(codes.FailedPrecondition, "build %s speaks protected version %d, this control %d: both must be the same", build, protected, intent.Protected)
	}
	return nil
}

// checkHighWater compares what a peer remembers with the store. A peer that knows more makes the store an older copy: quarantine.
func (s *Server) checkHighWater(ctx context.Context, who string, seen *sallyportv1.HighWater) error {
	if seen == nil || seen.GetIncarnation() == "" {
		return nil
	}
	older, err := s.stores.Revocations.Remember(ctx, who, revocation.History{Incarnation: seen.GetIncarnation(), Counter: seen.GetCounter()})
	if err != nil {
		return status.Error(codes.Unavailable, "the store does not answer")
	}
	if older {
		s.log.Error("quarantine: the store is older than what a peer remembers", "who", who, "seen", seen.GetCounter())
		s.events.publish(Event{Kind: "quarantine", Detail: who + " remembers more than the store holds"})
		s.pipeline.PolicyChanged()
	}
	return nil
}

var _ call.Workers = (*workers)(nil)

var _ call.Signer = (*workers)(nil)

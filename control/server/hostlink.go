package server

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/control/call"
	"sallyport.dev/control/machine"
	"sallyport.dev/control/session"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/intent"
)

// Link implements sallyport.v1.Host.
func (h *hostService) Link(stream grpc.BidiStreamingServer[sallyportv1.HostFrames, sallyportv1.ControlFrames]) error {
	s := h.s
	who, err := s.callerOf(stream.Context(), identity.Host)
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
	if err := s.checkHighWater(stream.Context(), "host "+who.name.Name, hello.GetHighWater()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	l := &hostLink{id: who.id.String(), name: who.name.Name, public: who.state.PeerCertificates[0].PublicKey, out: newOutbox[*sallyportv1.ControlFrame](), stop: cancel}
	l.out.push(512,
		&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Welcome{Welcome: &sallyportv1.Welcome{
			Build: s.cfg.Build, Wire: Wire, ProtectedVersion: intent.Protected, Node: s.cfg.Node, HighWater: s.highWater(),
		}}},
		&sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Origins{Origins: &sallyportv1.Origins{DenyHosts: s.denyHosts(ctx)}}},
	)
	s.hosts.up(l)
	seen := func() { s.stores.Machines.Seen(l.id, machine.Sight{Build: hello.GetBuild()}) }
	seen()
	s.log.Info("host linked", "host", l.name, "build", hello.GetBuild(), "sessions", len(hello.GetSessions()))
	s.events.publish(Event{Kind: "machine", ID: l.id, State: "up"})
	defer func() {
		s.hosts.down(l)
		s.events.publish(Event{Kind: "machine", ID: l.id, State: "lost"})
		s.log.Info("host link ended", "host", l.name)
	}()
	h.tellEnded(ctx, l, hello.GetSessions())
	h.closeGone(ctx, l, hello.GetSessions())
	go func() {
		defer cancel()
		for {
			frames, ok := l.out.next(ctx)
			if !ok || stream.Send(&sallyportv1.ControlFrames{Frames: frames}) != nil {
				return
			}
		}
	}()
	for _, f := range first.GetFrames()[1:] {
		if err := h.frame(ctx, l, f, seen); err != nil {
			return linkError(s.log, "host "+l.name, err)
		}
	}
	return receive(ctx, stream.Recv, func(m *sallyportv1.HostFrames) error {
		for _, f := range m.GetFrames() {
			if err := h.frame(ctx, l, f, seen); err != nil {
				return linkError(s.log, "host "+l.name, err)
			}
		}
		return nil
	})
}

// tellEnded says which of the sessions that a host still serves ended, or went on without it, while it was away.
func (h *hostService) tellEnded(ctx context.Context, l *hostLink, sessions []*sallyportv1.SessionAt) {
	for _, at := range sessions {
		row, err := h.s.stores.Sessions.Session(ctx, at.GetSession())
		switch {
		case errs.Is(err, errs.NotFound), err == nil && row.Host != l.id, err == nil && row.State == control.SessionClosed:
			l.out.push(256, sessionFrame(at.GetSession(), at.GetEpoch(), "close", "the session ended while the host was away"))
		case err == nil && row.Epoch != at.GetEpoch():
			l.out.push(256, sessionFrame(at.GetSession(), at.GetEpoch(), "close", "the session was resumed elsewhere"))
		}
	}
}

// openingFor is how long a session may take from its row to its gate, generously: its host knows of it by then.
const openingFor = 2 * time.Minute

// closeGone closes the sessions of a host that it does not serve any more: they ended while it could not say so. What they asked is voided with them.
func (h *hostService) closeGone(ctx context.Context, l *hostLink, served []*sallyportv1.SessionAt) {
	store := h.s.stores.Sessions
	rows, err := store.Sessions(ctx, session.Filter{Org: control.Org, Host: l.id, States: []control.SessionState{control.SessionOpening, control.SessionOpen}})
	if err != nil {
		h.s.log.Warn("a host's sessions cannot be compared with what it serves; the next link does it", "host", l.name, "err", err)
		return
	}
	closed := false
	for _, row := range rows {
		if slices.ContainsFunc(served, func(at *sallyportv1.SessionAt) bool { return at.GetSession() == row.ID }) ||
			row.State == control.SessionOpening && store.Now().Sub(row.CreatedAt) < openingFor {
			continue
		}
		if err := store.CloseSession(ctx, row.ID, row.Epoch, l.id, "its host does not serve it any more"); err != nil {
			h.s.log.Warn("a session that is gone stays open", "session", row.ID, "err", err)
			continue
		}
		closed = true
		h.owners.Delete(row.ID)
		h.s.events.publish(Event{Kind: "session", ID: row.ID, State: "closed", Session: row.ID})
		h.s.log.Info("session closed: its host does not serve it any more", "session", row.ID, "host", l.name)
	}
	if closed {
		h.s.pipeline.PolicyChanged()
	}
}

func sessionFrame(id string, epoch int64, change, reason string) *sallyportv1.ControlFrame {
	return &sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Session{Session: &sallyportv1.SessionChange{
		Session: id, Epoch: epoch, Change: change, Reason: reason,
	}}}
}

// owns reports whether a session is the host's, by a cache that is filled by the sessions themselves: a session never changes its host.
func (h *hostService) owns(ctx context.Context, host, id string) bool {
	if owner, ok := h.owners.Load(id); ok {
		return owner == host
	}
	if !control.ValidID(id) {
		return false
	}
	row, err := h.s.stores.Sessions.Session(ctx, id)
	if err != nil || row.State == control.SessionClosed {
		return false
	}
	h.owners.Store(id, row.Host)
	return row.Host == host
}

// frame handles one frame of a host. A frame for a session that is not the host's is counted and dropped: it may be a race with a close, and a
// hostile host gets nothing from it.
func (h *hostService) frame(ctx context.Context, l *hostLink, f *sallyportv1.HostFrame, seen func()) error {
	p := h.s.pipeline
	address := func(session string, epoch int64, record string) (call.Address, bool) {
		if !h.owns(ctx, l.id, session) {
			h.s.log.Warn("frame for a session of another host", "host", l.name, "session", session)
			return call.Address{}, false
		}
		return call.Address{Host: l.id, Session: session, Epoch: epoch, Record: record}, true
	}
	switch f := f.GetFrame().(type) {
	case *sallyportv1.HostFrame_Call:
		if _, ok := address(f.Call.GetSession(), f.Call.GetEpoch(), ""); ok {
			p.Submit(call.Submission{
				Host: l.id, Session: f.Call.GetSession(), Epoch: f.Call.GetEpoch(), Record: f.Call.GetRecord(),
				Waited: time.Duration(max(f.Call.GetWaitedMs(), 0)) * time.Millisecond,
			})
		} else {
			l.out.push(256, sessionFrame(f.Call.GetSession(), f.Call.GetEpoch(), "close", "the session is not open on this host"))
		}
	case *sallyportv1.HostFrame_Attach:
		if a, ok := address(f.Attach.GetSession(), f.Attach.GetEpoch(), f.Attach.GetRecordId()); ok {
			p.Attach(a)
		}
	case *sallyportv1.HostFrame_Cancel:
		why, known := cancelReasons[f.Cancel.GetWhy()]
		if !known {
			return errs.New(errs.Invalid, "a cancel without a reason")
		}
		if a, ok := address(f.Cancel.GetSession(), f.Cancel.GetEpoch(), f.Cancel.GetRecordId()); ok {
			p.Cancel(a, why)
		}
	case *sallyportv1.HostFrame_Refused:
		digest := control.Digest{}
		if len(f.Refused.GetRecordDigest()) != len(digest) {
			return errs.New(errs.Invalid, "a refusal without the digest of its record")
		}
		copy(digest[:], f.Refused.GetRecordDigest())
		if a, ok := address(f.Refused.GetSession(), f.Refused.GetEpoch(), f.Refused.GetRecordId()); ok {
			a.Digest = digest
			p.Refused(call.Refusal{Address: a, Tool: f.Refused.GetTool(), Code: errs.Code(f.Refused.GetCode()), Reason: f.Refused.GetReason()})
		}
	case *sallyportv1.HostFrame_Ack:
		if a, ok := address(f.Ack.GetSession(), f.Ack.GetEpoch(), f.Ack.GetRecordId()); ok {
			p.Acknowledge(a)
		}
	case *sallyportv1.HostFrame_Gate:
		if _, ok := address(f.Gate.GetSession(), f.Gate.GetEpoch(), ""); ok {
			go h.gate(ctx, l, f.Gate)
		}
	case *sallyportv1.HostFrame_Egress:
		for _, d := range f.Egress.GetDecisions() {
			h.s.log.Info("egress", "host", l.name, "session", d.GetSession(), "kind", d.GetKind(), "target", d.GetTarget(), "verdict", d.GetVerdict(),
				"reason", d.GetReason(), "bytes_in", d.GetBytesIn(), "bytes_out", d.GetBytesOut(), "tokens", d.GetTokens())
		}
	case *sallyportv1.HostFrame_Witness:
		if err := audit.VerifyWitness(l.public, f.Witness.GetCheckpoint(), f.Witness.GetSignature()); err != nil {
			return err
		}
		go h.s.keepWitness(ctx, l.id, f.Witness)
	case *sallyportv1.HostFrame_Health:
		seen()
	case *sallyportv1.HostFrame_Hello:
		return errs.New(errs.Invalid, "a second hello on one link")
	default:
		h.s.log.Debug("unknown frame of a host", "host", l.name)
	}
	return nil
}

var cancelReasons = map[sallyportv1.CancelWhy]call.CancelWhy{
	sallyportv1.CancelWhy_CANCEL_WHY_HARNESS:  call.CancelHarness,
	sallyportv1.CancelWhy_CANCEL_WHY_CLOSED:   call.CancelClosed,
	sallyportv1.CancelWhy_CANCEL_WHY_DEADLINE: call.CancelDeadline,
}

// gate answers a gate's question: epoch, owner and policy digest by compare-and-set.
func (h *hostService) gate(ctx context.Context, l *hostLink, g *sallyportv1.HostGate) {
	answer := &sallyportv1.GateAnswer{Session: g.GetSession(), Epoch: g.GetEpoch()}
	digest, err := control.ParseDigest(g.GetPolicyDigest())
	if err == nil {
		err = h.s.stores.Sessions.ConfirmGate(ctx, session.Confirmation{
			Session: g.GetSession(), Epoch: g.GetEpoch(), Host: l.id, Parent: g.GetParent(), PolicyDigest: digest,
		})
	}
	if answer.Open = err == nil; err != nil {
		answer.Reason = errs.Message(err)
		h.s.log.Warn("gate stays shut", "host", l.name, "session", g.GetSession(), "err", err)
	} else {
		h.s.events.publish(Event{Kind: "session", ID: g.GetSession(), State: "open"})
	}
	l.out.push(256, &sallyportv1.ControlFrame{Frame: &sallyportv1.ControlFrame_Gate{Gate: answer}})
}

// keepWitness stores a countersignature that was checked.
func (s *Server) keepWitness(ctx context.Context, by string, w *sallyportv1.Witness) {
	if err := s.stores.Audit.PutWitness(ctx, by, w.GetCheckpoint(), w.GetSignature()); err != nil && ctx.Err() == nil {
		s.log.Warn("a countersignature was not stored", "by", by, "err", err)
	}
}

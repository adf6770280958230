package server_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/server"
	"sallyport.dev/control/session"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/intent"
	"sallyport.dev/relay"
)

func hello(pool string) *sallyportv1.WorkerHello {
	return &sallyportv1.WorkerHello{
		Pool: pool, Run: "run-1", Build: "test", Wire: server.Wire, ProtectedVersion: intent.Protected, Capacity: 4, Confinement: "none", PoolKey: make([]byte, 32),
	}
}

func helloFrames(h *sallyportv1.WorkerHello) *sallyportv1.WorkerFrames {
	return &sallyportv1.WorkerFrames{Frames: []*sallyportv1.WorkerFrame{{Frame: &sallyportv1.WorkerFrame_Hello{Hello: h}}}}
}

// A worker that does not say who it is, or says it wrong, gets no link.
func TestWorkerLinkRefuses(t *testing.T) {
	r := newRig(t)
	client := r.workerClient(r.machine(identity.Worker, "default", "w"))
	for name, c := range map[string]struct {
		first *sallyportv1.WorkerFrames
		code  codes.Code
		want  string
	}{
		"no hello":            {&sallyportv1.WorkerFrames{}, codes.InvalidArgument, "first frame"},
		"another frame first": {&sallyportv1.WorkerFrames{Frames: []*sallyportv1.WorkerFrame{{Frame: &sallyportv1.WorkerFrame_Sent{}}}}, codes.InvalidArgument, "first frame"},
		"another pool":        {helloFrames(hello("other")), codes.InvalidArgument, "does not fit"},
		"no capacity": {helloFrames(func() *sallyportv1.WorkerHello {
			h := hello("default")
			h.Capacity = 0
			return h
		}()), codes.InvalidArgument, "does not fit"},
		"an older protected version": {helloFrames(func() *sallyportv1.WorkerHello {
			h := hello("default")
			h.ProtectedVersion = intent.Protected - 1
			return h
		}()), codes.FailedPrecondition, "both must be the same"},
		"wire N-2": {helloFrames(func() *sallyportv1.WorkerHello {
			h := hello("default")
			h.Wire = server.Wire - 2
			return h
		}()), codes.FailedPrecondition, "upgrade the older side"},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := client.Link(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(c.first); err != nil {
				t.Fatal(err)
			}
			_, err = stream.Recv()
			if s, _ := status.FromError(err); s.Code() != c.code || !strings.Contains(s.Message(), c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A host's certificate does not open a worker's link, and a removed or revoked machine opens none.
func TestLinkNeedsTheRole(t *testing.T) {
	r := newRig(t)
	host := r.machine(identity.Host, "", "h")
	stream, err := r.workerClient(host).Link(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a host's certificate: %v", err)
	}
	worker := r.machine(identity.Worker, "default", "w")
	if _, err := r.people.Revoke(t.Context(), &sallyportv1.RevokeRequest{Kind: "worker", Name: "w"}); err != nil {
		t.Fatal(err)
	}
	stream, err = r.workerClient(worker).Link(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "sallyport restore worker w") {
		t.Errorf("a revoked worker: %v", err)
	}
	if _, err := r.people.Restore(t.Context(), &sallyportv1.RestoreRequest{Kind: "worker", Name: "w"}); err != nil {
		t.Fatal(err)
	}
	up(t, r, worker)
	if _, err := r.people.RemoveMachine(t.Context(), &sallyportv1.RemoveMachineRequest{Role: "worker", Name: "w"}); err != nil {
		t.Fatal(err)
	}
	stream, err = r.workerClient(worker).Link(t.Context())
	if err == nil {
		_, err = stream.Recv()
	}
	if err == nil {
		t.Error("a removed worker has a link")
	}
}

// up links a worker and returns its stream after the welcome.
func up(t *testing.T, r *rig, source *identity.Source) sallyportv1.Worker_LinkClient {
	t.Helper()
	stream, err := r.workerClient(source).Link(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(helloFrames(hello("default"))); err != nil {
		t.Fatal(err)
	}
	jobs, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if len(jobs.GetJobs()) < 3 || jobs.GetJobs()[0].GetWelcome() == nil || jobs.GetJobs()[1].GetKeys() == nil || jobs.GetJobs()[2].GetHighWater() == nil {
		t.Fatalf("not a welcome, keys, high water: %v", jobs)
	}
	return stream
}

// A second link of one worker ends the first: two processes of one identity never both execute.
func TestSecondLinkEndsTheFirst(t *testing.T) {
	r := newRig(t)
	source := r.machine(identity.Worker, "default", "w")
	first := up(t, r, source)
	up(t, r, source)
	if _, err := first.Recv(); err == nil {
		t.Error("the first link lives on")
	}
	if _, err := r.server.Workers().Pick("default", none); err != nil {
		t.Errorf("the second link is not there: %v", err)
	}
}

func none(string) bool { return false }

// A switch of a worker counts from its commit on, whatever becomes of the worker's Link: nothing is given to it any more.
func TestWithdrawnWorkersArePassedOver(t *testing.T) {
	r := newRig(t)
	first, second := r.machine(identity.Worker, "default", "w"), r.machine(identity.Worker, "default", "x")
	link := func(source *identity.Source, run string) {
		stream, err := r.workerClient(source).Link(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h := hello("default")
		h.Run = run
		if err := stream.Send(helloFrames(h)); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	link(first, "one")
	link(second, "two")
	w := r.server.Workers()
	for _, c := range []struct {
		withdrawn *identity.Source
		want      string
	}{{first, "two"}, {second, "one"}} {
		got, err := w.Pick("default", func(id string) bool { return id == c.withdrawn.ID().String() })
		if err != nil || got.ID != c.want {
			t.Errorf("%+v %v, want %s", got, err, c.want)
		}
	}
	if got, err := w.Pick("default", func(string) bool { return true }); errs.CodeOf(err) != errs.Unreachable {
		t.Errorf("every worker is withdrawn: %+v %v", got, err)
	}
}

// Two processes of one identity: the run that was replaced does not come back, and that another one came up proves its death no more. A run's name
// is no other worker's either.
func TestCopiedWorker(t *testing.T) {
	r := newRig(t)
	source, other := r.machine(identity.Worker, "default", "w"), r.machine(identity.Worker, "default", "x")
	link := func(source *identity.Source, run string) error {
		stream, err := r.workerClient(source).Link(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h := hello("default")
		h.Run = run
		if err := stream.Send(helloFrames(h)); err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		return err
	}
	id := source.ID().String()
	for _, run := range []string{"one", "one", "two", "two"} {
		if err := link(source, run); err != nil {
			t.Fatal(run, err)
		}
	}
	if !r.server.Workers().Dead(id, "one") {
		t.Error("a run that another one replaced counts as alive")
	}
	if err := link(other, "two"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("another worker under the name of this run: %v", err)
	}
	if !r.server.Workers().Dead(id, "one") {
		t.Error("what another worker says changes it")
	}
	if err := link(source, "one"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a run that was replaced came back: %v", err)
	}
	if r.server.Workers().Dead(id, "one") {
		t.Error("the run that came back counts as dead")
	}
	if err := link(source, "two"); err != nil {
		t.Errorf("the newer run: %v", err)
	}
}

// Workers of one pool have one key: another one comes up when none of them is there.
func TestPoolHasOneKey(t *testing.T) {
	r := newRig(t)
	link := func(source *identity.Source, run string, key byte) (sallyportv1.Worker_LinkClient, error) {
		stream, err := r.workerClient(source).Link(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h := hello("default")
		h.Run, h.PoolKey = run, bytes.Repeat([]byte{key}, 32)
		if err := stream.Send(helloFrames(h)); err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		return stream, err
	}
	one, two := r.machine(identity.Worker, "default", "one"), r.machine(identity.Worker, "default", "two")
	if _, err := link(one, "a", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := link(two, "b", 2); status.Code(err) != codes.FailedPrecondition || !strings.Contains(status.Convert(err).Message(), "pool.key") {
		t.Errorf("another key beside it: %v", err)
	}
	if _, err := link(two, "c", 1); err != nil {
		t.Errorf("the same key: %v", err)
	}
	if _, err := link(one, "d", 2); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("another key of one that was there: %v", err)
	}
}

// What breaks the contract ends the link, with a word; nothing else of control is touched.
func TestWorkerFramesAreStrict(t *testing.T) {
	r := newRig(t)
	source := r.machine(identity.Worker, "default", "w")
	digest := sha256.Sum256([]byte("x"))
	for name, f := range map[string]*sallyportv1.WorkerFrame{
		"hello again":           {Frame: &sallyportv1.WorkerFrame_Hello{Hello: hello("default")}},
		"no transport":          {Frame: &sallyportv1.WorkerFrame_Outcome{Outcome: &sallyportv1.Outcome{Intent: "x"}}},
		"no attestation":        {Frame: &sallyportv1.WorkerFrame_Attested{Attested: &sallyportv1.Attested{Intent: "x"}}},
		"chunk out of order":    {Frame: &sallyportv1.WorkerFrame_Chunk{Chunk: &sallyportv1.WorkerChunk{Digest: digest[:], Offset: 7, Data: []byte("x")}}},
		"chunk without digest":  {Frame: &sallyportv1.WorkerFrame_Chunk{Chunk: &sallyportv1.WorkerChunk{Data: []byte("x")}}},
		"body that never came":  {Frame: &sallyportv1.WorkerFrame_Outcome{Outcome: &sallyportv1.Outcome{Intent: "x", Transport: 3, ChunkedDigest: digest[:], ChunkedSize: 1}}},
		"body without a digest": {Frame: &sallyportv1.WorkerFrame_Outcome{Outcome: &sallyportv1.Outcome{Intent: "x", Transport: 3, ChunkedDigest: []byte("short"), ChunkedSize: 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			stream := up(t, r, source)
			if err := stream.Send(&sallyportv1.WorkerFrames{Frames: []*sallyportv1.WorkerFrame{f}}); err != nil {
				t.Fatal(err)
			}
			for {
				if _, err := stream.Recv(); err != nil {
					if status.Code(err) != codes.InvalidArgument {
						t.Errorf("got %v", err)
					}
					return
				}
			}
		})
	}
}

// A peer that remembers more than the store holds makes it an older copy: quarantine, until a person accepts it.
func TestHighWaterQuarantines(t *testing.T) {
	r := newRig(t)
	s, err := r.people.Status(t.Context(), &sallyportv1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	link := func(counter int64) (sallyportv1.Host_LinkClient, error) {
		stream, err := r.hostClient(r.machine(identity.Host, "", "h")).Link(t.Context())
		if err != nil {
			return nil, err
		}
		if err := stream.Send(&sallyportv1.HostFrames{Frames: []*sallyportv1.HostFrame{{Frame: &sallyportv1.HostFrame_Hello{Hello: &sallyportv1.HostHello{
			Build: "test", Wire: server.Wire, ProtectedVersion: intent.Protected, HighWater: &sallyportv1.HighWater{Incarnation: s.GetIncarnation(), Counter: counter},
		}}}}}); err != nil {
			return nil, err
		}
		_, err = stream.Recv()
		return stream, err
	}
	if _, err := link(s.GetCounter()); err != nil {
		t.Fatal(err)
	}
	if got, _ := r.people.Status(t.Context(), &sallyportv1.StatusRequest{}); got.GetQuarantine() != "" {
		t.Fatalf("a host that knows as much: %s", got.GetQuarantine())
	}
	if _, err := link(s.GetCounter() + 1000); err != nil {
		t.Fatal(err)
	}
	got, err := r.people.Status(t.Context(), &sallyportv1.StatusRequest{})
	if err != nil || !strings.Contains(got.GetQuarantine(), "host h remembers") {
		t.Fatalf("no quarantine: %v %v", got, err)
	}
	if _, err := r.people.AcceptRestore(t.Context(), &sallyportv1.AcceptRestoreRequest{}); codeOf(t, err) != "invalid" {
		t.Errorf("without a note: %v", err)
	}
	accepted, err := r.people.AcceptRestore(t.Context(), &sallyportv1.AcceptRestoreRequest{Note: "looked"})
	if err != nil || accepted.GetIncarnation() == s.GetIncarnation() {
		t.Errorf("accepted: %v %v", accepted, err)
	}
}

// A host reaches only its own sessions.
func TestHostCannotReachAnothersSession(t *testing.T) {
	r := newRig(t)
	host := r.hostClient(r.machine(identity.Host, "", "h"))
	_, err := host.CloseSession(context.Background(), &sallyportv1.CloseSessionRequest{Session: "aaaaaaaaaaaaaaaaaaaaaaaaaa", Epoch: 1})
	if status.Code(err) != codes.NotFound {
		t.Errorf("got %v", err)
	}
	_, err = host.OpenSession(context.Background(), &sallyportv1.OpenSessionRequest{Profile: "dev", OwnerTicket: "spo1.e30.x"})
	if code := status.Code(err); code != codes.NotFound && code != codes.PermissionDenied {
		t.Errorf("a made-up ticket: %v", err)
	}
	_, err = host.OpenSession(context.Background(), &sallyportv1.OpenSessionRequest{Profile: "dev", OwnerTicket: "nonsense"})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("nonsense: %v", err)
	}

	// A session that is there, and another host's: by every request and every frame that names one.
	r.apply("version: 1\nprofiles: {dev: {attended: true}}\n")
	id := r.openSession(r.machine(identity.Host, "", "other"), true).GetSession()
	if _, err := host.CloseSession(t.Context(), &sallyportv1.CloseSessionRequest{Session: id, Epoch: 1}); status.Code(err) != codes.NotFound {
		t.Errorf("another host closes it: %v", err)
	}
	if _, err := host.ResumeSession(t.Context(), &sallyportv1.ResumeSessionRequest{
		Session: id, LastEpoch: 1, Facts: &sallyportv1.DriverFacts{Driver: "bwrap", Closed: "proven"},
	}); err == nil {
		t.Error("another host resumes it")
	}
	stream, err := host.Link(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	record := relay.NewID()
	// Frames are handled in their order: the call is answered, so what stands before it was handled.
	if err := stream.Send(&sallyportv1.HostFrames{Frames: []*sallyportv1.HostFrame{
		{Frame: &sallyportv1.HostFrame_Hello{Hello: &sallyportv1.HostHello{Build: "test", Wire: server.Wire, ProtectedVersion: intent.Protected}}},
		{Frame: &sallyportv1.HostFrame_Attach{Attach: &sallyportv1.HostAttach{Session: id, Epoch: 1, RecordId: record}}},
		{Frame: &sallyportv1.HostFrame_Ack{Ack: &sallyportv1.HostAck{Session: id, Epoch: 1, RecordId: record}}},
		{Frame: &sallyportv1.HostFrame_Call{Call: &sallyportv1.HostCall{Session: id, Epoch: 1, Record: []byte("{}")}}},
	}}); err != nil {
		t.Fatal(err)
	}
	for told := false; !told; {
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range got.GetFrames() {
			if f.GetResult() != nil || f.GetJournaled() != nil {
				t.Errorf("another host is told %v", f)
			}
			told = told || f.GetSession().GetChange() == "close" && f.GetSession().GetSession() == id
		}
	}
	row, err := r.store.Session(t.Context(), id)
	if err != nil || row.State != control.SessionOpen || row.Epoch != 1 {
		t.Errorf("it became %+v %v", row, err)
	}
}

// openSession opens a session of profile dev on a host; confirmed: its gate too.
func (r *rig) openSession(source *identity.Source, confirmed bool) *sallyportv1.OpenSessionResponse {
	r.t.Helper()
	ticket, err := r.people.SessionTicket(r.t.Context(), &sallyportv1.SessionTicketRequest{Profile: "dev", Attended: true})
	if err != nil {
		r.t.Fatal(err)
	}
	in, err := r.hostClient(source).OpenSession(r.t.Context(), &sallyportv1.OpenSessionRequest{
		Profile: "dev", OwnerTicket: ticket.GetTicket(), Attended: true, Facts: &sallyportv1.DriverFacts{Driver: "bwrap", Closed: "proven"},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if confirmed {
		digest := must(control.ParseDigest(in.GetPolicyDigest()))
		if err := r.store.ConfirmGate(r.t.Context(), session.Confirmation{
			Session: in.GetSession(), Epoch: 1, Host: source.ID().String(), Parent: "p", PolicyDigest: digest,
		}); err != nil {
			r.t.Fatal(err)
		}
	}
	return in
}

// A session that its host does not serve any more is closed when the host comes back: it may have ended while nobody could be told. One whose gate
// was not opened yet may be on its way.
func TestGoneSessionsAreClosed(t *testing.T) {
	r := newRig(t)
	r.apply("version: 1\nprofiles: {dev: {attended: true}}\n")
	source, other := r.machine(identity.Host, "", "h"), r.machine(identity.Host, "", "other")
	served, gone, shut, elsewhere := r.openSession(source, true), r.openSession(source, true), r.openSession(source, false), r.openSession(other, true)
	stream, err := r.hostClient(source).Link(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&sallyportv1.HostFrames{Frames: []*sallyportv1.HostFrame{{Frame: &sallyportv1.HostFrame_Hello{Hello: &sallyportv1.HostHello{
		Build: "test", Wire: server.Wire, ProtectedVersion: intent.Protected, Sessions: []*sallyportv1.SessionAt{{Session: served.GetSession(), Epoch: 1}},
	}}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	for in, want := range map[*sallyportv1.OpenSessionResponse]control.SessionState{
		served: control.SessionOpen, gone: control.SessionClosed, shut: control.SessionOpening, elsewhere: control.SessionOpen,
	} {
		row, err := r.store.Session(t.Context(), in.GetSession())
		if err != nil || row.State != want {
			t.Errorf("%+v %v, want %s", row, err, want)
		}
	}
}

package call_test

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/intent"
	"sallyport.dev/relay"
)

// quick is a worker and a host that cost nothing: what is measured is the pipeline.
type quick struct {
	events call.WorkerEvents
	body   []byte
	done   sync.Map // record: chan
	run    call.Run
}

func (q *quick) Pick(string, func(string) bool) (call.Run, error) { return q.run, nil }
func (q *quick) Sign(_ string, in *intent.Intent) ([]byte, []byte, string, error) {
	b, err := intent.Encode(*in)
	return b, nil, "link", err
}

func (q *quick) Submit(run string, j call.Job) error {
	if !j.Go {
		q.events.Ready(run, call.Ready{Intent: j.Intent})
		return nil
	}
	return q.Go(run, j.Intent)
}

func (q *quick) Go(run, id string) error {
	q.events.Outcome(run, call.Outcome{Intent: id, Transport: journal.TransportAnswered, Status: 200, Bytes: 300, Body: q.body})
	return nil
}
func (q *quick) Attest(string, string) error            { return nil }
func (q *quick) Close(string, string, string)           {}
func (q *quick) Acknowledge(string, string)             {}
func (q *quick) Live(string) bool                       { return true }
func (q *quick) Dead(string, string) bool               { return false }
func (q *quick) Journaled(call.Address, control.Digest) {}
func (q *quick) Progress(call.Address, call.Progress)   {}
func (q *quick) Result(to call.Address, _ []byte, _ []*call.File) error {
	if c, ok := q.done.LoadAndDelete(to.Record); ok {
		close(c.(chan struct{}))
	}
	return nil
}

// fastStore counts the store out: it answers at once, so that the pipeline's own cost remains.
type fastStore struct {
	call.Store
	policy *control.Policy
}

func (f *fastStore) Now() time.Time { return time.Now().UTC() }
func (f *fastStore) Policy(_ context.Context, have *control.Policy) (*control.Policy, error) {
	if have != nil {
		return have, nil
	}
	return f.policy, nil
}

func (f *fastStore) Admit(_ context.Context, _ *call.Admission) (call.Admitted, error) {
	return call.Admitted{Result: call.Done}, nil
}

func (f *fastStore) Commit(context.Context, *call.Barrier) (call.Result, error) {
	return call.Done, nil
}

func (f *fastStore) Advance(context.Context, *call.Advance) (call.Result, error) {
	return call.Done, nil
}
func (f *fastStore) Deliver(...call.Delivered) {}
func (f *fastStore) Twins(context.Context, control.Digest) ([]*control.Call, int64, error) {
	return nil, 0, nil
}

func (f *fastStore) Suspended(context.Context, control.Person, string, string) (bool, error) {
	return false, nil
}

func (f *fastStore) Usage(_ context.Context, t []call.Take) ([]call.Usage, error) {
	return make([]call.Usage, len(t)), nil
}

func benchmark(b *testing.B, tool string, parallel int) {
	r := newRig(b, func(a *control.Apply) {
		g := standing("nightly", "", 1<<40)
		a.Standing = append(a.Standing, g)
	})
	r.p.Stop()
	close(r.stop)
	policy, err := r.db.Policy(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	q := &quick{body: []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"ok"}]}}`), run: call.Run{ID: control.NewID(), Worker: "w"}}
	p := call.New(call.Config{
		Run: control.NewID(), Store: &fastStore{Store: r.db, policy: policy}, Sessions: r.db, Credentials: r.db, Workers: q, Signer: q, Hosts: q,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	q.events = p
	if err := p.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer p.Stop()
	var next atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(max(parallel/2, 1))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			id := control.NewID()
			rec, err := relay.AppendCall(nil, &relay.Call{
				Session: r.s.ID, Epoch: 1, Shim: oneShim, ID: id, Tool: tool, Arguments: []byte(`{"project":"web","title":"a title of some length"}`), TimeoutMS: 120000,
			})
			if err != nil {
				b.Error(err)
				return
			}
			done := make(chan struct{})
			q.done.Store(id, done)
			next.Add(1)
			p.Submit(call.Submission{Host: host, Session: r.s.ID, Epoch: 1, Record: rec})
			<-done
			p.Acknowledge(call.Address{Host: host, Session: r.s.ID, Epoch: 1, Record: id})
		}
	})
}

func BenchmarkRead(b *testing.B)         { benchmark(b, "get_issue", 1) }
func BenchmarkReadParallel(b *testing.B) { benchmark(b, "get_issue", 48) }
func BenchmarkGrantedWrite(b *testing.B) { benchmark(b, "create_issue", 1) }

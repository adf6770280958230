package executor

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/intent"
	"sallyport.dev/worker/upstream"
)

func TestOtherKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		ask := func(kind intent.Kind) *sallyportv1.Outcome {
			in := r.intent(intent.Read)
			in.Kind, in.Call, in.Session, in.Tool, in.Arguments, in.Attempt = kind, "", "", "", "", 0
			job := r.job(in, true)
			job.Arguments = nil
			r.x.Intent(r.link, job)
			synctest.Wait()
			return r.link.last().GetOutcome()
		}
		o := ask(intent.Probe)
		var p probeReport
		if err := json.Unmarshal(o.GetOutput(), &p); err != nil || !p.OK || p.Protocol != "2026-07-28" || len(p.Steps) != 2 || p.Steps[0].TookUS != 1000 {
			t.Errorf("%s %v", o.GetOutput(), err)
		}
		o = ask(intent.Catalog)
		if string(o.GetOutput()) != `{"v":1,"tools":[{"name":"a"}]}` || !strings.Contains(o.GetDetail(), "left out b: bad") {
			t.Errorf("%v", o)
		}
		r.up.prepareErr = func(string) error { return errors.New("boom") }
		if o = ask(intent.Catalog); o.GetTransport() == sallyportv1.Transport_TRANSPORT_NOT_SENT || o.GetFailure() == "" || len(o.GetOutput()) != 0 {
			t.Errorf("%v", o)
		}
		for _, k := range []intent.Kind{intent.Authorize, intent.Exchange, intent.Refresh, intent.Revoke, intent.Notify} {
			o = ask(k)
			if o.GetTransport() != sallyportv1.Transport_TRANSPORT_NOT_SENT || o.GetFailure() != "unsupported" || o.GetBytesWritten() != 0 || !strings.Contains(o.GetDetail(), string(k)) {
				t.Errorf("%s: %v", k, o)
			}
		}
	})
}

// A poll asks for a task, or gives it up; what names no task goes nowhere.
func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		ask := func(meta string) *sallyportv1.Outcome {
			in := r.intent(intent.Read)
			in.Kind, in.Arguments, in.Schema, in.Meta = intent.Poll, "", "", intent.Digest([]byte(meta))
			job := r.job(in, true)
			job.Arguments, job.Tool, job.Meta = nil, nil, []byte(meta)
			r.x.Intent(r.link, job)
			synctest.Wait()
			return r.link.last().GetOutcome()
		}
		for meta, want := range map[string]upstream.Call{`{"task":"t"}`: {Task: "t"}, `{"task":"t","give_up":true}`: {Task: "t", GiveUp: true}} {
			o := ask(meta)
			got := r.up.calls[len(r.up.calls)-1]
			if o.GetTransport() != sallyportv1.Transport_TRANSPORT_ANSWERED || got.Task != want.Task || got.GiveUp != want.GiveUp || got.Write || got.Tool != "" || got.Arguments != nil {
				t.Errorf("%s: %+v, %v", meta, got, o)
			}
		}
		for _, meta := range []string{`{}`, `{"task":""}`, `{"task":7}`, `{"task":"t","more":1}`, `{"task":"t","task":"u"}`} {
			if o := ask(meta); o.GetTransport() != sallyportv1.Transport_TRANSPORT_NOT_SENT || o.GetFailure() != "request" {
				t.Errorf("%s: %v", meta, o)
			}
		}
	})
}

// After finish_before nobody waits any more; a read's answer is given up when control closes it, a write's is not.
func TestWaitingEnds(t *testing.T) {
	wait := func(ctx context.Context, _ string) upstream.Outcome {
		<-ctx.Done()
		return upstream.Outcome{Transport: upstream.Sent, Bytes: 100, Failure: upstream.FailTimeout}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		r.up.answer = wait
		w, rd := r.intent(intent.Write), r.intent(intent.Read)
		r.x.Intent(r.link, r.job(w, true))
		expect(t, r.link, "sent")
		r.x.Intent(r.link, r.job(rd, true))
		expect(t, r.link, "sent")
		r.x.CloseIntent(r.link, rd.ID, "test")
		expect(t, r.link, "attested running", "outcome sent timeout")
		r.x.CloseIntent(r.link, w.ID, "test")
		expect(t, r.link, "attested running")
		<-time.After(3 * time.Minute)
		expect(t, r.link, "outcome sent timeout")
	})
}

func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		wait := make(chan struct{})
		r.up.answer = func(_ context.Context, id string) upstream.Outcome { <-wait; return good(id) }
		prepared, running := r.intent(intent.Write), r.intent(intent.Write)
		r.x.Intent(r.link, r.job(prepared, false))
		expect(t, r.link, "ready")
		r.x.Intent(r.link, r.job(running, true))
		expect(t, r.link, "sent")
		r.link.gone = true
		r.x.Detach(r.link)
		close(wait)
		synctest.Wait()
		if open := r.x.Open(); len(open) != 2 {
			t.Errorf("open: %v", open)
		}
		next := &fakeLink{}
		r.x.Attach(next)
		synctest.Wait()
		got := next.take()
		slices.Sort(got)
		if !slices.Equal(got, []string{"outcome answered", "ready"}) {
			t.Errorf("after the reconnect: %q", got)
		}
		// A Link that was told about an intent has it; one that comes later does not get it again.
		later := &fakeLink{}
		r.x.Attach(later)
		expect(t, later)
		// Not acknowledged, so sent again at the next reconnect, and so on.
		r.x.Detach(next)
		r.x.Detach(later)
		r.x.Attach(later)
		synctest.Wait()
		if got := later.take(); len(got) != 2 {
			t.Errorf("after the second reconnect: %q", got)
		}
	})
}

// What a run says of a write it never forgets while it lives; of a read, until it could not be valid any more.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		w, rd, shut := r.intent(intent.Write), r.intent(intent.Read), r.intent(intent.Write)
		for _, in := range []intent.Intent{w, rd} {
			r.x.Intent(r.link, r.job(in, true))
			synctest.Wait()
			r.x.Ack(in.ID)
		}
		r.x.Attest(r.link, shut.ID)
		r.link.take()
		<-time.After(9 * time.Minute)
		r.x.Attest(r.link, rd.ID)
		r.x.Go(r.link, shut.ID)
		expect(t, r.link, "attested finished", "outcome sent forgotten", "attested not_started")
		<-time.After(24 * time.Hour)
		other := r.intent(intent.Read)
		r.x.Intent(r.link, r.job(other, true))
		synctest.Wait()
		r.x.Ack(other.ID)
		r.link.take()
		r.x.Attest(r.link, w.ID)
		expect(t, r.link, "attested finished", "outcome sent forgotten")
		r.x.mu.Lock()
		n := len(r.x.ended.states)
		r.x.mu.Unlock()
		if n != 2 {
			t.Errorf("%d intents are remembered, want the write and the newest read", n)
		}
		r.x.mu.Lock()
		r.x.ended.writes = maxWrites
		r.x.signal()
		r.x.mu.Unlock()
		<-r.x.Full()
	})
}

func TestLargeBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		body := make([]byte, 2*chunkSize+17)
		_, _ = rand.Read(body)
		r.up.answer = func(context.Context, string) upstream.Outcome {
			return upstream.Outcome{Transport: upstream.Answered, Bytes: 5, Status: 200, Body: body, Redacted: true, Original: [32]byte{1}, Challenge: "c"}
		}
		in := r.intent(intent.Read)
		r.x.Intent(r.link, r.job(in, true))
		synctest.Wait()
		var joined []byte
		for _, f := range r.link.frames {
			c := f.GetChunk()
			if c == nil {
				continue
			}
			if c.GetOffset() != int64(len(joined)) || len(c.GetData()) > chunkSize {
				t.Errorf("a chunk of %d at %d, after %d", len(c.GetData()), c.GetOffset(), len(joined))
			}
			joined = append(joined, c.GetData()...)
		}
		o := r.link.last().GetOutcome()
		digest := sha256.Sum256(body)
		if !bytes.Equal(joined, body) || !bytes.Equal(o.GetChunkedDigest(), digest[:]) || o.GetChunkedSize() != int64(len(body)) || len(o.GetBody()) != 0 {
			t.Errorf("joined %d, outcome %v", len(joined), o)
		}
		if len(o.GetRedactedDigest()) != 32 || o.GetChallenge() != "c" || o.GetHttpStatus() != 200 {
			t.Errorf("the chunked outcome lost facts: %v", o)
		}
		if kept := r.x.Counters()["outcomes_kept_bytes"]; kept != int64(len(body)) {
			t.Errorf("%d bytes are kept", kept)
		}
		r.x.Ack(in.ID)
		if kept := r.x.Counters()["outcomes_kept_bytes"]; kept != 0 {
			t.Errorf("%d bytes are kept after the acknowledgment", kept)
		}
	})
}

// A transport without proof never reads as "not sent".
func TestUnknownTransportsAreSent(t *testing.T) {
	for _, u := range []upstream.Outcome{{Transport: "strange"}, {}, {Transport: upstream.NotSent, Bytes: 1}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 8)
			r.up.answer = func(context.Context, string) upstream.Outcome { return u }
			r.x.Intent(r.link, r.job(r.intent(intent.Write), true))
			expect(t, r.link, "sent", "outcome sent")
		})
	}
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		wait := make(chan struct{})
		r.up.answer = func(_ context.Context, id string) upstream.Outcome { <-wait; return good(id) }
		prepared, running := r.intent(intent.Write), r.intent(intent.Write)
		r.x.Intent(r.link, r.job(prepared, false))
		expect(t, r.link, "ready")
		r.x.Intent(r.link, r.job(running, true))
		expect(t, r.link, "sent")
		left := make(chan int)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			left <- r.x.Drain(ctx)
		}()
		expect(t, r.link, "attested not_started")
		r.x.Intent(r.link, r.job(r.intent(intent.Write), false))
		expect(t, r.link, "outcome not_sent busy")
		close(wait)
		expect(t, r.link, "outcome answered")
		r.x.Ack(running.ID)
		if n := <-left; n != 0 {
			t.Errorf("%d intents left", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		r.up.answer = func(ctx context.Context, id string) upstream.Outcome {
			<-ctx.Done()
			return upstream.Outcome{Transport: upstream.Sent, Bytes: 1, Failure: upstream.FailCancelled}
		}
		r.x.Intent(r.link, r.job(r.intent(intent.Write), true))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if n := r.x.Drain(ctx); n != 1 {
			t.Errorf("%d intents left", n)
		}
	})
	// A Go that crosses the end of the worker is answered: not started.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		prepared := r.intent(intent.Write)
		r.x.Intent(r.link, r.job(prepared, false))
		expect(t, r.link, "ready")
		left := make(chan int, 1)
		go func() { left <- r.x.Drain(t.Context()) }()
		expect(t, r.link, "attested not_started")
		synctest.Wait()
		select {
		case <-left:
			t.Fatal("the run ended at once")
		default:
		}
		r.x.Go(r.link, prepared.ID)
		expect(t, r.link, "attested not_started")
		if n := <-left; n != 0 {
			t.Errorf("%d intents left", n)
		}
	})
}

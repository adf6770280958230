package executor

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/intent"
	"sallyport.dev/worker/upstream"
)

func expect(t *testing.T, l *fakeLink, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := l.take(); !slices.Equal(got, want) {
		t.Errorf("frames %q, want %q", got, want)
	}
}

// I4, I5: the write's two halves. Nothing of it leaves before Go.
func TestWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		in := r.intent(intent.Write)
		r.x.Intent(r.link, r.job(in, false))
		synctest.Wait()
		rdy := r.link.last().GetReady()
		if rdy.GetIntent() != in.ID || rdy.GetAddress() != "192.0.2.1:443" || rdy.GetProtocol() != "2025-11-25" {
			t.Errorf("ready: %v", rdy)
		}
		if s, err := r.keys.Session(&in, rdy.GetUpstreamSession()); err != nil || string(s) != "exported "+in.ID {
			t.Errorf("the upstream session is not sealed for its owner: %q %v", s, err)
		}
		expect(t, r.link, "ready")
		<-time.After(29 * time.Second)
		if r.up.count(r.up.sends, in.ID) != 0 {
			t.Fatal("sent without Go")
		}
		r.x.Go(r.link, in.ID)
		synctest.Wait()
		o := r.link.last().GetOutcome()
		if o.GetTransport() != sallyportv1.Transport_TRANSPORT_ANSWERED || o.GetHttpStatus() != 200 || o.GetBytesWritten() != 100 || !strings.Contains(string(o.GetBody()), in.ID) {
			t.Errorf("outcome: %v", o)
		}
		if o.GetTimings().GetConnectUs() != 3000 || o.GetTimings().GetWaitUs() != 2000 {
			t.Errorf("timings: %v", o.GetTimings())
		}
		expect(t, r.link, "sent", "outcome answered")
		r.x.Ack(in.ID)
		if open := r.x.Open(); len(open) != 0 {
			t.Errorf("open after the acknowledgment: %v", open)
		}
		call := r.up.calls[0]
		if call.ID != in.ID || call.Tool != "create_issue" || string(call.Arguments) != string(arguments) || !call.Write || r.up.targets[0].Owner != in.Session+" tracker" {
			t.Errorf("%+v %+v", call, r.up.targets[0])
		}
	})
}

func TestReadGoesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		in := r.intent(intent.Read)
		r.x.Intent(r.link, r.job(in, true))
		expect(t, r.link, "sent", "outcome answered")
		if r.up.calls[0].Write {
			t.Error("a read demands a fresh connection")
		}
	})
}

func TestRefusals(t *testing.T) {
	intruder, err := intent.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(in *intent.Intent, seal func() *sallyportv1.IntentJob) *sallyportv1.IntentJob{
		"unknown key": func(_ *intent.Intent, job func() *sallyportv1.IntentJob) *sallyportv1.IntentJob {
			j := job()
			j.Signature, j.KeyId = intruder.Sign(j.Intent), intruder.ID()
			return j
		},
		"known id, other signer": func(_ *intent.Intent, job func() *sallyportv1.IntentJob) *sallyportv1.IntentJob {
			j := job()
			j.Signature = intruder.Sign(j.Intent)
			return j
		},
		"no signature": func(_ *intent.Intent, job func() *sallyportv1.IntentJob) *sallyportv1.IntentJob {
			j := job()
			j.Signature = nil
			return j
		},
		"MAC without a key": func(in *intent.Intent, job func() *sallyportv1.IntentJob) *sallyportv1.IntentJob {
			in.Effect = intent.Read
			j := job()
			j.Signature, j.KeyId = intent.LinkKey{}.MAC(j.Intent), intent.LinkKeyID
			return j
		},
		"another run": func(in *intent.Intent, job func() *sallyportv1.IntentJob) *sallyportv1.IntentJob {
			in.Audience = "another"
			return job()
		},
		"another pool": func(in *intent.Intent, job func() *sallyportv1.IntentJob) *sallyportv1.IntentJob {
			in.Pool = "another"
			return job()
		},
		"other arguments": func(_ *intent.Intent, job func() *sallyportv1.IntentJob) *sallyportv1.IntentJob {
			j := job()
			j.Arguments = []byte(`{"title":"other"}`)
			return j
		},
		"meta that nothing binds": func(_ *intent.Intent, job func() *sallyportv1.IntentJob) *sallyportv1.IntentJob {
			j := job()
			j.Meta = []byte(`{}`)
			return j
		},
		"expired": func(in *intent.Intent, job func() *sallyportv1.IntentJob) *sallyportv1.IntentJob {
			in.NotBefore -= 60_000
			in.StartBefore = in.NotBefore + 30_000
			return job()
		},
		"early": func(in *intent.Intent, job func() *sallyportv1.IntentJob) *sallyportv1.IntentJob {
			in.NotBefore += 60_000
			in.StartBefore = in.NotBefore + 30_000
			return job()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 8)
				in := r.intent(intent.Write)
				bad := change(&in, func() *sallyportv1.IntentJob { return r.job(in, true) })
				r.x.Intent(r.link, bad)
				expect(t, r.link, "outcome not_sent intent")
				// What was refused stays refused: "not sent" must stay true.
				r.x.Intent(r.link, r.job(in, true))
				r.x.Go(r.link, in.ID)
				expect(t, r.link, "attested not_started", "attested not_started")
				if n := r.up.count(r.up.prepared, in.ID); n != 0 {
					t.Errorf("prepared %d times", n)
				}
			})
		})
	}
}

func TestUnreadableFramesTouchNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		in := r.intent(intent.Write)
		r.x.Intent(r.link, r.job(in, false))
		expect(t, r.link, "ready")
		// I15: a second intent of this id that is not authentic, or not the same, leaves everything where it was.
		forged := r.job(in, true)
		forged.Signature = bytes.Clone(forged.Signature)
		forged.Signature[0] ^= 1
		r.x.Intent(r.link, forged)
		other := in
		other.Tool = "delete_everything"
		r.x.Intent(r.link, r.job(other, true))
		swapped := r.job(in, true)
		swapped.Arguments = []byte(`{}`)
		r.x.Intent(r.link, swapped)
		for _, junk := range [][]byte{nil, []byte("{}"), append(r.job(in, false).Intent, ' ')} {
			r.x.Intent(r.link, &sallyportv1.IntentJob{Intent: junk})
		}
		r.x.Go(r.link, "not an id")
		r.x.Attest(r.link, "")
		r.x.Ack("")
		r.x.Ack(in.ID)
		expect(t, r.link)
		if got := r.stateOf(in.ID); got != ready {
			t.Errorf("state %s", got)
		}
	})
}

// A worker does not queue: what it has no room for was not sent, and never will be.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		for range 2 {
			r.x.Intent(r.link, r.job(r.intent(intent.Write), false))
		}
		expect(t, r.link, "ready", "ready")
		third := r.intent(intent.Write)
		r.x.Intent(r.link, r.job(third, false))
		expect(t, r.link, "outcome not_sent busy")
		<-time.After(31 * time.Second)
		expect(t, r.link, "outcome not_sent late", "outcome not_sent late")
		r.x.Intent(r.link, r.job(r.intent(intent.Write), false))
		expect(t, r.link, "ready")
	})
}

func TestLateGoByTheWallClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		in := r.intent(intent.Write)
		r.x.Intent(r.link, r.job(in, false))
		expect(t, r.link, "ready")
		// The timer is stopped, as when the machine slept: the wall clock alone must refuse.
		r.x.mu.Lock()
		r.x.entries[in.ID].late.Stop()
		r.x.mu.Unlock()
		<-time.After(40 * time.Second)
		r.x.Go(r.link, in.ID)
		expect(t, r.link, "outcome not_sent late")
		if r.up.count(r.up.sends, in.ID) != 0 || r.up.count(r.up.closes, in.ID) != 1 {
			t.Error("a late Go was sent, or its connection kept")
		}
	})
}

// A process that was stopped between Go and the first byte must not wake up and send.
func TestHeldUpAfterGo(t *testing.T) {
	for _, goAtOnce := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 8)
			r.x.stall = func() { <-time.After(firstByte + time.Millisecond) }
			in := r.intent(intent.Read)
			r.x.Intent(r.link, r.job(in, goAtOnce))
			if !goAtOnce {
				expect(t, r.link, "ready")
				r.x.Go(r.link, in.ID)
			}
			<-time.After(3 * time.Second)
			expect(t, r.link, "outcome not_sent late")
			if r.up.count(r.up.sends, in.ID) != 0 {
				t.Error("sent over 2 s after Go")
			}
		})
	}
}

func TestHeldUpByEitherClock(t *testing.T) {
	start := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	in := intent.Intent{StartBefore: start.Add(30 * time.Second).UnixMilli()}
	for _, c := range []struct {
		goAt, now time.Duration
		want      bool
	}{
		{0, 0, false},
		{0, firstByte, false},
		{0, firstByte + time.Millisecond, true},
		{30 * time.Second, 32 * time.Second, false},
		{31 * time.Second, 32*time.Second + time.Millisecond, true}, // the monotonic clock stood still
	} {
		if got := heldUp(&in, start.Add(c.goAt), start.Add(c.now)); got != c.want {
			t.Errorf("Go at %v, now %v: %v", c.goAt, c.now, got)
		}
	}
}

func TestPrepareFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		r.up.prepareErr = func(string) error { return errors.New("boom") }
		in := r.intent(intent.Write)
		r.x.Intent(r.link, r.job(in, false))
		synctest.Wait()
		if d := r.link.last().GetOutcome().GetDetail(); strings.Contains(d, "boom") {
			t.Errorf("an error that is not ours crossed the boundary: %q", d)
		}
		expect(t, r.link, "outcome not_sent request")
		r.x.Go(r.link, in.ID)
		expect(t, r.link, "outcome not_sent request")
		r.x.Ack(in.ID)
		r.x.Attest(r.link, in.ID)
		expect(t, r.link, "attested not_started")
	})
}

func TestCredentials(t *testing.T) {
	const canary = "canary-secret-1234567890"
	for name, c := range map[string]struct {
		change func(*intent.Intent)
		sealed func(r *rig, in *intent.Intent) []byte
		frames []string
	}{
		"header": {func(in *intent.Intent) { in.AuthType, in.AuthHeader = intent.AuthHeader, "X-Api-Key" }, nil, []string{"ready"}},
		"bearer": {func(in *intent.Intent) { in.AuthType = intent.AuthBearer }, nil, []string{"ready"}},
		"signature": {func(in *intent.Intent) {
			in.AuthType, in.Transport = intent.AuthSignature, intent.TransportCallback
		}, nil, []string{"ready"}},
		"oauth": {func(in *intent.Intent) { in.AuthType = intent.AuthOAuth }, nil, []string{"outcome not_sent credential"}},
		"another connection's": {
			func(in *intent.Intent) { in.AuthType = intent.AuthBearer },
			func(r *rig, in *intent.Intent) []byte {
				other := *in
				other.Connection = "another"
				return r.sealed(&other, canary)
			},
			[]string{"outcome not_sent credential"},
		},
		"none": {func(in *intent.Intent) { in.AuthType = intent.AuthBearer }, func(*rig, *intent.Intent) []byte { return nil }, []string{"outcome not_sent credential"}},
		"with a line feed": {
			func(in *intent.Intent) { in.AuthType = intent.AuthBearer },
			func(r *rig, in *intent.Intent) []byte { return r.sealed(in, canary+"\nX-Evil: 1") },
			[]string{"outcome not_sent credential"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 8)
				in := r.intent(intent.Write)
				in.Subject, in.Version = "shared", 1
				c.change(&in)
				job := r.job(in, false)
				if c.sealed != nil {
					job.SealedCredential = c.sealed(r, &in)
				} else {
					job.SealedCredential = r.sealed(&in, canary)
				}
				r.x.Intent(r.link, job)
				synctest.Wait()
				if s := fmt.Sprint(r.link.last()); strings.Contains(s, "canary") {
					t.Errorf("the secret stands in a frame: %s", s)
				}
				expect(t, r.link, c.frames...)
			})
		})
	}
}

func TestUpstreamSessionTravelsSealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		in := r.intent(intent.Write)
		sealed, err := r.keys.SealSession(&in, []byte("old session"))
		if err != nil {
			t.Fatal(err)
		}
		in.Upstream = intent.Digest(sealed)
		job := r.job(in, true)
		job.UpstreamSession = sealed
		r.x.Intent(r.link, job)
		synctest.Wait()
		if string(r.up.calls[0].Session) != "old session" {
			t.Errorf("session %q", r.up.calls[0].Session)
		}
		if s, err := r.keys.Session(&in, r.link.last().GetOutcome().GetUpstreamSession()); err != nil || string(s) != "exported "+in.ID {
			t.Errorf("%q %v", s, err)
		}
		// Another session's is refused, although it was sealed by this pool and bound by control.
		other := r.intent(intent.Write)
		other.Upstream = in.Upstream
		job = r.job(other, true)
		job.UpstreamSession = sealed
		r.link.take()
		r.x.Intent(r.link, job)
		expect(t, r.link, "outcome not_sent credential")
	})
}

func TestContinuationAndCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 8)
		in := r.intent(intent.Write)
		meta := []byte(`{"inputResponses":{"a": 1.0},"requestState":"s"}`)
		in.Meta = intent.Digest(meta)
		job := r.job(in, true)
		job.Meta = meta
		r.x.Intent(r.link, job)
		synctest.Wait()
		if c := r.up.calls[0]; string(c.InputResponses) != `{"a": 1.0}` || string(c.RequestState) != `"s"` {
			t.Errorf("%s %s", c.InputResponses, c.RequestState)
		}
		r.link.take()
		for _, bad := range []string{`{"other":1}`, `[]`, `{"requestState":1,"requestState":2}`, `{`} {
			in := r.intent(intent.Write)
			in.Meta = intent.Digest([]byte(bad))
			job := r.job(in, true)
			job.Meta = []byte(bad)
			r.x.Intent(r.link, job)
			expect(t, r.link, "outcome not_sent request")
		}
		cb := r.intent(intent.Write)
		cb.Transport, cb.Owner = intent.TransportCallback, "local:dev"
		r.x.Intent(r.link, r.job(cb, true))
		expect(t, r.link, "sent", "outcome answered")
		if b := r.up.backs[0]; b.ID != cb.Call || b.Owner != "local:dev" || b.Session != cb.Session || !b.Write {
			t.Errorf("%+v", b)
		}
	})
}

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
		for _, k := range []intent.Kind{intent.Authorize, intent.Exchange, intent.Refresh, intent.Revoke, intent.Poll, intent.Notify} {
			o = ask(k)
			if o.GetTransport() != sallyportv1.Transport_TRANSPORT_NOT_SENT || o.GetFailure() != "unsupported" || o.GetBytesWritten() != 0 || !strings.Contains(o.GetDetail(), string(k)) {
				t.Errorf("%s: %v", k, o)
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
}

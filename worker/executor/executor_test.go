package executor

import (
	"bytes"
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
		// Only to a server of the era in which its questions come back as an answer is it said that somebody could answer, and only where somebody can.
		for _, protocol := range []string{upstream.Modern, "2025-11-25", ""} {
			for _, attended := range []bool{true, false} {
				in := r.intent(intent.Write)
				in.Protocol, in.Attended = protocol, attended
				r.x.Intent(r.link, r.job(in, true))
				synctest.Wait()
				want := attended && protocol == upstream.Modern
				if c := r.up.calls[len(r.up.calls)-1]; c.ID != in.ID || c.Elicit != want {
					t.Errorf("to %q, attended %t: elicitation %t", protocol, attended, c.Elicit)
				}
			}
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

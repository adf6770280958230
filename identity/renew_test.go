package identity

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sallyport.dev/errs"
)

// office is control's side of renewal: a CA that can be away.
type office struct {
	t  *testing.T
	ca *CA

	mu    sync.Mutex
	away  bool
	asked []time.Time
	wrong bool
}

func (o *office) ask(_ context.Context, csr []byte) (chain, ca []byte, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, time.Now())
	if o.away {
		return nil, nil, errors.New("nobody is here")
	}
	name := "w1"
	if o.wrong {
		name = "another"
	}
	chain, err = o.ca.Issue(csr, mustID(o.t, Name{Role: Worker, Pool: "default", Name: name}), time.Now())
	return chain, o.ca.Bundle(), err
}

func (o *office) set(away, wrong bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.away, o.wrong = away, wrong
}

func (o *office) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.asked)
}

func renewing(t *testing.T, keep func(Material) error) (o *office, src *Source) {
	t.Helper()
	o = &office{t: t, ca: mustCA(t, time.Now())}
	src, err := NewSource(issue(t, o.ca, mustID(t, Name{Role: Worker, Pool: "default", Name: "w1"}), time.Now()), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r := &Renewer{Source: src, Ask: o.ask, Keep: keep, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the renewer ended with %v", err)
		}
	})
	return o, src
}

func TestRenewAtHalfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept atomic.Int32
		o, src := renewing(t, func(Material) error { kept.Add(1); return nil })
		first, _ := src.GetX509SVID()
		pass(CertificateLife/2 - 10*time.Minute)
		synctest.Wait()
		if o.count() != 0 {
			t.Fatal("renewed before half of its life")
		}
		pass(12 * time.Minute)
		synctest.Wait()
		if o.count() != 1 || kept.Load() != 1 {
			t.Fatalf("asked %d times, kept %d", o.count(), kept.Load())
		}
		second, _ := src.GetX509SVID()
		if second == first || second.PrivateKey == first.PrivateKey {
			t.Error("renewal makes a new key and certificate")
		}
		// A week later it is still valid.
		pass(7 * 24 * time.Hour)
		synctest.Wait()
		if _, to := src.Validity(); !to.After(time.Now().Add(CertificateLife / 3)) {
			t.Errorf("a week later valid until %v at %v", to, time.Now())
		}
		if n := o.count(); n < 12 || n > 16 {
			t.Errorf("asked %d times in a week", n)
		}
	})
}

func TestRenewRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, src := renewing(t, func(Material) error { return errs.New(errs.Unavailable, "the disk is full") })
		first, _ := src.GetX509SVID()
		o.set(true, false)
		pass(CertificateLife * 3 / 4)
		synctest.Wait()
		tries := o.count()
		if tries < 20 || tries > 60 {
			t.Errorf("%d tries in six hours: neither once nor a flood", tries)
		}
		// What comes back for another identity is refused, and the old one stays.
		o.set(false, true)
		pass(20 * time.Minute)
		synctest.Wait()
		if now, _ := src.GetX509SVID(); now != first {
			t.Fatal("the identity of another was taken")
		}
		o.set(false, false)
		pass(20 * time.Minute)
		synctest.Wait()
		// The disk is full, and the process lives on with its new identity.
		if now, _ := src.GetX509SVID(); now == first {
			t.Error("not renewed after control came back")
		}
	})
}

// pass lets d of the bubble's time go by.
func pass(d time.Duration) { <-time.After(d) }

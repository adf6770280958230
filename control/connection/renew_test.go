package connection_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/control/connection"
	"sallyport.dev/control/journalkey"
	"sallyport.dev/control/sqlstore"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/intent/oauth"
	"sallyport.dev/intent/seal"
)

// world is a real store, and a worker that renews as it is told to.
type world struct {
	t     *testing.T
	store *sqlstore.Store
	key   seal.PrivateKey
	asked atomic.Int64
	acked atomic.Int64
	// answer is what a renewal comes to; lost: the link is lost before it comes. before is run while it is under way.
	failure oauth.Failure
	lost    bool
	before  func(id, run string)
	clock   atomic.Int64 // of the store, ahead of the machine's
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t}
	key, err := journalkey.Create(filepath.Join(dir, "journal.key"))
	if err != nil {
		t.Fatal(err)
	}
	auditKey, err := audit.CreateKey(filepath.Join(dir, "audit.key"))
	if err != nil {
		t.Fatal(err)
	}
	w.store, err = sqlstore.Open(t.Context(), sqlstore.Options{
		Dir: filepath.Join(dir, "c"), Key: key, Audit: auditKey, Node: "one", Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return time.Now().Add(time.Duration(w.clock.Load())) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.store.Close(); err != nil {
			t.Error(err)
		}
	})
	if w.key, err = seal.GenerateKey(); err != nil {
		t.Fatal(err)
	}
	c := control.Connection{
		Org: control.Org, Name: "tracker", Kind: control.KindMCP, Origin: "https://mcp.tracker.example.org", Path: "/mcp", Pool: "default", Revision: 1,
		State: control.ConnectionEnabled, Auth: control.Auth{Type: intent.AuthOAuth, Per: "shared"},
	}
	p, err := w.store.Policy(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Apply(t.Context(), &control.Apply{Org: control.Org, By: "local:alice", Expect: p.Generation, Connections: []control.Connection{c}}); err != nil {
		t.Fatal(err)
	}
	w.put(1, time.Now()) // over at once
	return w
}

func (w *world) sealed(version int64) []byte {
	b := seal.Bound{
		Org: control.Org, Connection: "tracker", Subject: control.SubjectShared, Version: version, Origin: "https://mcp.tracker.example.org", PathPrefix: "/mcp",
		Issuer: "https://login.example.org", TokenEndpoint: "https://login.example.org/token", ClientID: "c", Account: "alice",
	}
	s, err := seal.Seal(w.key.Public(), seal.Credential, b.Bytes(), []byte("canary"))
	if err != nil {
		w.t.Error(err)
	}
	return s
}

// put stores a version that somebody signed in for.
func (w *world) put(version int64, expires time.Time) {
	w.t.Helper()
	err := w.store.PutCredential(context.Background(), &control.Credential{
		Org: control.Org, Connection: "tracker", Subject: control.SubjectShared, Version: version, Sealed: w.sealed(version), AssociatedData: []byte("x"),
		State: control.CredentialGood, Kind: control.CredentialOAuth, Account: "alice", Renewable: true, ExpiresAt: expires,
	}, "local:alice")
	if err != nil {
		w.t.Error(err)
	}
}

func (w *world) renewer() *connection.Renewer {
	return connection.NewRenewer(w.store, w, func(ctx context.Context) (*control.Policy, error) { return w.store.Policy(ctx, nil) }, func() {}, slog.New(slog.DiscardHandler))
}

// Fingerprint implements connection.Workers.
func (w *world) Fingerprint(string) (string, error) { return w.key.Public().Fingerprint(), nil }

// Execute implements connection.Workers.
func (w *world) Execute(ctx context.Context, ask connection.Ask) (connection.Answer, error) {
	id := control.NewID()
	if err := ask.Picked(id, "run"); err != nil {
		return connection.Answer{}, err
	}
	w.asked.Add(1)
	if ask.Kind != intent.Refresh || !ask.Once || ask.Version < 1 || len(ask.Sealed) == 0 {
		w.t.Errorf("asked for %+v", ask)
	}
	if w.before != nil {
		w.before(id, "run")
	}
	if w.lost {
		return connection.Answer{}, errs.New(errs.Unreachable, "the worker's link was lost")
	}
	return w.answer(ask.Version), nil
}

func (w *world) answer(version int64) connection.Answer {
	a := connection.Answer{Stored: func() { w.acked.Add(1) }}
	if w.failure != "" {
		a.Failure, a.Message = w.failure, "it says no"
		return a
	}
	var err error
	a.Output, err = oauth.Encode(oauth.Token{
		Credential: w.sealed(version + 1), Issuer: "https://login.example.org", ClientID: "c", Account: "alice", Name: "alice", Scopes: []string{"tools"},
		ExpiresMS: time.Now().Add(2 * time.Hour).UnixMilli(), Renewable: true,
	})
	if err != nil {
		w.t.Error(err)
	}
	return a
}

func (w *world) get(r *connection.Renewer) *control.Credential {
	w.t.Helper()
	c, err := r.Credential(w.t.Context(), "tracker", control.SubjectShared)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// Fifty calls at the moment of expiry make one renewal, and all of them use what it brought. Two control nodes at once make one between them.
func TestOneRenewal(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	w.before = func(string, string) { <-release }
	nodes := []*connection.Renewer{w.renewer(), w.renewer()}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			c, err := nodes[i%2].Credential(t.Context(), "tracker", control.SubjectShared)
			if err != nil || c.Version != 2 || c.Trouble != "" {
				t.Errorf("%+v, %v", c, err)
			}
		})
	}
	close(release)
	wg.Wait()
	if w.asked.Load() != 1 || w.acked.Load() != 1 {
		t.Errorf("%d renewals, %d acknowledged", w.asked.Load(), w.acked.Load())
	}
	if left, err := w.store.Renewals(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("leases are left: %+v, %v", left, err)
	}
}

// Only invalid_grant breaks a credential, and only the version that was renewed.
func TestWhatBreaks(t *testing.T) {
	t.Run("invalid_grant", func(t *testing.T) {
		w := newWorld(t)
		w.failure = oauth.FailGrant
		if c := w.get(w.renewer()); c.State != control.CredentialBroken || c.Version != 1 {
			t.Errorf("%+v", c)
		}
	})
	t.Run("invalid_grant, of a version that somebody replaced", func(t *testing.T) {
		w := newWorld(t)
		w.failure = oauth.FailGrant
		w.before = func(string, string) { w.put(2, time.Now().Add(time.Hour)) }
		if c := w.get(w.renewer()); c.State != control.CredentialGood || c.Version != 2 {
			t.Errorf("%+v", c)
		}
	})
	for _, f := range []oauth.Failure{oauth.FailConnect, oauth.FailToken, oauth.FailClient, oauth.FailRefused} {
		t.Run(string(f), func(t *testing.T) {
			w := newWorld(t)
			w.failure = f
			r := w.renewer()
			for range 3 { // it is not asked again at once
				if c := w.get(r); c.State != control.CredentialGood || c.Version != 1 || c.Trouble != "it says no" {
					t.Errorf("%+v", c)
				}
			}
			if w.asked.Load() != 1 {
				t.Errorf("asked %d times", w.asked.Load())
			}
		})
	}
}

// The answer to a renewal is lost on its way. The lease keeps others from a second one, and the outcome is found by its intent, also by a control that
// was started again.
func TestLostOutcome(t *testing.T) {
	w := newWorld(t)
	w.lost = true
	var id string
	w.before = func(i, _ string) { id = i }
	if c := w.get(w.renewer()); c.Trouble == "" || c.Version != 1 {
		t.Fatalf("%+v", c)
	}
	next := w.renewer()
	if err := next.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if next.Expects("another run", id) || !next.Expects("run", id) || next.Expects("run", control.NewID()) {
		t.Fatal("the intent is not known by the run that has it, or by another")
	}
	next.Outcome(t.Context(), id, w.answer(1))
	if c := w.get(next); c.Version != 2 || w.asked.Load() != 1 || w.acked.Load() != 1 || next.Expects("run", id) {
		t.Errorf("%+v after %d renewals, %d acknowledged", c, w.asked.Load(), w.acked.Load())
	}
}

// A lease whose time is over keeps nobody.
func TestLeaseEnds(t *testing.T) {
	w := newWorld(t)
	w.lost = true
	w.get(w.renewer())
	w.lost = false
	w.clock.Store(int64(time.Minute))
	if c := w.get(w.renewer()); c.Version != 2 || w.asked.Load() != 2 {
		t.Errorf("%+v after %d renewals", c, w.asked.Load())
	}
}

// A second attempt to sign in ends the first, a state is used once, and what is over is over.
func TestSignInRows(t *testing.T) {
	w := newWorld(t)
	row := func(state string, expires time.Time) *control.SignIn {
		return &control.SignIn{
			Connection: "tracker", Subject: control.SubjectShared, State: control.Sum([]byte(state)), Revision: 1, Person: "local:alice",
			Sealed: control.Sealed("sealed"), ExpiresAt: expires,
		}
	}
	later := time.Now().Add(10 * time.Minute)
	for _, r := range []*control.SignIn{row("first", later), row("second", later)} {
		if err := w.store.BeginSignIn(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	take := func(state string) error {
		_, err := w.store.TakeSignIn(t.Context(), control.Sum([]byte(state)))
		return err
	}
	if err := take("first"); !errs.Is(err, errs.NotFound) {
		t.Errorf("the first after the second: %v", err)
	}
	got, err := w.store.TakeSignIn(t.Context(), control.Sum([]byte("second")))
	if err != nil || got.Person != "local:alice" || got.Revision != 1 || string(got.Sealed) != "sealed" {
		t.Errorf("%+v, %v", got, err)
	}
	if err := take("second"); !errs.Is(err, errs.NotFound) {
		t.Errorf("the second, twice: %v", err)
	}
	if err := w.store.BeginSignIn(t.Context(), row("late", time.Now())); err != nil {
		t.Fatal(err)
	}
	if err := take("late"); !errs.Is(err, errs.NotFound) {
		t.Errorf("one that is over: %v", err)
	}
}

// An account that stays, stays since when it was; another one begins anew.
func TestAccountSince(t *testing.T) {
	w := newWorld(t)
	w.put(2, time.Now().Add(time.Hour))
	c, err := w.store.Credential(t.Context(), "tracker", control.SubjectShared)
	if err != nil || !c.AccountAt.IsZero() {
		t.Errorf("%v, %v", c.AccountAt, err)
	}
	next := *c
	next.Version, next.Account = 3, "bob"
	if err := w.store.PutCredential(t.Context(), &next, "local:alice"); err != nil {
		t.Fatal(err)
	}
	c, err = w.store.Credential(t.Context(), "tracker", control.SubjectShared)
	if err != nil || c.AccountAt.IsZero() {
		t.Errorf("%v, %v", c.AccountAt, err)
	}
}

// Renewal is ahead by a fifth of the life, at least a minute, at most half of the life.
func TestRenewAt(t *testing.T) {
	issued := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for life, ahead := range map[time.Duration]time.Duration{
		time.Hour: 12 * time.Minute, 2 * time.Minute: time.Minute, 4 * time.Minute: time.Minute, 10 * time.Second: 5 * time.Second, 24 * time.Hour: 288 * time.Minute,
	} {
		c := control.Credential{State: control.CredentialGood, Renewable: true, IssuedAt: issued, ExpiresAt: issued.Add(life)}
		at := c.ExpiresAt.Add(-ahead)
		if !c.RenewAt().Equal(at) || c.Due(at.Add(-time.Millisecond)) || !c.Due(at) {
			t.Errorf("a life of %s is renewed at %s", life, c.RenewAt().Sub(issued))
		}
	}
}

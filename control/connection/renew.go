package connection

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"sallyport.dev/control"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/intent/oauth"
)

// Bounds of renewals.
const (
	renewTime  = 30 * time.Second // of one renewal, and of its lease
	renewLook  = 5 * time.Second  // how often what is due is looked for
	adoptLook  = 100 * time.Millisecond
	firstPause = 5 * time.Second // after a renewal that failed; doubled each time
	lastPause  = 5 * time.Minute
)

// Renewer gives out credentials, and renews them ahead of their expiry: one renewal of a credential at a time over the whole installation. In this
// process everybody waits for the same one; beyond it a lease row admits one, which carries the intent: an outcome that nobody waits for any more is
// found by it. What came is stored before it is used. Whoever loses takes what the winner stored. Safe for concurrent use.
type Renewer struct {
	store   Store
	workers Workers
	policy  func(context.Context) (*control.Policy, error)
	changed func()
	log     *slog.Logger

	flights singleflight.Group
	mu      sync.Mutex
	open    map[string]control.Renewal // by intent: sent, and not known what came of it
	pauses  map[string]pause           // by connection and subject
}

// pause is why a credential is not renewed again yet.
type pause struct {
	version int64
	until   time.Time
	last    time.Duration
	err     error
}

// NewRenewer makes a renewer. changed is called after a credential changed.
func NewRenewer(store Store, workers Workers, policy func(context.Context) (*control.Policy, error), changed func(), log *slog.Logger) *Renewer {
	return &Renewer{
		store: store, workers: workers, policy: policy, changed: changed, log: log, open: map[string]control.Renewal{}, pauses: map[string]pause{},
	}
}

// Credential returns the newest version for (connection, subject), sealed bytes included, renewed where that is due. One that cannot be renewed now
// comes as it is, with its trouble. Errors: [errs.NotFound], and the store's.
func (r *Renewer) Credential(ctx context.Context, connection, subject string) (*control.Credential, error) {
	c, err := r.store.Credential(ctx, connection, subject)
	if err != nil || !c.Due(r.store.Now()) {
		return c, err
	}
	return r.renewed(ctx, c, false)
}

// Refused takes a server's word on a version: 401 where the token is dead though its time is not over, which a renewal heals; 403 with the scopes
// that it lacks, which the next sign-in asks for. It does not block.
func (r *Renewer) Refused(connection, subject string, version int64, status int, challenge string) {
	lacks := oauth.ParseChallenge(challenge)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*renewTime)
		defer cancel()
		c, err := r.store.Credential(ctx, connection, subject)
		if err != nil || c.Kind != control.CredentialOAuth || c.Version != version || !c.Usable() {
			return
		}
		switch {
		case status == http.StatusUnauthorized && c.Renewable:
			_, _ = r.renewed(ctx, c, true) // what goes wrong is in the log, and in the credential's state
		case status == http.StatusForbidden && lacks.Error == "insufficient_scope" && lacks.Scope != "":
			if err := r.store.WantScopes(ctx, connection, subject, version, oauth.Scopes(lacks.Scope)); err != nil {
				r.log.Warn("what a server asks for was not noted", "connection", connection, "err", err)
			}
			r.changed()
		}
	}()
}

// renewed waits for the one renewal of this process.
func (r *Renewer) renewed(ctx context.Context, c *control.Credential, forced bool) (*control.Credential, error) {
	key := c.Connection + "\x00" + c.Subject
	done := r.flights.DoChan(key, func() (any, error) {
		// It goes on without whoever asked first: others wait for it, and a token that came must be stored.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*renewTime)
		defer cancel()
		return r.flight(ctx, key, c, forced)
	})
	select {
	case got := <-done:
		if got.Err == nil {
			return got.Val.(*control.Credential), nil
		}
		next, err := r.store.Credential(ctx, c.Connection, c.Subject)
		if err == nil && next.Usable() { // otherwise its state says it
			next.Trouble = errs.Message(got.Err)
		}
		return next, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// flight renews a credential, or adopts what another one stored.
func (r *Renewer) flight(ctx context.Context, key string, was *control.Credential, forced bool) (*control.Credential, error) {
	for {
		c, err := r.store.Credential(ctx, was.Connection, was.Subject)
		if err != nil {
			return nil, err
		}
		if c.Version != was.Version || !forced && !c.Due(r.store.Now()) {
			return c, nil // somebody was first
		}
		if err := r.paused(key, c.Version); err != nil {
			return nil, err
		}
		busy, err := r.once(ctx, key, c)
		switch {
		case errs.Is(err, errs.Conflict):
			continue // another version stands
		case err != nil:
			return nil, err
		case !busy:
			return r.store.Credential(ctx, c.Connection, c.Subject)
		}
		select { // another one renews it: its version is adopted as soon as it stands
		case <-time.After(adoptLook):
		case <-ctx.Done():
			return nil, errs.New(errs.Unreachable, "another renewal of the sign-in has not ended yet")
		}
	}
}

// once makes one renewal. busy: another one is under way.
func (r *Renewer) once(ctx context.Context, key string, c *control.Credential) (busy bool, err error) {
	conn, cl, err := r.ingredients(ctx, c)
	if err != nil {
		return false, err
	}
	meta, err := oauth.Encode(oauth.Refresh{Client: cl})
	if err != nil {
		return false, err
	}
	lease := control.Renewal{Connection: c.Connection, Subject: c.Subject, Version: c.Version}
	a, err := r.workers.Execute(ctx, Ask{
		Kind: intent.Refresh, Connection: *conn, Subject: c.Subject, Version: c.Version, Account: c.Account, Sealed: c.Sealed, Meta: meta, Time: renewTime,
		Once: true,
		Picked: func(id, run string) error {
			lease.Intent, lease.Run, lease.Until = id, run, r.store.Now().Add(renewTime)
			other, err := r.store.BeginRenewal(ctx, &lease)
			if other != nil {
				busy, err = true, errs.New(errs.Busy, "another renewal is under way")
			}
			if err == nil {
				r.mu.Lock()
				r.open[id] = lease
				r.mu.Unlock()
			}
			return err
		},
	})
	switch {
	case busy:
		return true, nil
	case err != nil && lease.Intent != "" && errs.Is(err, errs.Unreachable):
		// Nobody knows what came of it: the lease stays, and the intent is remembered.
		r.log.Warn("a renewal has no answer yet", "connection", c.Connection, "subject", c.Subject, "intent", lease.Intent, "err", err)
		return false, r.failed(key, c.Version, err)
	case err != nil:
		r.forget(ctx, lease.Intent)
		return false, r.failed(key, c.Version, err)
	}
	return false, r.settle(ctx, conn, lease, a)
}

// ingredients are what a renewal needs beside the credential.
func (r *Renewer) ingredients(ctx context.Context, c *control.Credential) (*control.Connection, oauth.Client, error) {
	p, err := r.policy(ctx)
	if err != nil {
		return nil, oauth.Client{}, err
	}
	conn := p.Connections[c.Connection]
	if conn == nil || conn.Auth.Type != intent.AuthOAuth {
		return nil, oauth.Client{}, errs.Newf(errs.Unavailable, "%s does not sign in any more", c.Connection)
	}
	cl, err := client(ctx, r.store, c.Connection)
	return conn, cl, err
}

// settle stores what a renewal came to. Only invalid_grant, of a version that is still the newest, breaks a credential.
func (r *Renewer) settle(ctx context.Context, conn *control.Connection, lease control.Renewal, a Answer) error {
	key := lease.Connection + "\x00" + lease.Subject
	err := a.Err()
	if err == nil {
		var t oauth.Token
		if err = oauth.Decode(a.Output, &t); err == nil {
			_, err = store(ctx, r.store, r.workers, conn, lease.Subject, lease.Version, &t, "control:renewal")
		}
		if err == nil || errs.Is(err, errs.Conflict) {
			a.Stored()
			r.forget(ctx, lease.Intent)
			r.changed()
			return err
		}
		return r.failed(key, lease.Version, err) // the worker keeps it, and sends it again
	}
	if a.Failure == oauth.FailGrant {
		marked := r.store.MarkCredential(ctx, lease.Connection, lease.Subject, lease.Version, control.CredentialBroken)
		if marked != nil && !errs.Is(marked, errs.Conflict) {
			return r.failed(key, lease.Version, marked)
		}
		r.log.Warn("a sign-in is over: a person must sign in again", "connection", lease.Connection, "subject", lease.Subject)
		r.changed()
	} else {
		err = r.failed(key, lease.Version, err)
	}
	a.Stored()
	r.forget(ctx, lease.Intent)
	return err
}

// forget gives a renewal's lease up.
func (r *Renewer) forget(ctx context.Context, id string) {
	if id == "" {
		return
	}
	r.mu.Lock()
	delete(r.open, id)
	r.mu.Unlock()
	if err := r.store.EndRenewal(ctx, id); err != nil {
		r.log.Warn("the lease of a renewal was not given up; it ends by itself", "intent", id, "err", err)
	}
}

// failed remembers that a renewal failed, so that it is not tried at once again.
func (r *Renewer) failed(key string, version int64, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pauses[key]
	if p.version != version {
		p = pause{version: version}
	}
	p.last = min(max(firstPause, 2*p.last), lastPause)
	p.until, p.err = time.Now().Add(p.last), err
	r.pauses[key] = p
	r.log.Warn("a sign-in was not renewed; it is tried again", "in", p.last.String(), "err", err)
	return err
}

func (r *Renewer) paused(key string, version int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.pauses[key]; p.version == version && time.Now().Before(p.until) {
		return p.err
	}
	return nil
}

// Expects reports whether an intent of a run is a renewal of which nobody knows yet what came.
func (r *Renewer) Expects(run, id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	lease, mine := r.open[id]
	return mine && lease.Run == run
}

// Outcome takes the outcome of a renewal whose waiter, or whose control run, is gone.
func (r *Renewer) Outcome(ctx context.Context, id string, a Answer) {
	r.mu.Lock()
	lease := r.open[id]
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, renewTime)
	defer cancel()
	conn, _, err := r.ingredients(ctx, &control.Credential{Connection: lease.Connection})
	if err == nil {
		err = r.settle(ctx, conn, lease, a)
	}
	r.log.Info("a renewal was found again by its intent", "connection", lease.Connection, "subject", lease.Subject, "err", err)
}

// Start remembers the renewals that an earlier run of control sent. Errors: the store's.
func (r *Renewer) Start(ctx context.Context) error {
	all, err := r.store.Renewals(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range all {
		r.open[l.Intent] = l
	}
	return nil
}

// Run renews what is due, until ctx ends.
func (r *Renewer) Run(ctx context.Context) {
	tick := time.NewTicker(renewLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		all, err := r.store.Credentials(ctx)
		if err != nil {
			continue // the store says so itself
		}
		var wg sync.WaitGroup
		for _, c := range all {
			if c.Kind == control.CredentialOAuth && c.Due(r.store.Now()) && r.paused(c.Connection+"\x00"+c.Subject, c.Version) == nil {
				wg.Go(func() { _, _ = r.Credential(ctx, c.Connection, c.Subject) }) // what goes wrong is in the log
			}
		}
		wg.Wait()
	}
}

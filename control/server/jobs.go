package server

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/connection"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/intent/oauth"
	"sallyport.dev/intent/seal"
)

// jobs runs the intents that are no calls of an agent: probes, catalog pulls, sign-ins and their renewals. They carry none of an agent's bytes and
// stand in no journal. A lost probe or pull is simply asked for again by the person who wanted it; a renewal is found again by its intent.
type jobs struct {
	s *Server

	mu   sync.Mutex
	open map[string]job // by intent
}

type job struct {
	run  string
	done chan *sallyportv1.Outcome
}

func newJobs(s *Server) *jobs { return &jobs{s: s, open: map[string]job{}} }

var _ connection.Workers = (*jobs)(nil)

const jobTime = 60 * time.Second

// run executes one intent of kind for a connection with its credential, fresh, and returns its outcome. Errors: [errs.Unreachable],
// [errs.NotConnected], [errs.Busy], [errs.Revoked].
func (j *jobs) run(ctx context.Context, kind intent.Kind, c control.Connection, by control.Person) (*sallyportv1.Outcome, error) {
	ask := connection.Ask{Kind: kind, Connection: c, Time: jobTime}
	if c.Auth.Type != intent.AuthNone {
		ask.Subject = control.SubjectShared
		if c.Auth.Per == "person" {
			ask.Subject = string(by)
		}
		// Without a worker nothing else matters: a person reads that first.
		withdrawn, err := j.withdrawn(ctx, c.Name, ask.Subject)
		if err != nil {
			return nil, err
		}
		if _, err := j.s.workers.Pick(c.Pool, withdrawn); err != nil {
			return nil, err
		}
		cred, err := j.s.renewer.Credential(ctx, c.Name, ask.Subject)
		if err != nil || !cred.Usable() || cred.Expired(j.s.stores.Connections.Now()) {
			how := "store it with: sallyport credentials set "
			if c.Auth.Type == intent.AuthOAuth {
				how = "sign in with: sallyport credentials connect "
			}
			if cred != nil && cred.Trouble != "" {
				return nil, errs.Newf(errs.Unavailable, "the sign-in of %s cannot be renewed now: %s", c.Name, cred.Trouble)
			}
			return nil, errs.Newf(errs.NotConnected, "%s has no credential; %s%s", c.Name, how, c.Name)
		}
		ask.Version, ask.Account, ask.Sealed = cred.Version, cred.Account, cred.Sealed
	}
	o, run, err := j.execute(ctx, ask)
	if err == nil {
		j.s.workers.Acknowledge(run, o.GetIntent())
	}
	return o, err
}

// Execute implements [connection.Workers].
func (j *jobs) Execute(ctx context.Context, ask connection.Ask) (connection.Answer, error) {
	o, run, err := j.execute(ctx, ask)
	if err != nil {
		return connection.Answer{}, err
	}
	return j.answer(run, o), nil
}

func (j *jobs) answer(run string, o *sallyportv1.Outcome) connection.Answer {
	return connection.Answer{
		Output: o.GetOutput(), Failure: oauth.Failure(o.GetFailure()), Message: o.GetDetail(), Stored: func() { j.s.workers.Acknowledge(run, o.GetIntent()) },
	}
}

// Fingerprint implements [connection.Workers].
func (j *jobs) Fingerprint(pool string) (string, error) {
	key, err := j.s.workers.poolKey(pool)
	if err != nil {
		return "", err
	}
	public, err := seal.ParsePublicKey(key)
	return public.Fingerprint(), err
}

// execute runs one intent and returns what came, not acknowledged, and the run that it came from.
func (j *jobs) execute(ctx context.Context, ask connection.Ask) (*sallyportv1.Outcome, string, error) {
	w := j.s.workers
	c := ask.Connection
	withdrawn, err := j.withdrawn(ctx, c.Name, ask.Subject)
	if ask.Kind == intent.Revoke {
		err = nil // what was withdrawn is ended all the more
	}
	if err != nil {
		return nil, "", err
	}
	picked, err := w.Pick(c.Pool, withdrawn)
	if err != nil {
		return nil, "", err
	}
	trust, err := j.trust(ctx, &c)
	if ask.Kind == intent.Revoke && errs.Is(err, errs.NotConnected) {
		c.TLS.Certificate = false // it was forgotten with the rest, and no sign-in's server sees it
		trust, err = c.Trust(nil, time.Time{})
	}
	if err != nil {
		return nil, "", err
	}
	in := connectionIntent(ask.Kind, c, picked.ID, j.s.stores.Connections.Now(), ask.Time)
	in.TLS = intent.Digest(trust)
	in.Subject, in.Version, in.Account, in.Meta = ask.Subject, ask.Version, ask.Account, intent.Digest(ask.Meta)
	if ask.Once {
		in.Effect = intent.Write
	}
	encoded, signature, keyID, err := w.Sign(picked.ID, in)
	if err != nil {
		return nil, "", err
	}
	if ask.Picked != nil {
		if err := ask.Picked(in.ID, picked.ID); err != nil {
			return nil, "", err
		}
	}
	done := make(chan *sallyportv1.Outcome, 1)
	j.mu.Lock()
	j.open[in.ID] = job{picked.ID, done}
	j.mu.Unlock()
	defer func() {
		j.mu.Lock()
		delete(j.open, in.ID)
		j.mu.Unlock()
	}()
	beside := intent.Beside{Meta: ask.Meta, TLS: trust}
	if err := w.Submit(picked.ID, call.Job{Intent: in.ID, Encoded: encoded, Signature: signature, KeyID: keyID, Beside: beside, Sealed: ask.Sealed, Go: true}); err != nil {
		return nil, "", errs.Wrap(errs.Busy, errs.Message(err), err) // it was not queued: nothing was begun
	}
	ctx, cancel := context.WithTimeout(ctx, ask.Time+5*time.Second)
	defer cancel()
	select {
	case o := <-done:
		if o == nil {
			return nil, "", errs.New(errs.Unreachable, "the worker's link was lost; try again")
		}
		return o, picked.ID, nil
	case <-ctx.Done():
		if !ask.Once {
			w.Close(picked.ID, in.ID, "nobody waits")
		}
		return nil, "", errs.Newf(errs.Unreachable, "the worker did not answer within %s", ask.Time)
	}
}

// trust is what a connection's TLS rests on beside the system's authorities. Errors: [errs.NotConnected], and the store's.
func (j *jobs) trust(ctx context.Context, c *control.Connection) ([]byte, error) {
	now := j.s.stores.Connections.Now()
	if !c.TLS.Certificate {
		return c.Trust(nil, now)
	}
	got, err := j.s.stores.Connections.Credential(ctx, c.Name, intent.CertificateSubject)
	if err != nil && !errs.Is(err, errs.NotFound) {
		return nil, err
	}
	return c.Trust(got, now)
}

// withdrawn refuses what a switch forbids: a test sends the credential as a call does. It returns which workers are withdrawn. Errors:
// [errs.Revoked].
func (j *jobs) withdrawn(ctx context.Context, connection, subject string) (worker func(id string) bool, err error) {
	switches, err := j.s.stores.Revocations.Switches(ctx, false)
	if err != nil {
		return nil, err
	}
	for _, w := range switches {
		switch {
		case w.Kind == control.SwitchEverything,
			w.Kind == control.SwitchConnection && w.Name == connection,
			w.Kind == control.SwitchCredential && w.Name == connection+"/"+subject:
			what := strings.TrimSpace(string(w.Kind) + " " + w.Name)
			return nil, errs.Newf(errs.Revoked, "access was withdrawn, so nothing is sent; give it back with: sallyport restore %s", what)
		}
	}
	return func(id string) bool {
		return slices.ContainsFunc(switches, func(w control.Switch) bool { return w.Kind == control.SwitchWorker && w.Name == id })
	}, nil
}

// connectionIntent is the part of an intent that a connection gives. Everything else of a call's intent is the pipeline's.
func connectionIntent(kind intent.Kind, c control.Connection, run string, now time.Time, within time.Duration) *intent.Intent {
	allow := c.Network.Allow
	if allow == nil {
		allow = []string{}
	}
	transport := "mcp"
	if c.Kind == control.KindCallback {
		transport = "callback"
	}
	return &intent.Intent{
		V: intent.Protected, ID: control.NewID(), Org: control.Org, Kind: kind, Connection: c.Name, Revision: c.Revision, Pool: c.Pool,
		Transport: transport, Origin: c.Origin, Path: c.Path, Allow: allow, PlainHTTP: c.Network.HTTP, AuthType: c.Auth.Type, AuthHeader: c.Auth.Name,
		Scopes: []string{}, Effect: "read", Authority: "rule", ResultBytes: 4 << 20, ConnectMS: c.Limits.Connect.Milliseconds(),
		AnswerMS: min(c.Limits.Timeout, within).Milliseconds(), SilenceMS: min(c.Limits.Silence, within).Milliseconds(),
		NotBefore: now.Add(-time.Minute).UnixMilli(), StartBefore: now.Add(min(within, 30*time.Second)).UnixMilli(),
		FinishBefore: now.Add(within).UnixMilli(), Audience: run,
	}
}

// outcome hands a worker's outcome to who waits for it, or to the renewals. It reports false when the intent is none of these.
func (j *jobs) outcome(run string, o *sallyportv1.Outcome) bool {
	j.mu.Lock()
	got, ok := j.open[o.GetIntent()]
	j.mu.Unlock()
	if !ok || got.run != run {
		if !j.s.renewer.Expects(run, o.GetIntent()) {
			return false
		}
		go j.s.renewer.Outcome(context.Background(), o.GetIntent(), j.answer(run, o))
		return true
	}
	select {
	case got.done <- o:
	default:
	}
	return true
}

// runDown ends what waits for a run whose Link is gone.
func (j *jobs) runDown(run string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, got := range j.open {
		if got.run != run {
			continue
		}
		select {
		case got.done <- nil:
		default:
		}
	}
}

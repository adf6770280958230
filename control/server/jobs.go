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
	"sallyport.dev/errs"
	"sallyport.dev/intent"
)

// jobs runs the intents that are no calls of an agent: probes and catalog pulls. They carry none of an agent's bytes, change nothing upstream, and
// stand in no journal; a lost one is simply asked for again by the person who wanted it.
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

const jobTime = 60 * time.Second

// run executes one intent of kind for a connection and returns its outcome. Errors: [errs.Unreachable], [errs.NotConnected],
// [errs.Busy], [errs.Revoked].
func (j *jobs) run(ctx context.Context, kind intent.Kind, c control.Connection, by control.Person) (*sallyportv1.Outcome, error) {
	w := j.s.workers
	subject := control.SubjectShared
	if c.Auth.Per == "person" {
		subject = string(by)
	}
	withdrawn, err := j.withdrawn(ctx, c.Name, subject)
	if err != nil {
		return nil, err
	}
	picked, err := w.Pick(c.Pool, withdrawn)
	if err != nil {
		return nil, err
	}
	now := j.s.stores.Connections.Now()
	in := connectionIntent(kind, c, picked.ID, now)
	var sealed control.Sealed
	if c.Auth.Type != "none" {
		cred, err := j.s.stores.Connections.Credential(ctx, c.Name, subject)
		if err != nil || cred.State == control.CredentialRevoked {
			return nil, errs.Newf(errs.NotConnected, "%s has no credential; store it with: sallyport credentials set %s", c.Name, c.Name)
		}
		in.Subject, in.Version, in.Account = cred.Subject, cred.Version, cred.Account
		sealed = cred.Sealed
	}
	encoded, signature, keyID, err := w.Sign(picked.ID, in)
	if err != nil {
		return nil, err
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
	if err := w.Submit(picked.ID, call.Job{Intent: in.ID, Encoded: encoded, Signature: signature, KeyID: keyID, Sealed: sealed, Go: true}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, jobTime+5*time.Second)
	defer cancel()
	select {
	case o := <-done:
		w.Acknowledge(picked.ID, in.ID)
		if o == nil {
			return nil, errs.New(errs.Unreachable, "the worker's link was lost; try again")
		}
		return o, nil
	case <-ctx.Done():
		w.Close(picked.ID, in.ID, "nobody waits")
		return nil, errs.Newf(errs.Unreachable, "the worker did not answer within %s", jobTime)
	}
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
func connectionIntent(kind intent.Kind, c control.Connection, run string, now time.Time) *intent.Intent {
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
		AnswerMS: min(c.Limits.Timeout, jobTime).Milliseconds(), SilenceMS: min(c.Limits.Silence, jobTime).Milliseconds(),
		NotBefore: now.Add(-time.Minute).UnixMilli(), StartBefore: now.Add(30 * time.Second).UnixMilli(),
		FinishBefore: now.Add(jobTime).UnixMilli(), Audience: run,
	}
}

// outcome hands a worker's outcome to who waits for it. It reports false when the intent is none of these.
func (j *jobs) outcome(run string, o *sallyportv1.Outcome) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	got, ok := j.open[o.GetIntent()]
	if !ok || got.run != run {
		return false
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

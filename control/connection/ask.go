package connection

import (
	"context"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/intent/oauth"
)

// Workers executes intents that are no calls of an agent. The server implements it.
type Workers interface {
	// Execute runs one intent through a worker of the connection's pool and returns what it came to. Errors mean that this is not known, or that
	// nothing was begun: [errs.Unreachable], [errs.Busy], [errs.Revoked], and those of ask.Picked.
	Execute(ctx context.Context, ask Ask) (Answer, error)
	// Pool returns the fingerprint of a pool's key. Errors: [errs.Unreachable].
	Fingerprint(pool string) (string, error)
}

// Ask is one such intent.
type Ask struct {
	Kind       intent.Kind
	Connection control.Connection
	Subject    string // "" without a credential
	Version    int64
	Account    string
	Sealed     control.Sealed
	Meta       []byte        // the kind's own input
	Time       time.Duration // until it is over
	// Once: it changes something at a server, so nobody's losing interest ends it.
	Once bool
	// Picked is called with the intent and the run before anything is sent; an error ends it. nil: nobody wants to know.
	Picked func(id, run string) error
}

// Answer is what an intent came to. Its outcome is kept by the worker until Stored is called.
type Answer struct {
	Output  []byte // empty: it failed
	Failure oauth.Failure
	Message string // of a failure; safe to show
	Stored  func()
}

// Err is nil for an answer with an output, and says otherwise why there is none.
func (a *Answer) Err() error {
	if len(a.Output) > 0 {
		return nil
	}
	code := errs.Unreachable
	switch a.Failure {
	case oauth.FailGrant, oauth.FailScope, oauth.FailClient, oauth.FailRegistration:
		code = errs.NotConnected
	case oauth.FailAccount, oauth.FailState, oauth.FailIssuer, oauth.FailAddress:
		code = errs.NotAllowed
	case oauth.FailRequest:
		code = errs.Invalid
	}
	if a.Message == "" {
		return errs.Newf(code, "the worker could not do it (%s)", a.Failure)
	}
	return errs.New(code, a.Message)
}

// settings are what is reviewed of a connection's sign-in.
func settings(c *control.Connection) oauth.Settings {
	if c.Auth.OAuth == nil {
		return oauth.Settings{}
	}
	return *c.Auth.OAuth
}

// client is the sealed secret of the client itself, as a worker takes it.
func client(ctx context.Context, store Store, connection string) (oauth.Client, error) {
	c, err := store.Credential(ctx, connection, oauth.ClientSubject)
	switch {
	case errs.Is(err, errs.NotFound):
		return oauth.Client{}, nil
	case err != nil:
		return oauth.Client{}, err
	case !c.Usable():
		return oauth.Client{Version: c.Version}, nil
	}
	return oauth.Client{Sealed: c.Sealed, Version: c.Version}, nil
}

// tokenOf is the credential that a worker sealed as the next version after former.
func tokenOf(connection, subject string, former int64, t *oauth.Token, key string) *control.Credential {
	c := &control.Credential{
		Org: control.Org, Connection: connection, Subject: subject, Version: former + 1, Sealed: t.Credential, KeyFingerprint: key, Account: t.Account,
		State: control.CredentialGood, Kind: control.CredentialOAuth, Name: t.Name, Issuer: t.Issuer, Scopes: t.Scopes, Renewable: t.Renewable,
	}
	if t.ExpiresMS > 0 {
		c.ExpiresAt = time.UnixMilli(t.ExpiresMS).UTC()
	}
	return c
}

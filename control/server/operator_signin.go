package server

import (
	"context"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/control/connection"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/intent/oauth"
)

// BeginSignIn implements sallyport.v1.Operator.
func (o *operatorService) BeginSignIn(ctx context.Context, r *sallyportv1.BeginSignInRequest) (*sallyportv1.BeginSignInResponse, error) {
	c, err := o.applied(ctx, r.GetConnection())
	if err != nil {
		return nil, err
	}
	subject, err := subjectOf(ctx, c, r.GetSubject())
	if err != nil {
		return nil, err
	}
	by := whoOf(ctx).Person
	b, err := o.s.signIns.Begin(ctx, connection.Begin{
		Connection: *c, Subject: subject, Person: by, Redirect: r.GetRedirectUri(), Another: r.GetAnotherAccount(), Again: r.GetRegisterAgain(),
	})
	if err != nil {
		return nil, err
	}
	if b.Done != nil {
		return &sallyportv1.BeginSignInResponse{Issuer: b.Done.Issuer, Done: credentialRow(b.Done), Report: o.signedIn(ctx, c.Name, by)}, nil
	}
	return &sallyportv1.BeginSignInResponse{
		Address: b.Address, Issuer: b.Issuer, ClientId: b.ClientID, Registration: b.How, Scopes: b.Scopes, ExpiresMs: ms(b.ExpiresAt),
	}, nil
}

// EndSignIn implements sallyport.v1.Operator.
func (o *operatorService) EndSignIn(ctx context.Context, r *sallyportv1.EndSignInRequest) (*sallyportv1.EndSignInResponse, error) {
	by := whoOf(ctx).Person
	cred, err := o.s.signIns.End(ctx, connection.End{
		State: r.GetState(), Code: r.GetCode(), Issuer: r.GetIssuer(), Person: by,
		Connection: func(name string) (control.Connection, error) { return o.connectionOf(ctx, name, nil) },
	})
	if err != nil {
		return nil, err
	}
	return &sallyportv1.EndSignInResponse{Credential: credentialRow(cred), Report: o.signedIn(ctx, cred.Connection, by)}, nil
}

// signedIn tells everybody that a credential stands, and tests a connection that waited for it. A connection in service is let be: nil.
func (o *operatorService) signedIn(ctx context.Context, name string, by control.Person) *sallyportv1.TestReport {
	o.s.changed("config", "signed in")
	c, err := o.connectionOf(ctx, name, nil)
	if err != nil || c.State != control.ConnectionUntested || !whoOf(ctx).Administrator {
		return nil
	}
	return o.test(ctx, c, by)
}

func credentialRow(c *control.Credential) *sallyportv1.CredentialRow {
	return &sallyportv1.CredentialRow{
		Connection: c.Connection, Subject: c.Subject, Version: c.Version, State: string(c.State), Account: c.Account, ExpiresMs: ms(c.ExpiresAt),
		UpdatedMs: ms(c.ModifiedAt), Kind: string(c.Kind), Name: c.Name, Issuer: c.Issuer, Scopes: c.Scopes, Wanted: c.Wanted, Renewable: c.Renewable,
	}
}

// ending remembers the sign-ins of a connection that are about to be forgotten, all of them or one subject's; the returned function ends them at their
// server. Nothing here can use them any more by then, so a server that does not answer costs no more than a line of the log.
func (o *operatorService) ending(ctx context.Context, c *control.Connection, subject string) func() {
	if c == nil || c.Auth.Type != intent.AuthOAuth {
		return func() {}
	}
	creds, cl, err := o.s.signIns.Ending(ctx, c.Name)
	if err != nil {
		o.s.log.Warn("the sign-ins of a connection cannot be read, so they are not ended at their server", "connection", c.Name, "err", err)
	}
	return func() {
		for _, cred := range creds {
			if subject != "" && cred.Subject != subject {
				continue
			}
			if err := o.s.signIns.Revoke(ctx, *c, cred, cl); err != nil {
				o.s.log.Warn("a sign-in was not ended at its server; end it there by hand", "connection", c.Name, "subject", cred.Subject, "err", err)
			}
		}
	}
}

// clientSettings say what the client's own secret is sealed under: it goes to the one authorization server that the reviewed connection names.
func (o *operatorService) clientSettings(ctx context.Context, c *control.Connection) (*oauth.Settings, error) {
	s := c.Auth.OAuth
	switch {
	case !whoOf(ctx).Administrator:
		return nil, errs.New(errs.NotAllowed, "a client's secret is an administrator's to set")
	case c.Auth.Type != intent.AuthOAuth || s == nil || s.ClientID == "" || s.Issuer == "":
		return nil, errs.Newf(errs.Invalid, "%s names no client: write client_id and issuer into auth.oauth, apply, then set its secret", c.Name)
	}
	return s, nil
}

package server

import (
	"context"
	"net/url"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/intent/oauth"
	"sallyport.dev/intent/seal"
)

// originHost is the host of an origin, without the port.
func originHost(origin string) string {
	u, err := url.Parse(origin)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

func toolExists(p *control.Policy, name string) bool { return len(toolsNamed(p, name)) > 0 }

// toolsNamed returns the reviewed tools that connection/tool or connection/* names.
func toolsNamed(p *control.Policy, name string) []control.Tool {
	connection, tool, ok := strings.Cut(name, "/")
	cat := p.Catalogs[connection]
	if !ok || cat == nil {
		return nil
	}
	var out []control.Tool
	for _, t := range cat.Tools {
		if tool == "*" || t.Name == tool {
			out = append(out, t)
		}
	}
	return out
}

// subjectOf says whose credential a request is about: shared ones are an administrator's, a person's own are that person's.
func subjectOf(ctx context.Context, c *control.Connection, asked string) (string, error) {
	who := whoOf(ctx)
	switch asked {
	case oauth.ClientSubject:
		return asked, nil // clientSettings says who may
	case intent.CertificateSubject:
		if !who.Administrator {
			return "", errs.New(errs.NotAllowed, "the certificate of a connection is an administrator's to set")
		}
		if !c.TLS.Certificate {
			return "", errs.Newf(errs.Invalid, "%s shows no certificate: write tls: {certificate: true}, apply, then store it", c.Name)
		}
		return asked, nil
	}
	if c.Auth.Type == "none" {
		return "", errs.Newf(errs.Invalid, "%s needs no credential (auth: none)", c.Name)
	}
	if c.Auth.Per != "person" {
		if asked != "" && asked != control.SubjectShared {
			return "", errs.Newf(errs.Invalid, "%s has one shared credential: leave --for out", c.Name)
		}
		if !who.Administrator {
			return "", errs.New(errs.NotAllowed, "a shared credential is an administrator's to set")
		}
		return control.SubjectShared, nil
	}
	if asked == "" {
		asked = string(who.Person)
	}
	if asked != string(who.Person) && !who.Administrator {
		return "", errs.New(errs.NotAllowed, "everybody sets their own credential")
	}
	return asked, nil
}

// next returns what the next version of a credential is sealed under.
func (o *operatorService) next(ctx context.Context, c *control.Connection, subject string) (seal.Bound, error) {
	version := int64(1)
	if old, err := o.s.stores.Connections.Credential(ctx, c.Name, subject); err == nil {
		version = old.Version + 1
	} else if !errs.Is(err, errs.NotFound) {
		return seal.Bound{}, err
	}
	if subject == oauth.ClientSubject {
		set, err := o.clientSettings(ctx, c)
		if err != nil {
			return seal.Bound{}, err
		}
		return seal.Bound{
			Org: control.Org, Connection: c.Name, Subject: subject, Version: version, Origin: c.Origin, PathPrefix: pathOf(c.Path), Issuer: set.Issuer,
			ClientID: set.ClientID,
		}, nil
	}
	if subject == intent.CertificateSubject {
		return seal.Bound{Org: control.Org, Connection: c.Name, Subject: subject, Version: version, Origin: c.Origin, PathPrefix: pathOf(c.Path)}, nil
	}
	if c.Auth.Type == intent.AuthOAuth {
		return seal.Bound{}, errs.Newf(errs.Invalid, "%s signs in: sallyport credentials connect %s", c.Name, c.Name)
	}
	return seal.Bound{
		Org: control.Org, Connection: c.Name, Subject: subject, Version: version, Origin: c.Origin, PathPrefix: pathOf(c.Path), Header: headerOf(c.Auth),
	}, nil
}

// pathOf is the path without its query: a credential is bound to where it may go, not to what is asked there.
func pathOf(path string) string {
	p, _, _ := strings.Cut(path, "?")
	return p
}

func headerOf(a control.Auth) string {
	if a.Type == "header" {
		return a.Name
	}
	return ""
}

func (o *operatorService) applied(ctx context.Context, name string) (*control.Connection, error) {
	p, err := o.policy(ctx)
	if err != nil {
		return nil, err
	}
	c := p.Connections[name]
	if c == nil {
		return nil, errs.Newf(errs.NotFound, "no connection is named %s; apply it first, then set its credential", name)
	}
	return c, nil
}

// PoolKey implements sallyport.v1.Operator: the key to seal to, and with a connection exactly what to seal under.
func (o *operatorService) PoolKey(ctx context.Context, r *sallyportv1.PoolKeyRequest) (*sallyportv1.PoolKeyResponse, error) {
	out := &sallyportv1.PoolKeyResponse{Pool: r.GetPool()}
	if r.GetConnection() != "" {
		c, err := o.applied(ctx, r.GetConnection())
		if err != nil {
			return nil, err
		}
		subject, err := subjectOf(ctx, c, r.GetSubject())
		if err != nil {
			return nil, err
		}
		bound, err := o.next(ctx, c, subject)
		if err != nil {
			return nil, err
		}
		out.Pool, out.AssociatedData, out.Version, out.ClientId = c.Pool, bound.Bytes(), bound.Version, bound.ClientID
	}
	key, err := o.s.workers.poolKey(out.Pool)
	if err != nil {
		return nil, err
	}
	public, err := seal.ParsePublicKey(key)
	if err != nil {
		return nil, err
	}
	out.PublicKey, out.Fingerprint = key, public.Fingerprint()
	return out, nil
}

// PutCredential implements sallyport.v1.Operator: it takes only what was sealed under exactly the associated data of the next version.
func (o *operatorService) PutCredential(ctx context.Context, r *sallyportv1.PutCredentialRequest) (*sallyportv1.PutCredentialResponse, error) {
	c, err := o.applied(ctx, r.GetConnection())
	if err != nil {
		return nil, err
	}
	subject, err := subjectOf(ctx, c, r.GetSubject())
	if err != nil {
		return nil, err
	}
	bound, err := o.next(ctx, c, subject)
	if err != nil {
		return nil, err
	}
	if r.GetVersion() != bound.Version {
		return nil, errs.New(errs.Conflict, "somebody set this credential meanwhile; look at it and set it again")
	}
	under, err := seal.AssociatedData(r.GetSealed())
	if err != nil {
		return nil, err
	}
	if string(under) != string(bound.Bytes()) {
		return nil, errs.New(errs.Conflict, "the credential was sealed for another connection or version; set it again")
	}
	cred := &control.Credential{
		Org: control.Org, Connection: c.Name, Subject: subject, Version: bound.Version, Sealed: r.GetSealed(), AssociatedData: under,
		KeyFingerprint: r.GetKeyFingerprint(), State: control.CredentialGood, ModifiedAt: o.s.stores.Connections.Now(),
		Issuer: bound.Issuer,
	}
	switch subject {
	case oauth.ClientSubject:
		cred.Kind = control.CredentialClient
	case intent.CertificateSubject:
		cred.Kind = control.CredentialCertificate
	}
	if r.GetExpiresMs() > 0 {
		cred.ExpiresAt = time.UnixMilli(r.GetExpiresMs()).UTC()
	}
	if err := o.s.stores.Connections.PutCredential(ctx, cred, whoOf(ctx).Person); err != nil {
		return nil, err
	}
	o.s.changed("config", "credential set")
	return &sallyportv1.PutCredentialResponse{Version: cred.Version}, nil
}

// ListCredentials implements sallyport.v1.Operator.
func (o *operatorService) ListCredentials(ctx context.Context, _ *sallyportv1.ListCredentialsRequest) (*sallyportv1.ListCredentialsResponse, error) {
	creds, err := o.s.stores.Connections.Credentials(ctx)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.ListCredentialsResponse{}
	for _, c := range creds {
		out.Credentials = append(out.Credentials, credentialRow(&c))
	}
	return out, nil
}

// RemoveCredential implements sallyport.v1.Operator.
func (o *operatorService) RemoveCredential(ctx context.Context, r *sallyportv1.RemoveCredentialRequest) (*sallyportv1.RemoveCredentialResponse, error) {
	c, err := o.applied(ctx, r.GetConnection())
	if err != nil {
		return nil, err
	}
	subject, err := subjectOf(ctx, c, r.GetSubject())
	if err != nil {
		return nil, err
	}
	if subject == oauth.ClientSubject {
		if _, err := o.clientSettings(ctx, c); err != nil {
			return nil, err
		}
	}
	end := o.ending(ctx, c, subject)
	if err := o.s.stores.Connections.RemoveCredential(ctx, c.Name, subject, whoOf(ctx).Person); err != nil {
		return nil, err
	}
	o.s.changed("config", "credential removed")
	end()
	return &sallyportv1.RemoveCredentialResponse{}, nil
}

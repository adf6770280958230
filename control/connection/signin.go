package connection

import (
	"context"
	"crypto/rand"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/intent/oauth"
	"sallyport.dev/intent/seal"
)

// Bounds of a sign-in.
const (
	signInTime = time.Minute      // of one conversation of a worker with an authorization server
	signInLife = 10 * time.Minute // that a person has
)

// SignIns begins and ends sign-ins of people. Safe for concurrent use.
type SignIns struct {
	Store   Store
	Workers Workers
}

// Begin says how a sign-in begins.
type Begin struct {
	Connection control.Connection
	Subject    string
	Person     control.Person
	Redirect   string
	Another    bool // another account than before may sign in
	Again      bool // register the client anew
}

// Begun is a sign-in that a person goes on with; without an address it is done already.
type Begun struct {
	Address   string
	Issuer    string
	ClientID  string
	How       string // the registration that was used
	Scopes    []string
	ExpiresAt time.Time
	Done      *control.Credential
}

// Begin begins a sign-in, and ends an earlier one of the same connection and subject. Errors: [errs.Invalid], [errs.NotAllowed],
// [errs.NotConnected] when there is no client, [errs.Unreachable].
func (s *SignIns) Begin(ctx context.Context, b Begin) (*Begun, error) {
	if b.Connection.Auth.Type != intent.AuthOAuth {
		return nil, errs.Newf(errs.Invalid, "%s does not sign in (auth: %s)", b.Connection.Name, b.Connection.Auth.Type)
	}
	former, err := s.former(ctx, b.Connection.Name, b.Subject)
	if err != nil {
		return nil, err
	}
	account := former.Account
	if b.Another || former.State == control.CredentialRevoked {
		account = "" // what was taken away on purpose binds nobody
	}
	cl, err := client(ctx, s.Store, b.Connection.Name)
	if err != nil {
		return nil, err
	}
	if b.Again {
		cl.Sealed = nil
	}
	set := settings(&b.Connection)
	if set.Grant == oauth.ClientCredentials {
		done, err := s.exchange(ctx, &b.Connection, former.Version, account, b.Person, b.Subject, &oauth.Exchange{Settings: set, Client: cl})
		return &Begun{Done: done}, err
	}
	state := rand.Text() + rand.Text()
	meta, err := oauth.Encode(oauth.Authorize{Settings: set, Client: cl, RedirectURI: b.Redirect, State: state, Scopes: former.Wanted})
	if err != nil {
		return nil, err
	}
	a, err := s.Workers.Execute(ctx, Ask{
		Kind: intent.Authorize, Connection: b.Connection, Subject: b.Subject, Version: former.Version, Account: account, Meta: meta, Time: signInTime,
	})
	if err == nil {
		err = a.Err()
	}
	if err != nil {
		return nil, err
	}
	var got oauth.Authorized
	if err := oauth.Decode(a.Output, &got); err != nil {
		return nil, err
	}
	if err := s.keepClient(ctx, &b.Connection, cl, got.Client, got.Issuer, b.Person); err != nil {
		return nil, err
	}
	row := &control.SignIn{
		Connection: b.Connection.Name, Subject: b.Subject, State: control.Sum([]byte(state)), Revision: b.Connection.Revision, Person: b.Person,
		Account: account, Sealed: got.State, ExpiresAt: s.Store.Now().Add(signInLife),
	}
	if err := s.Store.BeginSignIn(ctx, row); err != nil {
		return nil, err
	}
	a.Stored()
	return &Begun{Address: got.Address, Issuer: got.Issuer, ClientID: got.ClientID, How: got.How, Scopes: got.Scopes, ExpiresAt: row.ExpiresAt}, nil
}

// former is the newest version of a credential, zero for none.
func (s *SignIns) former(ctx context.Context, connection, subject string) (*control.Credential, error) {
	c, err := s.Store.Credential(ctx, connection, subject)
	if errs.Is(err, errs.NotFound) {
		return &control.Credential{}, nil
	}
	return c, err
}

// keepClient stores a registration that was made now.
func (s *SignIns) keepClient(ctx context.Context, c *control.Connection, former oauth.Client, sealed []byte, issuer string, by control.Person) error {
	if len(sealed) == 0 {
		return nil
	}
	under, err := seal.AssociatedData(sealed)
	if err != nil {
		return err
	}
	key, err := s.Workers.Fingerprint(c.Pool)
	if err != nil {
		return err
	}
	err = s.Store.PutCredential(ctx, &control.Credential{
		Org: control.Org, Connection: c.Name, Subject: oauth.ClientSubject, Version: former.Version + 1, Sealed: sealed, AssociatedData: under,
		KeyFingerprint: key, State: control.CredentialGood, Kind: control.CredentialClient, Issuer: issuer,
	}, by)
	if errs.Is(err, errs.Conflict) {
		return errs.Newf(errs.Conflict, "another sign-in registered a client for %s at the same time; begin again", c.Name)
	}
	return err
}

// End is what a person came back with.
type End struct {
	State  string
	Code   string
	Issuer string // iss, where the answer had one
	Person control.Person
	// Connection finds the connection as it is now. Errors: [errs.NotFound].
	Connection func(name string) (control.Connection, error)
}

// End ends a sign-in: once, by the person who began it. Errors: [errs.NotFound] when it is over, [errs.NotAllowed], [errs.Conflict] when the
// connection or its credential changed meanwhile, [errs.NotConnected], [errs.Unreachable].
func (s *SignIns) End(ctx context.Context, e End) (*control.Credential, error) {
	row, err := s.Store.TakeSignIn(ctx, control.Sum([]byte(e.State)))
	if err != nil {
		return nil, err
	}
	if row.Person != e.Person {
		return nil, errs.New(errs.NotAllowed, "somebody else began this sign-in; begin again")
	}
	c, err := e.Connection(row.Connection)
	if err != nil {
		return nil, err
	}
	if c.Revision != row.Revision {
		return nil, errs.Newf(errs.Conflict, "%s was changed since the sign-in began; begin again", c.Name)
	}
	cl, err := client(ctx, s.Store, c.Name)
	if err != nil {
		return nil, err
	}
	former, err := s.former(ctx, c.Name, row.Subject)
	if err != nil {
		return nil, err
	}
	done, err := s.exchange(ctx, &c, former.Version, row.Account, e.Person, row.Subject, &oauth.Exchange{
		Settings: settings(&c), Client: cl, State: row.Sealed, Returned: e.State, Code: e.Code, Issuer: e.Issuer,
	})
	if err == nil && former.Kind == control.CredentialOAuth && former.Usable() && former.Account != done.Account {
		_ = s.Revoke(ctx, c, former, cl) // nobody uses it any more; that its server may keep it does no harm here
	}
	return done, err
}

// exchange asks for a token and stores it.
func (s *SignIns) exchange(ctx context.Context, c *control.Connection, version int64, account string, by control.Person, subject string, ask *oauth.Exchange) (*control.Credential, error) {
	meta, err := oauth.Encode(ask)
	if err != nil {
		return nil, err
	}
	a, err := s.Workers.Execute(ctx, Ask{
		Kind: intent.Exchange, Connection: *c, Subject: subject, Version: version, Account: account, Meta: meta, Time: signInTime, Once: true,
	})
	if err == nil {
		err = a.Err()
	}
	if err != nil {
		return nil, err
	}
	var t oauth.Token
	if err := oauth.Decode(a.Output, &t); err != nil {
		return nil, err
	}
	if err := s.keepClient(ctx, c, ask.Client, t.Client, t.Issuer, by); err != nil {
		return nil, err
	}
	done, err := store(ctx, s.Store, s.Workers, c, subject, version, &t, by)
	if err != nil {
		return nil, err
	}
	a.Stored()
	return done, nil
}

// store keeps what a worker sealed as the next version. It is used only from here on.
func store(ctx context.Context, st Store, w Workers, c *control.Connection, subject string, former int64, t *oauth.Token, by control.Person) (*control.Credential, error) {
	key, err := w.Fingerprint(c.Pool)
	if err != nil {
		return nil, err
	}
	next := tokenOf(c.Name, subject, former, t, key)
	if next.AssociatedData, err = seal.AssociatedData(t.Credential); err != nil {
		return nil, err
	}
	return next, st.PutCredential(ctx, next, by)
}

// Revoke ends a sign-in at its authorization server, as far as that can be done: nothing here uses it any more in any case. Errors:
// [errs.Unreachable] and those of the server.
func (s *SignIns) Revoke(ctx context.Context, c control.Connection, cred *control.Credential, cl oauth.Client) error {
	meta, err := oauth.Encode(oauth.Refresh{Client: cl})
	if err != nil {
		return err
	}
	a, err := s.Workers.Execute(ctx, Ask{
		Kind: intent.Revoke, Connection: c, Subject: cred.Subject, Version: cred.Version, Account: cred.Account, Sealed: cred.Sealed, Meta: meta,
		Time: signInTime, Once: true,
	})
	if err != nil {
		return err
	}
	a.Stored()
	return a.Err()
}

// Ending are the sign-ins of a connection that would end with it, with what ending them at their server takes. Errors: the store's.
func (s *SignIns) Ending(ctx context.Context, connection string) (creds []*control.Credential, cl oauth.Client, err error) {
	all, err := s.Store.Credentials(ctx)
	if err != nil {
		return nil, cl, err
	}
	for _, one := range all {
		if one.Connection != connection || one.Kind != control.CredentialOAuth || one.State == control.CredentialRevoked {
			continue
		}
		c, err := s.Store.Credential(ctx, connection, one.Subject)
		if err != nil {
			return nil, cl, err
		}
		creds = append(creds, c)
	}
	cl, err = client(ctx, s.Store, connection)
	return creds, cl, err
}

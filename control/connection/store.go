// Package connection keeps connections in service and their credentials: tests, states, versions. Which tools a connection serves is the
// catalog's part, what an agent may use the grants'.
package connection

import (
	"context"
	"time"

	"sallyport.dev/control"
)

// Store is what connections and credentials need of the database. Each change is one durable transaction that takes the policy's lock exclusively
// and makes the next generation.
type Store interface {
	// Now is the store's time, in UTC.
	Now() time.Time
	// Tested puts a connection in service after a real test, with the MCP revision that it settled; compare-and-set on the revision that was
	// tested. Errors: [errs.Conflict] when another revision stands, [errs.NotFound].
	Tested(ctx context.Context, name string, revision int64, protocol string, by control.Person) error
	// SetState takes a connection out of service, or back to untested. Errors: [errs.NotFound].
	SetState(ctx context.Context, name string, state control.ConnectionState, by control.Person) error

	// Credential returns the newest version, sealed bytes included. Errors: [errs.NotFound].
	Credential(ctx context.Context, connection, subject string) (*control.Credential, error)
	// Credentials returns the newest version of each, without the sealed bytes.
	Credentials(ctx context.Context) ([]control.Credential, error)
	// PutCredential inserts version c.Version by compare-and-set: it must be the newest one plus one (1 for the first). It sets when it was issued
	// and since when it is of its account, and ends the renewal that led to it. Errors: [errs.Conflict].
	PutCredential(ctx context.Context, c *control.Credential, by control.Person) error
	// MarkCredential changes the state of one version. Errors: [errs.Conflict] when it is not the newest.
	MarkCredential(ctx context.Context, connection, subject string, version int64, state control.CredentialState) error
	// RemoveCredential forgets every version's sealed bytes and marks the newest one revoked. Errors: [errs.NotFound].
	RemoveCredential(ctx context.Context, connection, subject string, by control.Person) error
	// MarkDrift records which tools of a server no longer are as reviewed, and whether each is out of service for it. Errors: [errs.NotFound].
	MarkDrift(ctx context.Context, connection string, tools map[string]bool) error
	// PutDraft keeps a list that was not reviewed, in place of the draft before it; one that was rejected stays so. Errors: [errs.NotFound].
	PutDraft(ctx context.Context, connection string, digest control.Digest, listed []byte) error
	// NoDraft says that a server lists what was reviewed again.
	NoDraft(ctx context.Context, connection string) error
	// Lists returns the lists of a connection ("" for all) in these states, newest first.
	Lists(ctx context.Context, connection string, states ...control.CatalogState) ([]control.ListedCatalog, error)
	// RejectDraft rejects a draft. Errors: [errs.Conflict] when it is none any more.
	RejectDraft(ctx context.Context, connection string, digest control.Digest, by control.Person) error
	// WantScopes notes what a server asked for beyond what a version has. A version that is not the newest is let be.
	WantScopes(ctx context.Context, connection, subject string, version int64, scopes []string) error

	// BeginSignIn keeps a sign-in; an earlier one of the same connection and subject is over.
	BeginSignIn(ctx context.Context, in *control.SignIn) error
	// TakeSignIn returns a sign-in by the digest of its state, once. Errors: [errs.NotFound] when it was taken, took another's place, or is over.
	TakeSignIn(ctx context.Context, state control.Digest) (*control.SignIn, error)

	// BeginRenewal takes the lease of a credential's renewal, where its version is the newest and no other renewal is under way; otherwise it
	// returns the one that is. Errors: [errs.Conflict] when another version stands.
	BeginRenewal(ctx context.Context, r *control.Renewal) (other *control.Renewal, err error)
	// EndRenewal gives the lease of an intent up.
	EndRenewal(ctx context.Context, intent string) error
	// Renewals are those under way.
	Renewals(ctx context.Context) ([]control.Renewal, error)
}

// Package machine keeps the hosts and workers that may dial control: enrolment tokens, identities, when they were seen.
package machine

import (
	"context"
	"time"

	"sallyport.dev/control"
)

// Store is what enrolment and the Links need of the database. Each method is one transaction.
type Store interface {
	// Now is the store's time, in UTC.
	Now() time.Time
	// PutToken stores a one-time enrolment token by its digest. Durable.
	PutToken(ctx context.Context, t Token) error
	// TakeToken uses a token, once, and inserts its machine. Durable. Errors: [errs.NotAllowed] when it is unknown, used or over.
	TakeToken(ctx context.Context, digest control.Digest) (Token, error)
	// Enrol inserts a machine that needs no token: one of this machine's own processes. Durable. Nothing happens when it is there; one that was
	// removed stays removed: errors: [errs.NotAllowed].
	Enrol(ctx context.Context, m Machine) error
	// Machine returns one machine by its SPIFFE id. It is cheap: it is asked for every connection. Errors: [errs.NotFound].
	Machine(ctx context.Context, id string) (Machine, error)
	Machines(ctx context.Context, role string) ([]Machine, error)
	// Remove ends an identity for good. Durable. Errors: [errs.NotFound].
	Remove(ctx context.Context, id string, by control.Person) error
	// Seen records that a machine is up. It rides along and does not wait.
	Seen(id string, s Sight)
}

// Token lets one machine join, once.
type Token struct {
	Org    string
	Digest control.Digest
	ID     string // SPIFFE id of the machine that will join
	Role   string // host | worker
	Name   string
	Pool   string // workers
	By     control.Person
	Until  time.Time // by the store's time
}

// Machine is a host or a worker.
type Machine struct {
	Org     string
	ID      string // SPIFFE id
	Role    string
	Name    string
	Pool    string
	Removed bool
	Since   time.Time
	Seen    time.Time
	Sight
}

// Sight is what a machine said when it was seen.
type Sight struct {
	Run         string // a worker's run
	Build       string
	Confinement string
	PoolKey     []byte // a worker's public HPKE key
}

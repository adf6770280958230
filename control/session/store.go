package session

import (
	"context"
	"time"

	"sallyport.dev/control"
)

// Store is what sessions need of the database. Each method is one transaction. Changes are compare-and-sets on (id, epoch, state): a mismatch
// is [errs.Fenced], and nothing changed.
type Store interface {
	// Now is the store's time, in UTC.
	Now() time.Time
	// Policy returns the current policy; have itself when that is still current.
	Policy(ctx context.Context, have *control.Policy) (*control.Policy, error)
	// PutTicket stores a single-use owner ticket by its digest.
	PutTicket(ctx context.Context, t Ticket) error
	// OpenSession takes the ticket (once) and inserts the session, in one durable transaction. Errors: [errs.NotAllowed] when the ticket is unknown,
	// used or over; [errs.Conflict] when the generation is not the expected one.
	OpenSession(ctx context.Context, ticket control.Digest, s *control.Session, generation int64) error
	// ConfirmGate records the proof of a session's parent and opens the gate. From opening to open, or open to open with the same proof.
	ConfirmGate(ctx context.Context, c Confirmation) error
	// ResumeSession makes the next epoch of a session that is open, parked or opening at last, with state opening. Durable. Returns the new epoch.
	ResumeSession(ctx context.Context, id string, last int64, host string, facts Facts) (int64, error)
	// ParkSession marks a session parked. From open.
	ParkSession(ctx context.Context, id string, epoch int64) error
	// CloseSession ends a session for good; epoch 0 closes whatever epoch stands. Closing a closed session is no error. Durable.
	CloseSession(ctx context.Context, id string, epoch int64, by, reason string) error
	// SessionSeen records that a host still serves a session. It rides along and does not wait.
	SessionSeen(id string)

	// Session returns one session whole. Errors: [errs.NotFound].
	Session(ctx context.Context, id string) (*control.Session, error)
	// Sessions returns sessions without their bindings, newest first.
	Sessions(ctx context.Context, f Filter) ([]*control.Session, error)
}

// Ticket lets one sandbox be opened for one owner. Only its digest is stored.
type Ticket struct {
	Org      string
	Digest   control.Digest
	Owner    control.Person
	Profile  string
	Attended bool
	Local    bool      // issued over the control socket
	Until    time.Time // by the store's time
}

// Facts are what a host's driver says of a sandbox.
type Facts struct {
	Driver  string
	Closed  string // proven | asserted | no
	Build   string
	Bounds  string
	SameUID bool
}

// Confirmation is the gate's question to control.
type Confirmation struct {
	Session      string
	Epoch        int64
	Host         string
	Parent       string
	PolicyDigest control.Digest
}

// Filter selects sessions.
type Filter struct {
	Org    string
	Owner  control.Person
	Host   string
	States []control.SessionState // empty: all but closed
	IdleBy time.Time              // not zero: last seen before it
	Limit  int
}

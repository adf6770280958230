package call

import (
	"time"

	"sallyport.dev/control"
)

// Hosts is the pipeline's way back to the hosts' Links. The server implements it and finds the Link that serves the host now; what cannot be
// delivered is dropped: the host attaches again after it reconnected. No method blocks on a host.
type Hosts interface {
	// Journaled says that the record is in the journal: the host may unlink it.
	Journaled(to Address, digest control.Digest)
	Progress(to Address, p Progress)
	// Result hands over a whole result record of the relay, with the files that it names: the host publishes it once they are there. Errors:
	// [errs.Unreachable] when no Link of the host is up, [errs.Busy] when too much is on its way to the host. The result stays unread.
	Result(to Address, record []byte, files []*File) error
}

// Address is where a record came from.
type Address struct {
	Host    string // SPIFFE id
	Session string
	Epoch   int64
	Record  string
	// Digest is the record's, where the host names it with an attach: then a record that nobody knows any more (its admission was not durable, and the
	// power failed) is answered too.
	Digest control.Digest
}

// HostEvents is what the server calls for frames of hosts, after it checked that the frame's session belongs to the host's identity (the
// pipeline checks it again at admission). [Pipeline] implements it. No method blocks on the store or a worker.
type HostEvents interface {
	// Submit takes a record. waited is how long the host has had it.
	Submit(s Submission)
	// Attach asks for a record's state and result again.
	Attach(a Address)
	Cancel(a Address, why CancelWhy)
	// Refused says that the host refused a record itself.
	Refused(r Refusal)
	// Acknowledge says that the result's line is out.
	Acknowledge(a Address)
}

// Submission is a record as the host read it.
type Submission struct {
	Host    string
	Session string
	Epoch   int64
	Record  []byte
	Waited  time.Duration
}

// CancelWhy says who stopped waiting.
type CancelWhy string

// Reasons of a cancel.
const (
	CancelHarness  CancelWhy = "harness"  // notifications/cancelled
	CancelClosed   CancelWhy = "closed"   // pipe closed, SIGTERM
	CancelDeadline CancelWhy = "deadline" // says what is known, now
)

package call

import (
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/intent"
)

// Workers is the pipeline's way to the workers' Links. The server implements it. No method blocks on a worker: each queues one frame, or says
// that it did not. A nil error is no promise that the frame arrives.
type Workers interface {
	// Pick returns a live run of a pool that has room, of a worker that is not withdrawn. Errors: [errs.Unreachable] when none lives, [errs.Busy]
	// when none has room.
	Pick(pool string, withdrawn func(worker string) bool) (Run, error)
	// Submit hands over a signed intent. An error means that the frame was not queued: nothing was sent.
	Submit(run string, j Job) error
	// Go releases the bytes of a prepared intent. An error means that the frame was not queued, no more: the caller attests.
	Go(run, intent string) error
	// Attest asks what became of an intent; the answer comes as [Pipeline.Attested], and an outcome may follow it.
	Attest(run, intent string) error
	// Close ends an intent that has not gone.
	Close(run, intent, reason string)
	// Acknowledge lets the worker forget an outcome. It is called after the settle is committed.
	Acknowledge(run, intent string)
	// Live reports whether the run's Link is up now.
	Live(run string) bool
	// Dead reports whether the run is proven not to exist any more: the same worker (its key and state directory) came up with another run.
	Dead(worker, run string) bool
}

// Run is one process of a worker.
type Run struct {
	ID     string // the audience of intents
	Worker string // SPIFFE id
}

// Job is an intent with what travels beside it.
type Job struct {
	Intent    string // its id
	Encoded   []byte
	Signature []byte
	KeyID     string
	Beside    intent.Beside
	Sealed    control.Sealed
	Go        bool // an allowed read: dispatch at once
}

// Signer encodes an intent and authenticates it for a run: with the node's key, or for a read's call with the MAC of the run's Link.
type Signer interface {
	Sign(run string, in *intent.Intent) (encoded, signature []byte, keyID string, err error)
}

// WorkerEvents is what the server calls for frames of workers. [Pipeline] implements it. No method blocks; all are safe for concurrent use.
// Frames of one run must come in the order in which they were received.
type WorkerEvents interface {
	// RunUp says that a run's Link is up, first or again, and which intents it still keeps an outcome for.
	RunUp(r Run, open []string)
	// RunDown says that its Link is lost. The run may come back.
	RunDown(run string)
	Ready(run string, r Ready)
	Sent(run, intent string, bytes int64)
	Progressed(run, intent string, p Progress)
	Outcome(run string, o Outcome)
	Attested(run, intent string, a Attestation)
}

// Ready says that Prepare succeeded: no byte of the call has left.
type Ready struct {
	Intent   string
	Upstream []byte // sealed upstream session, old era only
	Took     time.Duration
}

// Progress is the upstream's own.
type Progress struct {
	Progress float64
	Total    float64 // 0: unknown
	Message  string
}

// Outcome is what one dispatch came to: facts, no verdict.
type Outcome struct {
	Intent    string
	Transport journal.Transport
	Bytes     int64 // application bytes written
	Status    int
	Failure   journal.Failure
	Body      []byte // exactly as received; chunks already joined
	Detail    string // for the log
	Upstream  []byte
	Challenge string // WWW-Authenticate of a 401 or 403
	// Redacted is the SHA-256 of the answer before the credential, which stood in it, was replaced; zero where Body is as received.
	Redacted control.Digest
}

// Attestation is a run's word on an intent.
type Attestation string

// Attestations.
const (
	NotStarted Attestation = "not_started" // never seen, or closed without Go: no byte left, and none will
	Running    Attestation = "running"
	Finished   Attestation = "finished" // an outcome follows
)

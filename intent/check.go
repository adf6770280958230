package intent

import (
	"time"

	"sallyport.dev/errs"
)

// Verdict is what a worker thinks of an intent.
type Verdict int

// Verdicts. Only Accepted may be prepared; every other one ends with nothing sent.
const (
	Accepted     Verdict = iota
	Foreign              // for another worker run or another pool
	Early                // not_before lies ahead
	Expired              // start_before has passed
	Mismatch             // what travels beside the intent is not what it binds
	Unsigned             // no known key, or a MAC where a signature is needed
	OtherVersion         // another protected version
)

var verdictWords = [...]string{"accepted", "foreign", "early", "expired", "mismatch", "unsigned", "other version"}

// String returns the verdict's word, for logs and metrics.
func (v Verdict) String() string {
	if v < 0 || int(v) >= len(verdictWords) {
		return "unknown"
	}
	return verdictWords[v]
}

// Err returns nil for Accepted, and for the others an error that says what to do. Codes: [errs.NotAllowed], [errs.ProtectedNumber].
func (v Verdict) Err() error {
	switch v {
	case Accepted:
		return nil
	case Foreign:
		return errs.New(errs.NotAllowed, "the intent is for another worker; nothing was sent")
	case Early:
		return errs.New(errs.NotAllowed, "the intent's time has not come; compare the clocks of control and worker; nothing was sent")
	case Expired:
		return errs.New(errs.NotAllowed, "the intent came after its start_before; compare the clocks of control and worker; nothing was sent")
	case Mismatch:
		return errs.New(errs.NotAllowed, "what came with the intent is not what was signed; nothing was sent")
	case OtherVersion:
		return errs.New(errs.ProtectedNumber, "the intent has another protected version; upgrade the older side; nothing was sent")
	default:
		return errs.New(errs.NotAllowed, "the intent is not signed by a known control node; nothing was sent")
	}
}

// Authenticity is how an intent's origin was proven.
type Authenticity int

// Ways to prove where an intent comes from.
const (
	NotAuthentic Authenticity = iota
	ByMAC                     // HMAC under the Link's exported key: for a read's call only
	BySignature               // Ed25519 of a control node
)

// Beside is what travels with an intent and is bound by a digest inside it. The sealed credential is not here: its associated data is
// compared with the intent when it is opened.
type Beside struct {
	Arguments []byte // Intent.Arguments
	Meta      []byte // Intent.Meta
	Tool      []byte // Intent.Schema: the reviewed tool's bytes
	Upstream  []byte // Intent.Upstream: the sealed upstream session
	TLS       []byte // Intent.TLS: a [Trust]
}

// Self is the worker that checks: its run, which is the audience of intents, and its pool.
type Self struct {
	Run  string
	Pool string
}

// Leeway is how far control's clock may lie ahead of the worker's. It never extends start_before.
const Leeway = 5 * time.Second

// Check decides whether the worker self may prepare in at now. It is pure; the order of the checks is the order of the verdicts' severity:
// who wrote it, for whom, what it binds, and only then when.
func Check(in *Intent, how Authenticity, beside Beside, self Self, now time.Time) Verdict {
	switch {
	case in.V != Protected:
		return OtherVersion
	case how == NotAuthentic:
		return Unsigned
	case how == ByMAC && (in.Kind != Call || in.Effect != Read):
		return Unsigned
	case in.Audience != self.Run || in.Pool != self.Pool:
		return Foreign
	case in.Arguments != Digest(beside.Arguments) || in.Meta != Digest(beside.Meta) ||
		in.Schema != Digest(beside.Tool) || in.Upstream != Digest(beside.Upstream) ||
		in.TLS != Digest(beside.TLS):
		return Mismatch
	case now.Add(Leeway).UnixMilli() < in.NotBefore:
		return Early
	}
	return CheckGo(in, now)
}

// CheckGo decides whether bytes may still leave at now: a Go after start_before is refused, and the intent is attested as not started.
func CheckGo(in *Intent, now time.Time) Verdict {
	if now.UnixMilli() > in.StartBefore {
		return Expired
	}
	return Accepted
}

package control

import (
	"time"

	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// Call is one request of an agent: one row of the journal. It is unique in (session, record); its id is derived from both ([CallID]), so that
// uniqueness needs no second index. Bodies (Arguments, Body) are sealed at rest by the store and are empty in lists.
type Call struct {
	Org          string
	ID           string
	Session      string
	Record       string // the relay's record id; "" for a retry that a person asked for
	RecordDigest Digest // SHA-256 of the record bytes as the host read them
	Epoch        int64  // the submitting epoch: recorded, never compared after admission
	Host         string // SPIFFE id of the host that submitted it
	Shim         string
	HarnessCall  string // a hint from the guest, never an authority
	Trace        string // traceparent of the guest; recorded, never sent upstream
	Progress     bool   // a progress token was given
	TimeoutMS    int64

	Owner          Person
	Profile        string
	ProfileVersion int64  // frozen in the session
	Name           string // the tool's name in the sandbox
	Connection     string // "" for a client tool
	Revision       int64  // of the connection, as bound
	Catalog        Digest // as bound
	Tool           string // the server's name
	Effect         Effect
	Repeat         bool // a lost read may be repeated
	Client         bool // answered by a person or the platform
	Subject        string
	Account        string
	Twin           Digest // of connection, account, tool, canonical arguments, owner, profile; zero for reads
	Arguments      []byte // exactly as the harness wrote them
	ArgsDigest     Digest // SHA-256 of Arguments
	Binding        Digest // binding digest that the decision is bound to
	RetryOf        string // the uncertain call that a person chose to retry
	RetriedBy      string // the call that superseded this one

	State     journal.State
	Attempt   int       // 0 before the first commit
	Lease     string    // the control run that drives it (I14)
	ExpiresAt time.Time // of a question or an approval; zero otherwise
	Authority Authority

	Intent        string // of the current attempt
	Worker        string // SPIFFE id of the worker of the current attempt
	Run           string // its run: the audience
	StartedAt     time.Time
	Rounds        int    // answers that were given to input_required
	RequestState  []byte // opaque to us, of the upstream's input_required; sealed at rest
	InputRequests []byte // what the upstream asked for, as it wrote it
	Answer        []byte // inputResponses of the coming attempt, as the person's form made them
	TaskHandle    []byte // of a working call

	Facts
	Code     errs.Code // why it ended, or ""
	Reason   string    // safe text: which rule, a person's reason
	Body     []byte    // the JSON-RPC message of the answer, exactly as received; or a client tool's CallToolResult
	Delivery journal.Delivery
	Gone     bool // its waiter is gone (cancelled, pipe closed)
	Cancel   bool // the harness asked to cancel after something was sent

	AdmittedAt time.Time
	DecidedAt  time.Time
	SettledAt  time.Time
	ResolvedBy Person
	Note       string
}

// Alias is a record that made no call of its own: it waits for another one (await_call), or asks for an earlier, equal one again. Its ID is
// [CallID] of its session and record, so that a record is journaled once whatever it makes.
type Alias struct {
	ID           string
	Session      string
	Record       string
	RecordDigest Digest
	Kind         string // await | resend | twin
	Call         string
}

// Facts stand beside the state, never collapsed into "success".
type Facts struct {
	Transport  journal.Transport
	Protocol   journal.Protocol
	ToolResult journal.ToolOutcome
	HTTPStatus int
	RPCCode    int64
	Failure    journal.Failure
	Bytes      int64 // application bytes written
}

// AuthorityKind says by what right a call runs.
type AuthorityKind string

// Authorities.
const (
	ByRule     AuthorityKind = "rule"     // an allowed read
	ByApproval AuthorityKind = "approval" // a person's decision
	ByGrant    AuthorityKind = "grant"    // a standing or session grant
)

// Authority is by what right a call runs: a rule, an approval (its question's id) or a given grant (its id).
type Authority struct {
	Kind AuthorityKind
	ID   string
}

// String is the form that stands in an intent: rule, approval:ID or grant:ID.
func (a Authority) String() string {
	if a.ID == "" {
		return string(a.Kind)
	}
	return string(a.Kind) + ":" + a.ID
}

// Step is one transition of a call, an audit record: digests and words only, never a body. The store sets At.
type Step struct {
	From    journal.State
	Event   journal.Event
	To      journal.State
	Attempt int    // after the step
	Actor   string // a control run, a person, a host, a worker
	Code    errs.Code
	Reason  string // safe text
	Digest  Digest // of what the step is about: record, binding, intent or body
	At      time.Time
}

// QuestionKind is what a person is asked.
type QuestionKind string

// Kinds of questions: one kind of row.
const (
	AskApproval  QuestionKind = "approval"
	AskClient    QuestionKind = "client"      // a client tool: the answer is its result
	AskInput     QuestionKind = "elicitation" // an upstream asked for more
	AskUncertain QuestionKind = "uncertain"   // was it done?
)

// QuestionState is where a question stands.
type QuestionState string

// States of a question.
const (
	QuestionOpen     QuestionState = "open"
	QuestionApproved QuestionState = "approved" // not used yet
	QuestionUsed     QuestionState = "used"     // by the barrier, once
	QuestionDenied   QuestionState = "denied"
	QuestionAnswered QuestionState = "answered" // client, elicitation
	QuestionResolved QuestionState = "resolved" // uncertain
	QuestionExpired  QuestionState = "expired"
	QuestionClosed   QuestionState = "closed" // voided, cancelled, or settled by late evidence
)

// Question is one question to people, about one call. What is shown is read from the call and the journal when a person looks; Binding is what
// their decision must name.
type Question struct {
	Org       string
	ID        string
	Kind      QuestionKind
	Call      string
	Session   string
	Owner     Person
	Profile   string
	Approvers []string // owner, group:NAME, a person; [owner] when empty
	Second    bool     // two distinct people
	NotOwner  bool
	Local     bool   // false: local persons may not decide (the agent could act as one)
	Binding   Digest // of what is shown
	Form      []byte // elicitation and client: the JSON Schema of the answer, or nil
	Text      string // safe text: which twins, what is uncertain, who asks
	State     QuestionState
	Decisions []Decision
	OpenedAt  time.Time
	ExpiresAt time.Time // zero: never (uncertain)
	ClosedAt  time.Time
}

// Verdict is what a person says to a question.
type Verdict string

// Verdicts.
const (
	Approve  Verdict = "approve"
	Refuse   Verdict = "deny"
	Answer   Verdict = "answer"   // client, elicitation: with bytes
	Done     Verdict = "done"     // uncertain: it happened
	NotDone  Verdict = "not-done" // uncertain: it did not happen
	RunAgain Verdict = "retry"    // uncertain: a new call of the same bytes, with its own decision
)

// Decision is one person's word on a question.
type Decision struct {
	Verdict Verdict
	By      Person
	Reason  string // reaches the model when it is a denial
	Binding Digest // the digest that was shown
	At      time.Time
}

// Package journal holds the call's state machine, its events and the outcome table, as data. It is pure: no clock, no store, no I/O.
// Design: docs/journal.md; every transition is a compare-and-set on (call, state, attempt, lease).
package journal

// State is where a call stands.
type State string

// States. Terminal ones end with nothing more to come but delivery; Uncertain waits for evidence or a person.
const (
	Admitted        State = "admitted"
	Refused         State = "refused"
	Asking          State = "asking"
	Approved        State = "approved"
	Denied          State = "denied"
	Cancelled       State = "cancelled"
	Expired         State = "expired"
	Voided          State = "voided"
	Failed          State = "failed" // nothing was sent; or a read was sent and its answer lost (Transport says which)
	Dispatching     State = "dispatching"
	Retrying        State = "retrying"
	Answered        State = "answered"
	Rejected        State = "rejected"
	Uncertain       State = "uncertain"
	InputWanted     State = "input_wanted"
	Working         State = "working"
	Abandoned       State = "abandoned"
	ResolvedDone    State = "resolved_done"
	ResolvedNotDone State = "resolved_not_done"
	Superseded      State = "superseded"
)

// Transport is how far the bytes of an attempt came.
type Transport string

// Transports.
const (
	TransportNone     Transport = ""
	TransportNotSent  Transport = "not_sent"
	TransportSent     Transport = "sent"
	TransportAnswered Transport = "answered"
)

// Protocol is what kind of answer came.
type Protocol string

// Protocols.
const (
	ProtocolNone   Protocol = ""
	ProtocolResult Protocol = "result"
	ProtocolError  Protocol = "error"       // a JSON-RPC error
	ProtocolStatus Protocol = "http_status" // an HTTP status without a JSON-RPC answer
)

// ToolOutcome is what the tool itself said.
type ToolOutcome string

// Tool outcomes.
const (
	ToolNone  ToolOutcome = ""
	ToolOK    ToolOutcome = "ok"
	ToolError ToolOutcome = "is_error"
)

// Delivery is how far a result came towards the model.
type Delivery string

// Deliveries.
const (
	DeliveryNone         Delivery = "none"
	DeliveryPublished    Delivery = "published"
	DeliveryAcknowledged Delivery = "acknowledged"
)

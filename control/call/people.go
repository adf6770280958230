package call

import (
	"sallyport.dev/control"
	"sallyport.dev/control/inbox"
	"sallyport.dev/errs"
)

// ResolveRequest is a person's word on an uncertain call.
type ResolveRequest struct {
	Call    string
	Verdict control.Verdict // done, not-done, retry
	Actor   inbox.Actor
	Note    string // needed: what was found
	// Override says, in words, that the run that had the call is neither attested nor proven dead, and that the person knows it.
	Override bool
}

// ExplainRequest asks what would be decided. Call explains a call of the journal; otherwise Profile, Tool (connection/tool, or the name in the
// sandbox) and Arguments are a call that nobody made.
type ExplainRequest struct {
	Call       string
	Profile    string
	Owner      control.Person
	Tool       string
	Arguments  []byte
	Unattended bool
}

// Explanation is what would be decided, and why.
type Explanation struct {
	Verdict Ruling // allow, grant, ask, refuse
	Code    errs.Code
	Message string   // what a model would read of it
	Steps   []string // each rule that was looked at, and what it said
}

// Ruling is what the rules say to a call.
type Ruling string

// Rulings, from the loosest to the strictest.
const (
	RulingAllow  Ruling = "allow"  // a read
	RulingGrant  Ruling = "grant"  // a write that a standing or session grant covers
	RulingAsk    Ruling = "ask"    // a person decides
	RulingRefuse Ruling = "refuse" //
)

package inbox

import (
	"context"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// Store is what the inbox needs of the database. Each method is one transaction.
type Store interface {
	// Now is the store's time, in UTC.
	Now() time.Time
	// Question returns one question. Errors: [errs.NotFound].
	Question(ctx context.Context, id string) (*control.Question, error)
	// Questions returns questions by a filter, oldest first.
	Questions(ctx context.Context, f Filter) ([]*control.Question, error)
	// QuestionSubject returns what a question is about, bodies included: its call, the twins, the last call of the same tool in the session that ended,
	// what was approved before in the session, and the uncertain calls of the same owner, connection and tool. Lists hold no bodies, at most 20 each.
	QuestionSubject(ctx context.Context, question string) (*Subject, error)
	// Decide adds one decision: it reads question and call under lock, applies [Tally], and writes question, call (state, lease unchanged,
	// ExpiresAt, body of a client tool's answer), the step, and the session grant where one is given. Durable. It checks the store's own time.
	Decide(ctx context.Context, d *Decide) (Decided, error)
}

// Filter selects questions.
type Filter struct {
	Org     string
	Kinds   []control.QuestionKind
	States  []control.QuestionState // empty: open
	Session string
	Owner   control.Person
	Call    string
	Limit   int
}

// Subject is what a person looks at.
type Subject struct {
	Question  *control.Question
	Call      *control.Call
	Last      *control.Call // the last ended call of the same tool in the session, with its arguments; nil for none
	Before    []*control.Call
	Twins     []*control.Call
	Uncertain []*control.Call
}

// Decide is one decision as the inbox checked it.
type Decide struct {
	Question string
	Decision control.Decision // At is set by the store
	Actor    Actor
	Answer   []byte              // client and elicitation: the exact bytes
	Bind     control.Digest      // elicitation: the binding of the attempt that the answer leads to; becomes the call's
	Grant    *control.GivenGrant // a session grant that comes with an approval
	Grace    time.Duration       // an approved call may run at least this long after the decision
}

// Decided is what a decision came to.
type Decided struct {
	Outcome  Outcome
	Question *control.Question // as it stands now
	Call     string
}

// Outcome is what a decision did.
type Outcome string

// Outcomes. All but Counted and Closes change nothing.
const (
	Counted   Outcome = "counted"   // the first of two approvals: still open
	Closes    Outcome = "closes"    // decided
	Too       Outcome = "too_late"  // decided by somebody else, or closed
	Expired   Outcome = "expired"   // the store's time is over its end
	Mismatch  Outcome = "mismatch"  // the digest that was shown is not the question's
	Forbidden Outcome = "forbidden" // this person may not decide it
	Twice     Outcome = "twice"     // the second approver must be another person
	Unfit     Outcome = "unfit"     // a verdict that this kind of question does not take
)

// Code is the error code of an outcome that changed nothing, or "".
func (o Outcome) Code() errs.Code {
	switch o {
	case Too, Mismatch:
		return errs.Conflict
	case Expired:
		return errs.ApprovalExpired
	case Forbidden, Twice:
		return errs.NotAllowed
	case Unfit:
		return errs.Invalid
	}
	return ""
}

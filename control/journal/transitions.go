package journal

import (
	"slices"

	"sallyport.dev/errs"
)

// Event is what moves a call from one state to the next.
type Event string

// Events.
const (
	OnRecord         Event = "record"           // a record was journaled
	OnRefuse         Event = "refuse"           // policy, schema, limit
	OnAsk            Event = "ask"              // a person must decide
	OnApprove        Event = "approve"          // on the digest that was shown
	OnDeny           Event = "deny"             //
	OnCancel         Event = "cancel"           // the harness, or a closed pipe where the profile says so
	OnExpire         Event = "expire"           // nobody decided, or the record's time was over before admission
	OnVoid           Event = "void"             // revocation, tightening, drift, a closed session, any member of the binding changed
	OnPrepareFailed  Event = "prepare_failed"   // nothing was sent
	OnCommit         Event = "commit"           // the barrier: attempt + 1
	OnAnswer         Event = "answer"           // a complete, valid answer; isError included
	OnReject         Event = "reject"           // the server says that it did not run
	OnUnsent         Event = "unsent"           // zero application bytes, proven; nothing more is tried
	OnRetry          Event = "retry"            // unsent, or a read safe to repeat was lost; attempts left
	OnLost           Event = "lost"             // sent, no complete answer
	OnInput          Event = "input_required"   // the server asks for more
	OnTask           Event = "task"             // the server gave a task handle
	OnPersonAnswer   Event = "person_answer"    // the answer to a client tool, or to what the server asked
	OnAbandon        Event = "abandon"          // the server asked and got no answer
	OnResolveDone    Event = "resolve_done"     // a person: it happened
	OnResolveNotDone Event = "resolve_not_done" // a person: it did not
	OnResolveRetry   Event = "resolve_retry"    // a person: a new call takes its place
	OnQuarantine     Event = "quarantine"       // the store is older than what others remember
)

// Guard is what must hold beside (from, event) for a row of the table to apply.
type Guard string

// Guards.
const (
	Always       Guard = ""
	OfWrite      Guard = "write"
	OfRead       Guard = "read"
	AttemptsLeft Guard = "attempts_left" // and the attempt was unsent, or is a read that is safe to repeat
	RoundsLeft   Guard = "rounds_left"   // fewer than MaxRounds answers were given
)

// Bounds of the state machine.
const (
	MaxRounds   = 3 // answers to input_required
	MaxAttempts = 5 // dispatches of one call; the default is 2
)

// Transition is one row of the table.
type Transition struct {
	From  State
	Event Event
	Guard Guard
	To    State
}

// None is the state of a call that has no row yet.
const None State = ""

// Table is the call's state machine. What is not in it does not happen.
var Table = build()

func build() []Transition {
	var t []Transition
	add := func(event Event, guard Guard, to State, from ...State) {
		for _, f := range from {
			t = append(t, Transition{From: f, Event: event, Guard: guard, To: to})
		}
	}
	add(OnRecord, Always, Admitted, None)
	add(OnRefuse, Always, Refused, Admitted)
	add(OnAsk, Always, Asking, Admitted)
	add(OnApprove, Always, Approved, Asking)
	add(OnDeny, Always, Denied, Asking)
	add(OnPersonAnswer, Always, Answered, Asking) // a client tool
	add(OnCancel, Always, Cancelled, Admitted, Asking, Approved, Retrying)
	add(OnExpire, Always, Expired, Admitted, Asking, Approved, Retrying)
	add(OnVoid, Always, Voided, Admitted, Asking, Approved, Retrying)
	add(OnPrepareFailed, Always, Failed, Admitted, Approved, Retrying)
	add(OnCommit, Always, Dispatching, Admitted, Approved, Retrying)

	add(OnRetry, AttemptsLeft, Retrying, Dispatching)
	// Uncertain takes the same attempt's own late evidence, while nobody resolved it.
	add(OnAnswer, Always, Answered, Dispatching, Working, Uncertain)
	add(OnReject, Always, Rejected, Dispatching, Working, Uncertain)
	add(OnUnsent, Always, Failed, Dispatching, Uncertain)
	add(OnInput, Always, InputWanted, Dispatching, Uncertain)
	add(OnTask, Always, Working, Dispatching, Uncertain)
	add(OnLost, OfWrite, Uncertain, Dispatching, Working)
	add(OnLost, OfRead, Failed, Dispatching, Working)

	add(OnPersonAnswer, RoundsLeft, Retrying, InputWanted)
	add(OnAbandon, Always, Abandoned, InputWanted)

	add(OnResolveDone, Always, ResolvedDone, Uncertain)
	add(OnResolveNotDone, Always, ResolvedNotDone, Uncertain)
	add(OnResolveRetry, Always, Superseded, Uncertain)

	// In the lost history an unfinished write may have been decided and sent: only a person knows (I6).
	unfinished := []State{Admitted, Asking, Approved, Dispatching, Retrying, InputWanted, Working}
	add(OnQuarantine, OfWrite, Uncertain, unfinished...)
	add(OnQuarantine, OfRead, Voided, unfinished...)
	return t
}

// Situation is what guards look at.
type Situation struct {
	Write       bool
	Attempt     int  // that was made
	MaxAttempts int  // of this call
	MayRepeat   bool // the attempt was unsent, or is a read that is safe to repeat
	Rounds      int
}

func (s Situation) holds(g Guard) bool {
	switch g {
	case Always:
		return true
	case OfWrite:
		return s.Write
	case OfRead:
		return !s.Write
	case AttemptsLeft:
		return s.MayRepeat && s.Attempt < min(s.MaxAttempts, MaxAttempts)
	case RoundsLeft:
		return s.Rounds < MaxRounds
	}
	return false
}

type edge struct {
	from  State
	event Event
}

var edges = func() map[edge][]Transition {
	m := map[edge][]Transition{}
	for _, t := range Table {
		m[edge{t.From, t.Event}] = append(m[edge{t.From, t.Event}], t)
	}
	return m
}()

// Next returns the state that event leads to. Errors: [errs.Conflict] when the table has no such row in this situation.
func Next(from State, event Event, s Situation) (State, error) {
	for _, t := range edges[edge{from, event}] {
		if s.holds(t.Guard) {
			return t.To, nil
		}
	}
	return from, errs.Newf(errs.Conflict, "a call that is %s does not take %s", from, event)
}

// Legal reports whether the table has a row (from, event, to), whatever its guard: the store's last check of what it is told to write.
func Legal(from State, event Event, to State) bool {
	return slices.ContainsFunc(edges[edge{from, event}], func(t Transition) bool { return t.To == to })
}

// Final reports whether nothing but delivery can follow.
func (s State) Final() bool {
	switch s {
	case Refused, Denied, Cancelled, Expired, Voided, Failed, Answered, Rejected, Abandoned, ResolvedDone, ResolvedNotDone, Superseded:
		return true
	}
	return false
}

// Valid reports whether s is a state of the table.
func (s State) Valid() bool { return s.Final() || s.Unfinished() || s == Uncertain }

// Unfinished reports whether somebody must still drive the call.
func (s State) Unfinished() bool {
	switch s {
	case Admitted, Asking, Approved, Dispatching, Retrying, InputWanted, Working:
		return true
	}
	return false
}

// Waits reports whether the state waits for a person: leaving it closes the call's open question.
func (s State) Waits() bool { return s == Asking || s == InputWanted || s == Uncertain }

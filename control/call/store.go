package call

import (
	"context"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// Store is what the pipeline needs of the database. Each method is one transaction. A single writer may run many of them in one commit; a
// method returns only after its own commit, and, where Durable is set, after the commit is on stable storage.
//
// Every change of a call is a compare-and-set on (id, state, attempt, lease): zero rows means [Fenced], and the caller stops (I14). A method
// that refuses changes nothing: no counter, no row (I15). A returned error is a failure of the store itself and means that the outcome is
// unknown: the caller reads the row again, and never sends anything on the strength of it.
//
// A call that leaves a state that waits for a person ([journal.State.Waits]) closes its open question in the same transaction, as
// [QuestionEnd] says.
type Store interface {
	// Now is the store's time, in UTC. It is cheap and needs no transaction.
	Now() time.Time
	// Policy returns the current policy; have itself when that is still current (no allocation, no I/O where the store can tell).
	Policy(ctx context.Context, have *control.Policy) (*control.Policy, error)

	// Renew makes or extends the lease of a control run. Errors: [errs.Fenced] when another run took its calls.
	Renew(ctx context.Context, run string, ttl time.Duration) error
	// Adopt moves to run the lease of up to limit calls whose state is unfinished and whose run is dead, and returns them whole. A store that
	// one process holds alone knows that every other run is dead; others go by the lease's end.
	Adopt(ctx context.Context, run string, limit int) ([]*control.Call, error)

	// Admit inserts the one row of (session, record).
	Admit(ctx context.Context, a *Admission) (Admitted, error)
	// Attach journals a record that makes no call of its own. epoch is checked as for a refused admission. For [Attaches] and [Conflicts] the
	// returned call is the one that the record made, or stands for, already; for [Done] the alias's call. Not durable.
	Attach(ctx context.Context, a *control.Alias, epoch int64) (Result, *control.Call, error)
	// Alias returns what a record stands for. Errors: [errs.NotFound].
	Alias(ctx context.Context, id string) (*control.Alias, error)
	// Commit is the barrier: to dispatching, attempt + 1.
	Commit(ctx context.Context, b *Barrier) (Result, error)
	// Advance is every other step: settle, refuse, ask, cancel, expire, void, retry, abandon.
	Advance(ctx context.Context, s *Advance) (Result, error)
	// Resolve ends an uncertain call by a person's word, and inserts the call that takes its place when there is one. Durable.
	Resolve(ctx context.Context, r *Resolution) (Result, error)
	// Note appends lines to the journal of a call without changing its state.
	Note(ctx context.Context, n Note) error
	// Deliver records how far results came. It does not wait: it rides along with the next commit, and may be lost in a crash (a delivery only
	// relaxes). It never lowers a delivery.
	Deliver(d ...Delivered)

	// Call returns one call whole. Errors: [errs.NotFound].
	Call(ctx context.Context, id string) (*control.Call, error)
	// ByIntent returns the call whose current attempt has this intent. Errors: [errs.NotFound].
	ByIntent(ctx context.Context, intent string) (*control.Call, error)
	// OpenCalls returns, whole, the calls of a session that are unfinished, uncertain, or ended and not acknowledged; oldest first.
	OpenCalls(ctx context.Context, session string) ([]*control.Call, error)
	// Twins returns the writes of this twin digest that are unfinished, uncertain, rejected, or answered and not acknowledged; newest first,
	// without bodies. mark grows with every insert of such a row.
	Twins(ctx context.Context, twin control.Digest) (twins []*control.Call, mark int64, err error)
	// Suspended reports whether a write of this tool is uncertain for this owner: its given grants do not count then.
	Suspended(ctx context.Context, owner control.Person, connection, tool string) (bool, error)
	// Usage returns how much of each counter is taken in its current window.
	Usage(ctx context.Context, counters []Take) ([]Usage, error)
	// Upstream returns the sealed upstream session of (session, connection), or nil; PutUpstream stores it (nil removes).
	Upstream(ctx context.Context, session, connection string) ([]byte, error)
	PutUpstream(ctx context.Context, session, connection string, sealed []byte) error
	// Steps returns a call's journal, oldest first.
	Steps(ctx context.Context, id string) ([]control.Step, error)
	// ListCalls returns calls by a filter, newest first, without bodies, and a cursor for the next page ("" at the end).
	ListCalls(ctx context.Context, f Filter) (calls []*control.Call, next string, err error)
	// PurgeCall forgets the bodies of a call (arguments, answer), keeping every digest. Only ended calls.
	PurgeCall(ctx context.Context, id string, by control.Person) error
}

// Result is what a compare-and-set came to.
type Result string

// Results.
const (
	Done      Result = "done"
	Fenced    Result = "fenced"    // state, attempt or lease are not as named: stop
	Stale     Result = "stale"     // another policy generation: evaluate again
	Closed    Result = "closed"    // the session is closed
	NotOpen   Result = "not_open"  // admission: the session is not open, or this is not its epoch
	Changed   Result = "changed"   // the credential is another, or not usable any more
	Limited   Result = "limited"   // a counter is used up
	Suspends  Result = "suspended" // a write of the tool is uncertain, so a given grant does not count
	Unusable  Result = "unusable"  // the approval is used, expired, or of another binding; the grant ended
	Busy      Result = "busy"      // too many open questions in this session
	Attaches  Result = "attaches"  // the same record bytes are journaled already
	Conflicts Result = "conflicts" // other bytes are journaled under this record id; the attempt was noted
	Twinned   Result = "twinned"   // a twin was inserted since the mark: look again
)

// Guard is what a barrier (or an admission) read and rests on. The store checks it with [Guard.Check] under locks that a change of any of it
// takes exclusively.
type Guard struct {
	Generation int64 // of the policy that was evaluated
	Session    string
	Epoch      int64 // over 0: the session must be open at this epoch (admission). 0: it must not be closed (barrier)
	Credential CredentialRef
	// Suspending: refuse while a write of (Owner, Connection, Tool) is uncertain, this call aside. Set where the authority is a given grant.
	Suspending bool
	Owner      control.Person
	Connection string
	Tool       string
	Takes      []Take
}

// CredentialRef names the credential that the dispatch will use. Without Connection nothing is checked.
type CredentialRef struct {
	Connection string
	Subject    string
	Version    int64
}

// Take is one counter that a commit takes from. Windows are aligned: the window of now is now truncated to Per. Per 0: one window for ever.
type Take struct {
	Key        string
	Per        time.Duration
	Calls      int64 // at most; 0: no bound on calls
	Bytes      int64 // at most; 0: no bound on bytes
	AddBytes   int64 // argument bytes of this call
	ExpectUsed int64 // calls used when a condition looked; -1: nobody looked
}

// Usage is what a counter holds in its window.
type Usage struct {
	Calls int64
	Bytes int64
}

// World is what a store found when it checked a guard.
type World struct {
	Generation      int64
	Quarantine      bool
	Session         control.SessionState
	Epoch           int64
	CredentialFound bool
	Version         int64
	Credential      control.CredentialState
	Uncertain       bool // a write of (owner, connection, tool) other than this call is uncertain; only needed where Suspending
	Usage           []Usage
}

// Check says whether the guard holds in the world. It is pure; both stores call it.
func (g *Guard) Check(w World) Result {
	switch {
	case w.Quarantine, g.Generation != w.Generation:
		return Stale
	case w.Session == control.SessionClosed || w.Session == "":
		return Closed
	case g.Epoch > 0 && (w.Session != control.SessionOpen || w.Epoch != g.Epoch):
		return NotOpen
	}
	if g.Credential.Connection != "" {
		usable := w.CredentialFound && (w.Credential == control.CredentialGood || w.Credential == control.CredentialExpiring)
		if !usable || w.Version != g.Credential.Version {
			return Changed
		}
	}
	if g.Suspending && w.Uncertain {
		return Suspends
	}
	for i, t := range g.Takes {
		u := w.Usage[i]
		if t.ExpectUsed >= 0 && u.Calls != t.ExpectUsed {
			return Stale
		}
		if t.Calls > 0 && u.Calls+1 > t.Calls || t.Bytes > 0 && u.Bytes+t.AddBytes > t.Bytes {
			return Limited
		}
	}
	return Done
}

// Window is the start of the counter's window at now, in Unix milliseconds; 0 for a counter that never starts anew.
func (t Take) Window(now time.Time) int64 {
	if t.Per <= 0 {
		return 0
	}
	per := max(t.Per.Milliseconds(), 1)
	ms := now.UnixMilli()
	return ms - ms%per
}

// Admission is the one insert of a call. Call.State says how far it comes in this one transaction: refused, failed, expired or voided (it
// ends here), admitted (a write that a grant covers), asking (with Question), or dispatching (an allowed read: this is its barrier; attempt 1,
// intent, run and authority are set in Call). Steps are the transitions from none to Call.State, in order.
//
// For asking, dispatching and admitted the guard is checked; where the call ends only Session and Epoch are. The counters of Guard.Takes are
// taken only by dispatching. A record that is an alias already is Attaches or Conflicts, as a row is.
type Admission struct {
	Call     *control.Call
	Steps    []control.Step
	Guard    Guard
	Question *control.Question
	MaxOpen  int   // open questions of the session that are too many for one more
	TwinMark int64 // for writes: what Twins returned; a newer insert of the same twin is Twinned
	Durable  bool
}

// Admitted is what an admission came to. Earlier is set for Attaches and Conflicts: the row that stands, or that the record stands for, whole.
type Admitted struct {
	Result  Result
	Earlier *control.Call
}

// Barrier commits one attempt of a call. Binding must be the call's. The call's ExpiresAt, where it has one, must not be over by the store's
// time. With an approval as authority its question must be of this call: an approval bound to Binding, approved for the first attempt (and used
// by it), used for a later one; or an answered elicitation, for a later one. With a given grant as authority it must be neither revoked,
// suspended nor over.
type Barrier struct {
	Call      string
	From      journal.State
	Attempt   int // before
	Lease     string
	Guard     Guard // Takes only for the first attempt: the counter is not taken again
	Binding   control.Digest
	Authority control.Authority
	Subject   string
	Account   string
	Intent    string
	Worker    string
	Run       string
	Step      control.Step // Digest: of the intent's bytes
	Durable   bool         // every write
}

// Advance is one compare-and-set. Zero members of Set leave the row as it is.
type Advance struct {
	Call     string
	From     journal.State
	Attempt  int
	Lease    string
	NewLease string // adoption by a resolver or a late witness; "" keeps it
	Step     control.Step
	Set      Set
	Question *control.Question // opened with this step
	MaxOpen  int               // 0: not checked
	Durable  bool
}

// Set is what a step writes beside the state. Pointers and slices that are nil leave the column as it is; an empty slice that is not nil clears it.
type Set struct {
	Facts         *control.Facts
	Body          []byte
	Code          *errs.Code
	Reason        *string
	Delivery      journal.Delivery
	ExpiresAt     *time.Time
	Binding       *control.Digest
	Authority     *control.Authority
	Subject       *string
	Account       *string
	RequestState  []byte
	InputRequests []byte
	Answer        []byte
	TaskHandle    []byte
	Rounds        *int
	Gone          *bool
	Cancel        *bool
}

// Resolution is a person's word on an uncertain call.
type Resolution struct {
	Call     string
	Attempt  int
	By       control.Person
	Note     string
	Override string // the words of an override, or ""
	Step     control.Step
	// Retry, for superseded: the new call, its steps and its question, as for Admission (its guard too).
	Retry *Admission
}

// Notes that say that an answer was changed on its way.
const (
	NoteRedacted = "redacted" // the worker took the credential out; the digest is of what the server sent
	NoteCut      = "cut"      // it is too long for its reader, who gets less, and files; the digest is of what was handed over
)

// Note is a line without a transition: a conflict of bytes, a same-id mismatch, a cancel that came too late, a recorded answer given again.
type Note struct {
	Call   string
	Event  string // conflict, same_id_mismatch, cancel_requested, attached, answered_again, not_prepared, witness, NoteRedacted, NoteCut
	Actor  string
	Reason string
	Digest control.Digest
	Set    Set // Gone and Cancel only
}

// Delivered is how far a result came.
type Delivered struct {
	Call     string
	Delivery journal.Delivery
}

// Filter selects calls for people.
type Filter struct {
	Org        string
	Session    string
	Owner      control.Person
	Profile    string
	Connection string
	Tool       string
	States     []journal.State
	IDPrefix   string // the beginning of an id, as a person writes it
	Since      time.Time
	Limit      int // 1 to 500
	Cursor     string
}

// QuestionEnd is what becomes of the open (or approved) question of a call that leaves a state that waits, or ends before its approval was used.
func QuestionEnd(event journal.Event) control.QuestionState {
	switch event {
	case journal.OnApprove:
		return control.QuestionApproved
	case journal.OnDeny:
		return control.QuestionDenied
	case journal.OnPersonAnswer:
		return control.QuestionAnswered
	case journal.OnResolveDone, journal.OnResolveNotDone, journal.OnResolveRetry:
		return control.QuestionResolved
	case journal.OnCommit:
		return control.QuestionUsed
	case journal.OnExpire:
		return control.QuestionExpired
	}
	return control.QuestionClosed
}

package revocation

import (
	"context"
	"time"

	"sallyport.dev/control"
)

// Store is what switches and the store's own history need of the database.
type Store interface {
	// Now is the store's time, in UTC.
	Now() time.Time
	// Throw inserts a switch, and for a credential or a session also marks the row (revoked, closed). It takes the policy's lock exclusively and
	// makes the next generation; what commits after it sees it (I9). Durable.
	Throw(ctx context.Context, s *control.Switch) error
	// Restore ends switches of (kind, name). It returns how many. Durable; makes the next generation.
	Restore(ctx context.Context, kind control.SwitchKind, name string, by control.Person) (int, error)
	// Switches returns those in force at now, and with ended also those that are over.
	Switches(ctx context.Context, ended bool) ([]control.Switch, error)
	// Impact counts what a switch would hit now.
	Impact(ctx context.Context, kind control.SwitchKind, name string) (Impact, error)
	// OpenIntents returns the attempts that are out (dispatching or working) and would be hit, to be closed at the workers where no byte left.
	OpenIntents(ctx context.Context, kind control.SwitchKind, name string) ([]OpenIntent, error)

	// History returns what the store is: its incarnation and its count of durable commits.
	History(ctx context.Context) (History, error)
	// Remember takes what somebody else (a host, a worker) remembers of the store, incarnation and counter, and enters quarantine when that is more
	// than the store knows: a higher counter of this incarnation, or an incarnation that is neither this one nor a past that AcceptRestore accepted.
	// It reports whether the store is in quarantine now. who is safe text.
	Remember(ctx context.Context, who string, seen History) (bool, error)
	// Quarantine marks the store as older than what others remember: unfinished writes become uncertain (a question each), unfinished reads
	// voided, other open questions closed, given grants suspended, sessions closed, credentials marked check. One durable transaction.
	Quarantine(ctx context.Context, why string) (Impact, error)
	// AcceptRestore leaves quarantine under a new incarnation: given grants count again, credentials stay marked until they are tested. Durable.
	AcceptRestore(ctx context.Context, by control.Person, note string) (History, error)
}

// Impact is what a switch or a quarantine hits.
type Impact struct {
	Sessions    int
	Calls       int // unfinished
	InFlight    int // dispatching or working: not stopped, their answers are awaited
	Questions   int
	Grants      int
	Credentials int
}

// OpenIntent is an attempt that is out.
type OpenIntent struct {
	Call   string
	Intent string
	Run    string
}

// History is which history the store is in.
type History struct {
	Incarnation string
	Counter     int64
	Quarantine  string // why, or ""
}

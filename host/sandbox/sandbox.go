// Package sandbox is what the host knows about sandboxes: what it asks of a driver, what a driver says about itself, and which parts of
// the machine may be shown inside.
//
// A driver makes one kind of sandbox. Every sandbox boots shut: its first process waits until the host opens its gate (package gate), and
// a sandbox that could not be verified is torn down. What a sandbox sees is an allowlist; nothing is shown because it was there.
package sandbox

import (
	"context"
	"os"
	"time"
)

// Closed says what is known about a sandbox's network.
type Closed string

// What is known about a sandbox's network. Only [Proven] may ask for a write without the profile's consent.
const (
	Proven   Closed = "proven"   // the host saw the namespace: no interface but lo
	Asserted Closed = "asserted" // a provider says so
	Open     Closed = "no"       // nothing closes it
)

// Level says what enforces one bound of a sandbox.
type Level string

// Levels, the stronger first.
const (
	Cgroup Level = "cgroup" // the kernel bounds the sandbox as a whole
	Rlimit Level = "rlimit" // each process is bounded by itself
	None   Level = "none"
)

// Levels says what enforces each bound of a sandbox.
type Levels struct {
	Memory Level `json:"memory"`
	PIDs   Level `json:"pids"`
	CPU    Level `json:"cpu"`
}

// Summary is the level that memory and processes both reach: what approvals and doctor show. A processor limit slows, it does not protect.
func (l Levels) Summary() Level {
	switch {
	case l.Memory == Cgroup && l.PIDs == Cgroup:
		return Cgroup
	case l.Memory == None && l.PIDs == None:
		return None
	default:
		return Rlimit
	}
}

// Capabilities are what a driver promises. They are data: a policy compares them, nothing asks for a driver by name.
type Capabilities struct {
	Closed   Closed `json:"closed"`
	Exec     bool   `json:"exec"`      // a second command can run in a live sandbox
	Park     bool   `json:"park"`      // it can be stopped with its state on disk and started again
	OwnUID   bool   `json:"own_uid"`   // the agent is never the user that runs the host
	Terminal bool   `json:"terminal"`  // it can have a terminal
	TwoMount bool   `json:"two_mount"` // in/ is read-only inside: a result cannot be forged
}

// Facts are what stands about one prepared sandbox.
type Facts struct {
	Driver string `json:"driver"`
	Closed Closed `json:"closed"`
	Levels Levels `json:"levels"`
	// GuestUID and GuestGID own what the guest writes, as the host sees it: the owner of every honest record in out/.
	GuestUID int `json:"guest_uid"`
	GuestGID int `json:"guest_gid"`
	// SameUID: the agent runs as the user of the host and outside a sandbox, so a local approval could be its own.
	SameUID bool `json:"same_uid"`
	// Workdir is the workspace's folder inside, or HOME where there is none.
	Workdir string `json:"workdir"`
	// Notes say in plain words what could not be had.
	Notes []string `json:"notes,omitempty"`
}

// Process is how one running sandbox is known to the kernel. Numbers are those of the host's own namespaces.
type Process struct {
	PID    int    `json:"pid"`    // the first process of the sandbox (0: none is known)
	Start  uint64 `json:"start"`  // its start time in clock ticks since boot: with PID it names one process for ever
	Outer  int    `json:"outer"`  // the driver's own process around it, child of the supervisor
	NetNS  string `json:"net_ns"` // device:inode of its network namespace
	PIDNS  string `json:"pid_ns"` // device:inode of its process namespace, "" where it has none of its own
	Cgroup string `json:"cgroup"` // its first control group, "" where there is none
}

// Stdio is what a process inside gets for its standard streams. Files are handed over as they are; the caller's own terminal must not be
// among them.
type Stdio struct {
	In, Out, Err *os.File
}

// Command is a further command in a live sandbox.
type Command struct {
	Args []string // Args[0] is looked up inside
	Env  []string // in addition to the sandbox's own
	Dir  string   // "" for the workspace
}

// Exit is how a process ended.
type Exit struct {
	Code   int       // 128+n where signal n ended it
	Signal os.Signal // nil: it returned
	Ran    bool      // false: the sandbox failed before its command started
	Detail string    // what the driver printed when it failed; for the log
}

// Stream is a further command that runs in a sandbox.
type Stream interface {
	// Signal sends a signal to it.
	Signal(os.Signal) error
	// Wait returns once it ended.
	Wait() (Exit, error)
}

// Instance is one sandbox. Its methods are called by one goroutine, but for Wait, Signal and Exec, which any goroutine may call.
//
// Start and Resume boot it shut; Stop and Park end every process in it and return nil only when none is left; Destroy also takes back
// what Prepare made. The order is a table: see [Next].
type Instance interface {
	Facts() Facts
	Start(ctx context.Context, stdio Stdio) (Process, error)
	Exec(ctx context.Context, c Command, stdio Stdio) (Stream, error)
	Signal(os.Signal) error
	Wait() (Exit, error)
	Stop(ctx context.Context, grace time.Duration) error
	Park(ctx context.Context, grace time.Duration) error
	Resume(ctx context.Context, stdio Stdio) (Process, error)
	Destroy(ctx context.Context) error
	// Remarks says, after Stop, what a person should look at: names in the workspace that programs outside obey and that changed.
	Remarks() []string
}

// Driver makes one kind of sandbox. Its methods may be called concurrently.
type Driver interface {
	Name() string
	Capabilities() Capabilities
	// Check says what this machine lacks for the driver, without changing anything.
	Check(ctx context.Context, where Where) []Finding
	// Owner returns the user and group, as the host sees them, of everything in the sandboxes of a session, and makes HOME below the
	// session's folder for them. It is asked before the relay's folders are made, because the writable ones belong to that user too; a
	// session keeps its user for life. Errors: [errs.Unavailable].
	Owner(dir string) (uid, gid int, err error)
	// Prepare checks a plan and makes what the sandbox needs on disk. Nothing runs yet. An error leaves nothing behind.
	Prepare(ctx context.Context, plan Plan) (Instance, error)
	// Recover ends what is left of the sandbox in a session's folder after its supervisor died, and returns nil only when nothing of it
	// runs. It is safe to repeat.
	Recover(ctx context.Context, dir string) error
	// Reach finds the sandbox that runs in a session's folder, from any process of the host's user; the caller closes what it returns.
	// Errors: [errs.NotFound] where none runs.
	Reach(dir string) (Reached, error)
}

// Reached is a live sandbox as somebody other than its supervisor sees it. Its methods may be called concurrently.
type Reached interface {
	Process() Process  // PID and Start; the rest where the driver wrote it down
	Workspace() string // "" without one
	// Exec is as in [Instance]. Errors: [errs.Conflict] once the sandbox ended, [errs.Unavailable] where the driver cannot.
	Exec(ctx context.Context, c Command, stdio Stdio) (Stream, error)
	Close()
}

// Where names the folders of the host that no sandbox may see.
type Where struct {
	State string `json:"state"`
	Run   string `json:"run"`
}

// Finding is one thing that doctor says.
type Finding struct {
	Level   FindingLevel `json:"level"`
	Subject string       `json:"subject"`
	Message string       `json:"message"` // what is and what to do
}

// FindingLevel says how bad a finding is.
type FindingLevel string

// Levels of a finding.
const (
	Fine    FindingLevel = "ok"
	Warning FindingLevel = "warning" // it works, with less than it could
	Failure FindingLevel = "failure" // the driver cannot work
)

package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/proc"
	"sallyport.dev/relay"
)

// Where a sandbox of this host stands.
const (
	StateRunning = "running"
	StateShut    = "shut"   // it boots; its gate is not open yet
	StateBroken  = "broken" // its notes cannot be read
	StateLost    = "lost"   // its supervisor is gone, and nobody took it back yet
)

// Sandbox is one session's folder on this host, as its notes and the kernel show it.
type Sandbox struct {
	Session   string    `json:"session"`
	Profile   string    `json:"profile"`
	Harness   string    `json:"harness"`
	Driver    string    `json:"driver"`
	Closed    string    `json:"closed"`
	State     string    `json:"state"`
	PID       int       `json:"pid,omitempty"` // its first process
	Workspace string    `json:"workspace,omitempty"`
	Since     time.Time `json:"since"`
	Dir       string    `json:"dir"`
}

// Sandboxes lists the sandboxes below STATE/host. It needs no running host.
func Sandboxes(host string, drivers sandbox.Registry) ([]Sandbox, error) {
	base := filepath.Join(host, "sessions")
	entries, err := os.ReadDir(base)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, errs.Wrap(errs.NotAllowed, base+" cannot be read; run as the user that the state directory belongs to", err)
	}
	var all []Sandbox
	for _, e := range entries {
		if relay.ValidID(e.Name()) {
			all = append(all, look(filepath.Join(base, e.Name()), drivers))
		}
	}
	return all, nil
}

func look(dir string, drivers sandbox.Registry) Sandbox {
	b := Sandbox{Session: filepath.Base(dir), State: StateBroken, Dir: dir}
	st, err := readState(dir)
	if err != nil {
		if info, err := os.Stat(dir); err == nil {
			b.Since = info.ModTime()
		}
		return b
	}
	b.Profile, b.Harness, b.Driver, b.Since = st.Profile, st.Harness, st.Driver, st.Since
	driver := driverOf(drivers, st.Driver)
	if driver == nil {
		return b
	}
	b.Closed = string(driver.Capabilities().Closed)
	switch {
	case !st.Supervisor.Alive():
		b.State = StateLost
	case st.Known == nil:
		b.State = StateShut
	default:
		b.State = StateRunning
	}
	if r, err := driver.Reach(dir); err == nil {
		b.PID, b.Workspace = r.Process().PID, r.Workspace()
		r.Close()
	}
	return b
}

// driverOf is the driver of a name, nil where this build has none.
func driverOf(drivers sandbox.Registry, name string) sandbox.Driver {
	for _, d := range drivers.All() {
		if d.Name() == name {
			return d
		}
	}
	return nil
}

// FindSandbox finds a sandbox below STATE/host by a unique beginning of its session's id. Errors: [errs.NotFound], [errs.Invalid].
func FindSandbox(host string, drivers sandbox.Registry, id string) (Sandbox, error) {
	const enough = 4
	if len(id) < enough {
		return Sandbox{}, errs.Newf(errs.Invalid, "name a sandbox by its session's id, or by at least %d characters of its beginning", enough)
	}
	all, err := Sandboxes(host, drivers)
	if err != nil {
		return Sandbox{}, err
	}
	var found []Sandbox
	for _, b := range all {
		if strings.HasPrefix(b.Session, id) {
			found = append(found, b)
		}
	}
	switch len(found) {
	case 0:
		return Sandbox{}, errs.Newf(errs.NotFound, "no sandbox on this host is of a session that begins with %s; sallyport sandboxes list shows them", id)
	case 1:
		return found[0], nil
	default:
		return Sandbox{}, errs.Newf(errs.Invalid, "more than one session begins with %s: write more of its id", id)
	}
}

// Reach reaches a sandbox whose gate is open. Errors: [errs.Conflict], [errs.NotFound].
func (b Sandbox) Reach(drivers sandbox.Registry) (sandbox.Reached, error) {
	driver := driverOf(drivers, b.Driver)
	switch {
	case driver == nil || b.State == StateBroken:
		return nil, errs.Newf(errs.Unavailable, "the notes on this sandbox cannot be read; end it with: sallyport sandboxes rm %s", b.Session)
	case b.State == StateShut:
		return nil, errs.New(errs.Conflict, "the sandbox is still shut: nothing runs in it before its gate is open")
	case b.State == StateLost:
		return nil, errs.New(errs.NotFound, "the sandbox's supervisor is gone, and it with it")
	}
	return driver.Reach(b.Dir)
}

// endParent kills the very process that id names and waits for its end.
func endParent(ctx context.Context, id proc.ID) error {
	if id.PID == 0 {
		return nil
	}
	h, err := proc.Open(id.PID)
	if err != nil {
		return nil //nolint:nilerr // it is gone
	}
	defer h.Close()
	if h.ID != id || id.PID == os.Getpid() {
		return nil
	}
	if err := h.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errs.Wrap(errs.Internal, "the sandbox's supervisor cannot be ended", err)
	}
	return h.Wait(ctx)
}

package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/host/gate"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/remains"
	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

// reapEvery is how often folders of sessions that nobody serves are looked for: what could not be taken back is tried again.
const reapEvery = time.Minute

func (d *Daemon) reaper(ctx context.Context) {
	tick := time.NewTicker(reapEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			d.reap()
		}
	}
}

// reap takes up every session that has a folder and is not served. One that cannot be taken up is ended: a sandbox that its host does not
// understand is not left alone.
func (d *Daemon) reap() {
	entries, err := os.ReadDir(d.sessionsDir())
	if err != nil {
		d.log.Error("sessions cannot be looked up", "err", err)
		return
	}
	for _, e := range entries {
		id := e.Name()
		if !relay.ValidID(id) || d.busy(id) {
			continue
		}
		err := d.takeUp(id)
		if err == nil {
			continue
		}
		d.log.Error("a session cannot be taken up; its sandbox ends", "session", id, "err", err)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), endTime)
		if err := d.end(ctx, id); err != nil {
			d.log.Error("a sandbox could not be proven gone; it is tried again", "session", id, "err", err)
		}
		cancel()
	}
}

// making says that a session is being made ready or taken back, or no longer is.
func (d *Daemon) making(id string, begins bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if begins {
		d.made[id] = true
	} else {
		delete(d.made, id)
	}
}

// busy reports whether somebody works with a session.
func (d *Daemon) busy(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sessions[id] != nil || d.made[id]
}

// end ends what is left of a session that is not served, and tells control.
func (d *Daemon) end(ctx context.Context, id string) error {
	dir := filepath.Join(d.sessionsDir(), id)
	st, err := readState(dir)
	if err := Reap(ctx, d.opts.Drivers, dir); err != nil {
		return err
	}
	d.log.Info("what a session left was removed", "session", id)
	if err == nil && st.Session == id {
		d.closeAtControl(id, st.Epoch, "its host could not take it up again")
	}
	return nil
}

// removeSandbox ends a session's sandbox and returns once nothing of it is left.
func (d *Daemon) removeSandbox(ctx context.Context, id string) error {
	if !relay.ValidID(id) {
		return errs.New(errs.Invalid, "this is no session's id")
	}
	dir := filepath.Join(d.sessionsDir(), id)
	ctx, cancel := context.WithTimeout(ctx, endTime+stopGrace+endTime)
	defer cancel()
	if s := d.session(id); s != nil {
		s.mu.Lock()
		s.reason = "removed on its host"
		s.mu.Unlock()
		if err := d.hub.Stop(ctx, id, gate.StopReason{Message: "removed on its host", Grace: stopGrace}); err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
	} else if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return errs.New(errs.NotFound, "this host has no sandbox of that session")
	} else if d.busy(id) {
		return errs.New(errs.Busy, "the session is being made ready or taken back; try again in a moment")
	} else if err := d.end(ctx, id); err != nil {
		return err
	}
	return gone(dir)
}

// absent returns nil once the kernel knows nothing of a session's sandbox that could run; what is found is ended first.
func (d *Daemon) absent(driver sandbox.Driver, dir string) error {
	left, err := remains.Find(dir)
	if err != nil || !left.Live() {
		return err
	}
	d.log.Warn("more was left of a sandbox than was said", "session", filepath.Base(dir), "left", left.String())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), endTime)
	defer cancel()
	if err := driver.Recover(ctx, dir); err != nil {
		return err
	}
	return nothingLive(dir)
}

// Reap ends whatever runs of the session in a folder, which no host serves, takes back what was made for it, removes the folder, and returns
// nil only when the kernel knows nothing of it any more. It is safe to repeat. Errors: [errs.Unavailable], [errs.Internal].
func Reap(ctx context.Context, drivers sandbox.Registry, dir string) error {
	if !relay.ValidID(filepath.Base(dir)) {
		return errs.New(errs.Invalid, "the folder is not named after a session")
	}
	if st, err := readState(dir); err == nil {
		// The supervisor first: it would end the sandbox with it, and must not start another.
		if err := endParent(ctx, st.Supervisor); err != nil {
			return err
		}
	}
	for _, driver := range drivers.All() { // each takes back what it finds of its own
		if err := driver.Recover(ctx, dir); err != nil {
			return err
		}
	}
	if err := nothingLive(dir); err != nil {
		return err
	}
	if err := removeDir(dir); err != nil {
		return err
	}
	return gone(dir)
}

func nothingLive(dir string) error {
	left, err := remains.Find(dir)
	if err != nil {
		return errs.Wrap(errs.Internal, "what is left of a sandbox cannot be seen", err)
	}
	if left.Live() {
		return errs.Newf(errs.Internal, "of the sandbox are left: %s", left)
	}
	return nil
}

// gone returns nil where nothing at all is left.
func gone(dir string) error {
	left, err := remains.Find(dir)
	if err != nil {
		return errs.Wrap(errs.Internal, "what is left of a sandbox cannot be seen", err)
	}
	if left.Any() {
		return errs.Newf(errs.Internal, "of the sandbox are left: %s", left)
	}
	return nil
}

func removeDir(dir string) error {
	if err := (hostside.Folder{Root: dir}).Remove(); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func readState(dir string) (state, error) {
	var st state
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err == nil {
		err = json.Unmarshal(b, &st)
	}
	return st, err
}

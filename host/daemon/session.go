package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/host/egress"
	"sallyport.dev/host/gate"
	"sallyport.dev/host/runner"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/proc"
	"sallyport.dev/relay"
	"sallyport.dev/relay/hostside"
)

const stateFile = "session.state.json"

// state is what a daemon must know of a session to take it up again after its own restart. It holds no secret.
type state struct {
	Session      string         `json:"session"`
	Profile      string         `json:"profile"`
	Harness      string         `json:"harness"`
	Since        time.Time      `json:"since"`
	Epoch        int64          `json:"epoch"`
	Driver       string         `json:"driver"`
	Demanded     sandbox.Closed `json:"demanded"`
	Insecure     bool           `json:"insecure"`
	UID          int            `json:"uid"`
	GID          int            `json:"gid"`
	PolicyDigest string         `json:"policy_digest"`
	Provider     string         `json:"provider"`
	Source       string         `json:"source"`
	Allow        []string       `json:"allow,omitempty"`
	MaxRequests  int64          `json:"max_requests,omitempty"`
	MaxBytes     int64          `json:"max_bytes,omitempty"`
	MaxTokens    int64          `json:"max_tokens,omitempty"`
	Supervisor   proc.ID        `json:"supervisor"`
	Known        *gate.Known    `json:"known,omitempty"` // its gate is open
}

// session is one sandbox that this daemon serves.
type session struct {
	state    state
	dir      string
	folder   hostside.Folder
	driver   sandbox.Driver
	gateway  *egress.Gateway
	unbridge context.CancelFunc

	mu     sync.Mutex
	reason string // why it is being ended, where somebody said so
}

func (s *session) store() error {
	b, err := json.Marshal(s.state)
	if err != nil {
		return err
	}
	tmp := filepath.Join(s.dir, stateFile+".tmp")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return errs.Wrap(errs.Unavailable, "the session's state cannot be written", err)
	}
	return os.Rename(tmp, filepath.Join(s.dir, stateFile))
}

// open asks control for a session and makes its directories, its guest programs, its bridge and its gate ready.
func (d *Daemon) open(ctx context.Context, r Request, parent proc.ID) (*Opened, error) {
	driver, err := d.opts.Drivers.Choose(r.Driver, "", r.Insecure)
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	caps := driver.Capabilities()
	granted, err := d.control.OpenSession(asking, &sallyportv1.OpenSessionRequest{
		Profile: r.Profile, OwnerTicket: r.Ticket, Attended: r.Attended, Harness: r.Harness,
		Facts: &sallyportv1.DriverFacts{Driver: driver.Name(), Closed: string(caps.Closed), Build: d.opts.Build, SameUid: caps.Closed == sandbox.Open && !caps.OwnUID},
	})
	if err != nil {
		return nil, refused(err)
	}
	opened, err := d.ready(granted, driver, r, parent)
	if err != nil {
		d.closeAtControl(granted.GetSession(), granted.GetEpoch(), "the host could not make its sandbox ready")
	}
	return opened, err
}

func (d *Daemon) ready(granted *sallyportv1.OpenSessionResponse, driver sandbox.Driver, r Request, parent proc.ID) (_ *Opened, err error) {
	dir := filepath.Join(d.sessionsDir(), granted.GetSession())
	d.making(granted.GetSession(), true)
	defer d.making(granted.GetSession(), false)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, errs.Wrap(errs.Unavailable, "the session's directory cannot be made", err)
	}
	s := &session{dir: dir, folder: hostside.Folder{Root: dir}, driver: driver, unbridge: func() {}}
	defer func() {
		if err != nil {
			d.forget(s, granted.GetSession())
			if cleanup := s.remove(); cleanup != nil {
				d.log.Error("a session's directory stays behind", "session", granted.GetSession(), "err", cleanup)
			}
		}
	}()
	uid, gid, err := driver.Owner(dir)
	if err != nil {
		return nil, err
	}
	if err := s.folder.Create(uid, gid, d.tmpfs); err != nil {
		return nil, err
	}
	m, box := granted.GetModel(), granted.GetSandbox()
	s.state = state{
		Session: granted.GetSession(), Profile: r.Profile, Harness: r.Harness, Since: time.Now(), Epoch: granted.GetEpoch(), Driver: driver.Name(),
		Demanded: sandbox.Closed(box.GetClosed()), Insecure: r.Insecure,
		UID: uid, GID: gid, PolicyDigest: granted.GetPolicyDigest(), Provider: m.GetProvider(), Source: m.GetSource(), Allow: m.GetAllow(),
		MaxRequests: m.GetMaxRequests(), MaxBytes: m.GetMaxBytes(), MaxTokens: m.GetMaxTokens(), Supervisor: parent,
	}
	for name, data := range map[string][]byte{relay.SessionName: granted.GetSessionJson(), relay.ToolsName: granted.GetToolsJson()} {
		if err := s.folder.Publish(name, data, 0o644); err != nil {
			return nil, err
		}
	}
	if err := d.programs(s); err != nil {
		return nil, err
	}
	if err := s.store(); err != nil {
		return nil, err
	}
	if err := d.take(s); err != nil {
		return nil, err
	}
	note := ""
	if err := s.gateway.Ready(d.ctx); err != nil {
		d.log.Warn("a session without a model key", "session", s.state.Session, "source", s.state.Source, "err", err)
		note = errs.Message(err)
	}
	return &Opened{
		Session: s.state.Session, Epoch: s.state.Epoch, Dir: dir, In: s.folder.In(), Out: s.folder.Out(), UID: uid, GID: gid,
		Owner: granted.GetOwner(), Server: granted.GetServerName(), Provider: s.state.Provider, Closed: box.GetClosed(),
		Workspace: box.GetWorkspace(), Protected: box.GetProtectedPaths(), EnvFiles: box.GetAllowEnvFiles(), Memory: box.GetMemoryBytes(),
		PIDs: box.GetPids(), CPU: box.GetCpu(), HoldMS: box.GetHoldMs(), Gate: d.opts.GatePath, Note: note,
	}, nil
}

// programs publishes the guest's programs: always this host's own, whatever lies there.
func (d *Daemon) programs(s *session) error {
	for _, name := range []string{"sallyport-guest", "sallyport-bridge"} {
		data, err := d.opts.Guest(name)
		if err != nil {
			return err
		}
		if err := s.folder.Publish(filepath.Join(relay.BinDir, name), data, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// take begins to serve a session: its bridge, its relay directory and its gate.
func (d *Daemon) take(s *session) error {
	source := d.opts.Config.Models[s.state.Source]
	if s.state.Provider != "" && s.state.Provider != "none" && source.Provider == "" {
		return errs.Newf(errs.NotConnected, "the profile wants the model source %q, which this host's host.yaml does not name", s.state.Source)
	}
	var err error
	s.gateway, err = egress.New(egress.Policy{
		Session: s.state.Session, Provider: s.state.Provider, Allow: s.state.Allow, MaxRequests: s.state.MaxRequests, MaxBytes: s.state.MaxBytes,
		MaxTokens: s.state.MaxTokens,
	}, source, d.transport, d.record, d.log)
	if err != nil {
		return err
	}
	l, err := egress.Listen(filepath.Join(s.folder.In(), relay.BridgeName), 0o666)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(d.ctx)
	s.unbridge = stop
	d.work.Go(func() {
		if err := egress.Serve(ctx, l, s.gateway, d.log); err != nil {
			d.log.Error("a session's bridge failed", "session", s.state.Session, "err", err)
		}
	})
	if err := d.runner.Add(runner.Session{
		ID: s.state.Session, Epoch: s.state.Epoch, Folder: s.folder, Owners: []uint32{uint32(s.state.UID)}, Open: s.state.Known != nil,
	}); err != nil {
		stop()
		return err
	}
	d.mu.Lock()
	d.sessions[s.state.Session] = s
	s.gateway.Revoke(d.revoked[s.state.Source])
	d.mu.Unlock()
	return d.hub.Admit(d.box(s))
}

// box is what the gate needs to know of a session.
func (d *Daemon) box(s *session) gate.Box {
	return gate.Box{
		Session: s.state.Session, Epoch: s.state.Epoch, Closed: s.driver.Capabilities().Closed, Demanded: s.state.Demanded, Insecure: s.state.Insecure,
		Policy: s.state.PolicyDigest, Supervisor: s.state.Supervisor, Known: s.state.Known,
		Record: func(ctx context.Context) (gate.Record, []byte, error) {
			r, raw, err := d.runner.Gate(ctx, s.state.Session)
			if err != nil {
				return gate.Record{}, nil, err
			}
			return gate.Record{Session: r.Session, Epoch: r.Epoch, NetNS: r.NetNS, Probe: gate.ReadProbe(r.Probe)}, raw, nil
		},
		Confirm: func(ctx context.Context, c gate.Confirm) (bool, string, error) {
			err := d.runner.AskGate(ctx, c.Session, c.Parent, c.Policy, c.Probe)
			if errs.Is(err, errs.NotAllowed) {
				return false, errs.Message(err), nil
			}
			return err == nil, "", err
		},
		Opening: func(k gate.Known) error {
			s.state.Known = &k
			return s.store()
		},
		Open: func() error {
			if err := d.runner.Open(s.state.Session); err != nil {
				return err
			}
			return s.folder.Publish(relay.OpenName, []byte("open\n"), 0o644)
		},
		Recover: func(ctx context.Context) error { return s.driver.Recover(ctx, s.dir) },
		Ended:   func(r gate.Result) { d.ended(s, r) },
	}
}

// stop asks a session's supervisor to end its sandbox, and sees to it.
func (d *Daemon) stop(s *session, reason string) {
	s.mu.Lock()
	s.reason = reason
	s.mu.Unlock()
	d.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), endTime+stopGrace)
		defer cancel()
		if err := d.hub.Stop(ctx, s.state.Session, gate.StopReason{Message: reason, Grace: stopGrace}); err != nil && !errs.Is(err, errs.NotFound) {
			d.log.Error("a sandbox was not ended", "session", s.state.Session, "err", err)
		}
	})
}

// forget stops serving a session.
func (d *Daemon) forget(s *session, id string) {
	s.unbridge()
	d.runner.Remove(id)
	d.mu.Lock()
	delete(d.sessions, id)
	d.mu.Unlock()
}

// ended is the last of a session: its supervisor is gone, and the gate has proven that nothing of its sandbox runs, or says that it could not.
func (d *Daemon) ended(s *session, r gate.Result) {
	if d.ctx.Err() != nil && !r.Absent {
		return // this daemon ends: the next one takes up what could not be proven gone
	}
	d.making(s.state.Session, true) // the reaper must not take it up while it is taken back
	defer d.making(s.state.Session, false)
	d.forget(s, s.state.Session)
	s.mu.Lock()
	reason := s.reason
	s.mu.Unlock()
	switch {
	case reason != "":
	case r.Refused != nil:
		reason = r.Refused.Message
	case r.Lost:
		reason = "its supervisor is gone"
	default:
		reason = "the agent ended"
	}
	if r.Err == nil {
		r.Err = d.absent(s.driver, s.dir) // whoever said that it is gone: the kernel is asked
	}
	if r.Err != nil {
		// What still runs keeps its directory, so that the reaper finds it.
		d.log.Error("a sandbox could not be proven gone", "session", s.state.Session, "err", r.Err)
	} else if err := s.remove(); err != nil {
		d.log.Error("a session's directory stays behind", "session", s.state.Session, "err", err)
	}
	d.closeAtControl(s.state.Session, s.state.Epoch, reason)
	d.log.Info("session ended", "session", s.state.Session, "reason", reason, "code", r.Code)
}

func (s *session) remove() error { return removeDir(s.dir) }

func (d *Daemon) closeAtControl(id string, epoch int64, reason string) {
	patience := openTime
	if d.ctx.Err() != nil {
		patience = farewellTime
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), patience)
	defer cancel()
	if _, err := d.control.CloseSession(ctx, &sallyportv1.CloseSessionRequest{Session: id, Epoch: epoch, Reason: reason}); err != nil {
		d.log.Warn("control was not told that a session ended; it learns it when it asks", "session", id, "err", err)
	}
}

// takeUp serves a session again that an earlier daemon of this host served. One whose gate never opened, or whose supervisor is gone, is torn
// down: the gate finds that out, and ends it.
func (d *Daemon) takeUp(id string) error {
	dir := filepath.Join(d.sessionsDir(), id)
	s := &session{dir: dir, folder: hostside.Folder{Root: dir}, unbridge: func() {}}
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), endTime)
		defer cancel()
		return Reap(ctx, d.opts.Drivers, dir) // it was never ready
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &s.state); err != nil {
		return err
	}
	if s.state.Session != id {
		return errs.New(errs.Invalid, "the state is of another session")
	}
	if s.driver, err = d.opts.Drivers.Choose(s.state.Driver, "", s.state.Insecure); err != nil {
		return err
	}
	if err := d.programs(s); err != nil {
		return err
	}
	if err := d.take(s); err != nil {
		d.forget(s, id)
		return err
	}
	return nil
}

package main

import (
	"context"
	"crypto"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"sallyport.dev/errs"
	"sallyport.dev/host/daemon"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/bwrap"
	"sallyport.dev/host/sandbox/launch"
	"sallyport.dev/host/sandbox/process"
	"sallyport.dev/identity"
	"sallyport.dev/identity/enrol"
	"sallyport.dev/identity/link"
	"sallyport.dev/identity/statefile"
	"sallyport.dev/intent"
	"sallyport.dev/telemetry"
)

type hostCmd struct {
	Join    string             `help:"Join a control plane with this one-time token, from sallyport enrol." placeholder:"TOKEN" env:"SALLYPORT_JOIN"`
	Metrics string             `help:"Serve Prometheus metrics on this loopback address." placeholder:"ADDR"`
	Log     telemetry.LogFlags `embed:"" prefix:"log-"`
}

// drivers are the sandbox drivers of this build.
func drivers() sandbox.Registry {
	self := "/proc/self/exe"
	return sandbox.NewRegistry(
		&bwrap.Driver{Launcher: []string{self, launch.Arg}, Enter: []string{self, bwrap.EnterArg}},
		&process.Driver{Launcher: []string{self, launch.Arg}},
	)
}

// Run runs the host until it is told to end.
func (c *hostCmd) Run(ctx context.Context, g *Globals) error {
	log := c.Log.Logger(g.err).With("part", "host")
	state, err := g.stateDir()
	if err != nil {
		return err
	}
	source, enrolment, dir, err := joined(ctx, state, "host", c.Join)
	if err != nil {
		return err
	}
	defer dir.Close()
	node := enrolment.Control[0]
	control, err := spiffeid.FromString(node.ID)
	if err != nil {
		return errs.Wrap(errs.Invalid, "the enrolment names no control node", err)
	}
	conn, err := link.Dial(source, control, node.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	config, err := daemon.ReadConfig(dir.Path("host.yaml"))
	if err != nil {
		return err
	}
	hostSocket, err := g.socket("host.sock")
	if err != nil {
		return err
	}
	gateSocket, err := g.socket("gate.sock")
	if err != nil {
		return err
	}
	var opened listeners
	l := opened.unix(ctx, hostSocket)
	gates := opened.unix(ctx, gateSocket)
	metrics := opened.metrics(ctx, c.Metrics)
	if opened.err != nil {
		opened.close()
		return opened.err
	}
	if metrics != nil {
		go func() {
			if err := telemetry.ServeMetrics(ctx, metrics); err != nil {
				log.Error("metrics", "err", err)
			}
		}()
	}
	go renewFiles(ctx, source, enrolment, dir, func(err error) { log.Error("this host's identity cannot be renewed", "err", err) })
	d := daemon.New(daemon.Options{
		Build: buildName(), Protected: intent.Protected, Conn: conn, Dir: dir.Path(""), Config: config, Drivers: drivers(), GatePath: gateSocket,
		Guest: guestProgram, Log: log,
		Key: func() (crypto.Signer, error) {
			svid, err := source.GetX509SVID()
			if err != nil {
				return nil, err
			}
			return svid.PrivateKey, nil
		},
	})
	ready(log)()
	log.Info("host serves", "build", buildName(), "socket", hostSocket, "control", node.Address)
	return d.Run(ctx, l, gates)
}

// joined is the identity of the part that owns STATE/part: what it has, or what the token gives. Without either it waits for a control on this
// machine to write it.
func joined(ctx context.Context, state, part, token string) (*identity.Source, enrol.Enrolment, *statefile.Dir, error) {
	if err := makeState(state); err != nil {
		return nil, enrol.Enrolment{}, nil, err
	}
	dir, err := statefile.Open(filepath.Join(state, part))
	if err != nil {
		return nil, enrol.Enrolment{}, nil, err
	}
	source, e, err := enrol.Load(dir, time.Now())
	if err != nil && token != "" {
		source, e, err = enrol.Join(ctx, token, dir)
	}
	if err != nil {
		dir.Close()
		return nil, e, nil, err
	}
	return source, e, dir, nil
}

// renewFiles keeps an identity fresh, in its files.
func renewFiles(ctx context.Context, source *identity.Source, e enrol.Enrolment, dir *statefile.Dir, failed func(error)) {
	r := &identity.Renewer{
		Source: source, Ask: enrol.Asker(source, e.Control), Keep: func(m identity.Material) error { return enrol.Keep(dir, e, m) },
	}
	if err := r.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		failed(err)
	}
}

// guestDirs are where the guest's programs may lie: named, beside this program, or where a package puts them.
func guestDirs() []string {
	arch := "linux-" + runtime.GOARCH
	var dirs []string
	if d := os.Getenv("SALLYPORT_GUEST_DIR"); d != "" {
		dirs = append(dirs, d)
	}
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		dirs = append(dirs, filepath.Join(filepath.Dir(exe), arch), filepath.Dir(exe), filepath.Join(filepath.Dir(exe), "..", "lib", "sallyport", arch))
	}
	return dirs
}

func guestProgram(name string) ([]byte, error) {
	for _, d := range guestDirs() {
		if b, err := os.ReadFile(filepath.Join(d, name)); err == nil {
			return b, nil
		}
	}
	return nil, errs.Newf(errs.NotFound, "the guest's program %s lies in none of the usual places; run make build, or name its folder with SALLYPORT_GUEST_DIR", name)
}

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/cmd/sallyport/up"
	"sallyport.dev/errs"
	"sallyport.dev/identity/statefile"
	"sallyport.dev/telemetry"
)

type upCmd struct {
	listenFlags
	webFlags
	Domain string             `help:"The trust domain." default:"${domain}"`
	Log    telemetry.LogFlags `embed:"" prefix:"log-"`
}

// Run runs the three parts of one machine, each as its own process.
func (c *upCmd) Run(ctx context.Context, g *Globals) error {
	state, err := g.stateDir()
	if err != nil {
		return err
	}
	// Sockets first: a path that is too long for them should not leave a state directory behind.
	hostSocket, err := g.socket("host.sock")
	if err != nil {
		return err
	}
	lock, err := lockState(state)
	if err != nil {
		return err
	}
	defer lock()
	exe, err := os.Executable()
	if err != nil {
		return errs.Wrap(errs.Internal, "this program cannot be found", err)
	}
	common := append([]string{"--state", state}, c.Log.Args()...)
	arguments := func(part string, more ...string) []string {
		return append(append([]string{part}, common...), more...)
	}
	if c.Web == "" {
		c.Web = "127.0.0.1:0"
	}
	controlArgs := append([]string{"--local", "--domain", c.Domain}, c.listenFlags.args()...)
	controlArgs = append(controlArgs, c.webFlags.args()...)
	// Sockets follow the state directory when it was named, so the parts and the commands that are typed later find the same ones.
	if g.State == "" {
		common = c.Log.Args()
	}
	s := &up.Supervisor{
		Exe: exe, Stderr: g.err, Log: c.Log.Logger(g.err).With("part", "up"),
		Parts: []up.Part{
			{Name: "control", Args: arguments("control", controlArgs...), Env: plainEnv(os.Environ()), Serves: g.controlServes},
			{Name: "worker", Args: arguments("worker"), Env: plainEnv(os.Environ()), Serves: g.linked("worker")},
			// Model keys may stand in the environment (host.yaml): they are the host's alone.
			{Name: "host", Args: arguments("host"), Env: os.Environ(), Serves: g.linked("host")},
		},
		Started: func() {
			g.note("Sallyport is up (%s). Ctrl-C ends it.", filepath.Dir(hostSocket))
			if c.Web != noWeb {
				g.welcome(ctx)
			}
		},
	}
	err = s.Run(ctx)
	// The sockets are gone with their processes; a directory that is not empty is somebody else's too, and stays.
	os.Remove(filepath.Dir(hostSocket))
	return err
}

// welcome prints a link into the console. Without one, everything else is up all the same.
func (g *Globals) welcome(ctx context.Context) {
	own := *g
	own.Server = ""
	api, err := own.peopleClient()
	if err != nil {
		return
	}
	if r, err := answer(api.MakeLink(ctx, &sallyportv1.MakeLinkRequest{})); err == nil {
		g.note("Console: %s\nThe link works once, for 5 minutes; sallyport console prints another.", r.GetAddress())
	}
}

// lockState makes the state directory and takes it for one up. Errors: [errs.Conflict] when another one has it.
func lockState(state string) (release func(), err error) {
	if err := makeState(state); err != nil {
		return nil, err
	}
	dir, err := statefile.Open(state)
	if err != nil {
		return nil, err
	}
	lock, err := dir.Lock("up.lock")
	if err != nil {
		dir.Close()
		return nil, err
	}
	return func() {
		lock.Close()
		dir.Close()
	}, nil
}

// controlServes asks control whether it is there.
func (g *Globals) controlServes(ctx context.Context) error {
	own := *g
	own.Server = ""
	api, err := own.client()
	if err != nil {
		return err
	}
	_, err = answer(api.Status(ctx, &sallyportv1.StatusRequest{}))
	return err
}

// linked asks control whether a machine of this role, of this installation, is up.
func (g *Globals) linked(role string) func(context.Context) error {
	return func(ctx context.Context) error {
		own := *g
		own.Server = ""
		api, err := own.client()
		if err != nil {
			return err
		}
		r, err := answer(api.ListMachines(ctx, &sallyportv1.ListMachinesRequest{Role: role}))
		if err != nil {
			return err
		}
		for _, m := range r.GetMachines() {
			if m.GetName() == localName && m.GetState() == "up" {
				return nil
			}
			if m.GetName() == localName && (m.GetState() == "revoked" || m.GetState() == "removed") {
				return nil // it is not to be up: the rest serves without it
			}
		}
		return errs.Newf(errs.Unavailable, "the %s is not linked yet", role)
	}
}

// plainEnv is what control and workers get of the environment: how to find programs, directories and roots of trust. A secret that stands in it for
// somebody else never reaches them.
func plainEnv(env []string) []string {
	var out []string
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		switch name {
		case "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG", "NO_COLOR", "SSL_CERT_FILE", "SSL_CERT_DIR", "SALLYPORT_STATE", "SALLYPORT_GUEST_DIR",
			"GODEBUG", "GOMAXPROCS", "GOMEMLIMIT", "GORACE", "GOCOVERDIR":
			out = append(out, e)
		default:
			if strings.HasPrefix(name, "XDG_") || strings.HasPrefix(name, "LC_") {
				out = append(out, e)
			}
		}
	}
	return out
}

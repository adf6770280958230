package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
	"sallyport.dev/host/daemon"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/supervisor"
)

type sandboxesCmd struct {
	List sandboxesListCmd `cmd:"" default:"withargs" help:"List the sandboxes of this machine, also those that a crash left."`
	Exec sandboxesExecCmd `cmd:"" help:"Run a further command in a sandbox: sallyport sandboxes exec ID -- sh"`
	Logs sandboxesLogsCmd `cmd:"" help:"Print what a sandbox's agent printed."`
	Rm   sandboxesRmCmd   `cmd:"" help:"End a sandbox and remove all of it; it is proven that nothing is left."`
}

// hostDir is the host's directory of state.
func (g *Globals) hostDir() (string, error) {
	state, err := g.stateDir()
	return filepath.Join(state, "host"), err
}

func (g *Globals) sandbox(id string) (daemon.Sandbox, error) {
	dir, err := g.hostDir()
	if err != nil {
		return daemon.Sandbox{}, err
	}
	return daemon.FindSandbox(dir, drivers(), id)
}

type sandboxesListCmd struct{}

// Run prints the sandboxes of this machine. It needs no running host.
func (c *sandboxesListCmd) Run(g *Globals) error {
	dir, err := g.hostDir()
	if err != nil {
		return err
	}
	all, err := daemon.Sandboxes(dir, drivers())
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(all)
		return nil
	}
	rows := make([][]string, 0, len(all))
	for _, b := range all {
		pid := ""
		if b.PID != 0 {
			pid = strconv.Itoa(b.PID)
		}
		rows = append(rows, []string{shortID(b.Session), b.Profile, b.Harness, b.Driver, networkOf(b.Closed), b.State, pid, b.Workspace, ago(b.Since.UnixMilli())})
	}
	g.table([]string{"SESSION", "PROFILE", "HARNESS", "DRIVER", "NETWORK", "STATE", "PID", "WORKSPACE", "SINCE"}, rows)
	if len(rows) == 0 {
		g.note("No sandboxes on this machine. Start one: sallyport run --profile NAME -- claude")
	}
	return nil
}

type sandboxesExecCmd struct {
	ID   string   `arg:"" help:"The session, or a unique beginning of its id."`
	Args []string `arg:"" passthrough:"" help:"-- and the command."`
}

// Run runs a command beside the agent, confined as the agent is, and returns its exit code.
func (c *sandboxesExecCmd) Run(ctx context.Context, g *Globals) error {
	args := c.Args
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return errs.New(errs.Invalid, "name the command after --, such as: sallyport sandboxes exec "+c.ID+" -- sh")
	}
	b, err := g.sandbox(c.ID)
	if err != nil {
		return err
	}
	in, err := b.Reach(drivers())
	if err != nil {
		return err
	}
	defer in.Close()
	stdin, stdout, stderr, err := g.files()
	if err != nil {
		return err
	}
	// Signals are the command's, as with run.
	code, err := supervisor.Enter(context.WithoutCancel(ctx), in, sandbox.Command{Args: args}, supervisor.Stdio{In: stdin, Out: stdout, Err: stderr})
	return exitError{code: code, err: err}
}

type sandboxesLogsCmd struct {
	ID  string `arg:"" help:"The session, or a unique beginning of its id."`
	Raw bool   `help:"Print control characters as the agent wrote them."`
}

// Run prints what the agent printed so far, as far as it is kept.
func (c *sandboxesLogsCmd) Run(g *Globals) error {
	b, err := g.sandbox(c.ID)
	if err != nil {
		return err
	}
	out := g.out
	if !c.Raw {
		out = &plainWriter{to: g.out}
	}
	found := false
	for _, name := range []string{supervisor.OutputName + ".1", supervisor.OutputName} {
		f, err := os.Open(filepath.Join(b.Dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return errs.Wrap(errs.NotAllowed, "what the agent printed cannot be read; run as the user that the state directory belongs to", err)
		}
		found = true
		_, err = io.Copy(out, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	if !found {
		g.note("Nothing was printed in this sandbox yet.")
	}
	return nil
}

// plainWriter leaves out what a terminal would obey: an agent's output must not move the cursor, or type, for whoever reads it.
type plainWriter struct {
	to      io.Writer
	escaped escape
	c2      bool // the first byte of a two-byte rune was held back: it may be a control character (U+0080 to U+009F)
}

// escape says how much of an escape sequence was read (ECMA-48).
type escape int

const (
	noEscape escape = iota
	afterESC        // ESC
	inCSI           // ESC [ … up to a final byte
	inString        // ESC ] or P, X, ^, _ … up to BEL or ESC \
	inStringESC
)

// Write implements [io.Writer].
func (w *plainWriter) Write(p []byte) (int, error) {
	kept := make([]byte, 0, len(p))
	for _, b := range p {
		held := w.c2
		w.c2 = false
		switch {
		case w.escaped == noEscape && b == 0xc2:
			w.c2 = true
		case held && b >= 0x80 && b < 0xa0:
			if b == 0x9b { // CSI in one character
				w.escaped = inCSI
			}
		case held:
			kept = append(kept, 0xc2)
			fallthrough
		default:
			if w.keep(b) {
				kept = append(kept, b)
			}
		}
	}
	if _, err := w.to.Write(kept); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (w *plainWriter) keep(b byte) bool {
	const esc, bel, del = 0x1b, 0x07, 0x7f
	switch w.escaped {
	case afterESC:
		switch b {
		case '[':
			w.escaped = inCSI
		case ']', 'P', 'X', '^', '_':
			w.escaped = inString
		default:
			if b >= '0' || b == esc { // below are intermediate bytes, with one more to come
				w.escaped = noEscape
			}
		}
		return false
	case inCSI:
		if b >= '@' {
			w.escaped = noEscape
		}
		return false
	case inString, inStringESC:
		switch {
		case b == bel, w.escaped == inStringESC && b == '\\':
			w.escaped = noEscape
		case b == esc:
			w.escaped = inStringESC
		default:
			w.escaped = inString
		}
		return false
	}
	if b == esc {
		w.escaped = afterESC
	}
	return b == '\n' || b == '\t' || b >= ' ' && b != del
}

type sandboxesRmCmd struct {
	ID  string `arg:"" help:"The session, or a unique beginning of its id."`
	Yes bool   `help:"Do not ask."`
}

// Run ends a sandbox, running or left by a crash, and returns once nothing of it is left.
func (c *sandboxesRmCmd) Run(ctx context.Context, g *Globals) error {
	b, err := g.sandbox(c.ID)
	if err != nil {
		return err
	}
	if err := g.confirm(ctx, c.Yes, "Its agent ends, and its HOME is deleted; the workspace stays. Remove the sandbox of "+b.Session+"?"); err != nil {
		return err
	}
	socket, err := g.socket("host.sock")
	if err != nil {
		return err
	}
	err = daemon.Remove(ctx, socket, b.Session)
	if errs.Is(err, errs.Unreachable) {
		// No host serves it: then nobody else works on it.
		if err = daemon.Reap(ctx, drivers(), b.Dir); err == nil {
			g.closeSession(ctx, b.Session)
		}
	}
	if err != nil {
		return err
	}
	g.note("Removed; no process, control group, mount or folder of it is left.")
	return nil
}

// closeSession tells control, where it answers, that a session's sandbox is gone.
func (g *Globals) closeSession(ctx context.Context, id string) {
	api, err := g.client()
	if err == nil {
		_, err = answer(api.CloseOwnedSession(ctx, &sallyportv1.CloseOwnedSessionRequest{Session: id, Reason: "removed on its host"}))
	}
	if err != nil {
		g.note("Control was not told; where it still lists the session, type: sallyport sessions close %s", id)
	}
}

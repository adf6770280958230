package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/errs"
)

type approvalsWatchCmd struct {
	Session string `help:"Of this session."`
}

// settle is how long a question stands on the screen before a key counts: what was typed for something else must not decide it.
const settle = 700 * time.Millisecond

// keys are what a person may press. The line appears when a key counts, not before.
const keys = "[a] approve   [d] deny with a reason   [g] approve, and a grant for this session   [s] later   [q] end"

// Run shows open questions one after another and decides by key. Without a terminal it prints them as they come.
func (c *approvalsWatchCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	if c.Session, err = g.sessionID(ctx, c.Session); err != nil {
		return err
	}
	wake := make(chan struct{}, 1)
	ended := make(chan error, 1)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		ended <- g.watch(watching, &sallyportv1.WatchRequest{Kinds: []string{"watching", "question", "call"}, Session: c.Session}, func(*sallyportv1.WatchResponse) error {
			select {
			case wake <- struct{}{}:
			default:
			}
			return nil
		})
	}()
	w := watcher{g: g, api: api, session: c.Session, seen: map[string]bool{}}
	if in, isFile := g.in.(*os.File); isFile && g.terminal() && !g.JSON {
		w.in = in
		g.note("Waiting for questions. Ctrl-C ends this; nothing is decided by that.")
	}
	for {
		select {
		case <-wake: // the first one comes when the watch stands: nothing is missed between listing and watching
		case err := <-ended:
			return err
		case <-ctx.Done():
			return nil
		}
		// A control that went away is waited for by the watch, which wakes this again.
		if err := w.look(ctx); ctx.Err() != nil {
			return nil
		} else if err != nil && !errs.Is(err, errs.Unreachable) {
			return err
		}
	}
}

// watcher shows open questions, each once.
type watcher struct {
	g       *Globals
	api     sallyportv1connect.OperatorClient
	session string
	in      *os.File // a terminal, or nil: then questions are printed and not decided
	seen    map[string]bool
}

// look shows what is open and was not shown yet.
func (w *watcher) look(ctx context.Context) error {
	r, err := answer(w.api.ListApprovals(ctx, &sallyportv1.ListApprovalsRequest{Session: w.session}))
	if err != nil {
		return err
	}
	for _, a := range r.GetApprovals() {
		for !w.seen[a.GetId()] {
			w.seen[a.GetId()] = true
			shown, err := answer(w.api.ShowApproval(ctx, &sallyportv1.ShowApprovalRequest{Id: a.GetId()}))
			if errs.Is(err, errs.NotFound) {
				break // decided meanwhile
			}
			if err != nil {
				delete(w.seen, a.GetId())
				return err
			}
			if err := w.show(ctx, shown); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *watcher) show(ctx context.Context, shown *sallyportv1.ShowApprovalResponse) error {
	switch {
	case w.g.JSON:
		w.g.printJSONLine(shown)
	case w.in == nil || shown.GetApproval().GetKind() != "approval":
		w.g.showApproval(shown)
		fmt.Fprintln(w.g.out)
	default:
		return w.ask(ctx, shown)
	}
	return nil
}

// ask shows one question and reads one key.
func (w *watcher) ask(ctx context.Context, shown *sallyportv1.ShowApprovalResponse) error {
	g := w.g
	fmt.Fprintln(g.out)
	g.showApproval(shown)
	fmt.Fprintln(g.out)
	fmt.Fprintln(g.out, decidesOn(shown))
	d := decision{digest: shown.GetApproval().GetDigest()}
	key, err := readKey(ctx, w.in, settle, func() { fmt.Fprint(g.out, "\r"+keys) })
	fmt.Fprintln(g.out)
	if err != nil {
		return err
	}
	switch key {
	case 'a':
		d.verdict = "approve"
	case 'g':
		d.verdict = "approve"
		d.grant = &sallyportv1.SessionGrant{When: shown.GetSuggestedWhen(), Calls: 20, Seconds: 1800}
		g.noteGrant(d.grant)
	case 'd':
		fmt.Fprint(g.out, "reason (the agent reads it): ")
		if d.reason, err = readLine(ctx, w.in); err != nil {
			return err
		}
		d.verdict = "deny"
	case 'q', ctrlC:
		return exitError{code: exitOK}
	case 's':
		g.note("Left open.")
		return nil
	default:
		delete(w.seen, shown.GetApproval().GetId()) // no key of ours: it is asked again
		return nil
	}
	if err := g.send(ctx, w.api, shown.GetApproval().GetId(), d); err != nil {
		g.note("Not decided: %s", oneLine(deciding(err)))
	}
	return nil
}

// decidesOn says once more, last, what a key decides on: arguments that are long fill a screen, and could show another question there.
func decidesOn(shown *sallyportv1.ShowApprovalResponse) string {
	a := shown.GetApproval()
	return fmt.Sprintf("This decides on %s/%s (%s), %d bytes of arguments, digest %.12s.",
		oneLine(a.GetConnection()), oneLine(a.GetTool()), oneLine(a.GetEffect()), len(shown.GetArguments()), a.GetDigest())
}

const ctrlC = 3

// readKey reads one key in raw mode. What was typed before the question stood for a moment is dropped: in the terminal's queue, and what arrives
// meanwhile. counts is called when a key counts, and again after what was no key. The end of the input, and of ctx, is a 'q'.
func readKey(ctx context.Context, in *os.File, stand time.Duration, counts func()) (byte, error) {
	fd := int(in.Fd())
	old, err := term.MakeRaw(fd)
	if err != nil {
		return 0, errs.Wrap(errs.Internal, "the terminal cannot be read by key", err)
	}
	defer func() {
		if err := term.Restore(fd, old); err != nil {
			fmt.Fprintln(os.Stderr, "sallyport: the terminal could not be restored; type: reset")
		}
	}()
	for until := time.Now().Add(stand); ctx.Err() == nil; {
		left := time.Until(until)
		if left <= 0 {
			break
		}
		b, err := someKeys(fd, left)
		switch {
		case errors.Is(err, io.EOF):
			return 'q', nil
		case err != nil:
			return 0, err
		case len(b) == 1 && b[0] == ctrlC:
			return ctrlC, nil // who wants to end it does not wait
		}
	}
	if err := unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH); err != nil {
		return 0, errs.Wrap(errs.Internal, "what was typed before cannot be dropped, so no key is taken", err)
	}
	counts()
	for ctx.Err() == nil {
		b, err := someKeys(fd, 200*time.Millisecond)
		if errors.Is(err, io.EOF) {
			return 'q', nil
		}
		if err != nil {
			return 0, err
		}
		switch {
		case len(b) == 1:
			return b[0], nil
		case len(b) > 1:
			counts() // a paste or an escape sequence is no decision
		}
	}
	return 'q', nil
}

// someKeys returns what was typed within wait: nothing, or what one read gives. Errors: io.EOF when the terminal is gone.
func someKeys(fd int, wait time.Duration) ([]byte, error) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, max(1, int(wait.Milliseconds())))
	if n <= 0 || errors.Is(err, unix.EINTR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b := make([]byte, 1024)
	n, err = unix.Read(fd, b)
	switch {
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		return nil, nil
	case errors.Is(err, unix.EIO), err == nil && n == 0:
		return nil, io.EOF
	case err != nil:
		return nil, err
	}
	return b[:n], nil
}

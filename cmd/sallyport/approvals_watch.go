package main

import (
	"context"
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

// Run shows open questions one after another and decides by key. Without a terminal it prints them as they come.
func (c *approvalsWatchCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
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
	in, isFile := g.in.(*os.File)
	interactive := g.terminal() && isFile && !g.JSON
	if interactive {
		g.note("Waiting for questions. Ctrl-C ends this; nothing is decided by that.")
	}
	seen := map[string]bool{}
	for {
		r, err := answer(api.ListApprovals(ctx, &sallyportv1.ListApprovalsRequest{Session: c.Session}))
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		for _, a := range r.GetApprovals() {
			if seen[a.GetId()] {
				continue
			}
			seen[a.GetId()] = true
			shown, err := answer(api.ShowApproval(ctx, &sallyportv1.ShowApprovalRequest{Id: a.GetId()}))
			if errs.Is(err, errs.NotFound) || errs.Is(err, errs.Conflict) {
				continue
			}
			if err != nil {
				return err
			}
			switch {
			case g.JSON:
				g.printJSON(shown)
			case !interactive || a.GetKind() != "approval":
				g.showApproval(shown)
			default:
				again, err := c.ask(ctx, g, api, in, shown)
				if err != nil {
					return err
				}
				if again {
					delete(seen, a.GetId())
				}
			}
		}
		select {
		case <-wake:
		case err := <-ended:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// ask shows one question and reads one key. It reports whether to show it again.
func (c *approvalsWatchCmd) ask(ctx context.Context, g *Globals, api sallyportv1connect.OperatorClient, in *os.File, shown *sallyportv1.ShowApprovalResponse) (again bool, err error) {
	fmt.Fprintln(g.out)
	g.showApproval(shown)
	d := decision{digest: shown.GetApproval().GetDigest()}
	fmt.Fprintf(g.out, "\n[a] approve   [d] deny with a reason   [g] approve, and a grant for this session   [s] later   [q] end\n")
	key, err := readKey(ctx, in)
	if err != nil {
		return false, err
	}
	switch key {
	case 'a':
		d.verdict = "approve"
	case 'g':
		d.verdict = "approve"
		d.grant = &sallyportv1.SessionGrant{When: shown.GetSuggestedWhen(), Calls: 20, Seconds: 1800}
		g.note("The grant: %s, at most 20 calls within 30m.", oneLine(d.grant.GetWhen()))
	case 'd':
		fmt.Fprint(g.out, "reason (the agent reads it): ")
		if d.reason, err = readLine(g.in); err != nil {
			return false, err
		}
		d.verdict = "deny"
	case 'q', 3:
		return false, exitError{code: exitOK}
	case 's':
		g.note("Left open.")
		return false, nil
	default:
		return true, nil
	}
	if err := g.send(ctx, api, shown.GetApproval().GetId(), d); err != nil {
		g.note("Not decided: %s", oneLine(deciding(err)))
	}
	return false, nil
}

// readKey reads one key in raw mode. What was typed before the question stood for a moment is dropped: in the terminal's queue, and what arrives
// meanwhile.
func readKey(ctx context.Context, in *os.File) (byte, error) {
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
	until := time.Now().Add(settle)
	for {
		left := time.Until(until)
		if left <= 0 {
			break
		}
		if _, err := drop(fd, left); err != nil {
			return 0, err
		}
	}
	if err := unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH); err != nil {
		return 0, errs.Wrap(errs.Internal, "what was typed before cannot be dropped, so no key is taken", err)
	}
	for ctx.Err() == nil {
		ready, err := poll(fd, 200*time.Millisecond)
		if err != nil {
			return 0, err
		}
		if !ready {
			continue
		}
		var b [64]byte
		n, err := in.Read(b[:])
		if err == io.EOF {
			return 'q', nil
		}
		if err != nil {
			return 0, err
		}
		// A paste or an escape sequence is no decision.
		if n == 1 {
			return b[0], nil
		}
	}
	return 'q', nil
}

// drop reads and forgets what comes within wait.
func drop(fd int, wait time.Duration) (n int, err error) {
	ready, err := poll(fd, wait)
	if err != nil || !ready {
		return 0, err
	}
	var b [1024]byte
	return unix.Read(fd, b[:])
}

func poll(fd int, wait time.Duration) (bool, error) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, int(wait.Milliseconds()))
	if err == unix.EINTR {
		return false, nil
	}
	return n > 0, err
}

package main

import (
	"context"
	"fmt"
	"strings"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
)

type sessionsCmd struct {
	List   sessionsListCmd  `cmd:"" default:"withargs" help:"List sessions."`
	Show   sessionsShowCmd  `cmd:"" help:"Show one session."`
	Close  sessionsCloseCmd `cmd:"" help:"End a session for good."`
	Park   notBuilt         `cmd:"" help:"Not built: stop a sandbox and keep its state."`
	Resume notBuilt         `cmd:"" help:"Not built: start a parked sandbox."`
}

type sessionsListCmd struct {
	All bool `help:"Closed ones too."`
}

// Run prints sessions.
func (c *sessionsListCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.ListSessions(ctx, &sallyportv1.ListSessionsRequest{All: c.All}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	rows := make([][]string, 0, len(r.GetSessions()))
	for _, s := range r.GetSessions() {
		rows = append(rows, []string{
			shortID(s.GetId()), s.GetProfile(), s.GetOwner(), s.GetHarness(), s.GetDriver(), networkOf(s.GetClosed()), s.GetState(), fmt.Sprint(s.GetOpenQuestions()), ago(s.GetCreatedMs()),
		})
	}
	g.table([]string{"SESSION", "PROFILE", "OWNER", "HARNESS", "DRIVER", "NETWORK", "STATE", "ASKING", "SINCE"}, rows)
	if len(rows) == 0 {
		g.note("No sessions. Start one: sallyport run --profile NAME -- claude")
	}
	return nil
}

// sessionID is the whole id of the session that a flag names by a unique beginning, or "" for none.
func (g *Globals) sessionID(ctx context.Context, id string) (string, error) {
	if id == "" {
		return "", nil
	}
	s, err := g.session(ctx, id)
	return s.GetId(), err
}

// session finds a session by a unique beginning of its id.
func (g *Globals) session(ctx context.Context, id string) (*sallyportv1.SessionRow, error) {
	const enough = 4
	if len(id) < enough {
		return nil, errs.Newf(errs.Invalid, "name a session by its id, or by at least %d characters of its beginning", enough)
	}
	api, err := g.client()
	if err != nil {
		return nil, err
	}
	r, err := answer(api.ListSessions(ctx, &sallyportv1.ListSessionsRequest{All: true}))
	if err != nil {
		return nil, err
	}
	var found *sallyportv1.SessionRow
	for _, s := range r.GetSessions() {
		if !strings.HasPrefix(s.GetId(), id) {
			continue
		}
		if found != nil {
			return nil, errs.Newf(errs.Invalid, "more than one session begins with %s: write more of its id", id)
		}
		found = s
	}
	if found == nil {
		return nil, errs.Newf(errs.NotFound, "no session begins with %s", id)
	}
	return found, nil
}

type sessionsShowCmd struct {
	ID string `arg:""`
}

// Run prints one session.
func (c *sessionsShowCmd) Run(ctx context.Context, g *Globals) error {
	s, err := g.session(ctx, c.ID)
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(s)
		return nil
	}
	g.members([][2]string{
		{"session", s.GetId()},
		{"epoch", fmt.Sprint(s.GetEpoch())},
		{"state", s.GetState()},
		{"profile", s.GetProfile()},
		{"owner", s.GetOwner()},
		{"attended", fmt.Sprint(s.GetAttended())},
		{"harness", s.GetHarness()},
		{"driver", s.GetDriver()},
		{"network", networkOf(s.GetClosed())},
		{"host", s.GetHost()},
		{"policy", s.GetPolicyDigest()},
		{"asking", fmt.Sprint(s.GetOpenQuestions())},
		{"since", ago(s.GetCreatedMs())},
	})
	return nil
}

type sessionsCloseCmd struct {
	ID     string `arg:""`
	Reason string `help:"Stays in the record."`
	Yes    bool   `help:"Do not ask."`
}

// Run closes a session.
func (c *sessionsCloseCmd) Run(ctx context.Context, g *Globals) error {
	s, err := g.session(ctx, c.ID)
	if err != nil {
		return err
	}
	if err := g.confirm(ctx, c.Yes, "Its sandbox ends and its open questions are void. Close "+s.GetId()+"?"); err != nil {
		return err
	}
	api, err := g.client()
	if err != nil {
		return err
	}
	_, err = answer(api.CloseOwnedSession(ctx, &sallyportv1.CloseOwnedSessionRequest{Session: s.GetId(), Reason: c.Reason}))
	return err
}

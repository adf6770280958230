package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
)

type peopleCmd struct {
	List  peopleListCmd  `cmd:"" default:"withargs" help:"List people who are known beside the accounts of control's machine."`
	Add   peopleAddCmd   `cmd:"" help:"Make a person known, or replace what one may do."`
	Rm    peopleRmCmd    `cmd:"" help:"End a person, with every session and token."`
	Token peopleTokenCmd `cmd:"" help:"Make a token for a program. It is shown once."`
	In    peopleInCmd    `cmd:"" help:"List browsers and tokens that are in."`
	End   peopleEndCmd   `cmd:"" help:"End a browser's session or a token."`
}

type peopleListCmd struct{}

// Run prints people.
func (peopleListCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.peopleClient()
	if err != nil {
		return err
	}
	r, err := answer(api.ListPeople(ctx, &sallyportv1.ListPeopleRequest{}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	rows := make([][]string, 0, len(r.GetPeople()))
	for _, p := range r.GetPeople() {
		rows = append(rows, []string{
			p.GetName(), strings.Join(p.GetRoles(), ","), strings.Join(p.GetProfiles(), ","), strings.Join(p.GetConnections(), ","), strings.Join(p.GetOwners(), ","),
			strings.Join(p.GetGroups(), ","),
		})
	}
	g.table([]string{"NAME", "ROLES", "PROFILES", "CONNECTIONS", "OWNERS", "GROUPS"}, rows)
	return nil
}

type peopleAddCmd struct {
	Name       string   `arg:""`
	Role       []string `help:"administrator, approver, operator or viewer; more than one with commas. Without one, a person sees and decides what is their own."`
	Profile    []string `help:"Limit to these profiles." placeholder:"NAME"`
	Connection []string `help:"Limit to these connections." placeholder:"NAME"`
	Owner      []string `help:"Limit to what these people own." placeholder:"NAME"`
}

// Run adds a person.
func (c *peopleAddCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.peopleClient()
	if err != nil {
		return err
	}
	if _, err := answer(api.PutPerson(ctx, &sallyportv1.PutPersonRequest{
		Name: c.Name, Roles: c.Role, Profiles: c.Profile, Connections: c.Connection, Owners: c.Owner,
	})); err != nil {
		return err
	}
	g.note("Let them in: sallyport console --person %s", c.Name)
	return nil
}

type peopleRmCmd struct {
	Name string `arg:""`
	Yes  bool   `help:"Do not ask."`
}

// Run removes a person.
func (c *peopleRmCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.peopleClient()
	if err != nil {
		return err
	}
	if err := g.confirm(ctx, c.Yes, "End "+c.Name+" with every session and token?"); err != nil {
		return err
	}
	_, err = answer(api.RemovePerson(ctx, &sallyportv1.RemovePersonRequest{Name: c.Name}))
	return err
}

type peopleTokenCmd struct {
	Name     string        `arg:"" help:"What it is for."`
	Person   string        `help:"For this person instead of oneself." placeholder:"NAME"`
	ReadOnly bool          `help:"It changes nothing."`
	For      time.Duration `help:"How long it lives. Default: 90 days."`
}

// Run makes a token.
func (c *peopleTokenCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.peopleClient()
	if err != nil {
		return err
	}
	r, err := answer(api.MakeToken(ctx, &sallyportv1.MakeTokenRequest{Name: c.Name, Person: c.Person, ReadOnly: c.ReadOnly, Seconds: int64(c.For.Seconds())}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	fmt.Fprintln(g.out, r.GetToken())
	g.note("It is not shown again. End it: sallyport people end %s", r.GetId())
	return nil
}

type peopleInCmd struct{}

// Run prints sessions and tokens.
func (peopleInCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.peopleClient()
	if err != nil {
		return err
	}
	r, err := answer(api.ListPasses(ctx, &sallyportv1.ListPassesRequest{}))
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	rows := make([][]string, 0, len(r.GetPasses()))
	for _, p := range r.GetPasses() {
		may := "all that the person may"
		if p.GetReadOnly() {
			may = "read"
		}
		rows = append(rows, []string{p.GetId(), p.GetKind(), p.GetPerson(), p.GetName(), may, ago(p.GetCreatedMs()), ago(p.GetExpiresMs())})
	}
	g.table([]string{"ID", "KIND", "PERSON", "FOR", "MAY", "MADE", "ENDS"}, rows)
	return nil
}

type peopleEndCmd struct {
	ID string `arg:""`
}

// Run ends one.
func (c *peopleEndCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.peopleClient()
	if err != nil {
		return err
	}
	_, err = answer(api.EndPass(ctx, &sallyportv1.EndPassRequest{Id: c.ID}))
	return err
}

package server

import (
	"context"
	"strings"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/control"
	"sallyport.dev/control/person"
	"sallyport.dev/errs"
)

// peopleService is people, and the secrets that stand for them.
type peopleService struct {
	sallyportv1connect.UnimplementedPeopleHandler
	s *Server
}

// EnterPath is the console's page that takes a one-time link.
const EnterPath = "/enter"

// Enter implements sallyport.v1.People.
func (p *peopleService) Enter(ctx context.Context, r *sallyportv1.EnterRequest) (*sallyportv1.EnterResponse, error) {
	link, ok := person.Digest(person.Link, r.GetSecret())
	if !ok {
		return nil, errs.New(errs.Invalid, "this is no link of ours; ask for a new one: sallyport console")
	}
	secret := person.NewSecret(person.Session)
	session := p.pass(person.Session, secret, person.SessionLife)
	session, err := p.s.stores.People.TakeLink(ctx, link, session)
	if err != nil {
		return nil, err
	}
	return &sallyportv1.EnterResponse{Session: secret, ExpiresMs: ms(session.Until), Person: string(session.Person)}, nil
}

// pass is a new pass of a secret.
func (p *peopleService) pass(k person.Kind, secret string, life time.Duration) person.Pass {
	digest, _ := person.Digest(k, secret)
	return person.Pass{Digest: digest, ID: control.NewID(), Kind: k, Until: p.s.stores.People.Now().Add(life)}
}

// Leave implements sallyport.v1.People.
func (p *peopleService) Leave(ctx context.Context, _ *sallyportv1.LeaveRequest) (*sallyportv1.LeaveResponse, error) {
	who := whoOf(ctx)
	if who.pass.ID == "" {
		return nil, errs.New(errs.Invalid, "the machine's own socket has no session to end")
	}
	return &sallyportv1.LeaveResponse{}, p.s.stores.People.EndPass(ctx, who.pass.ID, who.Person)
}

// known refuses whom the people's API would not know.
func (p *peopleService) known(ctx context.Context, asked string) (control.Person, error) {
	who := whoOf(ctx)
	if asked == "" || asked == string(who.Person) {
		return who.Person, nil
	}
	if strings.HasPrefix(asked, localPrefix) {
		return "", errs.New(errs.NotAllowed, "accounts of control's machine make their own links, on that machine")
	}
	_, err := p.s.stores.People.Person(ctx, control.Person(asked))
	return control.Person(asked), err
}

// made stores a pass for a person, made by who asks. A pass that began on the machine's socket stays one that did.
func (p *peopleService) made(ctx context.Context, pass person.Pass, asked string) error {
	of, err := p.known(ctx, asked)
	if err != nil {
		return err
	}
	who := whoOf(ctx)
	pass.Person, pass.Local, pass.By = of, who.Local, who.Person
	return p.s.stores.People.PutPass(ctx, pass)
}

// MakeLink implements sallyport.v1.People.
func (p *peopleService) MakeLink(ctx context.Context, r *sallyportv1.MakeLinkRequest) (*sallyportv1.MakeLinkResponse, error) {
	if p.s.cfg.Web == "" {
		return nil, errs.New(errs.Unavailable, "control serves no web pages: start it with --web ADDR:PORT and --public-url URL")
	}
	secret := person.NewSecret(person.Link)
	pass := p.pass(person.Link, secret, person.LinkLife)
	if err := p.made(ctx, pass, r.GetPerson()); err != nil {
		return nil, err
	}
	return &sallyportv1.MakeLinkResponse{Address: p.s.cfg.Web + EnterPath + "#" + secret, ExpiresMs: ms(pass.Until)}, nil
}

// MakeToken implements sallyport.v1.People.
func (p *peopleService) MakeToken(ctx context.Context, r *sallyportv1.MakeTokenRequest) (*sallyportv1.MakeTokenResponse, error) {
	life := time.Duration(r.GetSeconds()) * time.Second
	if r.GetSeconds() == 0 {
		life = person.TokenLife
	}
	if r.GetSeconds() < 0 || r.GetSeconds() > int64(person.MaxToken/time.Second) {
		return nil, errs.Newf(errs.Invalid, "a token lives at most %d days", person.MaxToken/(24*time.Hour))
	}
	if err := person.CheckName(r.GetName()); err != nil {
		return nil, err
	}
	secret := person.NewSecret(person.Token)
	pass := p.pass(person.Token, secret, life)
	pass.Name, pass.ReadOnly = r.GetName(), r.GetReadOnly()
	if err := p.made(ctx, pass, r.GetPerson()); err != nil {
		return nil, err
	}
	return &sallyportv1.MakeTokenResponse{Token: secret, Id: pass.ID, ExpiresMs: ms(pass.Until)}, nil
}

// ListPasses implements sallyport.v1.People.
func (p *peopleService) ListPasses(ctx context.Context, _ *sallyportv1.ListPassesRequest) (*sallyportv1.ListPassesResponse, error) {
	who := whoOf(ctx)
	of := who.Person
	if who.Administrator {
		of = ""
	}
	all, err := p.s.stores.People.Passes(ctx, of)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.ListPassesResponse{}
	for _, s := range all {
		out.Passes = append(out.Passes, &sallyportv1.PassRow{
			Id: s.ID, Kind: string(s.Kind), Person: string(s.Person), Name: s.Name, ReadOnly: s.ReadOnly, Local: s.Local, CreatedMs: ms(s.Since), ExpiresMs: ms(s.Until),
		})
	}
	return out, nil
}

// EndPass implements sallyport.v1.People.
func (p *peopleService) EndPass(ctx context.Context, r *sallyportv1.EndPassRequest) (*sallyportv1.EndPassResponse, error) {
	return &sallyportv1.EndPassResponse{}, p.s.stores.People.EndPass(ctx, r.GetId(), whoOf(ctx).Person)
}

// ListPeople implements sallyport.v1.People.
func (p *peopleService) ListPeople(ctx context.Context, _ *sallyportv1.ListPeopleRequest) (*sallyportv1.ListPeopleResponse, error) {
	all, err := p.s.stores.People.People(ctx)
	if err != nil {
		return nil, err
	}
	policy, err := p.s.stores.Calls.Policy(ctx, nil)
	if err != nil {
		return nil, err
	}
	out := &sallyportv1.ListPeopleResponse{}
	for _, one := range all {
		row := &sallyportv1.PersonRow{
			Name: string(one.Name), Profiles: one.Limits.Profiles, Connections: one.Limits.Connections, Owners: one.Limits.Owners,
			Groups: groupsOf(policy, one.Name), By: string(one.By), SinceMs: ms(one.Since),
		}
		for _, role := range one.Roles {
			row.Roles = append(row.Roles, string(role))
		}
		out.People = append(out.People, row)
	}
	return out, nil
}

// PutPerson implements sallyport.v1.People.
func (p *peopleService) PutPerson(ctx context.Context, r *sallyportv1.PutPersonRequest) (*sallyportv1.PutPersonResponse, error) {
	one := person.Person{
		Org: control.Org, Name: control.Person(r.GetName()), By: whoOf(ctx).Person,
		Limits: person.Limits{Profiles: r.GetProfiles(), Connections: r.GetConnections(), Owners: r.GetOwners()},
	}
	for _, role := range r.GetRoles() {
		one.Roles = append(one.Roles, person.Role(role))
	}
	if err := one.Check(); err != nil {
		return nil, err
	}
	return &sallyportv1.PutPersonResponse{}, p.s.stores.People.PutPerson(ctx, one)
}

// RemovePerson implements sallyport.v1.People.
func (p *peopleService) RemovePerson(ctx context.Context, r *sallyportv1.RemovePersonRequest) (*sallyportv1.RemovePersonResponse, error) {
	return &sallyportv1.RemovePersonResponse{}, p.s.stores.People.RemovePerson(ctx, control.Person(r.GetName()), whoOf(ctx).Person)
}

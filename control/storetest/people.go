package storetest

import (
	"sync"
	"testing"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/person"
	"sallyport.dev/errs"
)

func testPeople(t *testing.T, f *fixture) {
	ctx := t.Context()
	ada := person.Person{Name: "ada", Roles: []person.Role{person.Approver}, Limits: person.Limits{Connections: []string{"tracker"}}, By: owner}
	f.no(f.People.PutPerson(ctx, ada))
	f.no(f.People.PutPerson(ctx, person.Person{Name: "bea", By: owner}))
	got, err := f.People.Person(ctx, "ada")
	f.no(err)
	want(t, "roles", len(got.Roles), 1)
	want(t, "limits", got.Limits.Cover(person.Object{Connection: "tracker"}) && !got.Limits.Cover(person.Object{Connection: "deploys"}), true)
	since := got.Since
	ada.Roles = []person.Role{person.Viewer}
	f.no(f.People.PutPerson(ctx, ada))
	got, err = f.People.Person(ctx, "ada")
	f.no(err)
	want(t, "role", got.Roles[0], person.Viewer)
	want(t, "since", got.Since, since)
	all, err := f.People.People(ctx)
	f.no(err)
	want(t, "people", len(all), 2)

	session := pass(person.Session, "ada", time.Hour)
	f.no(f.People.PutPass(ctx, session))
	f.no(f.People.PutPass(ctx, pass(person.Token, "bea", time.Hour)))
	f.no(f.People.RemovePerson(ctx, "ada", owner))
	_, err = f.People.Pass(ctx, session.Digest)
	wantCode(t, err, errs.NotFound)
	_, err = f.People.Person(ctx, "ada")
	wantCode(t, err, errs.NotFound)
	wantCode(t, f.People.RemovePerson(ctx, "ada", owner), errs.NotFound)
	rest, err := f.People.Passes(ctx, "")
	f.no(err)
	want(t, "passes of others", len(rest), 1)
}

func pass(k person.Kind, of control.Person, life time.Duration) person.Pass {
	d, ok := person.Digest(k, person.NewSecret(k))
	if !ok {
		panic("a secret without a digest") //nolint:forbidigo // a test's own set-up
	}
	return person.Pass{Digest: d, ID: control.NewID(), Kind: k, Person: of, Local: true, By: owner, Until: time.Now().Add(life)}
}

func testPasses(t *testing.T, f *fixture) {
	ctx := t.Context()
	link := pass(person.Link, "ada", time.Hour)
	f.no(f.People.PutPass(ctx, link))
	_, err := f.People.Pass(ctx, link.Digest)
	wantCode(t, err, errs.NotFound) // a link is no session

	// However many try at once, one gets in.
	var wg sync.WaitGroup
	won := make(chan person.Pass, 8)
	for range cap(won) {
		wg.Go(func() {
			if got, err := f.People.TakeLink(ctx, link.Digest, pass(person.Session, "mallory", time.Hour)); err == nil {
				won <- got
			}
		})
	}
	wg.Wait()
	want(t, "sessions of one link", len(won), 1)
	session := <-won
	want(t, "the link's person", session.Person, control.Person("ada"))
	want(t, "the link's locality", session.Local, true)
	got, err := f.People.Pass(ctx, session.Digest)
	f.no(err)
	want(t, "session", got.ID, session.ID)
	f.no(f.People.EndPass(ctx, session.ID, "ada"))
	_, err = f.People.Pass(ctx, session.Digest)
	wantCode(t, err, errs.NotFound)
	wantCode(t, f.People.EndPass(ctx, session.ID, "ada"), errs.NotFound)

	over := pass(person.Session, "ada", -time.Second)
	f.no(f.People.PutPass(ctx, over))
	_, err = f.People.Pass(ctx, over.Digest)
	wantCode(t, err, errs.NotFound)
	late := pass(person.Link, "ada", -time.Second)
	f.no(f.People.PutPass(ctx, late))
	_, err = f.People.TakeLink(ctx, late.Digest, pass(person.Session, "ada", time.Hour))
	wantCode(t, err, errs.NotAllowed)
}

package server_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/control"
	"sallyport.dev/control/person"
	"sallyport.dev/errs"
)

// with carries a secret.
func with(t *testing.T, secret string) context.Context {
	ctx, info := connect.NewClientContext(t.Context())
	info.RequestHeader().Set("Authorization", "Bearer "+secret)
	return ctx
}

// inProcess are the clients of the console: nobody without a secret.
func (r *rig) inProcess() (sallyportv1connect.OperatorClient, sallyportv1connect.PeopleClient) {
	c := connect.NewClient(r.server.InProcess())
	return sallyportv1connect.NewOperatorClient(c), sallyportv1connect.NewPeopleClient(c)
}

func unauthenticated(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && ce.Code() == connect.CodeUnauthenticated
}

// enter makes a link on the socket and goes in by it.
func (r *rig) enter(people sallyportv1connect.PeopleClient, name string) string {
	r.t.Helper()
	link := must(r.passes.MakeLink(r.t.Context(), &sallyportv1.MakeLinkRequest{Person: name}))
	address, secret, ok := strings.Cut(link.GetAddress(), "#")
	if !ok || address != "https://sallyport.example.org/enter" {
		r.t.Fatalf("link %q", link.GetAddress())
	}
	return must(people.Enter(r.t.Context(), &sallyportv1.EnterRequest{Secret: secret})).GetSession()
}

func (r *rig) person(name string, roles []string, connections ...string) {
	r.t.Helper()
	if _, err := r.passes.PutPerson(r.t.Context(), &sallyportv1.PutPersonRequest{Name: name, Roles: roles, Connections: connections}); err != nil {
		r.t.Fatal(err)
	}
}

func TestALinkOpensOneSession(t *testing.T) {
	r := newRig(t)
	api, people := r.inProcess()
	if _, err := api.Status(t.Context(), &sallyportv1.StatusRequest{}); !unauthenticated(err) {
		t.Fatalf("without a secret: %v", err)
	}
	link := must(r.passes.MakeLink(t.Context(), &sallyportv1.MakeLinkRequest{}))
	_, secret, _ := strings.Cut(link.GetAddress(), "#")
	if _, err := api.Status(with(t, secret), &sallyportv1.StatusRequest{}); !unauthenticated(err) {
		t.Errorf("a link is no session: %v", err)
	}
	in := must(people.Enter(t.Context(), &sallyportv1.EnterRequest{Secret: secret}))
	if _, err := people.Enter(t.Context(), &sallyportv1.EnterRequest{Secret: secret}); codeOf(t, err) != errs.NotAllowed {
		t.Errorf("a second time: %v", err)
	}
	s := must(api.Status(with(t, in.GetSession()), &sallyportv1.StatusRequest{}))
	if s.GetPerson() != in.GetPerson() || !strings.HasPrefix(s.GetPerson(), "local:") || len(s.GetRoles()) != 1 || s.GetRoles()[0] != "administrator" {
		t.Errorf("%v", s)
	}
	listed := must(people.ListPasses(with(t, in.GetSession()), &sallyportv1.ListPassesRequest{})).GetPasses()
	if len(listed) != 1 || !listed[0].GetLocal() {
		t.Errorf("%v", listed)
	}
	if _, err := people.Leave(with(t, in.GetSession()), &sallyportv1.LeaveRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Status(with(t, in.GetSession()), &sallyportv1.StatusRequest{}); !unauthenticated(err) {
		t.Errorf("after leaving: %v", err)
	}
}

func TestRolesOverTheAPI(t *testing.T) {
	r := newRig(t)
	r.apply(yaml)
	r.person("vera", []string{"viewer"})
	r.person("otto", []string{"operator"})
	r.person("lim", []string{"operator"}, "deploys")
	api, people := r.inProcess()
	vera, otto, lim := r.enter(people, "vera"), r.enter(people, "otto"), r.enter(people, "lim")
	preview := func(secret, kind, name string) error {
		_, err := api.Revoke(with(t, secret), &sallyportv1.RevokeRequest{Kind: kind, Name: name, DryRun: true})
		return err
	}
	if err := preview(vera, "connection", "tracker"); codeOf(t, err) != errs.NotAllowed {
		t.Errorf("a viewer: %v", err)
	}
	if err := preview(otto, "connection", "tracker"); err != nil {
		t.Errorf("an operator: %v", err)
	}
	// What a person may not see reads as what is not there.
	for _, name := range []string{"tracker", "nothing"} {
		if err := preview(lim, "connection", name); codeOf(t, err) != errs.NotFound || !strings.Contains(err.Error(), "not yours to see") {
			t.Errorf("a limited operator and %s: %v", name, err)
		}
	}
	if err := preview(lim, "everything", ""); codeOf(t, err) != errs.NotFound {
		t.Errorf("a limited operator and everything: %v", err)
	}
	for name, err := range map[string]error{
		"apply":  second(api.Apply(with(t, otto), &sallyportv1.ApplyRequest{Yaml: []byte(yaml)})),
		"people": second(people.PutPerson(with(t, otto), &sallyportv1.PutPersonRequest{Name: "x"})),
		"enrol":  second(api.Enrol(with(t, otto), &sallyportv1.EnrolRequest{Role: "host", Name: "x"})),
		"a link": second(people.MakeLink(with(t, otto), &sallyportv1.MakeLinkRequest{Person: "vera"})),
	} {
		if got := codeOf(t, err); got != errs.NotAllowed {
			t.Errorf("an operator and %s: %v", name, err)
		}
	}
	seen := must(api.ListConnections(with(t, lim), &sallyportv1.ListConnectionsRequest{})).GetConnections()
	if all := must(api.ListConnections(with(t, vera), &sallyportv1.ListConnectionsRequest{})).GetConnections(); len(seen) != 0 || len(all) != 1 {
		t.Errorf("%d and %d connections", len(seen), len(all))
	}
	// A person's end, or a switch, ends every session at once.
	if _, err := r.people.Revoke(t.Context(), &sallyportv1.RevokeRequest{Kind: "person", Name: "vera", Reason: "left"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.passes.RemovePerson(t.Context(), &sallyportv1.RemovePersonRequest{Name: "otto"}); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{vera, otto} {
		if _, err := api.Status(with(t, secret), &sallyportv1.StatusRequest{}); !unauthenticated(err) {
			t.Errorf("after the end: %v", err)
		}
	}
}

func TestTokens(t *testing.T) {
	r := newRig(t)
	r.apply(yaml)
	r.person("ada", []string{"operator"})
	api, people := r.inProcess()
	made := must(r.passes.MakeToken(t.Context(), &sallyportv1.MakeTokenRequest{Name: "ci", Person: "ada", ReadOnly: true, Seconds: 60}))
	if _, err := api.ListConnections(with(t, made.GetToken()), &sallyportv1.ListConnectionsRequest{}); err != nil {
		t.Errorf("a reading token reads: %v", err)
	}
	if _, err := api.Revoke(with(t, made.GetToken()), &sallyportv1.RevokeRequest{Kind: "connection", Name: "tracker", DryRun: true}); codeOf(t, err) != errs.NotAllowed {
		t.Errorf("a reading token changes: %v", err)
	}
	if _, err := people.MakeToken(with(t, made.GetToken()), &sallyportv1.MakeTokenRequest{Name: "more"}); codeOf(t, err) != errs.NotAllowed {
		t.Errorf("a reading token makes another: %v", err)
	}
	if _, err := r.passes.EndPass(t.Context(), &sallyportv1.EndPassRequest{Id: made.GetId()}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Status(with(t, made.GetToken()), &sallyportv1.StatusRequest{}); !unauthenticated(err) {
		t.Errorf("after its end: %v", err)
	}
	for _, bad := range []*sallyportv1.MakeTokenRequest{{}, {Name: "a b"}, {Name: "x", Seconds: -1}, {Name: "x", Seconds: 1 << 40}} {
		if _, err := r.passes.MakeToken(t.Context(), bad); codeOf(t, err) != errs.Invalid {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// A watcher who loses the session gets nothing more.
func TestWatchEndsWithTheSession(t *testing.T) {
	r := newRig(t)
	api, people := r.inProcess()
	secret := r.enter(people, "")
	ctx, cancel := context.WithTimeout(with(t, secret), 30*time.Second)
	defer cancel()
	stream := must(api.Watch(ctx, &sallyportv1.WatchRequest{}))
	defer stream.Close()
	got := make(chan error, 1)
	go func() {
		for {
			if _, err := stream.Receive(); err != nil {
				got <- err
				return
			}
		}
	}()
	if _, err := people.Leave(with(t, secret), &sallyportv1.LeaveRequest{}); err != nil {
		t.Fatal(err)
	}
	for {
		r.apply(yaml) // an event; the first may come before the watcher does
		r.apply(strings.Replace(yaml, "true", "false", 1))
		select {
		case err := <-got:
			if !unauthenticated(err) {
				t.Errorf("%v", err)
			}
			return
		case <-ctx.Done():
			t.Fatal("the stream goes on")
		default:
		}
	}
}

// The chain of links from the machine's own socket never turns into somebody who is not on this machine.
func TestLocalityIsInherited(t *testing.T) {
	r := newRig(t)
	r.person("ada", []string{"administrator"})
	_, people := r.inProcess()
	ada := r.enter(people, "ada")
	link := must(people.MakeLink(with(t, ada), &sallyportv1.MakeLinkRequest{}))
	_, secret, _ := strings.Cut(link.GetAddress(), "#")
	again := must(people.Enter(t.Context(), &sallyportv1.EnterRequest{Secret: secret})).GetSession()
	digest, ok := person.DigestOf(again)
	if !ok {
		t.Fatal("no digest")
	}
	if p := must(r.store.Pass(t.Context(), digest)); !p.Local || p.Person != control.Person("ada") {
		t.Errorf("%+v", p)
	}
}

func second[T any](_ T, err error) error { return err }

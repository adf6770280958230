package person_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sallyport.dev/control"
	"sallyport.dev/control/person"
	"sallyport.dev/errs"
)

var (
	decides = person.Access{Roles: []person.Role{person.Approver}, Own: true, Changes: true}
	looks   = person.Access{Roles: person.Roles, Own: true}
	applies = person.Access{Changes: true}
	ada     = person.Object{Profile: "dev", Connection: "tracker", Owner: "ada"}
)

func who(name control.Person, roles ...person.Role) person.Who {
	return person.Who{Person: name, Roles: roles}
}

func limited(w person.Who, l person.Limits) person.Who {
	w.Limits = l
	return w
}

func TestJudge(t *testing.T) {
	readOnly := who("bea", person.Administrator)
	readOnly.ReadOnly = true
	onTracker, onDeploys := person.Limits{Connections: []string{"tracker"}}, person.Limits{Connections: []string{"deploys"}}
	for name, c := range map[string]struct {
		a    person.Access
		w    person.Who
		o    *person.Object
		want person.Verdict
	}{
		"nobody":                               {looks, person.Who{}, nil, person.Unknown},
		"nobody, where nobody may":             {person.Access{Nobody: true}, person.Who{}, nil, person.Let},
		"nobody with a role":                   {looks, person.Who{Roles: []person.Role{person.Administrator}}, &ada, person.Unknown},
		"an administrator applies":             {applies, who("bea", person.Administrator), nil, person.Let},
		"an operator applies":                  {applies, who("bea", person.Operator), nil, person.Refused},
		"a viewer decides":                     {decides, who("bea", person.Viewer), &ada, person.Refused},
		"an operator decides":                  {decides, who("bea", person.Operator), &ada, person.Refused},
		"an approver decides":                  {decides, who("bea", person.Approver), &ada, person.Let},
		"within the limit":                     {decides, limited(who("bea", person.Approver), onTracker), &ada, person.Let},
		"beyond the limit it does not exist":   {decides, limited(who("bea", person.Approver), onDeploys), &ada, person.Hidden},
		"beyond the limit, and one's own":      {decides, limited(who("ada", person.Approver), onDeploys), &ada, person.Let},
		"without a role, one's own":            {decides, who("ada"), &ada, person.Let},
		"without a role, another's":            {looks, who("bea"), &ada, person.Hidden},
		"without a role, a list":               {looks, who("bea"), nil, person.Let},
		"a limited approver of another owner":  {decides, limited(who("bea", person.Approver), person.Limits{Owners: []string{"cid"}}), &ada, person.Hidden},
		"an administrator with a reading pass": {applies, readOnly, nil, person.Refused},
		"and looks":                            {looks, readOnly, &ada, person.Let},
		"a limited operator, over everything":  {person.Access{Roles: []person.Role{person.Operator}, Changes: true}, limited(who("bea", person.Operator), onTracker), &person.Object{}, person.Hidden},
		"everybody":                            {person.Access{Everybody: true}, who("bea"), nil, person.Let},
	} {
		if got := person.Judge(c.a, c.w, c.o); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// Whoever may do something with an object may see it; a limit never lets in more; a reading pass never changes anything.
func TestJudgeProperties(t *testing.T) {
	names := rapid.SampledFrom([]string{"a", "b", "c"})
	list := rapid.SliceOfN(names, 0, 2)
	rapid.Check(t, func(t *rapid.T) {
		a := person.Access{
			Roles: rapid.SliceOfN(rapid.SampledFrom(person.Roles), 0, 3).Draw(t, "may"), Own: rapid.Bool().Draw(t, "own"),
			Changes: rapid.Bool().Draw(t, "changes"),
		}
		w := person.Who{
			Person: control.Person(rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "who")), Roles: rapid.SliceOfN(rapid.SampledFrom(person.Roles), 0, 2).Draw(t, "roles"),
			ReadOnly: rapid.Bool().Draw(t, "read only"),
		}
		o := &person.Object{Profile: names.Draw(t, "profile"), Connection: names.Draw(t, "connection"), Owner: control.Person(names.Draw(t, "owner"))}
		free := person.Judge(a, w, o)
		w.Limits = person.Limits{Profiles: list.Draw(t, "profiles"), Connections: list.Draw(t, "connections"), Owners: list.Draw(t, "owners")}
		got := person.Judge(a, w, o)
		switch {
		case got == person.Let && !person.Sees(w, *o):
			t.Fatal("may do with what they may not see")
		case got == person.Let && free != person.Let:
			t.Fatal("a limit lets in more")
		case got == person.Let && a.Changes && w.ReadOnly:
			t.Fatal("a reading pass changes something")
		case got != person.Unknown && w.Person == "":
			t.Fatal("nobody is let in")
		}
	})
}

func TestCheck(t *testing.T) {
	for name, p := range map[string]person.Person{
		"no name":                 {},
		"a socket's name":         {Name: "local:ada"},
		"a space":                 {Name: "ada b"},
		"a hidden character":      {Name: "ada\u202e"},
		"a long name":             {Name: control.Person(strings.Repeat("a", person.MaxName+1))},
		"an unknown role":         {Name: "ada", Roles: []person.Role{"root"}},
		"a limited administrator": {Name: "ada", Roles: []person.Role{person.Administrator}, Limits: person.Limits{Owners: []string{"bea"}}},
		"a limit without a name":  {Name: "ada", Limits: person.Limits{Profiles: []string{""}}},
	} {
		if err := p.Check(); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ok := person.Person{Name: "ada@example.org", Roles: []person.Role{person.Approver, person.Viewer}, Limits: person.Limits{Connections: []string{"tracker"}}}
	if err := ok.Check(); err != nil {
		t.Error(err)
	}
}

func TestSecretsAreOfOneKind(t *testing.T) {
	link, session := person.NewSecret(person.Link), person.NewSecret(person.Session)
	if link == person.NewSecret(person.Link) {
		t.Fatal("the same secret twice")
	}
	if _, ok := person.DigestOf(link); ok {
		t.Error("a link comes with requests")
	}
	d, ok := person.DigestOf(session)
	if !ok || d.IsZero() {
		t.Error("a session has no digest")
	}
	for _, bad := range []string{"", "sps1.", session + "x", session[:len(session)-1], strings.Replace(session, "sps1", "spx1", 1)} {
		if _, ok := person.DigestOf(bad); ok {
			t.Errorf("%q has a digest", bad)
		}
	}
}

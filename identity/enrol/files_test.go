package enrol_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/identity/enrol"
)

func TestLocalAndLoad(t *testing.T) {
	ca, err := identity.NewCA("example.org", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	d := dir(t)
	if _, _, err := enrol.Load(d, time.Now()); !errs.Is(err, errs.NotFound) || !strings.Contains(errs.Message(err), "--join") {
		t.Errorf("not enrolled: %v", err)
	}
	nodes := []enrol.Node{{ID: "spiffe://example.org/control/a", Address: "unix:/run/sallyport/link.sock"}}
	host := id(t, identity.Name{Role: identity.Host, Name: "h1"})
	if _, _, err := enrol.Local(d, ca, host, nodes, root); err != nil {
		t.Fatal(err)
	}
	src, e, err := enrol.Load(d, time.Now())
	if err != nil || src.ID() != host || e.Control[0] != nodes[0] {
		t.Fatalf("%v %+v %v", src, e, err)
	}
	if _, _, err := enrol.Load(d, time.Now().Add(25*time.Hour)); !errs.Is(err, errs.NotAllowed) || !strings.Contains(errs.Message(err), "expired") {
		t.Errorf("expired: %v", err)
	}
	for _, bad := range [][]enrol.Node{nil, {{ID: "x", Address: "a"}}, {{ID: host.String(), Address: "a"}}, {{ID: nodes[0].ID}}} {
		if _, _, err := enrol.Local(dir(t), ca, host, bad, root); !errs.Is(err, errs.Invalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	for _, name := range []string{"enrolment.json", "identity.crt", "identity.key"} {
		info, err := os.Stat(d.Path(name))
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
		good, err := d.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Write(name, []byte("damage")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := enrol.Load(d, time.Now()); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s damaged: %v", name, err)
		}
		if err := d.Write(name, good); err != nil {
			t.Fatal(err)
		}
	}
}

// A crash between any two writes of Keep leaves one whole identity.
func TestKeepSurvivesACrash(t *testing.T) {
	ca, err := identity.NewCA("example.org", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	nodes := []enrol.Node{{ID: "spiffe://example.org/control/a", Address: "a:1"}}
	host := id(t, identity.Name{Role: identity.Host, Name: "h1"})
	fresh, err := enrol.Issue(ca, host, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for cut, files := range [][2][]byte{{fresh.Key, nil}, {fresh.Key, fresh.Chain}} {
		d := dir(t)
		old, _, err := enrol.Local(d, ca, host, nodes, root)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Write("identity.key.next", files[0]); err != nil {
			t.Fatal(err)
		}
		if files[1] != nil {
			if err := d.Write("identity.crt", files[1]); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			src, _, err := enrol.Load(d, time.Now())
			if err != nil {
				t.Fatalf("cut %d: %v", cut, err)
			}
			a, _ := old.GetX509SVID()
			b, _ := src.GetX509SVID()
			if same := a.Certificates[0].Equal(b.Certificates[0]); same != (files[1] == nil) {
				t.Errorf("cut %d: the old identity %v", cut, same)
			}
		}
	}
}

func TestSlot(t *testing.T) {
	ca, err := identity.NewCA("example.org", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	nodes := []enrol.Node{{ID: "spiffe://example.org/control/a", Address: "a:1"}}
	w := id(t, identity.Name{Role: identity.Worker, Pool: "default", Name: "w1"})
	d := dir(t)
	first, _, err := enrol.Local(d, ca, w, nodes, root)
	if err != nil {
		t.Fatal(err)
	}
	keep := func(ms ...identity.Material) {
		t.Helper()
		s, err := enrol.OpenSlot(d)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for _, m := range ms {
			if err := s.Keep(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	load := func() *identity.Source {
		t.Helper()
		src, _, err := enrol.Load(d, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return src
	}
	serial := func(s *identity.Source) string {
		v, _ := s.GetX509SVID()
		return v.Certificates[0].SerialNumber.String()
	}
	keep() // opened, never written
	if serial(load()) != serial(first) {
		t.Error("an empty slot changed the identity")
	}
	one, err := enrol.Issue(ca, w, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	two, err := enrol.Issue(ca, w, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	keep(one, two)
	want, err := identity.NewSource(two, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if serial(load()) != serial(want) {
			t.Error("the newest identity of the slot is taken over, and stays")
		}
	}
	// A torn write, and the identity of another, are nobody's.
	keep(one)
	torn, err := d.Read("identity.next")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Write("identity.next", torn[:len(torn)-70]); err != nil {
		t.Fatal(err)
	}
	if serial(load()) != serial(want) {
		t.Error("a torn slot changed the identity")
	}
	foreign, err := enrol.Issue(ca, id(t, identity.Name{Role: identity.Worker, Pool: "default", Name: "w2"}), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	keep(foreign)
	if serial(load()) != serial(want) {
		t.Error("another's identity was taken over")
	}
	// Enrolling again beats what an old process left in the slot.
	keep(one)
	again, _, err := enrol.Local(d, ca, w, nodes, root)
	if err != nil {
		t.Fatal(err)
	}
	if serial(load()) != serial(again) {
		t.Error("an old slot replaced a new enrolment")
	}
}

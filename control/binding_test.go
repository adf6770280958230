package control_test

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"sallyport.dev/control"
)

func example() control.Binding {
	return control.Binding{
		Org: "default", Session: "s", Profile: "dev", ProfileVersion: 3, Connection: "tracker", Revision: 2, Catalog: control.Sum([]byte("catalog")),
		Tool: "create_issue", Effect: control.Write, Account: "bot", Subject: "shared", Arguments: []byte(`{"title":"x"}`),
	}
}

// Changing any member changes the digest (I7), and the call's row carries every member of it.
func TestEveryMemberIsBound(t *testing.T) {
	base := example()
	base.RequestState, base.InputResponses = []byte("1"), []byte("2")
	v := reflect.ValueOf(&base).Elem()
	before := base.Digest()
	for i := range v.NumField() {
		old := reflect.New(v.Field(i).Type()).Elem()
		old.Set(v.Field(i))
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString(f.String() + "x")
		case reflect.Int64:
			f.SetInt(f.Int() + 1)
		case reflect.Slice:
			f.SetBytes(append([]byte("x"), f.Bytes()...))
		case reflect.Array:
			f.Index(0).SetUint(f.Index(0).Uint() ^ 1)
		default:
			t.Fatalf("a member of kind %s is not tested", f.Kind())
		}
		if base.Digest() == before {
			t.Errorf("%s is not bound", v.Type().Field(i).Name)
		}
		v.Field(i).Set(old)
		if base.Digest() != before {
			t.Fatalf("%s was not restored", v.Type().Field(i).Name)
		}
	}
}

func TestBindingOfTakesEveryMember(t *testing.T) {
	c := &control.Call{
		Org: "o", Session: "s", Profile: "p", ProfileVersion: 1, Connection: "c", Revision: 2, Catalog: control.Sum([]byte("k")), Tool: "t",
		Effect: control.Write, Account: "a", Subject: "u", Arguments: []byte("{}"), RequestState: []byte("r"), Answer: []byte("i"),
	}
	v := reflect.ValueOf(control.BindingOf(c)).Elem()
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("%s is not taken from the call", v.Type().Field(i).Name)
		}
	}
}

// No two lists of parts share a preimage: moving bytes from one part to the next changes the digest.
func TestSumPartsSeparates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOf(rapid.SliceOf(rapid.Byte())).Draw(t, "a")
		b := rapid.SliceOf(rapid.SliceOf(rapid.Byte())).Draw(t, "b")
		same := len(a) == len(b)
		for i := range min(len(a), len(b)) {
			same = same && string(a[i]) == string(b[i])
		}
		if (control.SumParts("x v1", a...) == control.SumParts("x v1", b...)) != same {
			t.Fatalf("%q and %q", a, b)
		}
		if control.SumParts("x v1", a...) == control.SumParts("y v1", a...) {
			t.Fatal("two purposes share a digest")
		}
	})
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := control.NewID()
		if !control.ValidID(id) || seen[id] {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
	a, b := control.CallID("s", "r"), control.CallID("sr", "")
	if a == b || !control.ValidID(a) || a != control.CallID("s", "r") {
		t.Fatalf("call ids %q, %q", a, b)
	}
	for _, bad := range []string{"", "A", "short", "aaaaaaaaaaaaaaaaaaaaaaaaa1", "aaaaaaaaaaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaa/aaaaaaaaaaaaa"} {
		if control.ValidID(bad) {
			t.Errorf("%q is valid", bad)
		}
	}
}

package storetest

import (
	"testing"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
)

// testBinding proves that a store keeps every member of the binding digest: a call that is read back must be bound to the same (I7).
func testBinding(t *testing.T, f *fixture) {
	c := f.row(control.Write)
	want := control.BindingOf(c)
	if _, err := f.Call.Admit(t.Context(), f.admission(c, journal.Admitted)); err != nil {
		t.Fatal(err)
	}
	got, err := f.Call.Call(t.Context(), c.ID)
	if err != nil {
		t.Fatal(err)
	}
	if control.BindingOf(got).Digest() != want.Digest() {
		t.Errorf("the call that was read back is bound to something else:\n%+v\n%+v", control.BindingOf(got), want)
	}
}

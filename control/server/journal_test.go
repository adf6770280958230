package server_test

import (
	"testing"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
)

// An explanation of a call of the journal is of that call: one that is not there is not found, whatever else the request says.
func TestExplainOfACall(t *testing.T) {
	r := newRig(t)
	r.apply(yaml)
	_, err := r.people.Explain(t.Context(), &sallyportv1.ExplainRequest{Profile: "dev", Tool: "tracker/x", Call: "abcdefghijklmnopqrstuvwxyz"})
	if codeOf(t, err) != errs.NotFound {
		t.Errorf("a call that is not there: %v", err)
	}
	got, err := r.people.ListCalls(t.Context(), &sallyportv1.ListCallsRequest{Bounded: true, Unread: true, Profile: "dev"})
	if err != nil || len(got.GetCalls()) != 0 || got.GetNext() != "" {
		t.Errorf("an empty journal: %v %v", got, err)
	}
}

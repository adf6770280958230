package server

import (
	"slices"
	"testing"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
)

func TestProvenance(t *testing.T) {
	sent, kept, given := control.Sum([]byte("sent")), control.Sum([]byte("kept")), control.Sum([]byte("given"))
	settled := control.Step{From: journal.Dispatching, Event: journal.OnAnswer, To: journal.Answered, Digest: kept}
	redacted := control.Step{Event: call.NoteRedacted, Digest: sent, Reason: "the credential stood in it"}
	cut := control.Step{Event: call.NoteCut, Digest: given, Reason: "too long"}
	body := &control.Call{Body: []byte("kept")}
	for name, c := range map[string]struct {
		call              *control.Call
		steps             []control.Step
		server, delivered string
		changes           []string
	}{
		"no answer":         {&control.Call{}, nil, "", "", nil},
		"as it came":        {body, []control.Step{settled}, kept.String(), "", nil},
		"purged":            {&control.Call{}, []control.Step{settled}, kept.String(), "", nil},
		"redacted":          {body, []control.Step{settled, redacted}, sent.String(), kept.String(), []string{"redacted: the credential stood in it"}},
		"cut":               {body, []control.Step{settled, cut}, kept.String(), given.String(), []string{"cut: too long"}},
		"redacted, and cut": {body, []control.Step{settled, redacted, cut}, sent.String(), given.String(), []string{"redacted: the credential stood in it", "cut: too long"}},
	} {
		server, delivered, changes := provenance(c.call, c.steps)
		if server != c.server || delivered != c.delivered || !slices.Equal(changes, c.changes) {
			t.Errorf("%s: %s %s %q", name, server, delivered, changes)
		}
	}
}

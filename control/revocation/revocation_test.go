package revocation_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport.dev/control"
	"sallyport.dev/control/revocation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMatches(t *testing.T) {
	c := &control.Call{
		Session: "s", Host: "h", Worker: "w", Connection: "tracker", Tool: "create", Subject: "shared", Owner: "ada",
		Authority: control.Authority{Kind: control.ByGrant, ID: "nightly"},
	}
	target := revocation.TargetOf(c)
	for _, x := range []struct {
		kind control.SwitchKind
		name string
		want bool
	}{
		{control.SwitchEverything, "", true},
		{control.SwitchSession, "s", true},
		{control.SwitchSession, "t", false},
		{control.SwitchHost, "h", true},
		{control.SwitchWorker, "w", true},
		{control.SwitchWorker, "v", false},
		{control.SwitchTool, "tracker/create", true},
		{control.SwitchTool, "tracker/delete", false},
		{control.SwitchTool, "create", false},
		{control.SwitchConnection, "tracker", true},
		{control.SwitchConnection, "track", false},
		{control.SwitchCredential, "tracker/shared", true},
		{control.SwitchCredential, "tracker/ada", false},
		{control.SwitchGrant, "nightly", true},
		{control.SwitchGrant, "other", false},
		{control.SwitchPerson, "ada", true},
		{control.SwitchPerson, "eve", false},
		{control.SwitchEgress, "main", false},
		{"nonsense", "s", false},
	} {
		if got := revocation.Matches(x.kind, x.name, target); got != x.want {
			t.Errorf("%s %q: %v", x.kind, x.name, got)
		}
	}
	// A name that is missing matches nothing that is missing.
	for _, kind := range []control.SwitchKind{
		control.SwitchSession, control.SwitchHost, control.SwitchWorker, control.SwitchTool, control.SwitchConnection, control.SwitchCredential, control.SwitchGrant, control.SwitchPerson,
	} {
		if revocation.Matches(kind, "", revocation.Target{}) {
			t.Errorf("%s without a name matches", kind)
		}
	}
	if revocation.Matches(control.SwitchCredential, "tracker/", revocation.Target{Connection: "tracker"}) {
		t.Error("a call without a credential is hit by a credential's switch")
	}
	c.Authority = control.Authority{Kind: control.ByApproval, ID: "nightly"}
	if revocation.Matches(control.SwitchGrant, "nightly", revocation.TargetOf(c)) {
		t.Error("an approval is hit by a grant's switch")
	}
}

func TestHit(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	target := revocation.Target{Connection: "tracker"}
	over := &control.Switch{Kind: control.SwitchEverything, Until: now}
	open := &control.Switch{Kind: control.SwitchConnection, Name: "tracker", Until: now.Add(time.Millisecond)}
	// A switch counts from its commit on: the clock of who threw it may run ahead.
	ahead := &control.Switch{Kind: control.SwitchConnection, Name: "tracker", At: now.Add(time.Hour)}
	for name, c := range map[string]struct {
		all  []*control.Switch
		want *control.Switch
	}{
		"none": {nil, nil}, "over": {[]*control.Switch{over}, nil}, "in force": {[]*control.Switch{over, open}, open}, "ahead": {[]*control.Switch{ahead}, ahead},
		"another": {[]*control.Switch{{Kind: control.SwitchConnection, Name: "other"}}, nil},
	} {
		if got := revocation.Hit(c.all, target, now); got != c.want {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

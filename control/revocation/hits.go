package revocation

import (
	"slices"
	"time"

	"sallyport.dev/control"
)

// Target is everything that a switch may name about one dispatch. Empty members match nothing.
type Target struct {
	Session    string
	Host       string // SPIFFE id
	Worker     string // SPIFFE id
	Connection string
	Tool       string // the server's name
	Subject    string // of the credential
	Owner      control.Person
	Grant      string           // the given grant that it rests on
	Approvers  []control.Person // who approved it
}

// TargetOf is what a call says about itself. Approvers stay empty: a person's decision stands on its own once it was given, but the owner's
// withdrawal hits every call of theirs.
func TargetOf(c *control.Call) Target {
	t := Target{
		Session: c.Session, Host: c.Host, Worker: c.Worker, Connection: c.Connection, Tool: c.Tool, Subject: c.Subject, Owner: c.Owner,
	}
	if c.Authority.Kind == control.ByGrant {
		t.Grant = c.Authority.ID
	}
	return t
}

// Matches reports whether a switch of (kind, name) hits t.
func Matches(kind control.SwitchKind, name string, t Target) bool {
	switch kind {
	case control.SwitchEverything:
		return true
	case control.SwitchSession:
		return name == t.Session && name != ""
	case control.SwitchHost:
		return name == t.Host && name != ""
	case control.SwitchWorker:
		return name == t.Worker && name != ""
	case control.SwitchTool:
		return t.Connection != "" && name == t.Connection+"/"+t.Tool
	case control.SwitchConnection:
		return name == t.Connection && name != ""
	case control.SwitchCredential:
		return t.Connection != "" && t.Subject != "" && name == t.Connection+"/"+t.Subject
	case control.SwitchGrant:
		return name == t.Grant && name != ""
	case control.SwitchPerson:
		return name != "" && (name == string(t.Owner) || slices.Contains(t.Approvers, control.Person(name)))
	}
	return false
}

// Hit returns the first switch in force that hits t, or nil.
func Hit(switches []*control.Switch, t Target, now time.Time) *control.Switch {
	for _, s := range switches {
		if InForce(s, now) && Matches(s.Kind, s.Name, t) {
			return s
		}
	}
	return nil
}

// InForce reports whether s counts at now. A switch counts from its commit on, whatever its At: only its end goes by the clock.
func InForce(s *control.Switch, now time.Time) bool {
	return s.Until.IsZero() || now.Before(s.Until)
}

package session

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// Request asks for a session.
type Request struct {
	Owner    control.Person
	Profile  string
	Attended bool
	Harness  string
	Host     string // SPIFFE id
	Facts    Facts
}

// Freeze makes the session of a request: a profile and the tools that it may ever use, as they stand in p. granted says whether the profile, or a
// standing grant of it, names a tool; what is not granted is invisible. Widening needs a new session. Pure. Errors: [errs.NotFound] for the
// profile, [errs.NotAllowed] for a sandbox that the profile does not take, [errs.Quarantined], [errs.Conflict] for two tools of one name.
func Freeze(p *control.Policy, r Request, granted func(profile *control.Profile, connection, tool string) bool, now time.Time) (*control.Session, error) {
	if p.Quarantine != "" {
		return nil, errs.New(errs.Quarantined, "the store is in quarantine; no session opens until sallyport store accept-restore")
	}
	profile := p.Profiles[r.Profile]
	if profile == nil {
		return nil, errs.Newf(errs.NotFound, "no profile is named %q; sallyport profiles list shows them", r.Profile)
	}
	if r.Attended && !profile.Attended {
		return nil, errs.Newf(errs.NotAllowed, "profile %s is for unattended sessions: start it with --unattended, or take another profile", profile.Name)
	}
	if err := takes(profile, r.Facts); err != nil {
		return nil, err
	}
	s := &control.Session{
		Org: control.Org, ID: control.NewID(), Epoch: 1, Owner: r.Owner, Profile: *profile, Attended: r.Attended, Harness: r.Harness, Host: r.Host,
		Driver: r.Facts.Driver, Closed: r.Facts.Closed, SameUID: r.Facts.SameUID, State: control.SessionOpening, CreatedAt: now, SeenAt: now,
	}
	for name, c := range p.Connections {
		cat := p.Catalogs[name]
		if cat == nil {
			continue
		}
		for _, t := range cat.Tools {
			if granted(profile, name, t.Name) {
				s.Tools = append(s.Tools, control.BoundTool{Name: t.As, Connection: name, Revision: c.Revision, Catalog: cat.Digest, Tool: t})
			}
		}
	}
	slices.SortFunc(s.Tools, func(a, b control.BoundTool) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(s.Tools); i++ {
		if a, b := s.Tools[i-1], s.Tools[i]; a.Name == b.Name {
			return nil, errs.Newf(errs.Conflict, "%s/%s and %s/%s have one name in the sandbox, %s: give one another name (as:)", a.Connection, a.Tool.Name, b.Connection, b.Tool.Name, a.Name)
		}
	}
	var err error
	s.PolicyDigest, err = policyDigest(s)
	return s, err
}

// takes says whether a profile takes a sandbox of these facts: what it demands of the network, and its driver.
func takes(p *control.Profile, f Facts) error {
	rank := map[string]int{"no": 0, "asserted": 1, "proven": 2}
	has, known := rank[f.Closed]
	if !known {
		return errs.Newf(errs.Invalid, "the driver says %q of its network; it must say proven, asserted or no", f.Closed)
	}
	if f.Driver != p.Sandbox.Driver {
		return errs.Newf(errs.NotAllowed, "profile %s wants the driver %s, not %s", p.Name, p.Sandbox.Driver, f.Driver)
	}
	if has < rank[p.Sandbox.Closed] {
		return errs.Newf(errs.NotAllowed, "profile %s wants a sandbox whose network is %s to be closed; this one's is: %s", p.Name, p.Sandbox.Closed, f.Closed)
	}
	return nil
}

// policyDigest names the whole frozen binding: the gate confirms it before anything starts, and every approval is bound to it.
func policyDigest(s *control.Session) (control.Digest, error) {
	profile, err := json.Marshal(s.Profile)
	if err != nil {
		return control.Digest{}, errs.Wrap(errs.Internal, "the profile cannot be written", err)
	}
	parts := [][]byte{[]byte(s.Org), []byte(s.Owner), strconv.AppendBool(nil, s.Attended), []byte(s.Driver), []byte(s.Closed), profile}
	for _, t := range s.Tools {
		parts = append(parts, []byte(t.Name), []byte(t.Connection), strconv.AppendInt(nil, t.Revision, 10), t.Catalog[:], []byte(t.Tool.Name), []byte(t.Tool.Effect))
	}
	return control.SumParts("session policy v1", parts...), nil
}

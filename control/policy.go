package control

import "time"

// Policy is everything beside a session's frozen binding that admission and barrier evaluate: the newest configuration, the given grants and
// every switch, at one generation. It is immutable: a change makes a new one.
//
// A barrier names the generation that it evaluated; the store refuses it if another one is current (under the lock that every change of a
// member takes exclusively), and the pipeline evaluates again. So commit order is dispatch order (I9), and the check is one comparison.
type Policy struct {
	Org         string
	Generation  int64
	Profiles    map[string]*Profile
	Connections map[string]*Connection
	Catalogs    map[string]*Catalog        // the approved one of each connection
	Drift       map[string]map[string]bool // by connection: tools of the server that no longer are as reviewed
	Stopped     map[string]map[string]bool // those of them that are out of service until their change was reviewed
	Given       []*GivenGrant              // neither revoked nor long expired; Used is not kept current here
	Switches    []*Switch                  // neither restored nor long expired
	Groups      map[string][]Person
	Quarantine  string // why nothing is admitted, or ""
}

// Apply is one change of the configuration: one transaction, all or nothing. Lists hold what is added or replaced.
type Apply struct {
	Org               string
	By                Person
	At                time.Time
	Expect            int64 // the generation that the plan was made against; another one is a conflict
	Connections       []Connection
	Catalogs          []Catalog // approved by this apply; those they replace become superseded
	Profiles          []Profile // Version is set by the store: the former one plus one
	Standing          []GivenGrant
	RemoveConnections []string
	RemoveProfiles    []string
	RemoveStanding    []string
	Groups            map[string][]Person // nil: unchanged
}

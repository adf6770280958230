package grant

import (
	"context"
	"time"

	"sallyport.dev/control"
)

// Store is what grants and profiles need of the database. Each method is one durable transaction that takes the policy's lock exclusively and
// makes the next generation.
type Store interface {
	// Now is the store's time, in UTC.
	Now() time.Time
	// Apply writes one change of the configuration: connections, approved catalogs, profiles, standing grants, groups. Errors: [errs.Conflict]
	// when the generation is not the expected one. It returns the new generation.
	Apply(ctx context.Context, a *control.Apply) (int64, error)
	// GiveGrant inserts a standing or session grant. Errors: [errs.Conflict] when the id is taken.
	GiveGrant(ctx context.Context, g *control.GivenGrant) error
	// EndGrant revokes a given grant for good. Errors: [errs.NotFound].
	EndGrant(ctx context.Context, id string, by control.Person, reason string) error
	// GivenGrants returns given grants, those that ended too, with Used as counted now and Suspended as it stands.
	GivenGrants(ctx context.Context, f Filter) ([]control.GivenGrant, error)
}

// Filter selects given grants.
type Filter struct {
	Org     string
	Kind    string // standing | session | "" for both
	Profile string
	Session string
	Ended   bool // those too
}

package call

import (
	"context"
	"sync"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// Credentials finds what a dispatch authenticates with.
type Credentials interface {
	// Credential returns the newest version for (connection, subject), sealed bytes included, refreshed where its expiry is near. Errors:
	// [errs.NotFound] or [errs.NotConnected] when there is none.
	Credential(ctx context.Context, connection, subject string) (*control.Credential, error)
}

// credentialCache keeps credentials of one policy generation: every change of one makes the next.
type credentialCache struct {
	mu         sync.Mutex
	generation int64
	all        map[CredentialRef]*control.Credential
}

// credential returns what a dispatch authenticates with now, or nil when there is none.
func (p *Pipeline) credential(ctx context.Context, policy *control.Policy, connection, subject string, now time.Time) (*control.Credential, error) {
	const ahead = time.Minute // a credential that ends sooner is asked for again: whoever keeps them refreshes it
	key := CredentialRef{Connection: connection, Subject: subject}
	c := &p.credentials
	c.mu.Lock()
	if c.generation != policy.Generation {
		c.generation, c.all = policy.Generation, map[CredentialRef]*control.Credential{}
	}
	got := c.all[key]
	c.mu.Unlock()
	if got != nil && (got.ExpiresAt.IsZero() || now.Add(ahead).Before(got.ExpiresAt)) {
		return got, nil
	}
	got, err := p.cfg.Credentials.Credential(ctx, connection, subject)
	if errs.Is(err, errs.NotFound) || errs.Is(err, errs.NotConnected) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.generation == policy.Generation {
		c.all[key] = got
	}
	return got, nil
}

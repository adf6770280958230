package call

import (
	"context"
	"net/http"
	"sync"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
)

// Credentials finds what a dispatch authenticates with.
type Credentials interface {
	// Credential returns the newest version for (connection, subject), sealed bytes included, refreshed where its expiry is near. Errors:
	// [errs.NotFound] or [errs.NotConnected] when there is none.
	Credential(ctx context.Context, connection, subject string) (*control.Credential, error)
	// Refused says that a server does not take a version any more (HTTP 401), or wants more of it than it has (HTTP 403): what it wants instead
	// stands in its challenge. It does not block.
	Refused(connection, subject string, version int64, status int, challenge string)
}

// credentialCache keeps credentials of one policy generation: every change of one makes the next.
type credentialCache struct {
	mu         sync.Mutex
	generation int64
	all        map[CredentialRef]*control.Credential
}

// credential returns what a dispatch authenticates with now, or nil when there is none.
func (p *Pipeline) credential(ctx context.Context, policy *control.Policy, connection, subject string, now time.Time) (*control.Credential, error) {
	key := CredentialRef{Connection: connection, Subject: subject}
	c := &p.credentials
	c.mu.Lock()
	if c.generation != policy.Generation {
		c.generation, c.all = policy.Generation, map[CredentialRef]*control.Credential{}
	}
	got := c.all[key]
	c.mu.Unlock()
	if got != nil && got.Trouble == "" && !got.Due(now) {
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

// trust is what a connection's TLS rests on, for beside an intent. Errors: [errs.Unavailable].
func (p *Pipeline) trust(policy *control.Policy, c *control.Connection, now time.Time) ([]byte, error) {
	if !c.TLS.Certificate {
		return c.Trust(nil, now)
	}
	got, err := p.credential(p.life, policy, c.Name, intent.CertificateSubject, now)
	if err != nil {
		return nil, err
	}
	trust, err := c.Trust(got, now)
	if errs.Is(err, errs.NotConnected) { // which speaks of the account's credential here
		err = errs.New(errs.Unavailable, errs.Message(err))
	}
	return trust, err
}

// credentialRefused tells who keeps the credential that a server refused it. The call itself is over: it is never repeated for it.
func (d *driver) credentialRefused(o Outcome) {
	if c := d.with; c.Connection != "" && (o.Status == http.StatusUnauthorized || o.Status == http.StatusForbidden) {
		d.p.cfg.Credentials.Refused(c.Connection, c.Subject, c.Version, o.Status, o.Challenge)
	}
}

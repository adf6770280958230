package executor

import (
	"context"
	"net/netip"
	"time"

	"sallyport.dev/worker/upstream"
)

// Upstream is what the executor needs of worker/upstream: prepare a dispatch, test a connection, list its tools. [NewUpstream] makes it of the real
// client.
type Upstream interface {
	Prepare(ctx context.Context, t *upstream.Target, call *upstream.Call, hooks upstream.Hooks) (Prepared, error)
	PrepareCallback(ctx context.Context, t *upstream.Target, call *upstream.Callback, hooks upstream.Hooks) (Prepared, error)
	Probe(ctx context.Context, t *upstream.Target) (*upstream.Report, error)
	ListTools(ctx context.Context, t *upstream.Target) (*upstream.Catalog, error)
}

// Prepared is a dispatch of which no byte has left. Exactly one of Send and Close follows.
type Prepared interface {
	Address() netip.AddrPort
	Protocol() string
	Session() []byte // exported old-era session, to be sealed; nil: none
	Took() time.Duration
	Send(ctx context.Context) upstream.Outcome
	Close()
}

// NewUpstream adapts the real client.
func NewUpstream(c *upstream.Client) Upstream { return realUpstream{c} }

type realUpstream struct{ *upstream.Client }

// Prepare implements [Upstream].
func (r realUpstream) Prepare(ctx context.Context, t *upstream.Target, call *upstream.Call, hooks upstream.Hooks) (Prepared, error) {
	p, err := r.Client.Prepare(ctx, t, call, hooks)
	if err != nil {
		return nil, err // a nil *upstream.Prepared in an interface is not nil
	}
	return p, nil
}

// PrepareCallback implements [Upstream].
func (r realUpstream) PrepareCallback(ctx context.Context, t *upstream.Target, call *upstream.Callback, hooks upstream.Hooks) (Prepared, error) {
	p, err := r.Client.PrepareCallback(ctx, t, call, hooks)
	if err != nil {
		return nil, err
	}
	return p, nil
}

package identity

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"sallyport.dev/errs"
)

// Times of renewal. The wall clock is looked at every renewPoll: a laptop's timers stand still while it sleeps, its certificate's life does not.
const (
	renewPoll     = time.Minute
	renewRetry    = 30 * time.Second
	renewRetryMax = 10 * time.Minute
)

// Renewer keeps a source's certificate fresh: from half of its life on, with a new key each time, until it succeeds.
type Renewer struct {
	Source *Source
	// Ask sends a certificate request to control and returns the chain and the roots.
	Ask func(ctx context.Context, csr []byte) (chain, ca []byte, err error)
	// Keep stores the new identity before it is used. When it fails the identity is used all the same, and the log says so: the one on disk is
	// still valid, and the process lives on.
	Keep func(Material) error
	Log  *slog.Logger // nil: nowhere
}

// Due reports whether an identity with these bounds is due for renewal at now: half of its life is over.
func Due(notBefore, notAfter, now time.Time) bool {
	return now.After(notBefore.Add(notAfter.Sub(notBefore) / 2))
}

// Run renews until ctx ends, and returns its error.
func (r *Renewer) Run(ctx context.Context) error {
	log := r.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	wait := time.Duration(0)
	retry := renewRetry
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		from, to := r.Source.Validity()
		if !Due(from, to, time.Now()) {
			wait, retry = renewPoll, renewRetry
			continue
		}
		if err := r.once(ctx, log); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			log.Warn("identity not renewed", "id", r.Source.ID().String(), "expires", to.UTC().Format(time.RFC3339), "again_in", retry, "err", err)
			// Jitter: a fleet that was enrolled together must not ask together.
			wait = retry/2 + rand.N(retry/2)
			retry = min(2*retry, renewRetryMax)
			continue
		}
		_, to = r.Source.Validity()
		log.Info("identity renewed", "id", r.Source.ID().String(), "expires", to.UTC().Format(time.RFC3339))
		wait, retry = renewPoll, renewRetry
	}
}

func (r *Renewer) once(ctx context.Context, log *slog.Logger) error {
	req, err := NewRequest()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, renewRetry)
	defer cancel()
	chain, ca, err := r.Ask(ctx, req.CSR)
	if err != nil {
		return errs.Wrap(errs.Unreachable, "control gave no new identity", err)
	}
	m, err := req.Accept(chain, ca, r.Source.ID(), time.Now())
	if err != nil {
		return err
	}
	if err := r.Keep(m); err != nil {
		log.Error("identity renewed, but not kept on disk", "id", r.Source.ID().String(), "err", err)
	}
	return r.Source.Replace(m, time.Now())
}

package call

import (
	"context"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/intent"
)

// job builds and signs the intent of the coming attempt.
func (d *driver) job(row *control.Call, dec *decision, by control.Authority, run Run, now time.Time, goes bool) (Job, error) {
	d.with = dec.credential
	credential, sealed, err := d.credential(dec, now)
	if err != nil {
		return Job{}, err
	}
	upstream, err := d.upstream(dec.connection)
	if err != nil {
		return Job{}, err
	}
	trust, err := d.p.trust(dec.policy, dec.connection, now)
	if err != nil {
		return Job{}, err
	}
	in, beside := intentOf(row, dec.connection, &d.bound.Tool, credential, upstream, by, run, now)
	in.TLS, beside.TLS = intent.Digest(trust), trust
	in.Attended = d.s.session().Attended && row.Rounds < journal.MaxRounds
	return d.p.jobOf(run, in, beside, sealed, goes)
}

// credential is the version that the rules went by; nil where the connection needs none. Errors: [errs.NotConnected] when another one stands.
func (d *driver) credential(dec *decision, now time.Time) (*control.Credential, control.Sealed, error) {
	if dec.credential.Connection == "" {
		return nil, nil, nil
	}
	c, err := d.p.credential(d.p.life, dec.policy, dec.credential.Connection, dec.credential.Subject, now)
	if err != nil || c == nil || c.Version != dec.credential.Version {
		return nil, nil, errs.Wrap(errs.NotConnected, "the credential changed", err)
	}
	return c, c.Sealed, nil
}

// upstream is the sealed old-era session of (session, connection), or nil.
func (d *driver) upstream(c *control.Connection) ([]byte, error) {
	if c.Kind == control.KindCallback {
		return nil, nil
	}
	if b, known := d.s.upstreamOf(c.Name); known {
		return b, nil
	}
	b, err := d.p.cfg.Store.Upstream(d.p.life, d.l.session, c.Name)
	if err == nil {
		d.s.setUpstream(c.Name, b)
	}
	return b, err
}

// keepUpstream stores what a worker says of the upstream session.
func (d *driver) keepUpstream(ctx context.Context, sealed []byte) {
	if sealed == nil || d.row.Connection == "" {
		return
	}
	if old, known := d.s.upstreamOf(d.row.Connection); known && string(old) == string(sealed) {
		return
	}
	d.s.setUpstream(d.row.Connection, sealed)
	if err := d.p.cfg.Store.PutUpstream(ctx, d.l.session, d.row.Connection, sealed); err != nil && ctx.Err() == nil {
		d.p.cfg.Log.Warn("an upstream session was not stored; the next call opens another", "connection", d.row.Connection, "err", err)
	}
}

// send hands a committed read to its run. A frame that was not queued is the proof that nothing was sent.
func (d *driver) send(run Run, job Job) {
	d.out = attempt{intent: job.Intent, run: run.ID, worker: run.Worker, finishBy: d.finishBy()}
	d.p.reg.expect(job.Intent, attemptOf{l: d.l, run: run.ID, worker: run.Worker})
	if err := d.p.cfg.Workers.Submit(run.ID, job); err != nil {
		d.endPass(healthUnknown) // the worker is away, which says nothing of the server
		d.l.box.put(toldOutcome{run.ID, Outcome{Intent: job.Intent, Transport: journal.TransportNotSent, Failure: journal.FailConnect, Detail: errs.Message(err)}})
	}
}

// finishBy is when the worker stops waiting for the answer, by this process's clock.
func (d *driver) finishBy() time.Time {
	l := control.ConnectionLimits{}
	if policy := d.p.policy.Load(); policy != nil && policy.Connections[d.row.Connection] != nil {
		l = policy.Connections[d.row.Connection].Limits
	}
	l = limitsOf(&control.Connection{Limits: l})
	return time.Now().Add(startWindow + 3*l.Connect + l.Timeout)
}

package call

import (
	"sallyport.dev/control"
	"sallyport.dev/control/journal"
)

func (p *Pipeline) observe(c *control.Call, s control.Step) {
	if p.cfg.Observe != nil {
		p.cfg.Observe(c, s)
	}
}

// applySet writes what a step sets. The stores do the same.
func applySet(c *control.Call, s *Set) {
	put(&c.Facts, s.Facts)
	put(&c.Code, s.Code)
	put(&c.Reason, s.Reason)
	put(&c.ExpiresAt, s.ExpiresAt)
	put(&c.Binding, s.Binding)
	put(&c.Authority, s.Authority)
	put(&c.Subject, s.Subject)
	put(&c.Account, s.Account)
	put(&c.Rounds, s.Rounds)
	put(&c.Gone, s.Gone)
	put(&c.Cancel, s.Cancel)
	for _, b := range []struct{ to, v *[]byte }{
		{&c.Body, &s.Body}, {&c.RequestState, &s.RequestState}, {&c.InputRequests, &s.InputRequests}, {&c.Answer, &s.Answer}, {&c.TaskHandle, &s.TaskHandle},
	} {
		if *b.v != nil {
			*b.to = *b.v
		}
	}
}

func put[T any](to *T, v *T) {
	if v != nil {
		*to = *v
	}
}

// adopt prepares a driver for a row that it did not make.
func (d *driver) adopt() {
	d.recheck = true
	d.expires = d.row.ExpiresAt.Sub(d.row.AdmittedAt)
	d.out = attempt{intent: d.row.Intent, run: d.row.Run, worker: d.row.Worker}
	if policy := d.p.policy.Load(); policy != nil {
		d.drifted = policy.Drift[d.row.Connection][d.row.Tool]
	}
}

// expectAdopted makes an attempt that is out already known here: its outcome finds this driver, and it counts for its connection.
func (d *driver) expectAdopted() {
	if d.row.State != journal.Dispatching {
		return
	}
	d.p.reg.expect(d.row.Intent, attemptOf{l: d.l, run: d.row.Run, worker: d.row.Worker})
	d.p.slots.force(d.row.Connection, d.p.concurrent(d.row.Connection), d.l)
	d.slot = d.row.Connection
}

package call

import (
	"context"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/relay"
)

// Submit implements [HostEvents].
func (p *Pipeline) Submit(s Submission) {
	if p.draining.Load() {
		return // never journaled: the host sends it to the next run
	}
	rec, err := relay.ParseCall(s.Record)
	if err != nil {
		// Without an id there is nobody to answer; the host refuses such a record itself, so this is a host of another build.
		p.cfg.Log.Warn("a record was refused", "host", s.Host, "session", s.Session, "err", err)
		return
	}
	digest := control.Sum(s.Record)
	w := &waiter{
		addr: Address{Host: s.Host, Session: s.Session, Epoch: s.Epoch, Record: rec.ID}, digest: digest, shim: rec.Shim, progress: rec.Progress, kind: byRecord,
	}
	l := &live{id: control.CallID(s.Session, rec.ID), session: s.Session, digest: digest, box: newMailbox()}
	for {
		got, mine := p.reg.claim(l)
		if mine {
			break
		}
		if got.digest != digest {
			p.spawn(func() { p.conflict(p.life, got.id, w) })
			return
		}
		if got.box.put(toldAttach{w}) {
			return
		}
		p.reg.drop(got)
	}
	d := &driver{p: p, l: l, came: time.Now()}
	p.spawn(func() { d.begin(p.life, s, &rec, w) })
}

// Attach implements [HostEvents].
func (p *Pipeline) Attach(a Address) {
	p.spawn(func() { p.attach(p.life, a) })
}

// Cancel implements [HostEvents].
func (p *Pipeline) Cancel(a Address, why CancelWhy) {
	id := control.CallID(a.Session, a.Record)
	told := toldCancel{record: a.Record, why: why}
	if l := p.reg.find(id); l != nil && l.box.put(told) {
		return
	}
	p.spawn(func() {
		alias, err := p.cfg.Store.Alias(p.life, id)
		if err != nil {
			return // over already: its result is on the way
		}
		if l := p.reg.find(alias.Call); l != nil {
			l.box.put(told)
		}
	})
}

// Acknowledge implements [HostEvents].
func (p *Pipeline) Acknowledge(a Address) {
	p.sessionsMu.Lock()
	s := p.sessions[a.Session]
	p.sessionsMu.Unlock()
	record := control.CallID(a.Session, a.Record)
	if s != nil {
		if o, ok := s.taken(record); ok {
			if o.final {
				if o.of != nil {
					o.of.forget(o.call)
				}
				p.cfg.Store.Deliver(Delivered{Call: o.call, Delivery: journal.DeliveryAcknowledged})
			}
			return
		}
	}
	// Handed over by an earlier run: the row knows whether its end was published.
	p.spawn(func() { p.acknowledgeRow(p.life, record, s) })
}

func (p *Pipeline) acknowledgeRow(ctx context.Context, record string, s *sessionState) {
	id := record
	if alias, err := p.cfg.Store.Alias(ctx, record); err == nil {
		id = alias.Call
	}
	row, err := p.cfg.Store.Call(ctx, id)
	if err != nil || row.Delivery != journal.DeliveryPublished || row.State.Unfinished() {
		return
	}
	if s != nil {
		s.forget(id)
	}
	p.cfg.Store.Deliver(Delivered{Call: id, Delivery: journal.DeliveryAcknowledged})
}

// RunUp implements [WorkerEvents].
func (p *Pipeline) RunUp(r Run, open []string) {
	p.reg.eachAttempt(func(_ string, a attemptOf) {
		if a.run == r.ID || a.worker == r.Worker {
			a.l.box.put(toldRunUp{r})
		}
	})
	// What the run keeps and nobody here expects is late evidence, or settled: asking makes the outcome come again.
	for _, id := range open {
		if _, expected := p.reg.attempt(id); !expected {
			if err := p.cfg.Workers.Attest(r.ID, id); err != nil {
				p.cfg.Log.Debug("a run that came up is gone again", "run", r.ID)
				return
			}
		}
	}
}

// RunDown implements [WorkerEvents].
func (p *Pipeline) RunDown(run string) {
	p.reg.eachAttempt(func(_ string, a attemptOf) {
		if a.run == run {
			a.l.box.put(toldRunDown{run})
		}
	})
}

// tell hands an event to the driver that expects it from this very run.
func (p *Pipeline) tell(run, intent string, m any) bool {
	a, ok := p.reg.attempt(intent)
	return ok && a.run == run && a.l.box.put(m)
}

// Ready implements [WorkerEvents].
func (p *Pipeline) Ready(run string, r Ready) { p.tell(run, r.Intent, toldReady{r}) }

// Sent implements [WorkerEvents]. How far the bytes came is in the outcome; until then a call that was released counts as sent.
func (p *Pipeline) Sent(string, string, int64) {}

// Progressed implements [WorkerEvents].
func (p *Pipeline) Progressed(run, intent string, g Progress) {
	p.tell(run, intent, toldProgress{intent, g})
}

// Outcome implements [WorkerEvents].
func (p *Pipeline) Outcome(run string, o Outcome) {
	if !p.tell(run, o.Intent, toldOutcome{run, o}) {
		p.spawn(func() { p.late(p.life, run, o) })
	}
}

// Attested implements [WorkerEvents].
func (p *Pipeline) Attested(run, intent string, a Attestation) {
	if !p.tell(run, intent, toldAttested{intent, a}) && a == NotStarted {
		p.spawn(func() {
			p.late(p.life, run, Outcome{Intent: intent, Transport: journal.TransportNotSent, Failure: journal.FailClosed})
		})
	}
}

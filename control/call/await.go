package call

import (
	"context"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/relay"
	"sallyport.dev/relay/strictjson"
)

// awaitCall makes the record wait for a call of its session, in whatever epoch that was made. It is no call of its own: no grant, no row, not in
// flight. What it waits for is journaled, so that the record is answered after a restart too.
func (d *driver) awaitCall(ctx context.Context, rec *relay.Call, w *waiter) bool {
	raw, _ := strictjson.Lookup(rec.Arguments, "call")
	id, ok := strictjson.Unquote(raw)
	if !ok || !control.ValidID(id) {
		d.turnAway(w, AwaitTool, errs.InvalidArguments, `it needs {"call": ID}, the id that a pending call named`)
		return false
	}
	for range 8 { // a call that was retried leads to the one that took its place
		row, err := d.p.cfg.Store.Call(ctx, id)
		switch {
		case errs.Is(err, errs.NotFound), err == nil && row.Session != rec.Session:
			t := text{tool: AwaitTool, id: id, code: errs.UnknownCall}
			d.p.cfg.Hosts.Journaled(w.addr, w.digest)
			d.p.hand(d.s, w, d.l.id, journal.Refused, said(t), false)
			return false
		case err != nil:
			d.turnAway(w, AwaitTool, errs.Unavailable, "the store does not answer")
			return false
		}
		if row.State != journal.Superseded || row.RetriedBy == "" {
			break
		}
		id = row.RetriedBy
	}
	if d.joinAs(ctx, byAwait, id, w) == notJoined {
		d.turnAway(w, AwaitTool, errs.Unavailable, "the call it names is gone")
	}
	return false
}

// join lets a record wait for a call that stands in the journal, or hands over its end.
func (p *Pipeline) join(ctx context.Context, id string, w *waiter) {
	if w.s == nil {
		w.s = p.knownSession(w.addr.Session)
	}
	for range 3 {
		if l := p.reg.find(id); l != nil {
			if l.box.put(toldAttach{w}) {
				return
			}
			p.reg.drop(l)
		}
		row, err := p.cfg.Store.Call(ctx, id)
		if err != nil {
			t := text{tool: "the call", id: id, code: errs.Unavailable, reason: "its store does not answer"}
			if errs.Is(err, errs.NotFound) {
				t.reason = "it was not taken up"
			}
			p.cfg.Hosts.Journaled(w.addr, w.digest)
			p.hand(w.s, w, id, journal.Refused, said(t), false)
			return
		}
		if row.State.Unfinished() && row.Lease == p.cfg.Run && p.life.Err() == nil {
			p.resume(ctx, row)
			continue
		}
		p.handRow(ctx, row, w)
		return
	}
}

// handRow hands over what a row says now.
func (p *Pipeline) handRow(ctx context.Context, row *control.Call, w *waiter) {
	s, err := p.session(ctx, row.Session, 0)
	if err != nil {
		return
	}
	d := &driver{p: p, l: &live{id: row.ID, session: row.Session}, s: s, row: row}
	d.expires = row.ExpiresAt.Sub(row.AdmittedAt)
	p.cfg.Hosts.Journaled(w.addr, w.digest)
	if row.State.Unfinished() {
		d.give(w, resultOf(row, d.callback(), d.text()))
		return
	}
	d.giveEnd(w, d.endFor(ctx, w.old && w.kind != byAwait))
}

// conflict answers a record whose id is live with other bytes, and notes it.
func (p *Pipeline) conflict(ctx context.Context, id string, w *waiter) {
	w.s = p.knownSession(w.addr.Session)
	if err := p.cfg.Store.Note(ctx, Note{Call: id, Event: "conflict", Actor: w.addr.Host, Digest: w.digest}); err != nil && !errs.Is(err, errs.NotFound) {
		p.cfg.Log.Warn("a conflict was not noted", "call", id, "err", err)
	}
	p.cfg.Hosts.Journaled(w.addr, w.digest)
	t := text{tool: "the call", id: id, code: errs.Conflict, reason: "another call of the same id was made before"}
	p.hand(w.s, w, id, journal.Refused, said(t), false)
}

// unknown answers a record that was journaled and is lost: its admission was not durable, so no write of it was ever committed.
func (p *Pipeline) unknown(w *waiter) {
	p.cfg.Log.Warn("a host asks for a record that is not journaled", "session", w.addr.Session, "record", w.addr.Record)
	if w.addr.Digest.IsZero() {
		return // without its digest the guest would not believe an answer
	}
	w.digest = w.addr.Digest
	t := text{tool: "the call", id: control.CallID(w.addr.Session, w.addr.Record), code: errs.Unavailable, reason: "its record was lost in a power failure"}
	p.cfg.Hosts.Journaled(w.addr, w.digest)
	p.hand(w.s, w, t.id, journal.Refused, said(t), false)
}

// attach answers a host that asks for a record again.
func (p *Pipeline) attach(ctx context.Context, a Address) {
	record := control.CallID(a.Session, a.Record)
	s, err := p.session(ctx, a.Session, a.Epoch)
	if err != nil {
		return
	}
	if row := s.session(); row.Host != a.Host || row.Epoch != a.Epoch {
		p.cfg.Log.Warn("a host asks for a record that is not its own", "host", a.Host, "session", a.Session)
		return
	}
	w := &waiter{addr: a, kind: byRecord, s: s}
	if l := p.reg.find(record); l != nil {
		w.digest = l.digest
		if l.box.put(toldAttach{w}) {
			return
		}
	}
	id := record
	if alias, err := p.cfg.Store.Alias(ctx, record); err == nil {
		id, w.digest, w.kind = alias.Call, alias.RecordDigest, waitKind(alias.Kind)
		w.old = false
	} else if !errs.Is(err, errs.NotFound) {
		return // the host asks again when its own time is over
	} else if row, err := p.cfg.Store.Call(ctx, record); err == nil {
		w.digest = row.RecordDigest
	} else {
		if errs.Is(err, errs.NotFound) {
			p.unknown(w)
		}
		return
	}
	p.join(ctx, id, w)
}

package call

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// rule decides about the coming call, and looks for twins: a write whose twin is unfinished or unread, and whose waiter is gone, is that twin asked for
// again. joined: the record waits for it.
func (d *driver) rule(ctx context.Context, fixed *decision, w *waiter) (dec *decision, policy *control.Policy, mark int64, joined bool, err error) {
	p := d.p
	if policy, err = p.current(ctx); err != nil {
		return nil, nil, 0, false, err
	}
	if fixed != nil {
		return fixed, policy, 0, false, nil
	}
	m, err := d.matter(ctx, policy)
	if err != nil {
		return nil, nil, 0, false, err
	}
	dec = p.rules.decide(ctx, m)
	if dec.effect != control.Write || dec.ruling == RulingRefuse || d.row.Client {
		return dec, policy, 0, false, nil
	}
	d.bind(d.row, dec)
	twins, mark, err := p.cfg.Store.Twins(ctx, d.row.Twin)
	if err != nil {
		return nil, nil, 0, false, err
	}
	for _, t := range twins {
		switch {
		case t.State == journal.Uncertain, t.State == journal.Rejected && !dec.connection.Trusted:
			if m.doubted == "" {
				m.doubted = fmt.Sprintf("an equal call (%s) is %s", t.ID, t.State)
			}
		case d.abandonedTwin(t):
			if d.joinAs(ctx, byTwin, t.ID, w) != notJoined {
				d.s.forget(d.l.id)
				return nil, nil, 0, true, nil
			}
		}
	}
	if m.doubted != "" {
		dec = p.rules.decide(ctx, m)
	}
	if dec.ruling == RulingGrant {
		if m.suspended, err = p.cfg.Store.Suspended(ctx, d.row.Owner, d.row.Connection, d.row.Tool); err != nil {
			return nil, nil, 0, false, err
		}
		if m.suspended {
			dec = p.rules.decide(ctx, m)
		}
	}
	if dec.ruling == RulingAsk {
		dec.reason = twinText(twins, m)
	}
	return dec, policy, mark, false, nil
}

// abandonedTwin reports whether an equal write waits for nobody any more: unfinished, or answered and unread for at most ten minutes, and its
// waiter cancelled, gone, told that it is pending, or of another shim of this sandbox.
func (d *driver) abandonedTwin(t *control.Call) bool {
	const fresh = 10 * time.Minute
	switch {
	case t.State.Unfinished():
	case t.State == journal.Answered && d.p.cfg.Store.Now().Sub(t.SettledAt) <= fresh:
	default:
		return false
	}
	here := t.Session == d.row.Session
	if t.State.Unfinished() {
		if awaited, live := d.p.awaited(t.ID, d.row.Session, d.row.Shim); live {
			// A caller that was told that it is pending waits for await_call; the same call again, from the same sandbox, is that model's.
			return !awaited && (here || t.Gone)
		}
	}
	return t.Gone || here && t.Shim != d.row.Shim
}

// awaited reports whether somebody who is still there waits for a live call, as it looks from a shim.
func (p *Pipeline) awaited(id, session, shim string) (awaited, live bool) {
	l := p.reg.find(id)
	if l == nil {
		return false, false
	}
	q := askWaiters{session: session, shim: shim, answer: make(chan bool, 1)}
	if !l.box.put(q) {
		return false, false
	}
	select {
	case awaited = <-q.answer:
		return awaited, true
	case <-time.After(time.Second): // its driver is busy with the store: then it is a call of its own, and a question of its own
		return true, true
	case <-p.life.Done():
		return true, true
	}
}

// askWaiters asks a driver whether somebody waits.
type askWaiters struct {
	session, shim string
	answer        chan bool
}

// awaited reports whether a waiter is still there: its pipe is open, and it is no other shim of the asking sandbox (a harness replaces its shim; it
// does not run two of them for one conversation).
func (d *driver) awaited(session, shim string) bool {
	return slices.ContainsFunc(d.waiters, func(w *waiter) bool {
		return !w.gone && (w.addr.Session != session || w.shim == "" || w.shim == shim)
	})
}

func twinText(twins []*control.Call, m *matter) string {
	var lines []string
	if m.doubted != "" {
		lines = append(lines, m.doubted+": it may have happened already")
	}
	for _, t := range twins {
		if t.State.Unfinished() || t.State == journal.Answered {
			lines = append(lines, fmt.Sprintf("an equal call (%s) is %s", t.ID, t.State))
		}
	}
	return strings.Join(lines, "; ")
}

// joining is what came of an attempt to wait for another call.
type joining int

const (
	joined      joining = iota // the record waits there, or is answered
	notJoined                  // there is no such call
	joinRefused                // the record was answered: it cannot wait, and must not make a call of its own
)

// joinAs makes the record of w an alias of another call, and lets it wait there. A store that does not answer is no reason to make a call of its own:
// that could be the same write twice.
func (d *driver) joinAs(ctx context.Context, kind waitKind, id string, w *waiter) joining {
	alias := &control.Alias{ID: d.l.id, Session: w.addr.Session, Record: w.addr.Record, RecordDigest: w.digest, Kind: string(kind), Call: id}
	got, row, err := d.p.cfg.Store.Attach(ctx, alias, w.addr.Epoch)
	switch {
	case errs.Is(err, errs.NotFound):
		return notJoined
	case err != nil:
		d.p.cfg.Log.Warn("a record was not journaled as an alias", "call", id, "err", err)
		d.turnAway(w, d.name, errs.Unavailable, "its store does not answer")
		return joinRefused
	case got == Conflicts:
		d.row = row
		d.conflicting(w)
		return joinRefused
	case got != Done && got != Attaches:
		d.turnAway(w, d.name, errs.NotAllowed, "the session is not open")
		return joinRefused
	}
	d.p.cfg.Hosts.Journaled(w.addr, w.digest)
	w.uncount()
	w.kind = kind
	w.old = row.State == journal.Answered
	if w.old && kind != byAwait {
		d.note(ctx, Note{Call: id, Event: "answered_again", Actor: w.addr.Host, Digest: w.digest})
	}
	d.joined = row.ID
	d.p.join(ctx, row.ID, w)
	return joined
}

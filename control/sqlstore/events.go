package sqlstore

import (
	"encoding/json"
	"strings"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/errs"
)

// event is an audit record of the batch under way. Its number and its run are given when the batch is finished.
type event struct {
	audit.Record
	call int64 // calls.seq; 0 for other subjects
}

// record adds a transition of anything but a call.
func (t *tx) record(kind, subject, from, what, to, actor, detail string) {
	t.events = append(t.events, event{Record: audit.Record{
		Kind: kind, Subject: valid(subject), From: from, Event: what, To: to, Actor: valid(actor), Detail: valid(detail),
	}})
}

// detail is what a call's step holds beside its states; it is the record's detail, as JSON.
type detail struct {
	Code   errs.Code `json:"code,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Digest string    `json:"digest,omitempty"`
}

// step adds a transition of a call.
func (t *tx) step(seq int64, id string, st *control.Step) {
	r := audit.Record{
		Kind: audit.KindCall, Subject: id, Attempt: int64(st.Attempt), From: string(st.From), Event: string(st.Event), To: string(st.To),
		Actor: valid(st.Actor),
	}
	if st.Code != "" || st.Reason != "" || !st.Digest.IsZero() {
		d := detail{Code: st.Code, Reason: valid(st.Reason)}
		if !st.Digest.IsZero() {
			d.Digest = st.Digest.String()
		}
		b, err := json.Marshal(d)
		if err == nil { // strings alone: it cannot fail
			r.Detail = string(b)
		}
	}
	t.events = append(t.events, event{Record: r, call: seq})
}

// valid keeps foreign bytes out of the record: an export is UTF-8.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

const (
	sqlInsertEvent = `INSERT INTO events (seq, org, run, at, kind, subject, attempt, source, event, target, actor, detail, call, link)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	sqlUpdateMeta = `UPDATE meta SET incarnation = ?, counter = ?, generation = ?, quarantine = ? WHERE one = 1`
)

// finish writes what belongs to the batch as a whole: its audit records with their link, and the store's own row.
func (t *tx) finish() error {
	if err := t.link(); err != nil {
		return err
	}
	before := &t.s.head
	if t.head.counter != before.counter || t.head.generation != before.generation || t.head.quarantine != before.quarantine || t.head.incarnation != before.incarnation {
		_, err := t.conn.exec(sqlUpdateMeta, t.head.incarnation, t.head.counter, t.head.generation, t.head.quarantine)
		return err
	}
	return nil
}

func (t *tx) link() error {
	if len(t.events) == 0 {
		return nil
	}
	at := t.now.UnixMilli()
	records := t.s.records[:0]
	for i := range t.events {
		e := &t.events[i]
		t.head.seq++
		e.Seq, e.Run, e.At, e.Org = t.head.seq, t.s.run, at, control.Org
		records = append(records, e.Record)
	}
	t.s.records = records
	t.head.link = audit.Link(t.head.link, records)
	for i := range t.events {
		e := &t.events[i]
		var call, link any
		if e.call != 0 {
			call = e.call
		}
		if i == len(t.events)-1 {
			link = t.head.link
		}
		if _, err := t.conn.exec(sqlInsertEvent, e.Seq, e.Org, t.s.runNo, e.At, e.Kind, e.Subject, e.Attempt, e.From, e.Event, e.To, e.Actor, e.Detail, call, link); err != nil {
			return err
		}
	}
	return nil
}

// Subscription receives the records of every commit, from its beginning on. Slow readers miss some: Lost says so, and the reader looks again.
type Subscription struct {
	C    <-chan []audit.Record
	c    chan []audit.Record
	s    *Store
	lost bool // guarded by s.subs
}

// Subscribe returns the records of commits as they happen: wake-ups, not a log. End it with Close.
func (s *Store) Subscribe(buffer int) *Subscription {
	c := make(chan []audit.Record, max(buffer, 1))
	sub := &Subscription{C: c, c: c, s: s}
	s.subsMu.Lock()
	s.subs[sub] = struct{}{}
	s.subsMu.Unlock()
	return sub
}

// Close ends a subscription. It may be called twice.
func (u *Subscription) Close() {
	u.s.subsMu.Lock()
	delete(u.s.subs, u)
	u.s.subsMu.Unlock()
}

// Lost reports, once, whether records were left out since it was last asked.
func (u *Subscription) Lost() bool {
	u.s.subsMu.Lock()
	defer u.s.subsMu.Unlock()
	lost := u.lost
	u.lost = false
	return lost
}

// publish hands a commit's records to those who look.
func (s *Store) publish(t *tx) {
	if len(t.events) == 0 {
		return
	}
	s.subsMu.Lock()
	defer s.subsMu.Unlock()
	if len(s.subs) == 0 {
		return
	}
	records := make([]audit.Record, len(t.events))
	for i := range t.events {
		records[i] = t.events[i].Record
	}
	for sub := range s.subs {
		select {
		case sub.c <- records:
		default:
			sub.lost = true
		}
	}
}

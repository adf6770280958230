// Package memstore is the store in memory, for tests. It is as strict as the real ones: the same conformance suite (control/storetest) runs on
// it. It knows what a crash is: what was committed without durability may be lost.
package memstore

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/person"
	"sallyport.dev/control/revocation"
	"sallyport.dev/control/session"
	"sallyport.dev/errs"
)

// DB is the database. Rows are immutable: a change replaces the pointer. Safe for concurrent use.
type DB struct {
	mu sync.Mutex

	calls       table[control.Call]
	questions   table[control.Question]
	sessions    table[control.Session]
	given       table[control.GivenGrant]
	switches    table[control.Switch]
	credentials table[control.Credential]
	connections table[control.Connection]
	catalogs    table[control.Catalog]
	profiles    table[control.Profile]
	tickets     table[session.Ticket]
	upstream    table[[]byte]
	aliases     table[control.Alias]
	past        table[bool] // incarnations that somebody remembered, and whether they were accepted
	counters    table[call.Usage]
	leases      table[time.Time]
	steps       table[[]control.Step]
	seq         table[int64] // insert order of calls
	people      table[person.Person]
	passes      table[person.Pass]
	groups      map[string][]control.Person
	next        int64

	generation int64
	policy     *control.Policy // of generation, or nil
	history    revocation.History

	undo []func() // of what is committed and not durable

	fault func(op string, committed bool) error
}

// SetFault makes transactions fail. f is asked before and after each one, by the method's name: an error before means that nothing happened, an error
// after that the transaction committed and the answer was lost. nil ends it.
func (d *DB) SetFault(f func(op string, committed bool) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = f
}

// New returns an empty database.
func New() *DB {
	d := &DB{history: revocation.History{Incarnation: control.NewID()}, generation: 1}
	d.calls.init(d)
	d.questions.init(d)
	d.sessions.init(d)
	d.given.init(d)
	d.switches.init(d)
	d.credentials.init(d)
	d.connections.init(d)
	d.catalogs.init(d)
	d.profiles.init(d)
	d.tickets.init(d)
	d.upstream.init(d)
	d.aliases.init(d)
	d.past.init(d)
	d.counters.init(d)
	d.leases.init(d)
	d.steps.init(d)
	d.seq.init(d)
	d.people.init(d)
	d.passes.init(d)
	return d
}

type table[V any] struct {
	db   *DB
	rows map[string]*V
}

func (t *table[V]) init(d *DB) { t.db, t.rows = d, map[string]*V{} }

func (t *table[V]) get(id string) *V { return t.rows[id] }

// put replaces a row; nil removes it.
func (t *table[V]) put(id string, v *V) {
	old, had := t.rows[id]
	t.db.undo = append(t.db.undo, func() {
		if had {
			t.rows[id] = old
		} else {
			delete(t.rows, id)
		}
	})
	if v == nil {
		delete(t.rows, id)
		return
	}
	t.rows[id] = v
}

// ids returns the keys in order.
func (t *table[V]) ids() []string { return slices.Sorted(maps.Keys(t.rows)) }

// transact runs f as one transaction. f must refuse before it changes.
func (d *DB) transact(op string, durable bool, f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fault != nil {
		if err := d.fault(op, false); err != nil {
			return err
		}
	}
	if err := f(); err != nil {
		return err
	}
	if durable {
		d.undo = nil
		d.history.Counter++
	}
	if d.fault != nil {
		return d.fault(op, true)
	}
	return nil
}

// Crash loses every commit since the last durable one, as a machine does that loses power.
func (d *DB) Crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, u := range slices.Backward(d.undo) {
		u()
	}
	d.undo = nil
	d.policy = nil
}

// Now is the store's time.
func (d *DB) Now() time.Time { return now() }

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// bump makes the next generation. The caller holds the lock.
func (d *DB) bump() {
	old := d.generation
	d.undo = append(d.undo, func() { d.generation, d.policy = old, nil })
	d.generation++
	d.policy = nil
}

// Policy returns the current policy.
func (d *DB) Policy(_ context.Context, have *control.Policy) (*control.Policy, error) {
	var p *control.Policy
	err := d.transact("Policy", false, func() error {
		if have != nil && have.Generation == d.generation {
			p = have
			return nil
		}
		if d.policy == nil {
			d.policy = d.build()
		}
		p = d.policy
		return nil
	})
	return p, err
}

func (d *DB) build() *control.Policy {
	at := now()
	p := &control.Policy{
		Org: control.Org, Generation: d.generation, Profiles: maps.Clone(d.profiles.rows), Connections: maps.Clone(d.connections.rows),
		Catalogs: map[string]*control.Catalog{}, Groups: maps.Clone(d.groups), Quarantine: d.history.Quarantine,
	}
	for _, c := range d.catalogs.rows {
		if c.State == control.CatalogApproved {
			p.Catalogs[c.Connection] = c
		}
	}
	for _, id := range d.given.ids() {
		if g := d.given.get(id); !g.Revoked && at.Before(g.Until) {
			p.Given = append(p.Given, g)
		}
	}
	for _, id := range d.switches.ids() {
		if s := d.switches.get(id); revocation.InForce(s, at) {
			p.Switches = append(p.Switches, s)
		}
	}
	return p
}

// step appends to a call's journal.
func (d *DB) step(id string, at time.Time, s ...control.Step) {
	var all []control.Step
	if old := d.steps.get(id); old != nil {
		all = slices.Clone(*old)
	}
	for _, one := range s {
		one.At = at
		all = append(all, one)
	}
	d.steps.put(id, &all)
}

// questionOf returns the question of a call that waits: open, or approved and not used.
func (d *DB) questionOf(id string) *control.Question {
	for _, q := range d.questions.rows {
		if q.Call == id && (q.State == control.QuestionOpen || q.State == control.QuestionApproved) {
			return q
		}
	}
	return nil
}

// leave closes the question that a call waited for.
func (d *DB) leave(id string, from journal.State, event journal.Event, at time.Time) {
	if !from.Waits() && from != journal.Approved {
		return
	}
	q := d.questionOf(id)
	if q == nil {
		return
	}
	next := *q
	next.State = call.QuestionEnd(event)
	next.ClosedAt = at
	d.questions.put(q.ID, &next)
}

// PutCredential stores a credential as it is: for tests to prepare. As every change of a credential it makes the next generation.
func (d *DB) PutCredential(c control.Credential) error {
	return d.transact("PutCredential", true, func() error {
		c.ModifiedAt = now()
		d.credentials.put(c.Connection+"/"+c.Subject, &c)
		d.bump()
		return nil
	})
}

// Credential returns a credential. Errors: [errs.NotConnected].
func (d *DB) Credential(_ context.Context, connection, subject string) (*control.Credential, error) {
	var c control.Credential
	err := d.transact("Credential", false, func() error {
		row := d.credentials.get(connection + "/" + subject)
		if row == nil {
			return errs.New(errs.NotConnected, "no credential is stored for this connection; connect it first")
		}
		c = *row
		return nil
	})
	return &c, err
}

// Refused is nothing to a store: there is nobody who could renew.
func (d *DB) Refused(_, _ string, _ int64, _ int, _ string) {}

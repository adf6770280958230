package memstore

import (
	"cmp"
	"context"
	"slices"

	"sallyport.dev/control"
	"sallyport.dev/control/person"
	"sallyport.dev/errs"
)

var _ person.Store = (*DB)(nil)

// PutPerson adds or replaces a person.
func (d *DB) PutPerson(_ context.Context, p person.Person) error {
	return d.transact("PutPerson", true, func() error {
		p.Org, p.Since = control.Org, now()
		if old := d.people.get(string(p.Name)); old != nil {
			p.Since = old.Since
		}
		d.people.put(string(p.Name), &p)
		return nil
	})
}

// RemovePerson forgets a person and their passes.
func (d *DB) RemovePerson(_ context.Context, name, _ control.Person) error {
	return d.transact("RemovePerson", true, func() error {
		if d.people.get(string(name)) == nil {
			return errs.New(errs.NotFound, "no such person")
		}
		d.people.put(string(name), nil)
		for _, id := range d.passes.ids() {
			if d.passes.get(id).Person == name {
				d.passes.put(id, nil)
			}
		}
		return nil
	})
}

// Person returns one person.
func (d *DB) Person(_ context.Context, name control.Person) (out person.Person, err error) {
	return out, d.transact("Person", false, func() error {
		p := d.people.get(string(name))
		if p == nil {
			return errs.New(errs.NotFound, "no such person")
		}
		out = *p
		return nil
	})
}

// People returns all.
func (d *DB) People(context.Context) (out []person.Person, err error) {
	err = d.transact("People", false, func() error {
		for _, id := range d.people.ids() {
			out = append(out, *d.people.get(id))
		}
		return nil
	})
	return out, err
}

// PutPass stores a pass.
func (d *DB) PutPass(_ context.Context, p person.Pass) error {
	return d.transact("PutPass", true, func() error {
		d.insertPass(p)
		return nil
	})
}

func (d *DB) insertPass(p person.Pass) {
	for _, id := range d.passes.ids() {
		if !now().Before(d.passes.get(id).Until) {
			d.passes.put(id, nil)
		}
	}
	p.Org, p.Since = control.Org, now()
	d.passes.put(p.Digest.String(), &p)
}

// TakeLink uses a link.
func (d *DB) TakeLink(_ context.Context, link control.Digest, session person.Pass) (out person.Pass, err error) {
	err = d.transact("TakeLink", true, func() error {
		l := d.passes.get(link.String())
		if l == nil || l.Kind != person.Link || !now().Before(l.Until) {
			return errs.New(errs.NotAllowed, "the link is used or over")
		}
		session.Person, session.Local, session.By = l.Person, l.Local, l.By
		d.passes.put(link.String(), nil)
		d.insertPass(session)
		out = *d.passes.get(session.Digest.String())
		return nil
	})
	return out, err
}

// Pass returns a session or token that is not over.
func (d *DB) Pass(_ context.Context, digest control.Digest) (out person.Pass, err error) {
	err = d.transact("Pass", false, func() error {
		p := d.passes.get(digest.String())
		if p == nil || p.Kind == person.Link || !now().Before(p.Until) {
			return errs.New(errs.NotFound, "no such pass")
		}
		out = *p
		return nil
	})
	return out, err
}

// Passes returns those that are not over.
func (d *DB) Passes(_ context.Context, of control.Person) (out []person.Pass, err error) {
	err = d.transact("Passes", false, func() error {
		for _, id := range d.passes.ids() {
			if p := d.passes.get(id); p.Kind != person.Link && now().Before(p.Until) && (of == "" || p.Person == of) {
				out = append(out, *p)
			}
		}
		slices.SortFunc(out, func(a, b person.Pass) int { return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.ID, b.ID)) })
		return nil
	})
	return out, err
}

// EndPass ends one.
func (d *DB) EndPass(_ context.Context, id string, _ control.Person) error {
	return d.transact("EndPass", true, func() error {
		for _, key := range d.passes.ids() {
			if d.passes.get(key).ID == id {
				d.passes.put(key, nil)
				return nil
			}
		}
		return errs.New(errs.NotFound, "no such pass")
	})
}

package memstore

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// Call returns one call.
func (d *DB) Call(_ context.Context, id string) (*control.Call, error) {
	return d.find("Call", func(c *control.Call) bool { return c.ID == id })
}

// ByIntent returns the call whose current attempt has this intent.
func (d *DB) ByIntent(_ context.Context, intent string) (*control.Call, error) {
	return d.find("ByIntent", func(c *control.Call) bool { return intent != "" && c.Intent == intent })
}

func (d *DB) find(op string, is func(*control.Call) bool) (*control.Call, error) {
	var out *control.Call
	err := d.transact(op, false, func() error {
		for _, c := range d.calls.rows {
			if is(c) {
				out = clone(c)
				return nil
			}
		}
		return errs.New(errs.NotFound, "there is no such call")
	})
	return out, err
}

func (d *DB) collect(op string, whole bool, is func(*control.Call) bool) ([]*control.Call, error) {
	var out []*control.Call
	err := d.transact(op, false, func() error {
		for _, c := range d.ordered() {
			if !is(c) {
				continue
			}
			if whole {
				out = append(out, clone(c))
			} else {
				out = append(out, bare(c))
			}
		}
		return nil
	})
	return out, err
}

// OpenCalls returns what is not over and read.
func (d *DB) OpenCalls(_ context.Context, session string) ([]*control.Call, error) {
	return d.collect("OpenCalls", true, func(c *control.Call) bool {
		return c.Session == session && (c.State.Unfinished() || c.State == journal.Uncertain || c.Delivery != journal.DeliveryAcknowledged)
	})
}

// Twins returns the writes that matter to a new one of the same bytes.
func (d *DB) Twins(_ context.Context, twin control.Digest) ([]*control.Call, int64, error) {
	out, err := d.collect("Twins", false, func(c *control.Call) bool {
		if c.Twin != twin || twin.IsZero() {
			return false
		}
		return c.State.Unfinished() || c.State == journal.Uncertain || c.State == journal.Rejected ||
			c.State == journal.Answered && c.Delivery != journal.DeliveryAcknowledged
	})
	slices.Reverse(out)
	d.mu.Lock()
	defer d.mu.Unlock()
	return out, d.mark(twin), err
}

// Suspended reports whether a write is uncertain.
func (d *DB) Suspended(_ context.Context, owner control.Person, connection, tool string) (bool, error) {
	var out bool
	err := d.transact("Suspended", false, func() error {
		out = d.uncertain(owner, connection, tool, "")
		return nil
	})
	return out, err
}

// Usage returns the counters.
func (d *DB) Usage(_ context.Context, takes []call.Take) ([]call.Usage, error) {
	var out []call.Usage
	err := d.transact("Usage", false, func() error {
		at := now()
		for _, t := range takes {
			out = append(out, d.usage(t, at))
		}
		return nil
	})
	return out, err
}

// Upstream returns a sealed upstream session.
func (d *DB) Upstream(_ context.Context, session, connection string) ([]byte, error) {
	var out []byte
	err := d.transact("Upstream", false, func() error {
		if b := d.upstream.get(session + "/" + connection); b != nil {
			out = *b
		}
		return nil
	})
	return out, err
}

// PutUpstream stores a sealed upstream session.
func (d *DB) PutUpstream(_ context.Context, session, connection string, sealed []byte) error {
	return d.transact("PutUpstream", false, func() error {
		if sealed == nil {
			d.upstream.put(session+"/"+connection, nil)
			return nil
		}
		d.upstream.put(session+"/"+connection, &sealed)
		return nil
	})
}

// Steps returns a call's journal.
func (d *DB) Steps(_ context.Context, id string) ([]control.Step, error) {
	var out []control.Step
	err := d.transact("Steps", false, func() error {
		s := d.steps.get(id)
		if s == nil {
			return errs.New(errs.NotFound, "there is no such call")
		}
		out = slices.Clone(*s)
		return nil
	})
	return out, err
}

// ListCalls returns calls by a filter.
func (d *DB) ListCalls(_ context.Context, f call.Filter) ([]*control.Call, string, error) {
	before := int64(1) << 62
	if f.Cursor != "" {
		n, err := strconv.ParseInt(f.Cursor, 10, 64)
		if err != nil {
			return nil, "", errs.New(errs.Invalid, "this cursor is not one of ours")
		}
		before = n
	}
	if f.Limit < 1 || f.Limit > 500 {
		return nil, "", errs.New(errs.Invalid, "a page has 1 to 500 calls")
	}
	all, err := d.collect("ListCalls", false, func(c *control.Call) bool {
		return *d.seq.get(c.ID) < before && matches(f, c)
	})
	if err != nil {
		return nil, "", err
	}
	slices.Reverse(all)
	if len(all) <= f.Limit {
		return all, "", nil
	}
	all = all[:f.Limit]
	d.mu.Lock()
	defer d.mu.Unlock()
	return all, strconv.FormatInt(*d.seq.get(all[len(all)-1].ID), 10), nil
}

func matches(f call.Filter, c *control.Call) bool {
	return strings.HasPrefix(c.ID, f.IDPrefix) && (f.Session == "" || f.Session == c.Session) && (f.Owner == "" || f.Owner == c.Owner) && (f.Profile == "" || f.Profile == c.Profile) &&
		(f.Connection == "" || f.Connection == c.Connection) && (f.Tool == "" || f.Tool == c.Tool) &&
		(len(f.States) == 0 || slices.Contains(f.States, c.State)) && !c.AdmittedAt.Before(f.Since)
}

// PurgeCall forgets bodies.
func (d *DB) PurgeCall(_ context.Context, id string, by control.Person) error {
	return d.transact("PurgeCall", true, func() error {
		c := d.calls.get(id)
		if c == nil {
			return errs.New(errs.NotFound, "there is no such call")
		}
		if !c.State.Final() {
			return errs.New(errs.Conflict, "only an ended call can be purged")
		}
		d.calls.put(id, bare(c))
		d.step(id, now(), control.Step{From: c.State, To: c.State, Event: "purge", Attempt: c.Attempt, Actor: string(by)})
		return nil
	})
}

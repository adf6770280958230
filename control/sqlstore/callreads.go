package sqlstore

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/errs"
)

// Call returns one call whole.
func (s *Store) Call(ctx context.Context, id string) (*control.Call, error) {
	return s.oneWhole(ctx, sqlCallByID, id)
}

// ByIntent returns the call whose current attempt has this intent. A call that is over is found while it is one of the newest 65,536.
func (s *Store) ByIntent(ctx context.Context, intent string) (*control.Call, error) {
	seq, ok := s.index.byIntent(intent)
	if !ok {
		return nil, noSuchCall()
	}
	c, err := s.oneWhole(ctx, sqlCallBySeq, seq)
	if err == nil && c.Intent != intent {
		return nil, noSuchCall()
	}
	return c, err
}

func (s *Store) oneWhole(ctx context.Context, sql string, args ...any) (*control.Call, error) {
	got, err := s.manyWhole(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	if len(got) == 0 {
		return nil, noSuchCall()
	}
	return got[0], nil
}

func (s *Store) manyWhole(ctx context.Context, sql string, args ...any) ([]*control.Call, error) {
	var got []whole
	err := s.read(ctx, func(c *conn) error {
		rows, err := c.manyCalls(sql, args...)
		if err != nil {
			return err
		}
		got, err = c.withBodies(rows)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.opened(got)
}

func (s *Store) manyBare(ctx context.Context, sql string, args ...any) ([]*callRow, error) {
	var rows []*callRow
	err := s.read(ctx, func(c *conn) error {
		var err error
		rows, err = c.manyCalls(sql, args...)
		return err
	})
	return rows, err
}

const sqlOpenCalls = `SELECT ` + callColumns + ` FROM calls WHERE session = ? AND unread = 1 ORDER BY seq`

// OpenCalls returns what is not over, or not read.
func (s *Store) OpenCalls(ctx context.Context, session string) ([]*control.Call, error) {
	return s.manyWhole(ctx, sqlOpenCalls, session)
}

const sqlTwins = `SELECT ` + callColumns + ` FROM calls WHERE twin = ? AND (state IN (` + unfinishedStates + `, 'uncertain', 'rejected')
OR state = 'answered' AND delivery <> 'acknowledged') ORDER BY seq DESC`

// Twins returns the writes that matter to a new one of the same bytes, newest first.
func (s *Store) Twins(ctx context.Context, twin control.Digest) ([]*control.Call, int64, error) {
	if twin.IsZero() {
		return nil, 0, nil
	}
	var rows []*callRow
	var mark int64
	err := s.read(ctx, func(c *conn) error {
		var err error
		if rows, err = c.manyCalls(sqlTwins, twin); err != nil {
			return err
		}
		mark, err = c.twinMark(twin)
		return err
	})
	return bare(rows), mark, err
}

// Suspended reports whether a write of this tool is uncertain for this owner.
func (s *Store) Suspended(ctx context.Context, owner control.Person, connection, tool string) (bool, error) {
	var out bool
	err := s.read(ctx, func(c *conn) error {
		var err error
		out, err = c.row(sqlUncertain, []any{string(owner), connection, tool, ""}, new(int))
		return err
	})
	return out, err
}

// Usage returns the counters in their current windows.
func (s *Store) Usage(ctx context.Context, counters []call.Take) ([]call.Usage, error) {
	out := make([]call.Usage, 0, len(counters))
	now := s.Now().UnixMilli()
	err := s.read(ctx, func(c *conn) error {
		for _, one := range counters {
			u, err := c.usage(one, now)
			if err != nil {
				return err
			}
			out = append(out, u)
		}
		return nil
	})
	return out, err
}

// Upstream returns a sealed upstream session, or nil.
func (s *Store) Upstream(ctx context.Context, session, connection string) ([]byte, error) {
	var out []byte
	err := s.read(ctx, func(c *conn) error {
		_, err := c.row("SELECT sealed FROM upstreams WHERE session = ? AND connection = ?", []any{session, connection}, &out)
		return err
	})
	return out, err
}

// PutUpstream stores a sealed upstream session; nil removes it.
func (s *Store) PutUpstream(ctx context.Context, session, connection string, sealed []byte) error {
	return s.do(ctx, 0, func(t *tx) error {
		if sealed == nil {
			_, err := t.exec("DELETE FROM upstreams WHERE session = ? AND connection = ?", session, connection)
			return err
		}
		_, err := t.exec(`INSERT INTO upstreams (session, connection, org, sealed) VALUES (?, ?, ?, ?)
ON CONFLICT (session, connection) DO UPDATE SET sealed = excluded.sealed`, session, connection, control.Org, sealed)
		return err
	})
}

// Steps returns a call's journal.
func (s *Store) Steps(ctx context.Context, id string) ([]control.Step, error) {
	var out []control.Step
	err := s.read(ctx, func(c *conn) error {
		var packed []byte
		found, err := c.row("SELECT records FROM calls WHERE id = ?", []any{id}, &packed)
		if err != nil {
			return err
		}
		if !found {
			return noSuchCall()
		}
		records, err := c.recordsAt(unpackNumbers(packed))
		if err != nil {
			return err
		}
		out = nil
		for i := range records {
			st, err := stepOf(&records[i])
			if err != nil {
				return err
			}
			out = append(out, st)
		}
		return nil
	})
	return out, err
}

const sqlListCalls = `SELECT ` + callColumns + ` FROM calls WHERE seq < ? AND org = ?
AND (? = '' OR owner = ?) AND (? = '' OR profile = ?) AND (? = '' OR connection = ?) AND (? = '' OR tool = ?)
AND (? = '' OR instr(?, ' ' || state || ' ') > 0) AND admitted_at >= ? ORDER BY seq DESC LIMIT ?`

// sqlListPrefix is the same over the index of ids, from one id on and before another.
const sqlListPrefix = `SELECT ` + callColumns + ` FROM calls WHERE id >= ? AND id < ? AND seq < ? AND org = ?
AND (? = '' OR owner = ?) AND (? = '' OR profile = ?) AND (? = '' OR connection = ?) AND (? = '' OR tool = ?)
AND (? = '' OR instr(?, ' ' || state || ' ') > 0) AND admitted_at >= ? ORDER BY seq DESC LIMIT ?`

// sqlListSession is the same over one session's index, for one value of unread: each comes in the order of the calls.
const sqlListSession = `SELECT ` + callColumns + ` FROM calls WHERE session = ? AND unread IS ? AND seq < ? AND org = ?
AND (? = '' OR owner = ?) AND (? = '' OR profile = ?) AND (? = '' OR connection = ?) AND (? = '' OR tool = ?)
AND (? = '' OR instr(?, ' ' || state || ' ') > 0) AND admitted_at >= ? ORDER BY seq DESC LIMIT ?`

// maxPage bounds a page of calls.
const maxPage = 500

// ListCalls returns calls, newest first, without bodies.
func (s *Store) ListCalls(ctx context.Context, f call.Filter) ([]*control.Call, string, error) {
	before := int64(1) << 62
	if f.Cursor != "" {
		n, err := strconv.ParseInt(f.Cursor, 10, 64)
		if err != nil || n < 0 {
			return nil, "", errs.New(errs.Invalid, "this cursor is not one of ours")
		}
		before = n
	}
	if f.Limit < 1 || f.Limit > maxPage {
		return nil, "", errs.Newf(errs.Invalid, "a page has 1 to %d calls", maxPage)
	}
	if f.Org == "" {
		f.Org = control.Org
	}
	states := stateList(f.States)
	rest := []any{
		string(f.Owner), string(f.Owner), f.Profile, f.Profile, f.Connection, f.Connection, f.Tool, f.Tool, states, states, f.Since, f.Limit + 1,
	}
	var rows []*callRow
	var err error
	switch {
	case f.IDPrefix != "" && f.Session != "":
		return nil, "", errs.New(errs.Invalid, "the beginning of an id and a session are not asked for together")
	case f.IDPrefix != "":
		// Ids are of lower-case letters and digits: nothing that begins so sorts behind a tilde.
		rows, err = s.manyBare(ctx, sqlListPrefix, append([]any{f.IDPrefix, f.IDPrefix + "~", before, f.Org}, rest...)...)
	case f.Session != "":
		for _, unread := range []any{nil, 1} {
			var some []*callRow
			if some, err = s.manyBare(ctx, sqlListSession, append([]any{f.Session, unread, before, f.Org}, rest...)...); err != nil {
				break
			}
			rows = append(rows, some...)
		}
		slices.SortFunc(rows, func(a, b *callRow) int { return cmp.Compare(b.seq, a.seq) })
	default:
		rows, err = s.manyBare(ctx, sqlListCalls, append([]any{before, f.Org}, rest...)...)
	}
	if err != nil {
		return nil, "", err
	}
	if len(rows) <= f.Limit {
		return bare(rows), "", nil
	}
	rows = rows[:f.Limit]
	return bare(rows), strconv.FormatInt(rows[len(rows)-1].seq, 10), nil
}

// stateList is a list as one parameter: " a b ", or "" for all.
func stateList[S ~string](states []S) string {
	if len(states) == 0 {
		return ""
	}
	out := " "
	for _, st := range states {
		out += string(st) + " "
	}
	return out
}

// PurgeCall forgets the bodies of an ended call.
func (s *Store) PurgeCall(ctx context.Context, id string, by control.Person) error {
	return s.do(ctx, durable, func(t *tx) error {
		c, err := t.call(id)
		if err != nil {
			return err
		}
		if c == nil {
			return noSuchCall()
		}
		if !c.State.Final() {
			return errs.New(errs.Conflict, "only an ended call can be purged; resolve or cancel it first")
		}
		if err := t.dropBodies(c.seq); err != nil {
			return err
		}
		return t.note(c, &control.Step{Event: "purge", Actor: string(by)})
	})
}

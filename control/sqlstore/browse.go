package sqlstore

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// browseBy are the conditions of [Store.Browse] that every way into the table shares; browseEnd is its order.
const (
	browseBy = ` AND seq < ? AND seq >= ? AND (? = '' OR owner = ?) AND (? = '' OR profile = ?) AND (? = '' OR connection = ?)
AND (? = '' OR tool = ?) AND (? = '' OR instr(?, ' ' || state || ' ') > 0) AND (? = '' OR tool_result = ?)
AND (? = 0 OR state = 'answered' AND delivery <> 'acknowledged') AND admitted_at >= ? AND (? = 0 OR admitted_at < ?)`
	browseEnd = ` ORDER BY seq DESC LIMIT ?`

	sqlBrowse        = `SELECT ` + callColumns + ` FROM calls WHERE org = 'default'` + browseBy + browseEnd
	sqlBrowseSession = `SELECT ` + callColumns + ` FROM calls WHERE session = ? AND unread IS ?` + browseBy + browseEnd
	sqlBrowsePrefix  = `SELECT ` + callColumns + ` FROM calls WHERE id >= ? AND id < ?` + browseBy + browseEnd
	sqlLastCall      = `SELECT seq, admitted_at FROM calls WHERE seq <= ? ORDER BY seq DESC LIMIT 1`
)

// Browse returns calls by a person's filter, newest first, without bodies, and where to go on, or "".
func (s *Store) Browse(ctx context.Context, b call.Browse) ([]*control.Call, string, error) {
	before := int64(1) << 62
	if b.Cursor != "" {
		n, err := strconv.ParseInt(b.Cursor, 10, 64)
		if err != nil || n < 0 {
			return nil, "", errs.New(errs.Invalid, "this cursor is not one of ours")
		}
		before = n
	}
	if b.Limit < 1 || b.Limit > maxPage {
		return nil, "", errs.Newf(errs.Invalid, "a page has 1 to %d calls", maxPage)
	}
	if b.IDPrefix != "" && b.Session != "" {
		return nil, "", errs.New(errs.Invalid, "the beginning of an id and a session are not asked for together")
	}
	if live(b.States) && b.IDPrefix == "" {
		return s.browseLive(b, before)
	}
	var rows []*callRow
	var low int64
	err := s.read(ctx, func(c *conn) error {
		var err error
		rows, low, err = c.browse(b, before)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	switch {
	case len(rows) > b.Limit:
		rows = rows[:b.Limit]
		return bare(rows), strconv.FormatInt(rows[len(rows)-1].seq, 10), nil
	case low > 0:
		return bare(rows), strconv.FormatInt(low, 10), nil
	}
	return bare(rows), "", nil
}

func (c *conn) browse(b call.Browse, before int64) (rows []*callRow, low int64, err error) {
	if !b.Until.IsZero() {
		if before, err = c.callsBefore(b.Until, before); err != nil {
			return nil, 0, err
		}
	}
	if b.Scan > 0 && b.Session == "" && b.IDPrefix == "" {
		var newest, oldest int64
		if _, err := c.row(sqlLastCall, []any{before - 1}, &newest, new(int64)); err != nil {
			return nil, 0, err
		}
		if _, err := c.row("SELECT min(seq) FROM calls", nil, &oldest); err != nil {
			return nil, 0, err
		}
		before = min(before, newest+1)
		if low = before - int64(b.Scan); low <= oldest {
			low = 0
		}
	}
	states := stateList(b.States)
	by := []any{
		before, low, string(b.Owner), string(b.Owner), b.Profile, b.Profile, b.Connection, b.Connection, b.Tool, b.Tool, states, states,
		string(b.Outcome), string(b.Outcome), b.Unread, b.Since, b.Until, b.Until, b.Limit + 1,
	}
	switch {
	case b.IDPrefix != "":
		rows, err = c.manyCalls(sqlBrowsePrefix, append([]any{b.IDPrefix, b.IDPrefix + "~"}, by...)...)
	case b.Session != "":
		for _, unread := range []any{nil, 1} {
			some, err := c.manyCalls(sqlBrowseSession, append([]any{b.Session, unread}, by...)...)
			if err != nil {
				return nil, 0, err
			}
			rows = append(rows, some...)
		}
		slices.SortFunc(rows, func(x, y *callRow) int { return cmp.Compare(y.seq, x.seq) })
	default:
		rows, err = c.manyCalls(sqlBrowse, by...)
	}
	if err == nil && low > 0 && !b.Since.IsZero() && len(rows) <= b.Limit {
		// Calls come in the order of their times: nothing before the stretch is newer than its first.
		var at time.Time
		if _, err = c.row(sqlLastCall, []any{low}, new(int64), &at); err == nil && at.Before(b.Since) {
			low = 0
		}
	}
	return rows, low, err
}

// callsBefore returns the number of the first call that was admitted at a time or after it, at most before: calls come in the order of their times.
func (c *conn) callsBefore(at time.Time, before int64) (int64, error) {
	lo, hi := int64(0), before
	var newest int64
	if _, err := c.row(sqlLastCall, []any{before - 1}, &newest, new(int64)); err != nil {
		return 0, err
	}
	for hi = min(hi, newest+1); lo < hi; {
		middle := lo + (hi-lo)/2
		var admitted time.Time
		found, err := c.row(sqlLastCall, []any{middle}, new(int64), &admitted)
		if err != nil {
			return 0, err
		}
		if found && !admitted.Before(at) {
			hi = middle
		} else {
			lo = middle + 1
		}
	}
	return lo, nil
}

// live reports whether every state is one whose calls the memory has.
func live(states []journal.State) bool {
	return len(states) > 0 && !slices.ContainsFunc(states, func(s journal.State) bool { return !s.Unfinished() && s != journal.Uncertain })
}

// browseLive answers from memory: unfinished and uncertain calls are few, and may be old.
func (s *Store) browseLive(b call.Browse, before int64) ([]*control.Call, string, error) {
	rows := s.index.all()
	slices.SortFunc(rows, func(x, y *callRow) int { return cmp.Compare(y.seq, x.seq) })
	var out []*callRow
	for _, c := range rows {
		if c.seq >= before || !b.Matches(&c.Call) {
			continue
		}
		if len(out) == b.Limit {
			return bare(out), strconv.FormatInt(out[len(out)-1].seq, 10), nil
		}
		out = append(out, c.clone())
	}
	return bare(out), "", nil
}

// all returns the unfinished and uncertain calls. They must not be changed.
func (x *callIndex) all() []*callRow {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]*callRow, 0, len(x.live))
	for _, c := range x.live {
		out = append(out, c)
	}
	return out
}

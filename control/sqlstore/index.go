package sqlstore

import (
	"cmp"
	"slices"
	"sync"

	"sallyport.dev/control/journal"
)

// callIndex keeps in memory what every call would else pay a page or a query for: the rows of the calls that are unfinished or uncertain, and
// which call an intent belongs to. One process holds the store, so the memory of its writer is the truth; it is read from the rows when the store
// is opened. Rows in it are immutable: a change puts another one in its place.
type callIndex struct {
	mu      sync.Mutex
	live    map[string]*callRow // by id
	intents map[string]place
	recent  []string // a ring of the newest intents
	next    int
}

// place is the call of an intent.
type place struct {
	seq    int64
	id     string
	recent bool // in the ring
}

// recentIntents is how many intents of calls that are over are remembered: an outcome that is reported again finds its call.
const recentIntents = 1 << 16

func (c *callRow) live() bool { return c.State.Unfinished() || c.State == journal.Uncertain }

// sqlLiveCalls walks the narrow index of what is unread, not the table.
const sqlLiveCalls = `SELECT ` + callColumns + ` FROM calls WHERE seq IN (SELECT seq FROM calls INDEXED BY calls_session WHERE unread = 1)
AND state IN (` + unfinishedStates + `, 'uncertain')`

func loadIndex(c *conn) (*callIndex, error) {
	x := &callIndex{live: map[string]*callRow{}, intents: map[string]place{}, recent: make([]string, recentIntents)}
	var rows []*callRow
	if err := c.rows("SELECT seq, id, state, intent FROM calls ORDER BY seq DESC LIMIT ?", []any{recentIntents}, func(r row) error {
		one := &callRow{}
		err := r.scan(&one.seq, &one.ID, &one.State, &one.Intent)
		if !one.live() {
			rows = append(rows, one)
		}
		return err
	}); err != nil {
		return nil, err
	}
	slices.Reverse(rows)
	live, err := c.manyCalls(sqlLiveCalls)
	if err != nil {
		return nil, err
	}
	x.apply(append(rows, live...))
	return x, nil
}

// apply takes over the rows that a commit wrote.
func (x *callIndex) apply(rows []*callRow) {
	if len(rows) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range rows {
		if c.live() {
			x.live[c.ID] = c
		} else {
			delete(x.live, c.ID)
		}
		if c.Intent == "" {
			continue
		}
		if at, ok := x.intents[c.Intent]; ok {
			if !at.recent && !c.live() {
				delete(x.intents, c.Intent)
			}
			continue
		}
		x.intents[c.Intent] = place{c.seq, c.ID, true}
		x.forget(x.recent[x.next])
		x.recent[x.next] = c.Intent
		x.next = (x.next + 1) % len(x.recent)
	}
}

// forget takes the oldest intent out of the ring; a live call's stays known.
func (x *callIndex) forget(intent string) {
	at, ok := x.intents[intent]
	if !ok {
		return
	}
	if x.live[at.id] != nil {
		at.recent = false
		x.intents[intent] = at
		return
	}
	delete(x.intents, intent)
}

func (x *callIndex) byIntent(intent string) (int64, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at, ok := x.intents[intent]
	return at.seq, ok
}

func (x *callIndex) get(id string) *callRow {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.live[id]
}

// unfinished returns the unfinished calls, oldest first. They must not be changed.
func (x *callIndex) unfinished() []*callRow {
	x.mu.Lock()
	out := make([]*callRow, 0, len(x.live))
	for _, c := range x.live {
		if c.State.Unfinished() {
			out = append(out, c)
		}
	}
	x.mu.Unlock()
	slices.SortFunc(out, func(a, b *callRow) int { return cmp.Compare(a.seq, b.seq) })
	return out
}

// call returns a call as it stands inside the transaction, free to be changed, or nil.
func (t *tx) call(id string) (*callRow, error) {
	if c := t.inMemory(id); c != nil {
		return c, nil
	}
	c, err := t.callByID(id)
	if err != nil {
		return nil, &broken{err}
	}
	return c, nil
}

// inMemory returns a copy of a call's row where the memory has it: written in this batch, or live.
func (t *tx) inMemory(id string) *callRow {
	for _, c := range slices.Backward(t.moves) {
		if c.ID == id {
			return c.clone()
		}
	}
	if c := t.s.index.get(id); c != nil {
		return c.clone()
	}
	return nil
}

func (c *callRow) clone() *callRow {
	next := *c
	return &next
}

// unfinished returns the unfinished calls as they stand inside the transaction, oldest first, free to be changed.
func (t *tx) unfinished() []*callRow {
	now := map[int64]*callRow{}
	for _, c := range t.s.index.unfinished() {
		now[c.seq] = c
	}
	for _, c := range t.moves {
		now[c.seq] = c
	}
	var out []*callRow
	for _, c := range now {
		if c.State.Unfinished() {
			out = append(out, c.clone())
		}
	}
	slices.SortFunc(out, func(a, b *callRow) int { return cmp.Compare(a.seq, b.seq) })
	return out
}

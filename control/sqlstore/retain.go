package sqlstore

import (
	"context"
	"time"

	"sallyport.dev/control"
)

// retainStep is how many rows one transaction of the retention removes, so that no other write waits long.
const retainStep = 200

// Rows are walked from the oldest on and the walk ends at the first that is not old: nothing is scanned that is kept. What is unfinished or
// uncertain is passed over.
const (
	sqlOldBodies = `SELECT b.key, c.admitted_at < ?, c.state NOT IN (` + unfinishedStates + `, 'uncertain')
FROM (SELECT key FROM bodies WHERE key > ? ORDER BY key LIMIT ?) b JOIN calls c ON c.seq = b.key >> 4 ORDER BY b.key`
	sqlOldCalls = `SELECT seq, admitted_at < ?, state NOT IN (` + unfinishedStates + `, 'uncertain') FROM calls WHERE seq > ? ORDER BY seq LIMIT ?`
)

// Retain removes what is too old, in small transactions: bodies after 30 days, calls, questions and records after 400 (by default).
func (s *Store) Retain(ctx context.Context) error {
	now := s.Now()
	if _, err := s.walk(ctx, sqlOldBodies, now.Add(-s.opts.RetainBodies), (*tx).dropBody); err != nil {
		return err
	}
	if _, err := s.walk(ctx, sqlOldCalls, now.Add(-s.opts.RetainRecords), (*tx).dropCall); err != nil {
		return err
	}
	for {
		n, err := s.retainRecords(ctx, now.Add(-s.opts.RetainRecords))
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	return s.retainRest(ctx, now)
}

// walk removes old rows from the oldest on and returns how many.
func (s *Store) walk(ctx context.Context, sql string, before time.Time, drop func(*tx, int64) error) (int, error) {
	removed, cursor := 0, int64(0)
	for {
		var keys []int64
		n, over := 0, false
		if err := s.read(ctx, func(c *conn) error {
			return c.rows(sql, []any{before, cursor, retainStep}, func(r row) error {
				var key int64
				var old, ended bool
				err := r.scan(&key, &old, &ended)
				if over = over || !old; over {
					return err
				}
				if n, cursor = n+1, key; ended {
					keys = append(keys, key)
				}
				return err
			})
		}); err != nil {
			return removed, err
		}
		if len(keys) > 0 {
			if err := s.do(ctx, 0, func(t *tx) error {
				for _, key := range keys {
					if err := drop(t, key); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				return removed, err
			}
		}
		removed += len(keys)
		if over || n == 0 {
			return removed, nil
		}
	}
}

func (t *tx) dropBody(key int64) error {
	if _, err := t.exec(sqlDropParts, key, key); err != nil {
		return err
	}
	_, err := t.exec(sqlDropBodies, key, key)
	return err
}

func (t *tx) dropCall(seq int64) error {
	if err := t.dropBodies(seq); err != nil {
		return err
	}
	for _, sql := range []string{
		"DELETE FROM questions WHERE call = (SELECT id FROM calls WHERE seq = ?)",
		"DELETE FROM aliases WHERE call = (SELECT id FROM calls WHERE seq = ?)",
		"DELETE FROM calls WHERE seq = ?",
		"UPDATE meta SET calls = max(calls, ?)",
	} {
		if _, err := t.exec(sql, seq); err != nil {
			return err
		}
	}
	return nil
}

const sqlOldRecords = `SELECT b.last, r.id, b.link FROM (SELECT first, last, run, at, link FROM batches ORDER BY first LIMIT ?) b JOIN runs r ON r.no = b.run
WHERE b.at < ? ORDER BY b.first DESC LIMIT 1`

// retainRecords removes old records in whole batches and keeps the link of the last one, so that what is left still verifies.
func (s *Store) retainRecords(ctx context.Context, before time.Time) (int, error) {
	n := 0
	err := s.do(ctx, 0, func(t *tx) error {
		n = 0
		var last int64
		var run string
		var link control.Digest
		found, err := t.row(sqlOldRecords, []any{retainStep, before}, &last, &run, &link)
		if err != nil || !found {
			return err
		}
		removed, err := t.exec("DELETE FROM batches WHERE last <= ? AND first <= ?", last, last)
		if err != nil {
			return err
		}
		n = int(removed)
		if _, err := t.exec("UPDATE meta SET head_seq = ?, head_run = ?, head_link = ?", last, run, link); err != nil {
			return err
		}
		_, err = t.exec("DELETE FROM checkpoints WHERE seq < ?", last)
		return err
	})
	return n, err
}

// retainRest removes what is small: tickets and tokens that are over, dead leases, closed sessions without calls, bindings without sessions, and
// parts of bodies whose step did not come.
func (s *Store) retainRest(ctx context.Context, now time.Time) error {
	day := now.Add(-24 * time.Hour)
	return s.do(ctx, 0, func(t *tx) error {
		for _, one := range []struct {
			sql  string
			args []any
		}{
			{"DELETE FROM tickets WHERE until < ?", []any{day}},
			{"DELETE FROM tokens WHERE until < ?", []any{day}},
			{"DELETE FROM leases WHERE dead = 1 AND until < ?", []any{day}},
			{"DELETE FROM body_parts WHERE at < ? AND NOT EXISTS (SELECT 1 FROM bodies b WHERE b.part = body_parts.id AND b.parts > 0)", []any{day}},
			{
				"DELETE FROM sessions WHERE state = 'closed' AND closed_at < ? AND NOT EXISTS (SELECT 1 FROM calls c WHERE c.session = sessions.id)",
				[]any{now.Add(-s.opts.RetainRecords)},
			},
			{"DELETE FROM bindings WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.binding = bindings.digest)", nil},
		} {
			if _, err := t.exec(one.sql, one.args...); err != nil {
				return err
			}
		}
		return nil
	})
}

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/ncruces/go-sqlite3"

	"sallyport.dev/test/rig"
)

// seeds is how many calls are copied again and again.
const seeds = 1000

// filler grows a journal, again and again.
type filler struct{ records int64 } // audit records of the seeds

// journal makes a journal hold so many calls: it stops control, copies the first thousand, with their bodies and audit records, under other ids and
// sessions, and starts control again. The copies' audit records do not verify; nothing here reads them.
func (f *filler) journal(ctx context.Context, r *rig.Rig, calls int) error {
	if err := r.StopPart(ctx, rig.Control); err != nil {
		return err
	}
	if err := f.copyCalls(ctx, filepath.Join(r.State(), "control", "store.db"), calls); err != nil {
		return fmt.Errorf("filling the journal: %w", err)
	}
	if err := r.StartPart(ctx, rig.Control); err != nil {
		return err
	}
	for _, part := range []string{rig.Host, rig.Worker} {
		if err := r.AwaitLink(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

func (f *filler) copyCalls(ctx context.Context, path string, calls int) error {
	db, err := sqlite3.Open("file:" + path)
	if err != nil {
		return err
	}
	defer db.Close()
	defer db.SetInterrupt(db.SetInterrupt(ctx))
	if err := db.Exec("PRAGMA synchronous = off; PRAGMA cache_size = -200000"); err != nil {
		return err
	}
	columns, err := names(db, "calls")
	if err != nil {
		return err
	}
	var have, records, batches int64
	if err := one(db, "SELECT count(*) FROM calls", &have); err != nil {
		return err
	}
	if have < seeds {
		return fmt.Errorf("only %d calls to copy", have)
	}
	if err := one(db, "SELECT max(last) FROM batches", &batches); err != nil {
		return err
	}
	if f.records == 0 {
		f.records = batches
	}
	records = f.records
	var last int64
	if err := one(db, "SELECT max(seq) FROM calls", &last); err != nil {
		return err
	}
	other := map[string]string{
		"seq": "seq + %[1]d", "id": "lower(substr(hex(randomblob(13)), 1, 26))", "session": "'session' || (%[1]d + %[2]d)", "unread": "NULL",
	}
	var into, from []string
	for _, c := range columns {
		into = append(into, c)
		if o, ok := other[c]; ok {
			from = append(from, o)
		} else {
			from = append(from, c)
		}
	}
	call := "INSERT INTO calls (" + strings.Join(into, ", ") + ") SELECT " + strings.Join(from, ", ") + " FROM calls WHERE seq <= " + fmt.Sprint(seeds)
	for k := range (int64(calls) - have) / seeds {
		off := last + k*seeds
		sql := fmt.Sprintf(call, off, k)
		sql += fmt.Sprintf("; INSERT INTO bodies (key, org, at, parts, part, sealed) SELECT key + %d, org, at, parts, part, sealed FROM bodies WHERE key < %d", off*16, (seeds+1)*16)
		sql += fmt.Sprintf("; INSERT INTO batches (first, last, org, run, at, records, link) SELECT first + %[1]d, last + %[1]d, org, run, at, records, link FROM batches WHERE first <= %[2]d", batches+records*k, records)
		if err := db.Exec("BEGIN; " + sql + "; COMMIT"); err != nil {
			return err
		}
	}
	return db.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
}

func names(db *sqlite3.Conn, table string) ([]string, error) {
	stmt, _, err := db.Prepare("SELECT name FROM pragma_table_info('" + table + "')")
	if err != nil {
		return nil, err
	}
	defer stmt.Close()
	var all []string
	for stmt.Step() {
		all = append(all, stmt.ColumnText(0))
	}
	return all, stmt.Err()
}

func one(db *sqlite3.Conn, sql string, into *int64) error {
	stmt, _, err := db.Prepare(sql)
	if err != nil {
		return err
	}
	defer stmt.Close()
	if stmt.Step() {
		*into = stmt.ColumnInt64(0)
	}
	return stmt.Err()
}

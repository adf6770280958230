package sqlstore

import (
	"fmt"
	"net/url"
	"reflect"
	"time"

	"github.com/ncruces/go-sqlite3"

	"sallyport.dev/control"
)

// conn is one SQLite connection with its prepared statements. It is used by one goroutine at a time.
//
// Parameters are written ? and bound in order: this driver numbers $1, $2 by their first appearance.
type conn struct {
	db    *sqlite3.Conn
	stmts map[string]*sqlite3.Stmt
}

// connect opens the database at path with the pragmas that every connection needs, and checks that they took.
func (o *Options) connect(path string, readOnly bool, cacheKiB int) (*conn, error) {
	q := url.Values{}
	q.Set("vfs", o.vfs)
	q.Add("_pragma", fmt.Sprintf("busy_timeout(%d)", o.busy.Milliseconds()))
	q.Add("_pragma", "foreign_keys(1)")
	q.Add("_pragma", "temp_store(memory)")
	q.Add("_pragma", "trusted_schema(0)")
	q.Add("_pragma", "synchronous(normal)")
	q.Add("_pragma", fmt.Sprintf("cache_size(%d)", -cacheKiB))
	if readOnly {
		q.Add("_pragma", "query_only(1)")
	} else {
		q.Add("_pragma", "secure_delete(1)")
		q.Add("_pragma", "wal_autocheckpoint(0)")
		q.Add("_pragma", "journal_size_limit(67108864)")
	}
	name := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}
	db, err := sqlite3.OpenFlags(name.String(), sqlite3.OPEN_READWRITE|sqlite3.OPEN_CREATE|sqlite3.OPEN_URI|sqlite3.OPEN_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	c := &conn{db: db, stmts: map[string]*sqlite3.Stmt{}}
	// Closing copies nothing by itself: after a failed sync the pages of the log cannot be trusted until they are read with their checksums.
	if _, err := db.Config(sqlite3.DBCONFIG_NO_CKPT_ON_CLOSE, true); err != nil {
		c.close()
		return nil, err
	}
	for pragma, want := range map[string]int64{"synchronous": 1, "foreign_keys": 1} {
		var got int64
		if _, err := c.row("PRAGMA "+pragma, nil, &got); err != nil || got != want {
			c.close()
			return nil, fmt.Errorf("pragma %s is %d, not %d: %w", pragma, got, want, err)
		}
	}
	return c, nil
}

func (c *conn) close() {
	for _, st := range c.stmts {
		_ = st.Close()
	}
	_ = c.db.Close() // nothing is pending: statements are closed and every commit was checked
}

// stmt returns the prepared statement of a SQL constant. SQL text is never built from values.
func (c *conn) stmt(sql string) (*sqlite3.Stmt, error) {
	if st := c.stmts[sql]; st != nil {
		return st, nil
	}
	st, tail, err := c.db.PrepareFlags(sql, sqlite3.PREPARE_PERSISTENT)
	if err != nil {
		return nil, fmt.Errorf("%w in %.60q", err, sql)
	}
	if tail != "" {
		return nil, fmt.Errorf("more than one statement in %.60q", sql)
	}
	c.stmts[sql] = st
	return st, nil
}

// exec runs a statement that returns no rows and says how many it changed.
func (c *conn) exec(sql string, args ...any) (int64, error) {
	st, err := c.stmt(sql)
	if err != nil {
		return 0, err
	}
	if err := bind(st, args); err != nil {
		return 0, err
	}
	if err := st.Exec(); err != nil {
		return 0, err
	}
	return c.db.Changes(), nil
}

// row reads the first row into dest and reports whether there was one.
func (c *conn) row(sql string, args []any, dest ...any) (bool, error) {
	st, err := c.stmt(sql)
	if err != nil {
		return false, err
	}
	if err := bind(st, args); err != nil {
		return false, err
	}
	found := st.Step()
	if found {
		err = scan(st, dest)
	}
	if rerr := st.Reset(); err == nil {
		err = rerr
	}
	return found, err
}

// rows calls each for every row. each must not run the same statement again.
func (c *conn) rows(sql string, args []any, each func(row) error) error {
	st, err := c.stmt(sql)
	if err != nil {
		return err
	}
	if err := bind(st, args); err != nil {
		return err
	}
	for err == nil && st.Step() {
		err = each(row{st})
	}
	if rerr := st.Reset(); err == nil {
		err = rerr
	}
	return err
}

// row is the row that a statement stands on.
type row struct{ st *sqlite3.Stmt }

func (r row) scan(dest ...any) error { return scan(r.st, dest) }

func bind(st *sqlite3.Stmt, args []any) error {
	for i, a := range args {
		if err := bindOne(st, i+1, a); err != nil {
			return err
		}
	}
	return nil
}

// bindOne binds a value: times as Unix milliseconds (0 for none), digests as blobs (NULL for none), named strings and numbers as what they are.
func bindOne(st *sqlite3.Stmt, i int, a any) error {
	switch v := a.(type) {
	case nil:
		return st.BindNull(i)
	case string:
		return st.BindText(i, v)
	case int64:
		return st.BindInt64(i, v)
	case int:
		return st.BindInt64(i, int64(v))
	case bool:
		return st.BindBool(i, v)
	case []byte:
		return st.BindBlob(i, v)
	case control.Digest:
		if v.IsZero() {
			return st.BindNull(i)
		}
		return st.BindBlob(i, v[:])
	case time.Time:
		return st.BindInt64(i, millis(v))
	case float64:
		return st.BindFloat(i, v)
	}
	switch v := reflect.ValueOf(a); v.Kind() {
	case reflect.String:
		return st.BindText(i, v.String())
	case reflect.Int64, reflect.Int:
		return st.BindInt64(i, v.Int())
	}
	return fmt.Errorf("a %T cannot be stored", a)
}

func scan(st *sqlite3.Stmt, dest []any) error {
	for i, d := range dest {
		if err := scanOne(st, i, d); err != nil {
			return err
		}
	}
	return nil
}

func scanOne(st *sqlite3.Stmt, i int, dest any) error {
	switch d := dest.(type) {
	case *string:
		*d = st.ColumnText(i)
	case *int64:
		*d = st.ColumnInt64(i)
	case *int:
		*d = int(st.ColumnInt64(i))
	case *bool:
		*d = st.ColumnInt64(i) != 0
	case *[]byte:
		*d = nil
		if st.ColumnType(i) != sqlite3.NULL {
			*d = st.ColumnBlob(i, []byte{})
		}
	case *control.Digest:
		*d = control.Digest{}
		if st.ColumnType(i) != sqlite3.NULL {
			if n := copy(d[:], st.ColumnRawBlob(i)); n != len(d) {
				return fmt.Errorf("column %d holds %d bytes and no digest", i, n)
			}
		}
	case *time.Time:
		*d = fromMillis(st.ColumnInt64(i))
	default:
		v := reflect.ValueOf(dest)
		if v.Kind() != reflect.Pointer {
			return fmt.Errorf("a %T cannot be read into", dest)
		}
		switch v.Elem().Kind() {
		case reflect.String:
			v.Elem().SetString(st.ColumnText(i))
		case reflect.Int64, reflect.Int:
			v.Elem().SetInt(st.ColumnInt64(i))
		default:
			return fmt.Errorf("a %T cannot be read into", dest)
		}
	}
	return nil
}

// millis is a time in the database: Unix milliseconds, 0 for no time.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

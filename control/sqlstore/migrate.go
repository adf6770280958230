package sqlstore

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"net/url"

	"github.com/ncruces/go-sqlite3/driver"
	"github.com/pressly/goose/v3"

	"sallyport.dev/errs"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migrate brings the schema to this build's version. Errors: [errs.TooOld] when a newer build wrote the store.
func migrate(ctx context.Context, path, vfs string) error {
	q := url.Values{}
	if vfs != "" {
		q.Set("vfs", vfs)
	}
	q.Add("_pragma", "busy_timeout(5000)")
	q.Add("_pragma", "synchronous(full)")
	name := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}
	db, err := driver.Open(name.String())
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // one connection, nothing pending
	db.SetMaxOpenConns(1)
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, dir, goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return err
	}
	current, target, err := p.GetVersions(ctx)
	if err != nil {
		return err
	}
	if current > target {
		return errs.Newf(errs.TooOld, "a newer build of sallyport wrote this store (schema %d, this one knows %d); start the newer build", current, target)
	}
	if current == target {
		return nil
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate from schema %d to %d: %w", current, target, err)
	}
	return nil
}

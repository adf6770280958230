-- +goose Up
-- What servers listed, whole: what was approved of it stands in catalogs and catalog_tools.
CREATE TABLE catalog_lists (
  connection TEXT NOT NULL,
  digest     BLOB NOT NULL,
  org        TEXT NOT NULL,
  state      TEXT NOT NULL, -- draft | approved | superseded | rejected
  listed     BLOB NOT NULL, -- the catalog file
  seen_at    INTEGER NOT NULL,
  decided_by TEXT NOT NULL,
  decided_at INTEGER NOT NULL,
  PRIMARY KEY (connection, digest)
) STRICT, WITHOUT ROWID;

-- 1: the tool is out of service until its change was reviewed.
ALTER TABLE drift ADD COLUMN stops INTEGER NOT NULL DEFAULT 0;

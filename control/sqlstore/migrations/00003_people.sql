-- +goose Up
-- People, and the secrets that stand for them elsewhere than on control's own socket. Lists are JSON.

CREATE TABLE people (
  name        TEXT PRIMARY KEY,
  org         TEXT NOT NULL,
  roles       TEXT NOT NULL,
  profiles    TEXT NOT NULL,
  connections TEXT NOT NULL,
  owners      TEXT NOT NULL,
  by          TEXT NOT NULL,
  since       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE passes (
  digest    BLOB PRIMARY KEY, -- of the secret, which is nowhere
  id        TEXT NOT NULL UNIQUE,
  org       TEXT NOT NULL,
  kind      TEXT NOT NULL,    -- link | session | token
  person    TEXT NOT NULL,
  name      TEXT NOT NULL,
  read_only INTEGER NOT NULL,
  local     INTEGER NOT NULL, -- the chain of passes began on control's own socket
  by        TEXT NOT NULL,
  since     INTEGER NOT NULL,
  until     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX passes_person ON passes (person);

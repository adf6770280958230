-- +goose Up
-- Credentials that a sign-in made, sign-ins that are under way, and renewals that are.

ALTER TABLE credentials ADD COLUMN kind TEXT NOT NULL DEFAULT ''; -- '' (typed in) | oauth | client
ALTER TABLE credentials ADD COLUMN name TEXT NOT NULL DEFAULT ''; -- of the account, for people
ALTER TABLE credentials ADD COLUMN issuer TEXT NOT NULL DEFAULT '';
ALTER TABLE credentials ADD COLUMN scopes TEXT NOT NULL DEFAULT ''; -- granted, with spaces between
ALTER TABLE credentials ADD COLUMN wanted TEXT NOT NULL DEFAULT ''; -- what the server asked for beyond them, with spaces between
ALTER TABLE credentials ADD COLUMN renewable INTEGER NOT NULL DEFAULT 0;
ALTER TABLE credentials ADD COLUMN issued_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE credentials ADD COLUMN account_at INTEGER NOT NULL DEFAULT 0; -- since when it is of this account; 0: it was never of another

-- One sign-in for each (connection, subject): a second one takes the place of the first. A row is taken once.
CREATE TABLE sign_ins (
  connection TEXT NOT NULL,
  subject    TEXT NOT NULL,
  org        TEXT NOT NULL,
  state      BLOB NOT NULL UNIQUE, -- SHA-256 of the state parameter
  revision   INTEGER NOT NULL,     -- of the connection
  person     TEXT NOT NULL,        -- who began it, and alone may end it
  account    TEXT NOT NULL,        -- expected, or ''
  sealed     BLOB NOT NULL,        -- to the pool's key: the verifier, and everything that the exchange must agree with
  expires_at INTEGER NOT NULL,
  PRIMARY KEY (connection, subject)
) STRICT, WITHOUT ROWID;

-- The one renewal of a credential that may be under way, in the whole installation. The intent is how a lost outcome is found again.
CREATE TABLE renewals (
  connection TEXT NOT NULL,
  subject    TEXT NOT NULL,
  org        TEXT NOT NULL,
  version    INTEGER NOT NULL, -- that is renewed
  intent     TEXT NOT NULL UNIQUE,
  run        TEXT NOT NULL,
  until      INTEGER NOT NULL,
  PRIMARY KEY (connection, subject)
) STRICT, WITHOUT ROWID;

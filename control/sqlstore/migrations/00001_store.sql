-- +goose Up
-- Conventions: org in every table; times are Unix milliseconds, 0 for none; digests are 32 bytes, NULL for none; JSON columns hold lists and
-- structures that no query looks into. An applied migration is never edited.

CREATE TABLE meta (
  one         INTEGER PRIMARY KEY CHECK (one = 1),
  org         TEXT NOT NULL,
  incarnation TEXT NOT NULL,
  counter     INTEGER NOT NULL, -- durable commits of this incarnation and those before it
  generation  INTEGER NOT NULL, -- of the policy
  quarantine  TEXT NOT NULL,    -- why, or ''
  head_seq    INTEGER NOT NULL, -- the last record that retention removed, its run and link
  head_run    TEXT NOT NULL,
  head_link   BLOB,
  calls       INTEGER NOT NULL DEFAULT 0 -- the highest calls.seq that retention removed
) STRICT;

-- Histories that this store knows to be its own past, or that a person accepted.
CREATE TABLE incarnations (
  id       TEXT PRIMARY KEY,
  org      TEXT NOT NULL,
  counter  INTEGER NOT NULL, -- the highest that anybody remembers of it
  at       INTEGER NOT NULL,
  accepted INTEGER NOT NULL,
  note     TEXT NOT NULL
) STRICT;

CREATE TABLE runs (
  no      INTEGER PRIMARY KEY,
  org     TEXT NOT NULL,
  id      TEXT NOT NULL UNIQUE,
  node    TEXT NOT NULL,
  started INTEGER NOT NULL
) STRICT;

-- The audit records: one row for each committed batch, its transitions in order and the link that closes it.
CREATE TABLE batches (
  first   INTEGER PRIMARY KEY, -- number of its first record
  last    INTEGER NOT NULL,
  org     TEXT NOT NULL,
  run     INTEGER NOT NULL REFERENCES runs (no),
  at      INTEGER NOT NULL,
  records TEXT NOT NULL, -- JSON
  link    BLOB NOT NULL
) STRICT;

CREATE TABLE checkpoints (
  seq    INTEGER PRIMARY KEY, -- batches.last
  org    TEXT NOT NULL,
  digest BLOB NOT NULL UNIQUE,
  signed BLOB NOT NULL,
  at     INTEGER NOT NULL
) STRICT;
CREATE TABLE witnesses (
  digest    BLOB NOT NULL REFERENCES checkpoints (digest) ON DELETE CASCADE,
  org       TEXT NOT NULL,
  witness   TEXT NOT NULL, -- SPIFFE id
  signature BLOB NOT NULL,
  at        INTEGER NOT NULL,
  PRIMARY KEY (digest, witness)
) STRICT, WITHOUT ROWID;

CREATE TABLE calls (
  seq           INTEGER PRIMARY KEY,
  id            TEXT NOT NULL UNIQUE, -- of (session, record)
  org           TEXT NOT NULL,
  session       TEXT NOT NULL,
  record        TEXT NOT NULL,
  record_digest BLOB,
  epoch         INTEGER NOT NULL,
  host          TEXT NOT NULL,
  shim          TEXT NOT NULL,
  harness_call  TEXT NOT NULL,
  trace         TEXT NOT NULL,
  progress      INTEGER NOT NULL,
  timeout_ms    INTEGER NOT NULL,
  owner         TEXT NOT NULL,
  profile       TEXT NOT NULL,
  profile_version INTEGER NOT NULL,
  name          TEXT NOT NULL,
  connection    TEXT NOT NULL,
  revision      INTEGER NOT NULL,
  catalog       BLOB,
  tool          TEXT NOT NULL,
  effect        TEXT NOT NULL,
  repeat        INTEGER NOT NULL,
  client        INTEGER NOT NULL,
  twin          BLOB,
  args_digest   BLOB,
  retry_of      TEXT NOT NULL,
  admitted_at   INTEGER NOT NULL,
  -- what later steps write
  state          TEXT NOT NULL,
  attempt        INTEGER NOT NULL,
  lease          TEXT NOT NULL,
  expires_at     INTEGER NOT NULL,
  authority_kind TEXT NOT NULL,
  authority_id   TEXT NOT NULL,
  subject        TEXT NOT NULL,
  account        TEXT NOT NULL,
  binding        BLOB,
  intent         TEXT NOT NULL,
  worker         TEXT NOT NULL,
  run            TEXT NOT NULL,
  started_at     INTEGER NOT NULL,
  rounds         INTEGER NOT NULL,
  transport      TEXT NOT NULL,
  protocol       TEXT NOT NULL,
  tool_result    TEXT NOT NULL,
  http_status    INTEGER NOT NULL,
  rpc_code       INTEGER NOT NULL,
  failure        TEXT NOT NULL,
  bytes          INTEGER NOT NULL,
  code           TEXT NOT NULL,
  reason         TEXT NOT NULL,
  delivery       TEXT NOT NULL,
  gone           INTEGER NOT NULL,
  cancel         INTEGER NOT NULL,
  decided_at     INTEGER NOT NULL,
  settled_at     INTEGER NOT NULL,
  retried_by     TEXT NOT NULL,
  resolved_by    TEXT NOT NULL,
  note           TEXT NOT NULL,
  records        BLOB NOT NULL, -- the numbers of its audit records, as varints of their differences
  unread         INTEGER -- 1 while it is unfinished, uncertain, or its end was not acknowledged; NULL when it is over
) STRICT;
-- One entry for each call, which moves once, within its leaf: NULL sorts before 1.
CREATE INDEX calls_session ON calls (session, unread);
CREATE INDEX calls_twin ON calls (twin) WHERE twin IS NOT NULL;
CREATE INDEX calls_uncertain ON calls (owner, connection, tool) WHERE state = 'uncertain';

-- A record that made no call of its own, and the call that it stands for.
CREATE TABLE aliases (
  id            TEXT PRIMARY KEY, -- of (session, record), as of a call
  org           TEXT NOT NULL,
  session       TEXT NOT NULL,
  record        TEXT NOT NULL,
  record_digest BLOB,
  kind          TEXT NOT NULL,
  call          TEXT NOT NULL,
  at            INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX aliases_call ON aliases (call);

-- Bodies are sealed to the journal key. key is calls.seq * 16 + what it is: one narrow table in the order of the calls.
CREATE TABLE bodies (
  key    INTEGER PRIMARY KEY,
  org    TEXT NOT NULL,
  at     INTEGER NOT NULL,
  parts  INTEGER NOT NULL, -- 0: sealed holds it; otherwise that many rows of body_parts
  part   TEXT NOT NULL,    -- body_parts.id, or ''
  sealed BLOB NOT NULL
) STRICT;
CREATE INDEX bodies_part ON bodies (part) WHERE parts > 0;
-- A big body comes in pieces before the step that it belongs to, so that no commit is long.
CREATE TABLE body_parts (
  id   TEXT NOT NULL,
  no   INTEGER NOT NULL,
  org  TEXT NOT NULL,
  at   INTEGER NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (id, no)
) STRICT;

CREATE TABLE questions (
  seq        INTEGER PRIMARY KEY,
  id         TEXT NOT NULL UNIQUE,
  org        TEXT NOT NULL,
  kind       TEXT NOT NULL,
  call       TEXT NOT NULL,
  session    TEXT NOT NULL,
  owner      TEXT NOT NULL,
  profile    TEXT NOT NULL,
  approvers  TEXT NOT NULL, -- JSON
  second     INTEGER NOT NULL,
  not_owner  INTEGER NOT NULL,
  local      INTEGER NOT NULL,
  binding    BLOB,
  form       BLOB,          -- sealed
  text       TEXT NOT NULL,
  state      TEXT NOT NULL,
  decisions  TEXT NOT NULL, -- JSON
  opened_at  INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  closed_at  INTEGER NOT NULL
) STRICT;
CREATE INDEX questions_call ON questions (call);
CREATE INDEX questions_session ON questions (session);
CREATE INDEX questions_open ON questions (opened_at) WHERE state = 'open';

-- Sessions of one profile share their frozen binding.
CREATE TABLE bindings (
  digest BLOB PRIMARY KEY,
  org    TEXT NOT NULL,
  data   BLOB NOT NULL -- JSON: profile and tools
) STRICT, WITHOUT ROWID;
CREATE TABLE sessions (
  seq           INTEGER PRIMARY KEY,
  id            TEXT NOT NULL UNIQUE,
  org           TEXT NOT NULL,
  epoch         INTEGER NOT NULL,
  state         TEXT NOT NULL,
  owner         TEXT NOT NULL,
  profile       TEXT NOT NULL,
  binding       BLOB NOT NULL REFERENCES bindings (digest),
  attended      INTEGER NOT NULL,
  harness       TEXT NOT NULL,
  host          TEXT NOT NULL,
  driver        TEXT NOT NULL,
  closed        TEXT NOT NULL,
  same_uid      INTEGER NOT NULL,
  parent        TEXT NOT NULL,
  policy_digest BLOB,
  created_at    INTEGER NOT NULL,
  seen_at       INTEGER NOT NULL,
  closed_at     INTEGER NOT NULL
) STRICT;
CREATE INDEX sessions_live ON sessions (state) WHERE state <> 'closed';
CREATE INDEX sessions_binding ON sessions (binding);
CREATE TABLE tickets (
  digest   BLOB PRIMARY KEY,
  org      TEXT NOT NULL,
  owner    TEXT NOT NULL,
  profile  TEXT NOT NULL,
  attended INTEGER NOT NULL,
  local    INTEGER NOT NULL,
  until    INTEGER NOT NULL,
  used_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE upstreams (
  session    TEXT NOT NULL,
  connection TEXT NOT NULL,
  org        TEXT NOT NULL,
  sealed     BLOB NOT NULL, -- to the pool's key
  PRIMARY KEY (session, connection)
) STRICT, WITHOUT ROWID;
CREATE TABLE leases (
  run   TEXT PRIMARY KEY,
  org   TEXT NOT NULL,
  until INTEGER NOT NULL,
  dead  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE counters (
  key   TEXT PRIMARY KEY,
  org   TEXT NOT NULL,
  start INTEGER NOT NULL, -- of the window that calls and bytes count
  calls INTEGER NOT NULL,
  bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE connections (
  name        TEXT NOT NULL,
  revision    INTEGER NOT NULL,
  org         TEXT NOT NULL,
  state       TEXT NOT NULL,
  protocol    TEXT NOT NULL,
  catalog     BLOB,
  data        TEXT NOT NULL, -- JSON
  current     INTEGER NOT NULL,
  modified_at INTEGER NOT NULL,
  PRIMARY KEY (name, revision)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX connections_current ON connections (name) WHERE current = 1;
CREATE TABLE catalogs (
  connection  TEXT NOT NULL,
  digest      BLOB NOT NULL,
  org         TEXT NOT NULL,
  state       TEXT NOT NULL,
  reviewed_by TEXT NOT NULL,
  reviewed_at INTEGER NOT NULL,
  PRIMARY KEY (connection, digest)
) STRICT, WITHOUT ROWID;
CREATE TABLE catalog_tools (
  connection   TEXT NOT NULL,
  digest       BLOB NOT NULL,
  name         TEXT NOT NULL,
  org          TEXT NOT NULL,
  alias        TEXT NOT NULL,
  effect       TEXT NOT NULL,
  repeat       INTEGER NOT NULL,
  refuse_extra INTEGER NOT NULL,
  client       INTEGER NOT NULL,
  raw          BLOB NOT NULL, -- the server's exact bytes
  PRIMARY KEY (connection, digest, name),
  FOREIGN KEY (connection, digest) REFERENCES catalogs (connection, digest) ON DELETE CASCADE
) STRICT;
CREATE TABLE drift (
  connection TEXT NOT NULL,
  tool       TEXT NOT NULL,
  org        TEXT NOT NULL,
  at         INTEGER NOT NULL,
  PRIMARY KEY (connection, tool)
) STRICT, WITHOUT ROWID;
CREATE TABLE credentials (
  connection  TEXT NOT NULL,
  subject     TEXT NOT NULL,
  version     INTEGER NOT NULL,
  org         TEXT NOT NULL,
  state       TEXT NOT NULL,
  account     TEXT NOT NULL,
  expires_at  INTEGER NOT NULL,
  modified_at INTEGER NOT NULL,
  fingerprint TEXT NOT NULL,
  sealed      BLOB, -- to the pool's key; NULL when forgotten
  associated  BLOB,
  PRIMARY KEY (connection, subject, version)
) STRICT, WITHOUT ROWID;
CREATE TABLE profiles (
  name    TEXT NOT NULL,
  version INTEGER NOT NULL,
  org     TEXT NOT NULL,
  data    TEXT NOT NULL, -- JSON
  current INTEGER NOT NULL,
  by      TEXT NOT NULL,
  at      INTEGER NOT NULL,
  PRIMARY KEY (name, version)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX profiles_current ON profiles (name) WHERE current = 1;
CREATE TABLE given (
  id        TEXT PRIMARY KEY,
  org       TEXT NOT NULL,
  kind      TEXT NOT NULL,
  profile   TEXT NOT NULL,
  session   TEXT NOT NULL,
  owner     TEXT NOT NULL,
  tools     TEXT NOT NULL, -- JSON
  condition TEXT NOT NULL,
  calls     INTEGER NOT NULL,
  per       INTEGER NOT NULL, -- nanoseconds
  until     INTEGER NOT NULL,
  by        TEXT NOT NULL,
  reason    TEXT NOT NULL,
  suspended TEXT NOT NULL,
  revoked   INTEGER NOT NULL,
  from_yaml INTEGER NOT NULL,
  at        INTEGER NOT NULL
) STRICT;
CREATE TABLE members (
  team   TEXT NOT NULL,
  person TEXT NOT NULL,
  org    TEXT NOT NULL,
  PRIMARY KEY (team, person)
) STRICT, WITHOUT ROWID;
CREATE TABLE switches (
  seq         INTEGER PRIMARY KEY,
  id          TEXT NOT NULL UNIQUE,
  org         TEXT NOT NULL,
  kind        TEXT NOT NULL,
  name        TEXT NOT NULL,
  by          TEXT NOT NULL,
  reason      TEXT NOT NULL,
  at          INTEGER NOT NULL,
  until       INTEGER NOT NULL,
  restored_at INTEGER NOT NULL,
  restored_by TEXT NOT NULL
) STRICT;

CREATE TABLE tokens (
  digest  BLOB PRIMARY KEY,
  org     TEXT NOT NULL,
  id      TEXT NOT NULL, -- SPIFFE id of the machine that will join
  role    TEXT NOT NULL,
  name    TEXT NOT NULL,
  pool    TEXT NOT NULL,
  by      TEXT NOT NULL,
  until   INTEGER NOT NULL,
  used_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE machines (
  id          TEXT PRIMARY KEY, -- SPIFFE
  org         TEXT NOT NULL,
  role        TEXT NOT NULL,
  name        TEXT NOT NULL,
  pool        TEXT NOT NULL,
  removed     INTEGER NOT NULL,
  since       INTEGER NOT NULL,
  seen        INTEGER NOT NULL,
  run         TEXT NOT NULL,
  build       TEXT NOT NULL,
  confinement TEXT NOT NULL,
  pool_key    BLOB
) STRICT, WITHOUT ROWID;

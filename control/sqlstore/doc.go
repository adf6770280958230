// Package sqlstore keeps everything that control must not forget in one SQLite database, behind the small Store interface that each capability
// declares. Nothing above it knows SQL; another database stands beside it by implementing the same interfaces and passing control/storetest.
//
// How it works:
//
//   - One process holds the store (a lock on store.lock), and one goroutine of it writes. Writes that wait at the same time share one
//     transaction (group commit); each runs under its own savepoint, so that one that fails takes nothing along.
//   - A commit is appended to the write-ahead log without fsync. A durable write returns only after a later fdatasync of the log covered it;
//     another goroutine does those, one for all that wait, so that a read never waits for a disk. See docs/decisions/durable-commits.md.
//   - After a failed fsync nothing is written any more: what the kernel dropped cannot be known. Every write returns [errs.NotDurable] until
//     the process starts anew, which rewrites the database from the log.
//   - Reads use their own connections and see whole commits only.
//   - Transition rows are the audit records; they are linked once per commit (control/audit).
//   - Time is the store's: in milliseconds, never going back within a process.
//
// Limits: the file system must honour fdatasync and file locks. A network file system or a disk that lies about its cache breaks the promise and
// cannot be found out from here.
package sqlstore

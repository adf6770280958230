package sqlstore

import (
	"context"

	"github.com/ncruces/go-sqlite3"
)

// walCheckpointer moves the write-ahead log into the database beside the writer, so that the log stays short and no write pays for it. The copy
// runs on its own connection while the writer goes on; then the writer holds still for the few frames that came meanwhile, so that its next
// commit begins the log anew. Both steps sync log and database themselves.
type walCheckpointer struct {
	s     *Store
	c     *conn
	wake  chan struct{}
	pages int // of the log at the last commit; who writes alone uses it
	next  int // pages that start the next checkpoint
}

// walPages is the length of the log that starts a checkpoint: 16 MiB.
const walPages = 4096

func newWALCheckpointer(s *Store) (*walCheckpointer, error) {
	c, err := s.opts.connect(s.path("store.db"), false, 1<<10)
	if err != nil {
		return nil, err
	}
	k := &walCheckpointer{s: s, c: c, wake: make(chan struct{}, 1), next: s.opts.pages}
	s.w.db.WALHook(func(_ *sqlite3.Conn, _ string, pages int) error {
		k.pages = pages
		return nil
	})
	return k, nil
}

// consider starts a checkpoint when the log is long. Who writes calls it between batches.
func (k *walCheckpointer) consider() {
	switch {
	case k.pages < k.s.opts.pages:
		k.next = k.s.opts.pages
	case k.pages >= k.next:
		k.next = k.pages + k.s.opts.pages/4
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

func (k *walCheckpointer) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		}
		if err := k.once(); err != nil {
			k.failed(err)
		}
	}
}

func (k *walCheckpointer) once() error {
	if k.s.sync.failure() != nil {
		return nil
	}
	if _, err := k.c.checkpoint("PASSIVE"); err != nil {
		return err
	}
	k.s.writing.Lock()
	defer k.s.writing.Unlock()
	_, err := k.c.checkpoint("PASSIVE")
	return err
}

// failed judges a checkpoint that did not come through. The log still holds everything; but a disk that does not confirm is not written any more.
func (k *walCheckpointer) failed(err error) {
	if isSync(err) {
		k.s.sync.fail(err)
		return
	}
	k.s.log.Warn("the log of the store could not be moved into the database; it grows", "error", err)
}

func (k *walCheckpointer) close() { k.c.close() }

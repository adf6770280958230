package sqlstore

import (
	"context"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
)

// beginRun writes the run's row and the first record of its chain, which names the end of the run before.
func (s *Store) beginRun(ctx context.Context) error {
	return s.do(ctx, durable, func(t *tx) error {
		var lastRun string
		var link control.Digest
		_, err := t.row("SELECT r.id, b.link FROM batches b JOIN runs r ON r.no = b.run ORDER BY b.first DESC LIMIT 1", nil, &lastRun, &link)
		if err == nil && lastRun == "" {
			_, err = t.row("SELECT head_run, head_link FROM meta", nil, &lastRun, &link)
		}
		if err != nil {
			return err
		}
		if _, err := t.exec("INSERT INTO runs (org, id, node, started) VALUES (?, ?, ?, ?)", control.Org, s.run, s.opts.Node, t.now); err != nil {
			return err
		}
		s.runNo = t.db.LastInsertRowID()
		t.head.link = audit.RunStart(s.run)
		t.record(audit.KindRun, s.run, "", "open", "open", "control:"+s.opts.Node, audit.After(lastRun, link))
		return nil
	})
}

// retainEvery is how often what is too old is removed.
const retainEvery = time.Hour

// runChores signs checkpoints and removes what is too old.
func (s *Store) runChores(ctx context.Context) {
	sign := time.NewTicker(s.opts.Checkpoint)
	defer sign.Stop()
	retain := time.NewTicker(retainEvery)
	defer retain.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sign.C:
			if err := s.signCheckpoint(ctx); err != nil && ctx.Err() == nil {
				s.log.Error("no checkpoint was signed", "error", err)
			}
		case <-retain.C:
			if err := s.Retain(ctx); err != nil && ctx.Err() == nil {
				s.log.Error("what is too old was not removed", "error", err)
			}
		}
	}
}

// signCheckpoint signs where the chain stands, once that is on stable storage. Nothing happens when nothing is new.
func (s *Store) signCheckpoint(ctx context.Context) error {
	var at head
	var now time.Time
	var last int64
	err := s.do(ctx, durable, func(t *tx) error {
		at, now = s.head, t.now // before this batch: what a sync after it covers
		_, err := t.row("SELECT coalesce(max(seq), 0) FROM checkpoints", nil, &last)
		return err
	})
	if err != nil || at.seq == last {
		return err
	}
	signed, err := audit.Sign(s.opts.Audit, audit.Checkpoint{
		Org: control.Org, Incarnation: at.incarnation, Counter: at.counter, Run: s.run, Seq: at.seq, Link: at.link.String(), At: now.UnixMilli(),
	})
	if err != nil {
		return err
	}
	enc, err := signed.Encode()
	if err != nil {
		return err
	}
	digest, err := signed.Digest()
	if err != nil {
		return err
	}
	if err := s.do(ctx, 0, func(t *tx) error {
		_, err := t.exec("INSERT INTO checkpoints (seq, org, digest, signed, at) VALUES (?, ?, ?, ?, ?)", at.seq, control.Org, digest, enc, now)
		return err
	}); err != nil {
		return err
	}
	s.checkpoint.Store(&enc)
	return nil
}

// Checkpoint returns the newest signed checkpoint, for hosts and workers to keep and countersign; nil before the first one of this run.
func (s *Store) Checkpoint() []byte {
	if p := s.checkpoint.Load(); p != nil {
		return *p
	}
	return nil
}

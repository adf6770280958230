package sqlstore

import (
	"context"
	"io"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/errs"
)

// exportStep is how many batches one read of an export takes: no snapshot is held while the receiver is slow.
const exportStep = 200

// Export writes the audit record as JSON lines, each in one call of w.Write ([audit.Verify] reads them), from the batch on that holds the first
// record at or after since (zero: all that is kept). It signs a checkpoint first, so that the end is covered.
func (s *Store) Export(ctx context.Context, since time.Time, w io.Writer) error {
	if err := s.signCheckpoint(ctx); err != nil && s.sync.failure() == nil {
		return err
	}
	var head audit.Head
	var end int64
	if err := s.read(ctx, func(c *conn) error {
		if _, err := c.row("SELECT coalesce(max(last), 0) FROM batches", nil, &end); err != nil {
			return err
		}
		var err error
		head, err = c.exportHead(since)
		return err
	}); err != nil {
		return err
	}
	if err := audit.WriteLine(w, audit.Line{Head: &head}); err != nil {
		return err
	}
	for at := head.Seq; at < end; {
		var lines []audit.Line
		if err := s.read(ctx, func(c *conn) error {
			var err error
			lines, at, err = c.exportLines(at, end)
			return err
		}); err != nil {
			return err
		}
		for _, l := range lines {
			if err := audit.WriteLine(w, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// exportHead says where an export begins: after the last whole batch before since.
func (c *conn) exportHead(since time.Time) (audit.Head, error) {
	h := audit.Head{V: 1, Org: control.Org}
	var link control.Digest
	if _, err := c.row("SELECT head_seq, head_run, head_link FROM meta", nil, &h.Seq, &h.Run, &link); err != nil {
		return h, err
	}
	if !since.IsZero() {
		first, err := c.firstBatchAt(since)
		if err != nil {
			return h, err
		}
		if _, err := c.row("SELECT b.last, r.id, b.link FROM batches b JOIN runs r ON r.no = b.run WHERE b.first < ? ORDER BY b.first DESC LIMIT 1",
			[]any{first}, &h.Seq, &h.Run, &link); err != nil {
			return h, err
		}
	}
	if h.Seq > 0 {
		h.Link = link.String()
	}
	return h, nil
}

// firstBatchAt finds the first batch at or after a time: batches come in the order of time.
func (c *conn) firstBatchAt(since time.Time) (int64, error) {
	var lo, hi int64
	if _, err := c.row("SELECT coalesce(min(first), 1), coalesce(max(last), 0) + 1 FROM batches", nil, &lo, &hi); err != nil {
		return 0, err
	}
	for lo < hi {
		mid := lo + (hi-lo)/2
		var at time.Time
		if _, err := c.row("SELECT at FROM batches WHERE first <= ? ORDER BY first DESC LIMIT 1", []any{mid}, &at); err != nil {
			return 0, err
		}
		if at.Before(since) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, nil
}

const sqlExport = `SELECT b.first, b.last, r.id, b.at, b.org, b.records, b.link, k.signed, k.digest FROM batches b JOIN runs r ON r.no = b.run
LEFT JOIN checkpoints k ON k.seq = b.last WHERE b.first > ? AND b.last <= ? ORDER BY b.first LIMIT ?`

func (c *conn) exportLines(after, end int64) (lines []audit.Line, last int64, err error) {
	last = end
	err = c.rows(sqlExport, []any{after, end, exportStep}, func(r row) error {
		var b batch
		var link, digest control.Digest
		var signed []byte
		if err := r.scan(&b.first, &last, &b.run, &b.at, &b.org, &b.records, &link, &signed, &digest); err != nil {
			return err
		}
		records, err := b.read()
		if err != nil {
			return err
		}
		for i := range records {
			lines = append(lines, audit.Line{Record: &records[i]})
		}
		lines = append(lines, audit.Line{Link: &audit.Linked{Run: b.run, Seq: last, Link: link.String()}})
		if signed == nil {
			return nil
		}
		s, err := audit.DecodeSigned(signed)
		if err != nil {
			return err
		}
		lines = append(lines, audit.Line{Checkpoint: &s})
		more, err := c.witnesses(digest)
		lines = append(lines, more...)
		return err
	})
	return lines, last, err
}

func (c *conn) witnesses(digest control.Digest) ([]audit.Line, error) {
	var out []audit.Line
	err := c.rows("SELECT witness, signature, at FROM witnesses WHERE digest = ? ORDER BY witness", []any{digest}, func(r row) error {
		w := &audit.Witness{Checkpoint: digest.String()}
		err := r.scan(&w.By, &w.Signature, &w.At)
		out = append(out, audit.Line{Witness: w})
		return err
	})
	return out, err
}

// PutWitness stores a countersignature of a checkpoint of ours. The caller checked the signature against the witness's identity. Errors:
// [errs.NotFound] for a checkpoint that is not in this store.
func (s *Store) PutWitness(ctx context.Context, by string, checkpoint, signature []byte) error {
	signed, err := audit.DecodeSigned(checkpoint)
	if err != nil {
		return err
	}
	digest, err := signed.Digest()
	if err != nil {
		return err
	}
	return s.do(ctx, 0, func(t *tx) error {
		there, err := t.row("SELECT 1 FROM checkpoints WHERE digest = ?", []any{digest}, new(int))
		if err != nil {
			return err
		}
		if !there {
			return errs.New(errs.NotFound, "this checkpoint is not one of this store")
		}
		_, err = t.exec("INSERT INTO witnesses (digest, org, witness, signature, at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", digest, control.Org, by, signature, t.now)
		return err
	})
}

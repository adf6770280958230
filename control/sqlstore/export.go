package sqlstore

import (
	"context"
	"io"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/errs"
)

// exportStep is how many rows one read of an export takes: no snapshot is held while the receiver is slow.
const exportStep = 1000

// Export writes the audit record as JSON lines, each in one call of w.Write ([audit.Verify] reads them), from the batch on that holds the first
// record at or after since (zero: all that is kept). It signs a checkpoint first, so that the end is covered.
func (s *Store) Export(ctx context.Context, since time.Time, w io.Writer) error {
	if err := s.signCheckpoint(ctx); err != nil && s.sync.failure() == nil {
		return err
	}
	var head audit.Head
	var end int64
	if err := s.read(ctx, func(c *conn) error {
		if _, err := c.row("SELECT coalesce(max(seq), 0) FROM events", nil, &end); err != nil {
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
		first, err := c.firstRecordAt(since)
		if err != nil {
			return h, err
		}
		if _, err := c.row(`SELECT e.seq, r.id, e.link FROM events e JOIN runs r ON r.no = e.run WHERE e.seq < ? AND e.link IS NOT NULL ORDER BY e.seq DESC LIMIT 1`,
			[]any{first}, &h.Seq, &h.Run, &link); err != nil {
			return h, err
		}
	}
	if h.Seq > 0 {
		h.Link = link.String()
	}
	return h, nil
}

// firstRecordAt finds the first record at or after a time: records come in the order of time.
func (c *conn) firstRecordAt(since time.Time) (int64, error) {
	var lo, hi int64
	if _, err := c.row("SELECT coalesce(min(seq), 1), coalesce(max(seq), 0) + 1 FROM events", nil, &lo, &hi); err != nil {
		return 0, err
	}
	for lo < hi {
		mid := lo + (hi-lo)/2
		var at time.Time
		if _, err := c.row("SELECT at FROM events WHERE seq >= ? ORDER BY seq LIMIT 1", []any{mid}, &at); err != nil {
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

const sqlExport = `SELECT e.seq, r.id, e.at, e.org, e.kind, e.subject, e.attempt, e.source, e.event, e.target, e.actor, e.detail, e.link, k.signed, k.digest
FROM events e JOIN runs r ON r.no = e.run LEFT JOIN checkpoints k ON k.seq = e.seq WHERE e.seq > ? AND e.seq <= ? ORDER BY e.seq LIMIT ?`

func (c *conn) exportLines(after, end int64) (lines []audit.Line, last int64, err error) {
	last = end
	err = c.rows(sqlExport, []any{after, end, exportStep}, func(r row) error {
		var e audit.Record
		var link, digest control.Digest
		var signed []byte
		if err := r.scan(&e.Seq, &e.Run, &e.At, &e.Org, &e.Kind, &e.Subject, &e.Attempt, &e.From, &e.Event, &e.To, &e.Actor, &e.Detail, &link, &signed, &digest); err != nil {
			return err
		}
		last = e.Seq
		lines = append(lines, audit.Line{Record: &e})
		if link.IsZero() {
			return nil
		}
		lines = append(lines, audit.Line{Link: &audit.Linked{Run: e.Run, Seq: e.Seq, Link: link.String()}})
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

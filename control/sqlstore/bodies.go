package sqlstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"sallyport.dev/control"
	"sallyport.dev/control/journalkey"
	"sallyport.dev/errs"
)

// bodyKind is what a body is of its call.
type bodyKind int64

const (
	bodyArguments bodyKind = iota
	bodyAnswer             // the upstream's message
	bodyRequestState
	bodyInputRequests
	bodyPersonAnswer
	bodyTaskHandle
	bodyKinds // how many
)

// A body's key holds the call's number and the kind, so that one narrow table keeps bodies in the order of their calls.
const bodyShift = 4

func (k bodyKind) key(seq int64) int64 { return seq<<bodyShift | int64(k) }

// about is what a body is sealed under: it does not open in another's place.
func (k bodyKind) about(call string) string {
	return "sallyport body v1 " + call + " " + strconv.Itoa(int(k))
}

// field is where a body stands in a call.
func (k bodyKind) field(c *control.Call) *[]byte {
	switch k {
	case bodyArguments:
		return &c.Arguments
	case bodyAnswer:
		return &c.Body
	case bodyRequestState:
		return &c.RequestState
	case bodyInputRequests:
		return &c.InputRequests
	case bodyPersonAnswer:
		return &c.Answer
	}
	return &c.TaskHandle
}

// withoutBodies is c without its bodies.
func withoutBodies(c control.Call) control.Call {
	for kind := range bodyKinds {
		*kind.field(&c) = nil
	}
	return c
}

// partSize is the largest sealed body that is written with its step; a longer one comes before it, in parts that are sealed one by one (so that it is
// not held twice) and between which other writes run.
const (
	partSize = 256 << 10
	partBody = partSize - journalkey.Overhead
)

// aboutPart is what a part is sealed under: parts of one body do not open in each other's place, and none can be left out.
func (k bodyKind) aboutPart(call string, no, parts int) string {
	return k.about(call) + " part " + strconv.Itoa(no) + " of " + strconv.Itoa(parts)
}

// sealedBody is a body ready to be written.
type sealedBody struct {
	kind   bodyKind
	sealed []byte // nil when it lies in parts
	parts  int
	part   string
}

// seal seals the bodies of a call outside the writer and writes the parts of long ones ahead. discard drops what was written ahead, when the
// step does not come.
func (s *Store) seal(ctx context.Context, call string, bodies map[bodyKind][]byte) (out []sealedBody, err error) {
	for kind := range bodyKinds {
		body := bodies[kind]
		if body == nil {
			continue
		}
		b := sealedBody{kind: kind}
		if len(body) <= partBody {
			b.sealed = s.opts.Key.Seal(body, kind.about(call))
		} else if err := s.ahead(ctx, call, body, &b); err != nil {
			s.discard(out)
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// ahead writes a long body in parts. They belong to nothing until their step is written; what a crash leaves is removed by retention.
func (s *Store) ahead(ctx context.Context, call string, body []byte, b *sealedBody) error {
	b.part = control.NewID()
	parts := (len(body) + partBody - 1) / partBody
	for plain := range slices.Chunk(body, partBody) {
		no := b.parts
		piece := s.opts.Key.Seal(plain, b.kind.aboutPart(call, no, parts))
		b.parts++
		err := s.do(ctx, 0, func(t *tx) error {
			_, err := t.exec("INSERT INTO body_parts (id, no, org, at, data) VALUES (?, ?, ?, ?, ?)", b.part, no, control.Org, t.now, piece)
			return err
		})
		if err != nil {
			s.discard([]sealedBody{*b})
			return err
		}
	}
	b.sealed = []byte{}
	return nil
}

// discard removes parts that were written ahead for a step that did not come.
func (s *Store) discard(bodies []sealedBody) {
	for _, b := range bodies {
		if b.parts > 0 {
			s.queue.ride(func(t *tx) error {
				_, err := t.exec("DELETE FROM body_parts WHERE id = ?", b.part)
				return err
			})
		}
	}
}

const sqlPutBody = `INSERT INTO bodies (key, org, at, parts, part, sealed) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET at = excluded.at, parts = excluded.parts, part = excluded.part, sealed = excluded.sealed`

func (t *tx) putBodies(seq int64, bodies []sealedBody) error {
	for _, b := range bodies {
		if _, err := t.exec(sqlPutBody, b.kind.key(seq), control.Org, t.now, b.parts, b.part, b.sealed); err != nil {
			return err
		}
	}
	return nil
}

const (
	sqlDropParts  = `DELETE FROM body_parts WHERE id IN (SELECT part FROM bodies WHERE key BETWEEN ? AND ? AND parts > 0)`
	sqlDropBodies = `DELETE FROM bodies WHERE key BETWEEN ? AND ?`
)

// dropBodies forgets every body of a call.
func (t *tx) dropBodies(seq int64) error {
	first, last := bodyKind(0).key(seq), (bodyKinds - 1).key(seq)
	if _, err := t.exec(sqlDropParts, first, last); err != nil {
		return err
	}
	_, err := t.exec(sqlDropBodies, first, last)
	return err
}

const (
	sqlBodiesOf = "SELECT key, parts, part, sealed FROM bodies WHERE key BETWEEN ? AND ?"
	sqlPartsOf  = "SELECT data FROM body_parts WHERE id = ? ORDER BY no"
)

// sealedOf reads a call's sealed bodies: one piece each, or the parts of a long one. They are opened outside the connection ([Store.fill]).
func (c *conn) sealedOf(seq int64) (map[bodyKind][][]byte, error) {
	out := map[bodyKind][][]byte{}
	parts := map[bodyKind]string{}
	err := c.rows(sqlBodiesOf, []any{bodyKind(0).key(seq), (bodyKinds - 1).key(seq)}, func(r row) error {
		var key, n int64
		var part string
		var sealed []byte
		if err := r.scan(&key, &n, &part, &sealed); err != nil {
			return err
		}
		kind := bodyKind(key & (1<<bodyShift - 1))
		out[kind] = [][]byte{sealed}
		if n > 0 {
			parts[kind] = part
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for kind, part := range parts {
		var all [][]byte
		err := c.rows(sqlPartsOf, []any{part}, func(r row) error {
			var data []byte
			err := r.scan(&data)
			all = append(all, data)
			return err
		})
		if err != nil {
			return nil, err
		}
		out[kind] = all
	}
	return out, nil
}

// fill opens the bodies of a call into it.
func (s *Store) fill(c *control.Call, sealed map[bodyKind][][]byte) error {
	for kind, parts := range sealed {
		body, err := s.unseal(c.ID, kind, parts)
		if err != nil {
			return errs.Wrap(errs.CodeOf(err), errs.Message(err), fmt.Errorf("call %s, body %d", c.ID, kind))
		}
		*kind.field(c) = body
	}
	return nil
}

// unseal opens a body. Errors: [errs.Internal].
func (s *Store) unseal(call string, kind bodyKind, parts [][]byte) ([]byte, error) {
	if len(parts) == 1 {
		return s.opts.Key.Open(parts[0], kind.about(call))
	}
	body := make([]byte, 0, len(parts)*partBody)
	for no, sealed := range parts {
		var err error
		if body, err = s.opts.Key.AppendOpen(body, sealed, kind.aboutPart(call, no, len(parts))); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// whole is a call with its sealed bodies, as read in one transaction.
type whole struct {
	*callRow
	sealed map[bodyKind][][]byte
}

func (c *conn) withBodies(rows []*callRow) ([]whole, error) {
	out := make([]whole, 0, len(rows))
	for _, r := range rows {
		sealed, err := c.sealedOf(r.seq)
		if err != nil {
			return nil, err
		}
		out = append(out, whole{r, sealed})
	}
	return out, nil
}

// opened opens what withBodies read. Rows may be shared: the calls are copies.
func (s *Store) opened(rows []whole) ([]*control.Call, error) {
	out := make([]*control.Call, 0, len(rows))
	for _, r := range rows {
		c := r.Call
		if err := s.fill(&c, r.sealed); err != nil {
			return nil, err
		}
		out = append(out, &c)
	}
	return out, nil
}

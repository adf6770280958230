package sqlstore

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

// record adds a transition of anything but a call.
func (t *tx) record(kind, subject, from, what, to, actor, detail string) {
	t.events = append(t.events, audit.Record{
		Kind: kind, Subject: valid(subject), From: from, Event: what, To: to, Actor: valid(actor), Detail: valid(detail),
	})
}

// step adds a transition of a call and notes its number in the row, which is written after it.
func (t *tx) step(c *callRow, st *control.Step) {
	t.events = append(t.events, audit.Record{
		Kind: audit.KindCall, Subject: c.ID, Attempt: int64(st.Attempt), From: string(st.From), Event: string(st.Event), To: string(st.To),
		Actor: valid(st.Actor), Detail: stepDetail(st),
	})
	c.records = packNumber(c.records, t.head.seq+int64(len(t.events))) // finish numbers the batch's records in this order
}

// stepDetail is the detail of a call's record: code, digest and reason, - for none.
func stepDetail(st *control.Step) string {
	if st.Code == "" && st.Reason == "" && st.Digest.IsZero() {
		return ""
	}
	code, digest := "-", "-"
	if st.Code != "" {
		code = string(st.Code)
	}
	if !st.Digest.IsZero() {
		digest = st.Digest.String()
	}
	return code + " " + digest + " " + valid(st.Reason)
}

// stepOf reads a call's record back.
func stepOf(r *audit.Record) (control.Step, error) {
	st := control.Step{
		From: journal.State(r.From), Event: journal.Event(r.Event), To: journal.State(r.To), Attempt: int(r.Attempt), Actor: r.Actor,
		At: time.UnixMilli(r.At).UTC(),
	}
	if r.Detail == "" {
		return st, nil
	}
	parts := strings.SplitN(r.Detail, " ", 3)
	if len(parts) != 3 {
		return st, fmt.Errorf("record %d has no detail of a step", r.Seq)
	}
	if parts[0] != "-" {
		st.Code = errs.Code(parts[0])
	}
	st.Reason = parts[2]
	if parts[1] == "-" {
		return st, nil
	}
	var err error
	st.Digest, err = control.ParseDigest(parts[1])
	return st, err
}

// valid keeps foreign bytes out of the record: an export is UTF-8.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// packNumber appends a number to a packed list of growing numbers.
func packNumber(list []byte, n int64) []byte {
	last := int64(0)
	if all := unpackNumbers(list); len(all) > 0 {
		last = all[len(all)-1]
	}
	return binary.AppendUvarint(slices.Clip(list), uint64(n-last))
}

// unpackNumbers reads a packed list.
func unpackNumbers(list []byte) []int64 {
	var out []int64
	last := int64(0)
	for len(list) > 0 {
		d, n := binary.Uvarint(list)
		if n <= 0 {
			break
		}
		last += int64(d)
		out = append(out, last)
		list = list[n:]
	}
	return out
}

// stored is a record within its batch's row: what the batch has in common is left out.
type stored struct {
	Kind    string `json:"kind"`
	Subject string `json:"subject"`
	Attempt int64  `json:"attempt,omitempty"`
	From    string `json:"from,omitempty"`
	Event   string `json:"event"`
	To      string `json:"to,omitempty"`
	Actor   string `json:"actor,omitempty"`
	Detail  string `json:"detail,omitempty"`
}

// batch is a row of batches.
type batch struct {
	first   int64
	run     string
	at      int64
	org     string
	records []byte
}

func (b *batch) read() ([]audit.Record, error) {
	var list []stored
	if err := json.Unmarshal(b.records, &list); err != nil {
		return nil, fmt.Errorf("batch %d: %w", b.first, err)
	}
	out := make([]audit.Record, len(list))
	for i, r := range list {
		out[i] = audit.Record{
			Seq: b.first + int64(i), Run: b.run, At: b.at, Org: b.org, Kind: r.Kind, Subject: r.Subject, Attempt: r.Attempt, From: r.From, Event: r.Event,
			To: r.To, Actor: r.Actor, Detail: r.Detail,
		}
	}
	return out, nil
}

const sqlBatchOf = `SELECT b.first, r.id, b.at, b.org, b.records FROM batches b JOIN runs r ON r.no = b.run WHERE b.first <= ? ORDER BY b.first DESC LIMIT 1`

// recordsAt reads records by their numbers, which grow. Those that retention removed are left out.
func (c *conn) recordsAt(numbers []int64) ([]audit.Record, error) {
	var out, have []audit.Record
	for _, n := range numbers {
		if len(have) == 0 || n < have[0].Seq || n > have[len(have)-1].Seq {
			var b batch
			found, err := c.row(sqlBatchOf, []any{n}, &b.first, &b.run, &b.at, &b.org, &b.records)
			if err != nil {
				return nil, err
			}
			if have = nil; !found {
				continue
			}
			if have, err = b.read(); err != nil {
				return nil, err
			}
		}
		if i := n - have[0].Seq; i >= 0 && i < int64(len(have)) {
			out = append(out, have[i])
		}
	}
	return out, nil
}

const (
	sqlInsertBatch = `INSERT INTO batches (first, last, org, run, at, records, link) VALUES (?, ?, ?, ?, ?, ?, ?)`
	sqlUpdateMeta  = `UPDATE meta SET incarnation = ?, counter = ?, generation = ?, quarantine = ? WHERE one = 1`
)

// finish writes what belongs to the batch as a whole: its audit records with their link, and the store's own row.
func (t *tx) finish() error {
	if err := t.link(); err != nil {
		return err
	}
	before := &t.s.head
	if t.head.counter != before.counter || t.head.generation != before.generation || t.head.quarantine != before.quarantine || t.head.incarnation != before.incarnation {
		_, err := t.conn.exec(sqlUpdateMeta, t.head.incarnation, t.head.counter, t.head.generation, t.head.quarantine)
		return err
	}
	return nil
}

func (t *tx) link() error {
	if len(t.events) == 0 {
		return nil
	}
	at, first := t.now.UnixMilli(), t.head.seq+1
	list := make([]stored, len(t.events))
	for i := range t.events {
		r := &t.events[i]
		t.head.seq++
		r.Seq, r.Run, r.At, r.Org = t.head.seq, t.s.run, at, control.Org
		list[i] = stored{r.Kind, r.Subject, r.Attempt, r.From, r.Event, r.To, r.Actor, r.Detail}
	}
	records, err := json.Marshal(list)
	if err != nil {
		return err
	}
	t.head.link = audit.Link(t.head.link, t.events)
	_, err = t.conn.exec(sqlInsertBatch, first, t.head.seq, control.Org, t.s.runNo, at, string(records), t.head.link)
	return err
}

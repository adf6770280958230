package sqlstore

import (
	"strings"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

const callColumns = `seq, id, org, session, record, record_digest, epoch, host, shim, harness_call, trace, progress, timeout_ms, owner, profile, profile_version, name,
connection, revision, catalog, tool, effect, repeat, client, twin, args_digest, retry_of, admitted_at, state, attempt, lease, expires_at, authority_kind, authority_id,
subject, account, binding, intent, worker, run, started_at, rounds, transport, protocol, tool_result, http_status, rpc_code, failure, bytes, code,
reason, delivery, gone, cancel, decided_at, settled_at, retried_by, resolved_by, note, records`

// unfinishedStates is [journal.State.Unfinished] in SQL.
const unfinishedStates = `'admitted', 'asking', 'approved', 'dispatching', 'retrying', 'input_wanted', 'working'`

// callRow is a call and its place in the journal.
type callRow struct {
	control.Call
	seq     int64
	records []byte // the numbers of its audit records, packed
}

// scanCall reads callColumns. Bodies stay empty.
func scanCall(r row) (*callRow, error) {
	c := &callRow{}
	err := r.scan(&c.seq, &c.ID, &c.Org, &c.Session, &c.Record, &c.RecordDigest, &c.Epoch, &c.Host, &c.Shim, &c.HarnessCall, &c.Trace, &c.Progress,
		&c.TimeoutMS, &c.Owner, &c.Profile, &c.ProfileVersion, &c.Name, &c.Connection, &c.Revision, &c.Catalog, &c.Tool, &c.Effect, &c.Repeat, &c.Client, &c.Twin, &c.ArgsDigest, &c.RetryOf,
		&c.AdmittedAt, &c.State, &c.Attempt, &c.Lease, &c.ExpiresAt, &c.Authority.Kind, &c.Authority.ID, &c.Subject, &c.Account, &c.Binding, &c.Intent,
		&c.Worker, &c.Run, &c.StartedAt, &c.Rounds, &c.Transport, &c.Protocol, &c.ToolResult, &c.HTTPStatus, &c.RPCCode, &c.Failure, &c.Bytes, &c.Code,
		&c.Reason, &c.Delivery, &c.Gone, &c.Cancel, &c.DecidedAt, &c.SettledAt, &c.RetriedBy, &c.ResolvedBy, &c.Note, &c.records)
	return c, err
}

var sqlInsertCall = `INSERT INTO calls (` + callColumns + `, unread) VALUES (` + strings.Repeat("?, ", strings.Count(callColumns, ",")+1) + `?)`

func (t *tx) insertCall(c *callRow) error {
	_, err := t.exec(sqlInsertCall, c.seq, c.ID, c.Org, c.Session, c.Record, c.RecordDigest, c.Epoch, c.Host, c.Shim, c.HarnessCall, c.Trace, c.Progress,
		c.TimeoutMS, string(c.Owner), c.Profile, c.ProfileVersion, c.Name, c.Connection, c.Revision, c.Catalog, c.Tool, string(c.Effect), c.Repeat, c.Client, c.Twin, c.ArgsDigest, c.RetryOf,
		c.AdmittedAt, string(c.State), c.Attempt, c.Lease, c.ExpiresAt, string(c.Authority.Kind), c.Authority.ID, c.Subject, c.Account, c.Binding, c.Intent,
		c.Worker, c.Run, c.StartedAt, c.Rounds, string(c.Transport), string(c.Protocol), string(c.ToolResult), c.HTTPStatus, c.RPCCode, string(c.Failure),
		c.Bytes, string(c.Code), c.Reason, string(c.Delivery), c.Gone, c.Cancel, c.DecidedAt, c.SettledAt, c.RetriedBy, string(c.ResolvedBy), c.Note, c.records, c.unread())
	t.moves = append(t.moves, c)
	return err
}

const sqlUpdateCall = `UPDATE calls SET state = ?, attempt = ?, lease = ?, expires_at = ?, authority_kind = ?, authority_id = ?, subject = ?, account = ?,
binding = ?, intent = ?, worker = ?, run = ?, started_at = ?, rounds = ?, transport = ?, protocol = ?, tool_result = ?, http_status = ?,
rpc_code = ?, failure = ?, bytes = ?, code = ?, reason = ?, delivery = ?, gone = ?, cancel = ?, decided_at = ?, settled_at = ?, retried_by = ?,
resolved_by = ?, note = ?, records = ? WHERE seq = ?`

// sqlEndUnread takes a call's entry of the index to where what is over lies; a step that leaves it unread does not touch the index.
const sqlEndUnread = `UPDATE calls SET unread = NULL WHERE seq = ?`

func (c *callRow) unread() any {
	if c.over() {
		return nil
	}
	return 1
}

// over reports whether nothing can follow: it ended, and the model has its end.
func (c *callRow) over() bool { return !c.live() && c.Delivery == journal.DeliveryAcknowledged }

// updateCall writes what steps may change. The caller checked state, attempt and lease in this transaction: one writes at a time.
func (t *tx) updateCall(c *callRow) error {
	_, err := t.exec(sqlUpdateCall, string(c.State), c.Attempt, c.Lease, c.ExpiresAt, string(c.Authority.Kind), c.Authority.ID, c.Subject, c.Account,
		c.Binding, c.Intent, c.Worker, c.Run, c.StartedAt, c.Rounds, string(c.Transport), string(c.Protocol), string(c.ToolResult),
		c.HTTPStatus, c.RPCCode, string(c.Failure), c.Bytes, string(c.Code), c.Reason, string(c.Delivery), c.Gone, c.Cancel, c.DecidedAt, c.SettledAt,
		c.RetriedBy, string(c.ResolvedBy), c.Note, c.records, c.seq)
	if err == nil && c.over() {
		_, err = t.exec(sqlEndUnread, c.seq)
	}
	t.moves = append(t.moves, c)
	return err
}

const sqlCallByID = `SELECT ` + callColumns + ` FROM calls WHERE id = ?`

// callByID returns a call without bodies, or nil. In a transaction use [tx.call].
func (c *conn) callByID(id string) (*callRow, error) { return c.oneCall(sqlCallByID, id) }

const sqlCallBySeq = `SELECT ` + callColumns + ` FROM calls WHERE seq = ?`

func (c *conn) oneCall(sql string, args ...any) (*callRow, error) {
	var out *callRow
	err := c.rows(sql, args, func(r row) error {
		if out != nil {
			return nil
		}
		var err error
		out, err = scanCall(r)
		return err
	})
	return out, err
}

// manyCalls reads calls without bodies.
func (c *conn) manyCalls(sql string, args ...any) ([]*callRow, error) {
	var out []*callRow
	err := c.rows(sql, args, func(r row) error {
		one, err := scanCall(r)
		out = append(out, one)
		return err
	})
	return out, err
}

// bare drops the places of rows.
func bare(rows []*callRow) []*control.Call {
	out := make([]*control.Call, len(rows))
	for i, r := range rows {
		out[i] = &r.Call
	}
	return out
}

func noSuchCall() error { return errs.New(errs.NotFound, "there is no such call") }

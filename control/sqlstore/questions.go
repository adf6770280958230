package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"sallyport.dev/control"
	"sallyport.dev/control/audit"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
)

var _ inbox.Store = (*Store)(nil)

const questionColumns = `id, org, kind, call, session, owner, profile, approvers, second, not_owner, local, binding, form, text, state, decisions, opened_at,
expires_at, closed_at`

// aboutForm is what a question's form is sealed under: it is the upstream's or the tool's own text.
func aboutForm(question string) string { return "sallyport form v1 " + question }

// questionRow is a question with its form still sealed.
type questionRow struct {
	control.Question
	sealed []byte
}

func scanQuestion(r row) (*questionRow, error) {
	q := &questionRow{}
	var approvers, decisions string
	if err := r.scan(&q.ID, &q.Org, &q.Kind, &q.Call, &q.Session, &q.Owner, &q.Profile, &approvers, &q.Second, &q.NotOwner, &q.Local, &q.Binding, &q.sealed,
		&q.Text, &q.State, &decisions, &q.OpenedAt, &q.ExpiresAt, &q.ClosedAt); err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(approvers), &q.Approvers); err != nil {
		return nil, fmt.Errorf("approvers of question %s: %w", q.ID, err)
	}
	if err := json.Unmarshal([]byte(decisions), &q.Decisions); err != nil {
		return nil, fmt.Errorf("decisions of question %s: %w", q.ID, err)
	}
	return q, nil
}

// open opens the form.
func (s *Store) openForm(q *questionRow) (*control.Question, error) {
	if q.sealed != nil {
		form, err := s.opts.Key.Open(q.sealed, aboutForm(q.ID))
		if err != nil {
			return nil, err
		}
		q.Form = form
	}
	return &q.Question, nil
}

// ask inserts an open question.
func (t *tx) ask(in *control.Question) error {
	q := *in
	q.State, q.OpenedAt = control.QuestionOpen, t.now
	approvers, err := json.Marshal(q.Approvers)
	if err != nil {
		return err
	}
	var form []byte
	if q.Form != nil {
		form = t.s.opts.Key.Seal(q.Form, aboutForm(q.ID))
	}
	_, err = t.exec(`INSERT INTO questions (`+questionColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, q.ID, control.Org,
		string(q.Kind), q.Call, q.Session, string(q.Owner), q.Profile, string(approvers), q.Second, q.NotOwner, q.Local, q.Binding, form, q.Text,
		string(q.State), "[]", q.OpenedAt, q.ExpiresAt, q.ClosedAt)
	if err != nil {
		return err
	}
	t.record(audit.KindQuestion, q.ID, "", "ask", string(q.State), "control:"+t.s.opts.Node, string(q.Kind)+" of call "+q.Call)
	return nil
}

func noSuchQuestion() error { return errs.New(errs.NotFound, "there is no such question") }

func (c *conn) questions(sql string, args ...any) ([]*questionRow, error) {
	var out []*questionRow
	err := c.rows(sql, args, func(r row) error {
		q, err := scanQuestion(r)
		out = append(out, q)
		return err
	})
	return out, err
}

func (c *conn) questionByID(id string) (*questionRow, error) {
	got, err := c.questions(`SELECT `+questionColumns+` FROM questions WHERE id = ?`, id)
	if err != nil {
		return nil, err
	}
	if len(got) == 0 {
		return nil, noSuchQuestion()
	}
	return got[0], nil
}

// Question returns one question.
func (s *Store) Question(ctx context.Context, id string) (*control.Question, error) {
	var q *questionRow
	err := s.read(ctx, func(c *conn) error {
		var err error
		q, err = c.questionByID(id)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.openForm(q)
}

const (
	sqlQuestionsBy = `AND (? = '' OR instr(?, ' ' || kind || ' ') > 0) AND (? = '' OR session = ?) AND (? = '' OR owner = ?) AND (? = '' OR call = ?)
ORDER BY opened_at, seq LIMIT ?`
	sqlQuestions     = `SELECT ` + questionColumns + ` FROM questions WHERE instr(?, ' ' || state || ' ') > 0 ` + sqlQuestionsBy
	sqlOpenQuestions = `SELECT ` + questionColumns + ` FROM questions WHERE state = 'open' ` + sqlQuestionsBy
)

// Questions returns questions, oldest first.
func (s *Store) Questions(ctx context.Context, f inbox.Filter) ([]*control.Question, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = -1
	}
	args := []any{stateList(f.Kinds), stateList(f.Kinds), f.Session, f.Session, string(f.Owner), string(f.Owner), f.Call, f.Call, limit}
	sql := sqlOpenQuestions
	if len(f.States) > 0 {
		sql, args = sqlQuestions, append([]any{stateList(f.States)}, args...)
	}
	var rows []*questionRow
	if err := s.read(ctx, func(c *conn) error {
		var err error
		rows, err = c.questions(sql, args...)
		return err
	}); err != nil {
		return nil, err
	}
	out := make([]*control.Question, 0, len(rows))
	for _, r := range rows {
		q, err := s.openForm(r)
		if err != nil {
			return nil, err
		}
		out = append(out, q)
	}
	return out, nil
}

// callColumnsC are the columns of a call named c in a join.
var callColumnsC = "c." + strings.ReplaceAll(strings.ReplaceAll(callColumns, "\n", " "), ", ", ", c.")

var (
	selectCalls = `SELECT ` + callColumns + ` FROM calls `
	// over one value of unread: each comes in the order of the calls
	sqlLastEnded      = selectCalls + `WHERE session = ? AND unread IS ? AND connection = ? AND tool = ? AND seq <> ? AND state NOT IN (` + unfinishedStates + `, 'uncertain') ORDER BY seq DESC LIMIT 1`
	sqlApprovedBefore = `SELECT DISTINCT ` + callColumnsC + ` FROM questions q JOIN calls c ON c.id = q.call WHERE q.session = ? AND c.authority_kind = 'approval'
AND c.seq <> ? ORDER BY c.seq DESC LIMIT 20`
	sqlOtherTwins     = selectCalls + `WHERE twin = ? AND seq <> ? ORDER BY seq DESC LIMIT 20`
	sqlOtherUncertain = selectCalls + `WHERE state = 'uncertain' AND owner = ? AND connection = ? AND tool = ? AND seq <> ? ORDER BY seq DESC LIMIT 20`
)

// subject is what a question is about, as read in one transaction.
type subject struct {
	question                 *questionRow
	call, last               []whole
	before, twins, uncertain []*callRow
}

func (c *conn) subject(id string) (*subject, error) {
	q, err := c.questionByID(id)
	if err != nil {
		return nil, err
	}
	row, err := c.callByID(q.Call)
	if err != nil {
		return nil, err
	}
	if row == nil {
		return nil, noSuchCall()
	}
	out := &subject{question: q}
	if out.call, err = c.withBodies([]*callRow{row}); err != nil {
		return nil, err
	}
	var last *callRow
	for _, unread := range []any{nil, 1} {
		one, err := c.oneCall(sqlLastEnded, row.Session, unread, row.Connection, row.Tool, row.seq)
		if err != nil {
			return nil, err
		}
		if one != nil && (last == nil || one.seq > last.seq) {
			last = one
		}
	}
	if last != nil {
		out.last, err = c.withBodies([]*callRow{last})
	}
	if err != nil {
		return nil, err
	}
	if out.before, err = c.manyCalls(sqlApprovedBefore, row.Session, row.seq); err != nil {
		return nil, err
	}
	if !row.Twin.IsZero() {
		if out.twins, err = c.manyCalls(sqlOtherTwins, row.Twin, row.seq); err != nil {
			return nil, err
		}
	}
	out.uncertain, err = c.manyCalls(sqlOtherUncertain, string(row.Owner), row.Connection, row.Tool, row.seq)
	return out, err
}

// QuestionSubject returns what a person looks at.
func (s *Store) QuestionSubject(ctx context.Context, id string) (*inbox.Subject, error) {
	var got *subject
	if err := s.read(ctx, func(c *conn) error {
		var err error
		got, err = c.subject(id)
		return err
	}); err != nil {
		return nil, err
	}
	q, err := s.openForm(got.question)
	if err != nil {
		return nil, err
	}
	out := &inbox.Subject{Question: q, Before: bare(got.before), Twins: bare(got.twins), Uncertain: bare(got.uncertain)}
	opened, err := s.opened(append(got.call, got.last...))
	if err != nil {
		return nil, err
	}
	out.Call = opened[0]
	if len(opened) > 1 {
		out.Last = opened[1]
	}
	return out, nil
}

// Decide adds one decision: question, call, step and a session grant change together or not at all.
func (s *Store) Decide(ctx context.Context, d *inbox.Decide) (inbox.Decided, error) {
	var out inbox.Decided
	var form *questionRow
	err := s.do(ctx, durable, func(t *tx) error {
		q, err := t.questionByID(d.Question)
		if err != nil {
			return err
		}
		form = q
		out, err = t.decide(q, d)
		return err
	})
	if err != nil {
		return inbox.Decided{}, err
	}
	opened, err := s.openForm(form)
	if err != nil {
		return inbox.Decided{}, err
	}
	out.Question.Form = opened.Form
	return out, nil
}

func (t *tx) decide(q *questionRow, d *inbox.Decide) (inbox.Decided, error) {
	outcome, next, event := inbox.Tally(q.Question, d.Decision, d.Actor, t.now)
	out := inbox.Decided{Outcome: outcome, Question: &next, Call: q.Call}
	if outcome != inbox.Counted && outcome != inbox.Closes {
		return out, nil
	}
	if outcome == inbox.Closes {
		c, err := t.call(q.Call)
		if err != nil {
			return out, err
		}
		if c == nil {
			return out, noSuchCall()
		}
		to, err := journal.Next(c.State, event, journal.Situation{Write: c.Effect == control.Write, Attempt: c.Attempt, Rounds: c.Rounds})
		if err != nil {
			out.Outcome, out.Question = inbox.Too, &q.Question
			return out, nil //nolint:nilerr // the table says that the call takes no such word any more
		}
		if err := t.decided(c, d, event, to); err != nil {
			return out, err
		}
	}
	decisions, err := json.Marshal(next.Decisions)
	if err != nil {
		return out, err
	}
	if _, err := t.exec("UPDATE questions SET state = ?, decisions = ?, closed_at = ? WHERE id = ?", string(next.State), string(decisions), next.ClosedAt, q.ID); err != nil {
		return out, err
	}
	t.record(audit.KindQuestion, q.ID, string(q.State), string(d.Decision.Verdict), string(next.State), string(d.Decision.By), "binding "+d.Decision.Binding.String())
	if outcome == inbox.Closes && d.Grant != nil {
		return out, t.give(d.Grant)
	}
	return out, nil
}

// decided writes what a decision makes of the call.
func (t *tx) decided(c *callRow, d *inbox.Decide, event journal.Event, to journal.State) error {
	from := c.State
	c.State, c.DecidedAt = to, t.now
	var bodies []sealedBody
	put := func(kind bodyKind) {
		bodies = append(bodies, sealedBody{kind: kind, sealed: t.s.opts.Key.Seal(d.Answer, kind.about(c.ID))})
	}
	switch event {
	case journal.OnApprove:
		c.Authority = control.Authority{Kind: control.ByApproval, ID: d.Question}
		if end := t.now.Add(d.Grace); c.ExpiresAt.Before(end) {
			c.ExpiresAt = end
		}
	case journal.OnDeny:
		c.Code, c.Reason, c.SettledAt = errs.ApprovalDenied, d.Decision.Reason, t.now
	case journal.OnAbandon:
		c.Code, c.Reason, c.SettledAt = errs.Abandoned, d.Decision.Reason, t.now
	case journal.OnPersonAnswer:
		if to == journal.Answered { // a client tool
			put(bodyAnswer)
			c.SettledAt = t.now
		} else {
			put(bodyPersonAnswer)
			c.Rounds++
			c.Binding = d.Bind
			c.Authority = control.Authority{Kind: control.ByApproval, ID: d.Question}
		}
	}
	t.step(c, &control.Step{
		From: from, Event: event, To: to, Attempt: c.Attempt, Actor: string(d.Decision.By), Reason: d.Decision.Reason, Digest: d.Decision.Binding,
	})
	if err := t.updateCall(c); err != nil {
		return err
	}
	return t.putBodies(c.seq, bodies)
}

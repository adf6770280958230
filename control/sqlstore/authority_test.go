package sqlstore

import (
	"testing"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
)

// I7: a barrier looks at the question that its approval is, whatever the call's own row says. Each row of the table is an approved call, and a
// question that was changed behind its back.
func TestAuthorityMustStand(t *testing.T) {
	other := control.Sum([]byte("other"))
	for name, c := range map[string]struct {
		attempt int
		kind    control.QuestionKind
		state   control.QuestionState
		binding *control.Digest
		want    call.Result
	}{
		"approved":                               {0, control.AskApproval, control.QuestionApproved, nil, call.Done},
		"open":                                   {0, control.AskApproval, control.QuestionOpen, nil, call.Unusable},
		"denied":                                 {0, control.AskApproval, control.QuestionDenied, nil, call.Unusable},
		"expired":                                {0, control.AskApproval, control.QuestionExpired, nil, call.Unusable},
		"closed":                                 {0, control.AskApproval, control.QuestionClosed, nil, call.Unusable},
		"used":                                   {0, control.AskApproval, control.QuestionUsed, nil, call.Unusable},
		"approved for something else":            {0, control.AskApproval, control.QuestionApproved, &other, call.Unusable},
		"a client tool's":                        {0, control.AskClient, control.QuestionApproved, nil, call.Unusable},
		"an uncertain call's":                    {0, control.AskUncertain, control.QuestionApproved, nil, call.Unusable},
		"what the server asks, at first":         {0, control.AskInput, control.QuestionAnswered, nil, call.Unusable},
		"a further attempt, used":                {1, control.AskApproval, control.QuestionUsed, nil, call.Done},
		"a further attempt, taken back":          {1, control.AskApproval, control.QuestionClosed, nil, call.Unusable},
		"a further attempt, not used by a first": {1, control.AskApproval, control.QuestionApproved, nil, call.Unusable},
		"a further attempt, of another kind":     {1, control.AskUncertain, control.QuestionUsed, nil, call.Unusable},
		"what the server asked, answered":        {1, control.AskInput, control.QuestionAnswered, nil, call.Done},
		"what the server asked, open":            {1, control.AskInput, control.QuestionOpen, nil, call.Unusable},
		"what the server asked, denied":          {1, control.AskInput, control.QuestionDenied, nil, call.Unusable},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, openTest(t, testOptions(t, t.TempDir())))
			row, q := w.approved()
			if c.attempt > 0 {
				got, err := w.Commit(t.Context(), w.barrier(row, q))
				w.no(err)
				if got != call.Done {
					t.Fatal(got)
				}
				row, err = w.Call(t.Context(), row.ID)
				w.no(err)
				w.advance(&call.Advance{Call: row.ID, From: row.State, Attempt: row.Attempt, Lease: row.Lease, Step: control.Step{
					From: row.State, Event: journal.OnRetry, To: journal.Retrying, Attempt: row.Attempt, Actor: theRun,
				}})
				row, err = w.Call(t.Context(), row.ID)
				w.no(err)
			}
			binding := q.Binding
			if c.binding != nil {
				binding = *c.binding
			}
			w.no(w.do(t.Context(), 0, func(x *tx) error {
				n, err := x.exec("UPDATE questions SET kind = ?, state = ?, binding = ? WHERE id = ?", c.kind, c.state, binding, q.ID)
				if n != 1 {
					t.Errorf("%d questions were changed", n)
				}
				return err
			}))
			// Whatever the question says: a barrier for another binding than the call's own is refused.
			moved := w.barrier(row, q)
			moved.Binding = other
			if got, err := w.Commit(t.Context(), moved); err != nil || got != call.Unusable {
				t.Errorf("a barrier of another binding: %s %v", got, err)
			}
			got, err := w.Commit(t.Context(), w.barrier(row, q))
			w.no(err)
			if got != c.want {
				t.Errorf("the barrier says %s, want %s", got, c.want)
			}
		})
	}
}

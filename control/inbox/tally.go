package inbox

import (
	"slices"
	"strings"
	"time"

	"sallyport.dev/control"
	"sallyport.dev/control/journal"
)

// Actor is who decides, as the server authenticated them.
type Actor struct {
	Person control.Person
	Groups []string
	Local  bool // came over the control socket of this machine
}

// Tally is one decision applied to a question: pure, called by the store inside its transaction. It returns what the question becomes and, when
// the outcome is [Closes], the call's event.
func Tally(q control.Question, d control.Decision, a Actor, now time.Time) (Outcome, control.Question, journal.Event) {
	switch {
	case q.State != control.QuestionOpen:
		return Too, q, ""
	case !q.ExpiresAt.IsZero() && !now.Before(q.ExpiresAt):
		return Expired, q, ""
	case d.Binding != q.Binding:
		return Mismatch, q, ""
	case !MayDecide(q, a):
		return Forbidden, q, ""
	}
	event, ok := fits(q.Kind, d.Verdict)
	if !ok {
		return Unfit, q, ""
	}
	approvedBy := func(p control.Person) bool {
		return slices.ContainsFunc(q.Decisions, func(e control.Decision) bool { return e.Verdict == control.Approve && e.By == p })
	}
	d.At = now
	next := q
	next.Decisions = append(slices.Clone(q.Decisions), d)
	if d.Verdict == control.Approve {
		if approvedBy(d.By) {
			return Twice, q, ""
		}
		if q.Second && len(q.Decisions) == 0 {
			return Counted, next, ""
		}
	}
	next.ClosedAt = now
	switch event {
	case journal.OnApprove:
		next.State = control.QuestionApproved
	case journal.OnDeny:
		next.State = control.QuestionDenied
	case journal.OnPersonAnswer:
		next.State = control.QuestionAnswered
	case journal.OnAbandon:
		next.State = control.QuestionDenied
	}
	return Closes, next, event
}

// fits says which event a verdict is for a kind of question. Uncertain outcomes are resolved by the pipeline, not here.
func fits(k control.QuestionKind, v control.Verdict) (journal.Event, bool) {
	switch k {
	case control.AskApproval:
		switch v {
		case control.Approve:
			return journal.OnApprove, true
		case control.Refuse:
			return journal.OnDeny, true
		}
	case control.AskClient:
		switch v {
		case control.Answer:
			return journal.OnPersonAnswer, true
		case control.Refuse:
			return journal.OnDeny, true
		}
	case control.AskInput:
		switch v {
		case control.Answer:
			return journal.OnPersonAnswer, true
		case control.Refuse:
			return journal.OnAbandon, true
		}
	}
	return "", false
}

// MayDecide reports whether a may decide q at all.
func MayDecide(q control.Question, a Actor) bool {
	if a.Person == "" || a.Local && !q.Local {
		return false
	}
	if q.NotOwner && a.Person == q.Owner {
		return false
	}
	approvers := q.Approvers
	if len(approvers) == 0 {
		approvers = []string{"owner"}
	}
	return slices.ContainsFunc(approvers, func(name string) bool {
		if group, ok := strings.CutPrefix(name, "group:"); ok {
			return slices.Contains(a.Groups, group)
		}
		if name == "owner" {
			return a.Person == q.Owner
		}
		return control.Person(name) == a.Person
	})
}

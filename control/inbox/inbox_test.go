package inbox_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"sallyport.dev/control"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
	"sallyport.dev/errs"
	"sallyport.dev/relay/strictjson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	noon   = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	digest = control.Sum([]byte("shown"))
)

func question(change ...func(*control.Question)) control.Question {
	q := control.Question{
		ID: "q", Kind: control.AskApproval, Call: "c", Owner: "ada", Approvers: []string{"owner", "group:leads", "carl"}, Local: true, Binding: digest,
		State: control.QuestionOpen, ExpiresAt: noon.Add(time.Hour),
	}
	for _, f := range change {
		f(&q)
	}
	return q
}

func TestTally(t *testing.T) {
	ada := inbox.Actor{Person: "ada"}
	for name, c := range map[string]struct {
		q       control.Question
		a       inbox.Actor
		verdict control.Verdict
		binding control.Digest
		at      time.Time
		want    inbox.Outcome
		event   journal.Event
		state   control.QuestionState
	}{
		"approved":         {question(), ada, control.Approve, digest, noon, inbox.Closes, journal.OnApprove, control.QuestionApproved},
		"denied":           {question(), ada, control.Refuse, digest, noon, inbox.Closes, journal.OnDeny, control.QuestionDenied},
		"another digest":   {question(), ada, control.Approve, control.Sum([]byte("x")), noon, inbox.Mismatch, "", control.QuestionOpen},
		"no digest":        {question(), ada, control.Refuse, control.Digest{}, noon, inbox.Mismatch, "", control.QuestionOpen},
		"in the last ms":   {question(), ada, control.Approve, digest, noon.Add(time.Hour - time.Millisecond), inbox.Closes, journal.OnApprove, control.QuestionApproved},
		"at its end":       {question(), ada, control.Approve, digest, noon.Add(time.Hour), inbox.Expired, "", control.QuestionOpen},
		"without an end":   {question(func(q *control.Question) { q.ExpiresAt = time.Time{} }), ada, control.Approve, digest, noon.AddDate(9, 0, 0), inbox.Closes, journal.OnApprove, control.QuestionApproved},
		"decided":          {question(func(q *control.Question) { q.State = control.QuestionApproved }), ada, control.Refuse, digest, noon, inbox.Too, "", control.QuestionApproved},
		"closed":           {question(func(q *control.Question) { q.State = control.QuestionClosed }), ada, control.Approve, digest, noon, inbox.Too, "", control.QuestionClosed},
		"a stranger":       {question(), inbox.Actor{Person: "eve"}, control.Approve, digest, noon, inbox.Forbidden, "", control.QuestionOpen},
		"nobody":           {question(), inbox.Actor{}, control.Approve, digest, noon, inbox.Forbidden, "", control.QuestionOpen},
		"a group":          {question(), inbox.Actor{Person: "bea", Groups: []string{"leads"}}, control.Approve, digest, noon, inbox.Closes, journal.OnApprove, control.QuestionApproved},
		"another group":    {question(), inbox.Actor{Person: "bea", Groups: []string{"lead", "group:leads"}}, control.Approve, digest, noon, inbox.Forbidden, "", control.QuestionOpen},
		"named":            {question(), inbox.Actor{Person: "carl"}, control.Approve, digest, noon, inbox.Closes, journal.OnApprove, control.QuestionApproved},
		"the word owner":   {question(), inbox.Actor{Person: "owner"}, control.Approve, digest, noon, inbox.Forbidden, "", control.QuestionOpen},
		"not the owner":    {question(func(q *control.Question) { q.NotOwner = true }), ada, control.Approve, digest, noon, inbox.Forbidden, "", control.QuestionOpen},
		"locally":          {question(), inbox.Actor{Person: "ada", Local: true}, control.Approve, digest, noon, inbox.Closes, journal.OnApprove, control.QuestionApproved},
		"locally, not so":  {question(func(q *control.Question) { q.Local = false }), inbox.Actor{Person: "ada", Local: true}, control.Approve, digest, noon, inbox.Forbidden, "", control.QuestionOpen},
		"default approver": {question(func(q *control.Question) { q.Approvers = nil }), ada, control.Approve, digest, noon, inbox.Closes, journal.OnApprove, control.QuestionApproved},
		"an answer":        {question(), ada, control.Answer, digest, noon, inbox.Unfit, "", control.QuestionOpen},
		"a shrug":          {question(), ada, "maybe", digest, noon, inbox.Unfit, "", control.QuestionOpen},
		"nothing":          {question(), ada, "", digest, noon, inbox.Unfit, "", control.QuestionOpen},
		"client answered":  {question(func(q *control.Question) { q.Kind = control.AskClient }), ada, control.Answer, digest, noon, inbox.Closes, journal.OnPersonAnswer, control.QuestionAnswered},
		"client approved":  {question(func(q *control.Question) { q.Kind = control.AskClient }), ada, control.Approve, digest, noon, inbox.Unfit, "", control.QuestionOpen},
		"input answered":   {question(func(q *control.Question) { q.Kind = control.AskInput }), ada, control.Answer, digest, noon, inbox.Closes, journal.OnPersonAnswer, control.QuestionAnswered},
		"input declined":   {question(func(q *control.Question) { q.Kind = control.AskInput }), ada, control.Refuse, digest, noon, inbox.Closes, journal.OnAbandon, control.QuestionDenied},
		"uncertain":        {question(func(q *control.Question) { q.Kind = control.AskUncertain }), ada, control.Approve, digest, noon, inbox.Unfit, "", control.QuestionOpen},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.q
			got, next, event := inbox.Tally(c.q, control.Decision{Verdict: c.verdict, By: c.a.Person, Binding: c.binding}, c.a, c.at)
			if got != c.want || event != c.event || next.State != c.state {
				t.Fatalf("got %s, %s, %s", got, event, next.State)
			}
			changed := got == inbox.Closes || got == inbox.Counted
			if changed != (len(next.Decisions) == 1) || changed != next.ClosedAt.Equal(c.at) || len(before.Decisions) != 0 {
				t.Fatalf("decisions %d, closed at %s", len(next.Decisions), next.ClosedAt)
			}
			if changed == (got.Code() != "") {
				t.Fatalf("code %q", got.Code())
			}
		})
	}
}

func TestTallySecond(t *testing.T) {
	q := question(func(q *control.Question) { q.Second = true })
	say := func(q control.Question, who control.Person, v control.Verdict) (inbox.Outcome, control.Question) {
		got, next, _ := inbox.Tally(q, control.Decision{Verdict: v, By: who, Binding: digest}, inbox.Actor{Person: who}, noon)
		return got, next
	}
	got, one := say(q, "ada", control.Approve)
	if got != inbox.Counted || one.State != control.QuestionOpen {
		t.Fatalf("first: %s, %s", got, one.State)
	}
	if got, _ := say(one, "ada", control.Approve); got != inbox.Twice {
		t.Fatalf("the same person: %s", got)
	}
	if got, two := say(one, "carl", control.Approve); got != inbox.Closes || two.State != control.QuestionApproved || len(two.Decisions) != 2 {
		t.Fatalf("second: %s, %s", got, two.State)
	}
	for _, who := range []control.Person{"ada", "carl"} {
		if got, two := say(one, who, control.Refuse); got != inbox.Closes || two.State != control.QuestionDenied {
			t.Fatalf("a denial by %s: %s, %s", who, got, two.State)
		}
	}
}

// Whatever is said in whatever order: a question closes at most once, an approval that needs two people has two, and nothing but approve approves.
func TestTallyProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := question(func(q *control.Question) {
			q.Second = rapid.Bool().Draw(t, "second")
			q.NotOwner = rapid.Bool().Draw(t, "not owner")
			q.Kind = rapid.SampledFrom([]control.QuestionKind{control.AskApproval, control.AskClient, control.AskInput, control.AskUncertain}).Draw(t, "kind")
		})
		closed := 0
		for range rapid.IntRange(1, 12).Draw(t, "n") {
			a := inbox.Actor{Person: rapid.SampledFrom([]control.Person{"ada", "bea", "carl", "eve", ""}).Draw(t, "who"), Local: rapid.Bool().Draw(t, "local")}
			if a.Person == "bea" {
				a.Groups = []string{"leads"}
			}
			d := control.Decision{
				Verdict: rapid.SampledFrom([]control.Verdict{control.Approve, control.Refuse, control.Answer, control.Done, "x"}).Draw(t, "verdict"), By: a.Person,
				Binding: rapid.SampledFrom([]control.Digest{digest, {}}).Draw(t, "binding"),
			}
			got, next, _ := inbox.Tally(q, d, a, noon.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "s"))*time.Second))
			if got == inbox.Closes {
				closed++
			} else if got != inbox.Counted && (len(next.Decisions) != len(q.Decisions) || next.State != q.State) {
				t.Fatalf("%s changed the question", got)
			}
			q = next
		}
		if closed > 1 {
			t.Fatal("closed twice")
		}
		if q.State == control.QuestionApproved {
			people := map[control.Person]bool{}
			for _, d := range q.Decisions {
				people[d.By] = true
				if d.Verdict != control.Approve || d.Binding != digest || d.By == "eve" || d.By == "" || q.NotOwner && d.By == q.Owner {
					t.Fatalf("approved by %+v", d)
				}
			}
			if q.Second && len(people) != 2 || q.Kind != control.AskApproval {
				t.Fatalf("approved by %d people", len(people))
			}
		}
	})
}

func TestResponses(t *testing.T) {
	requests := `{"a b":{"method":"elicitation/create","params":{"message":"m","requestedSchema":{"type":"object","properties":{"n":{"type":"number"}},"required":["n"]}}},"link":{"method":"elicitation/create","params":{"mode":"url","message":"look","url":"https://example.org/x"}}}`
	e, err := inbox.Form([]byte(requests))
	if err != nil {
		t.Fatal(err)
	}
	if e.Text != "m\nlook (open yourself, if you trust it: https://example.org/x)" {
		t.Errorf("text %q", e.Text)
	}
	got, err := inbox.Responses([]byte(requests), []byte(`{"link":{},"a b":{"n":12345678901234567890.10}}`))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"link":{"action":"accept","content":{}},"a b":{"action":"accept","content":{"n":12345678901234567890.10}}}`; string(got) != want {
		t.Errorf("got %s", got)
	}
	for _, bad := range []string{`{}`, `{"a b":{"n":1}}`, `{"a b":{},"link":{}}`, `{"a b":{"n":1},"link":{},"x":1}`, `[]`} {
		if _, err := inbox.Responses([]byte(requests), []byte(bad)); errs.CodeOf(err) != errs.Invalid {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func FuzzForm(f *testing.F) {
	f.Add([]byte(`{"a":{"method":"elicitation/create","params":{"message":"m","requestedSchema":{"type":"object","properties":{"n":{"type":"number"}}}}}}`))
	f.Add([]byte(`{"a":{"method":"elicitation/create","params":{"mode":"url","message":"m","url":"https://x"}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if strictjson.Check(b) != nil {
			return // the pipeline reads strict JSON only
		}
		e, err := inbox.Form(b)
		if err != nil {
			return
		}
		if err := strictjson.Check(e.Schema); err != nil {
			t.Fatalf("the form is not strict JSON: %v: %s", err, e.Schema)
		}
	})
}

package journal

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"sallyport.dev/errs"
)

var allStates = []State{
	Admitted, Refused, Asking, Approved, Denied, Cancelled, Expired, Voided, Failed, Dispatching, Retrying, Answered, Rejected, Uncertain, InputWanted,
	Working, Abandoned, ResolvedDone, ResolvedNotDone, Superseded,
}

var allEvents = []Event{
	OnRecord, OnRefuse, OnAsk, OnApprove, OnDeny, OnCancel, OnExpire, OnVoid, OnPrepareFailed, OnCommit, OnAnswer, OnReject, OnUnsent, OnRetry, OnLost,
	OnInput, OnTask, OnPersonAnswer, OnAbandon, OnResolveDone, OnResolveNotDone, OnResolveRetry, OnQuarantine,
}

// legal is the table of the design, written down once more and by hand: state, event, what follows for a write and for a read with attempts and rounds
// left. What is not here must be refused.
const legal = `
-            record            admitted          admitted
admitted     refuse            refused           refused
admitted     ask               asking            asking
admitted     cancel            cancelled         cancelled
admitted     expire            expired           expired
admitted     void              voided            voided
admitted     prepare_failed    failed            failed
admitted     commit            dispatching       dispatching
admitted     quarantine        uncertain         voided
asking       approve           approved          approved
asking       deny              denied            denied
asking       person_answer     answered          answered
asking       cancel            cancelled         cancelled
asking       expire            expired           expired
asking       void              voided            voided
asking       quarantine        uncertain         voided
approved     cancel            cancelled         cancelled
approved     expire            expired           expired
approved     void              voided            voided
approved     prepare_failed    failed            failed
approved     commit            dispatching       dispatching
approved     quarantine        uncertain         voided
dispatching  answer            answered          answered
dispatching  reject            rejected          rejected
dispatching  unsent            failed            failed
dispatching  lost              uncertain         failed
dispatching  input_required    input_wanted      input_wanted
dispatching  task              working           working
dispatching  retry             retrying          retrying
dispatching  quarantine        uncertain         voided
retrying     commit            dispatching       dispatching
retrying     prepare_failed    failed            failed
retrying     cancel            cancelled         cancelled
retrying     expire            expired           expired
retrying     void              voided            voided
retrying     quarantine        uncertain         voided
input_wanted person_answer     retrying          retrying
input_wanted abandon           abandoned         abandoned
input_wanted quarantine        uncertain         voided
working      answer            answered          answered
working      reject            rejected          rejected
working      lost              uncertain         failed
working      quarantine        uncertain         voided
uncertain    answer            answered          answered
uncertain    reject            rejected          rejected
uncertain    unsent            failed            failed
uncertain    input_required    input_wanted      input_wanted
uncertain    task              working           working
uncertain    resolve_done      resolved_done     resolved_done
uncertain    resolve_not_done  resolved_not_done resolved_not_done
uncertain    resolve_retry     superseded        superseded
`

// Every state with every event, for writes and reads: what the table of the design has, and nothing else.
func TestEveryStateAndEvent(t *testing.T) {
	type key struct {
		from  State
		event Event
	}
	want := map[key][2]State{}
	for line := range strings.Lines(legal) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		from := State(f[0])
		if f[0] == "-" {
			from = None
		}
		want[key{from, Event(f[1])}] = [2]State{State(f[2]), State(f[3])}
	}
	for _, from := range append([]State{None}, allStates...) {
		for _, event := range allEvents {
			for i, write := range []bool{true, false} {
				name := fmt.Sprintf("%s/%s/write=%v", from, event, write)
				got, err := Next(from, event, Situation{Write: write, Attempt: 1, MaxAttempts: 2, MayRepeat: true})
				to, ok := want[key{from, event}]
				switch {
				case !ok && (err == nil || got != from || errs.CodeOf(err) != errs.Conflict):
					t.Errorf("%s: leads to %s, %v", name, got, err)
				case ok && (err != nil || got != to[i]):
					t.Errorf("%s: leads to %s, %v; want %s", name, got, err, to[i])
				}
				if ok && !Legal(from, event, to[i]) {
					t.Errorf("%s: the store would refuse it", name)
				}
			}
			for _, to := range allStates {
				w, ok := want[key{from, event}]
				if Legal(from, event, to) != (ok && (to == w[0] || to == w[1])) {
					t.Errorf("Legal(%s, %s, %s) is %v", from, event, to, Legal(from, event, to))
				}
			}
		}
	}
	if len(want) != len(edges) {
		t.Errorf("%d pairs in the table, %d here", len(edges), len(want))
	}
}

func TestGuards(t *testing.T) {
	for name, c := range map[string]struct {
		from  State
		event Event
		s     Situation
		ok    bool
	}{
		"a first attempt may be repeated":      {Dispatching, OnRetry, Situation{Attempt: 1, MaxAttempts: 2, MayRepeat: true}, true},
		"what was sent may not":                {Dispatching, OnRetry, Situation{Attempt: 1, MaxAttempts: 2}, false},
		"a second of two may not":              {Dispatching, OnRetry, Situation{Attempt: 2, MaxAttempts: 2, MayRepeat: true}, false},
		"no configuration goes over five":      {Dispatching, OnRetry, Situation{Attempt: 5, MaxAttempts: 50, MayRepeat: true}, false},
		"a third answer":                       {InputWanted, OnPersonAnswer, Situation{Rounds: 2}, true},
		"no fourth":                            {InputWanted, OnPersonAnswer, Situation{Rounds: 3}, false},
		"a read is never uncertain":            {Dispatching, OnLost, Situation{Write: false}, true},
		"a lost write that would be repeated":  {Dispatching, OnRetry, Situation{Write: true, Attempt: 1, MaxAttempts: 2}, false},
		"an unsent write is tried once more":   {Dispatching, OnRetry, Situation{Write: true, Attempt: 1, MaxAttempts: 2, MayRepeat: true}, true},
		"a call that ended takes nothing more": {Answered, OnRetry, Situation{Attempt: 1, MaxAttempts: 2, MayRepeat: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Next(c.from, c.event, c.s); (err == nil) != c.ok {
				t.Fatalf("got %v", err)
			}
		})
	}
}

// Each state is exactly one of: to be driven, uncertain, over. From every unfinished state an end can be reached, and no way leads out of an end.
func TestStates(t *testing.T) {
	for _, s := range allStates {
		if n := map[bool]int{true: 1}; n[s.Final()]+n[s.Unfinished()]+n[s == Uncertain] != 1 || !s.Valid() {
			t.Errorf("%s: final %v, unfinished %v", s, s.Final(), s.Unfinished())
		}
		if s.Final() {
			for _, e := range allEvents {
				if _, ok := edges[edge{s, e}]; ok {
					t.Errorf("%s is over and takes %s", s, e)
				}
			}
		}
	}
	if State("nonsense").Valid() || None.Valid() {
		t.Error("an unknown state is valid")
	}
	reach := map[State]bool{}
	for changed := true; changed; {
		changed = false
		for _, row := range Table {
			if !reach[row.From] && (row.To.Final() || reach[row.To]) {
				reach[row.From], changed = true, true
			}
		}
	}
	for _, s := range allStates {
		if !s.Final() && !reach[s] {
			t.Errorf("%s leads to no end", s)
		}
	}
	// A write gets into the dispatch only over the barrier, and out of it to "failed" only by proof.
	for _, row := range Table {
		if row.To == Dispatching && row.Event != OnCommit {
			t.Errorf("%s leads to dispatching by %s", row.From, row.Event)
		}
		if row.From == Dispatching && row.To == Failed && row.Event != OnUnsent && row.Guard != OfRead {
			t.Errorf("a write is failed by %s", row.Event)
		}
	}
}

// The outcome table: what came from the wire, and the event that it means.
func TestVerdict(t *testing.T) {
	answered := func(status int, f Failure, a Answer) Evidence {
		return Evidence{Transport: TransportAnswered, Status: status, Failure: f, Answer: a}
	}
	cases := map[string]struct {
		e    Evidence
		want Event
	}{
		"zero bytes":                      {Evidence{Transport: TransportNotSent, Failure: FailConnect}, OnUnsent},
		"zero bytes, whatever the status": {Evidence{Transport: TransportNotSent, Status: 200}, OnUnsent},
		"a result":                        {answered(200, "", AnswerResult), OnAnswer},
		"isError":                         {answered(200, "", AnswerIsError), OnAnswer},
		"input_required":                  {answered(200, "", AnswerInput), OnInput},
		"a task":                          {answered(200, "", AnswerTask), OnTask},
		"a result with another status":    {answered(201, "", AnswerResult), OnLost},
		"a result without a status":       {answered(0, "", AnswerResult), OnLost},
		"no message":                      {answered(200, "", AnswerNone), OnLost},
		"an unknown kind of message":      {answered(200, "", "nonsense"), OnLost},
		"a status with no word":           {answered(403, "", AnswerNone), OnLost},
		"202":                             {answered(202, FailNoAnswer, AnswerNone), OnLost},
		"nothing known":                   {Evidence{}, OnLost},
		"an unknown transport":            {Evidence{Transport: "nonsense", Status: 200, Answer: AnswerResult}, OnLost},
		"an unknown failure":              {answered(200, "nonsense", AnswerResult), OnLost},
		"callback, a JSON body":           {Evidence{Transport: TransportAnswered, Status: 201, Answer: AnswerCallback, Callback: true}, OnAnswer},
		"callback, no body":               {Evidence{Transport: TransportAnswered, Status: 204, Callback: true}, OnLost},
		"callback, rejected":              {Evidence{Transport: TransportAnswered, Status: 422, Failure: FailStatus, Callback: true}, OnReject},
		"callback, 503":                   {Evidence{Transport: TransportAnswered, Status: 503, Failure: FailStatus, Callback: true}, OnLost},
		"a moved status":                  {Evidence{Transport: TransportAnswered, Status: 404, Failure: FailStatus, Moved: []int{404}}, OnLost},
		"a status cannot be moved away":   {Evidence{Transport: TransportAnswered, Status: 500, Failure: FailStatus, Moved: []int{400}}, OnLost},
		"a rejecting status, cut":         {Evidence{Transport: TransportSent, Status: 403, Failure: FailCut}, OnLost},
	}
	rejecting := []int{400, 401, 403, 404, 405, 406, 413, 415, 422, 429}
	for status := 100; status < 600; status++ {
		want := OnLost
		if slices.Contains(rejecting, status) {
			want = OnReject
		}
		cases[fmt.Sprintf("status %d", status)] = struct {
			e    Evidence
			want Event
		}{answered(status, FailStatus, AnswerNone), want}
	}
	codes := []int64{-32700, -32600, -32601, -32602, -32020, -32021, -32022}
	for code := int64(-32800); code < -31900; code++ {
		want := OnAnswer
		if slices.Contains(codes, code) {
			want = OnReject
		}
		e := answered(200, "", AnswerError)
		e.RPCCode = code
		cases[fmt.Sprintf("code %d", code)] = struct {
			e    Evidence
			want Event
		}{e, want}
	}
	for _, f := range []Failure{
		FailWrite, FailReset, FailCut, FailStream, FailTimeout, FailSilence, FailCancelled, FailHTTP, FailNoAnswer, FailMedia, FailEncoding, FailOversize,
		FailJSON, FailID, FailRunGone, FailMalformed,
	} {
		for _, tr := range []Transport{TransportSent, TransportAnswered} {
			for _, status := range []int{0, 200, 403} {
				cases[fmt.Sprintf("%s %s %d", tr, f, status)] = struct {
					e    Evidence
					want Event
				}{Evidence{Transport: tr, Failure: f, Status: status, Answer: AnswerResult}, OnLost}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		if got := Verdict(cases[name].e); got != cases[name].want {
			t.Errorf("%s: %s, want %s", name, got, cases[name].want)
		}
	}
}

// "Not sent" needs proof: no evidence but the transport's own word leads to it.
func FuzzVerdictNeedsProof(f *testing.F) {
	f.Add("sent", "connect", 0, "", int64(0), false)
	f.Add("answered", "closed", 200, "result", int64(0), true)
	f.Fuzz(func(t *testing.T, transport, failure string, status int, answer string, code int64, callback bool) {
		e := Evidence{Transport: Transport(transport), Failure: Failure(failure), Status: status, Answer: Answer(answer), RPCCode: code, Callback: callback}
		if Verdict(e) == OnUnsent && e.Transport != TransportNotSent {
			t.Fatalf("%+v counts as unsent", e)
		}
	})
}

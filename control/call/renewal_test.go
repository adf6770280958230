package call_test

import (
	"testing"
	"time"

	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
	"sallyport.dev/control/memstore"
)

// healer renews a credential whenever a server refuses it.
type healer struct {
	*memstore.DB
	heal func(version int64, status int)
}

// Refused implements call.Credentials.
func (h *healer) Refused(_, _ string, version int64, status int, _ string) {
	go h.heal(version, status)
}

// TestTaskHealsItsCredential: a question about a task that is refused for its token starts the renewal, and the next one goes with what it brought.
func TestTaskHealsItsCredential(t *testing.T) {
	bubble(t, "401", func(t *testing.T, r *rig) {
		r.renewer = &healer{r.db, func(version int64, status int) {
			if status == 401 {
				r.credential(version+1, "bot")
				r.p.PolicyChanged()
			}
		}}
		r.crash(false)
		r.asTask(answered(goesOn), call.Outcome{Transport: journal.TransportAnswered, Failure: journal.FailStatus, Status: 401}, answered(goesOn))
		c := r.do("create_issue", issue)
		r.approve(c)
		r.state(c, journal.Working)
		r.later(30 * time.Second)
		r.state(c, journal.Working)
		ins, _ := r.polls()
		if len(ins) < 3 || ins[0].Version != 1 || ins[1].Version != 1 || ins[2].Version != 2 {
			t.Fatalf("%d questions: %+v", len(ins), ins)
		}
		r.sends(c, 1)
	})
}

// TestReadIsNotTriedInVain: what would end the same way again is not tried twice.
func TestReadIsNotTriedInVain(t *testing.T) {
	for failure, attempts := range map[journal.Failure]int{
		journal.FailAddress: 1, journal.FailCredential: 1, journal.FailIntent: 1, journal.FailRequest: 1,
		journal.FailConnect: 2, journal.FailTLS: 2, journal.FailBusy: 2, journal.FailClosed: 2,
	} {
		bubble(t, string(failure), func(t *testing.T, r *rig) {
			r.plan(plan{outcome: call.Outcome{Transport: journal.TransportNotSent, Failure: failure}})
			c := r.do("list_issues", `{"project":"web"}`)
			r.later(time.Second)
			r.state(c, journal.Failed)
			if got := r.row(c).Attempt; got != attempts {
				t.Errorf("%d attempts, want %d", got, attempts)
			}
		})
	}
}

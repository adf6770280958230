package storetest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/inbox"
	"sallyport.dev/control/journal"
)

// What concurrent people, cancels, executes, outcomes, resolutions and revocations do to one call, as operations on a register: its state, and the policy's generation.
type (
	callInput struct {
		op         string // approve, deny, cancel, commit, settle, resolve, revoke, look
		from, to   journal.State
		generation int64 // commit: that was evaluated
	}
	callOutput struct {
		result     string
		generation int64 // look, revoke: at least this one stood
	}
	callState struct {
		state      journal.State
		generation int64
	}
)

// callModel is what a store may answer, one operation at a time: a decision closes an open question once; a cancel, and the barrier, need the state that
// they name, as do an outcome, also a late one, and a person's word about what is uncertain: once one of them stands the others come too late; and a barrier that evaluated another generation than stands is stale, so that none commits after a revocation that it did not see (I9).
var callModel = porcupine.Model{
	Init: func() any { return callState{journal.Asking, 0} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(callState), input.(callInput), output.(callOutput)
		to := func(want string, next journal.State) (bool, any) {
			return out.result == want, callState{next, s.generation}
		}
		switch in.op {
		case "look":
			if s.generation == 0 {
				s.generation = out.generation
			}
			return out.generation == s.generation, s
		case "revoke":
			return true, callState{s.state, s.generation + 1}
		case "approve", "deny":
			if s.state != journal.Asking {
				return to(string(inbox.Too), s.state)
			}
			if in.op == "deny" {
				return to(string(inbox.Closes), journal.Denied)
			}
			return to(string(inbox.Closes), journal.Approved)
		case "cancel":
			if s.state != in.from {
				return to("fenced", s.state)
			}
			return to("done", journal.Cancelled)
		case "settle", "resolve":
			if s.state != in.from {
				return to("fenced", s.state)
			}
			return to("done", in.to)
		case "commit":
			switch {
			case s.state != journal.Approved:
				return to("fenced", s.state)
			case in.generation != s.generation:
				return to("stale", s.state)
			}
			return to("done", journal.Dispatching)
		}
		return false, s
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

func testHistory(t *testing.T, f *fixture) {
	for range 10 {
		f.reload()
		f = newSessionOf(f)
		c, q := f.admit(control.Write, journal.Asking)
		var mu sync.Mutex
		var history []porcupine.Operation
		record := func(client int, in callInput, do func() callOutput) callOutput {
			start := time.Now().UnixNano()
			out := do()
			mu.Lock()
			defer mu.Unlock()
			history = append(history, porcupine.Operation{ClientId: client, Input: in, Call: start, Output: out, Return: time.Now().UnixNano()})
			return out
		}
		look := func(client int) (*control.Policy, callOutput) {
			var p *control.Policy
			out := record(client, callInput{op: "look"}, func() callOutput {
				var err error
				if p, err = f.Call.Policy(t.Context(), nil); err != nil {
					t.Error(err)
					return callOutput{}
				}
				return callOutput{generation: p.Generation}
			})
			return p, out
		}
		look(0)
		var wg sync.WaitGroup
		for client := range 6 {
			wg.Go(func() {
				for range 4 {
					f.oneOperation(client, c, q, record, look)
				}
			})
		}
		wg.Wait()
		if got := porcupine.CheckOperationsTimeout(callModel, history, 20*time.Second); got != porcupine.Ok {
			for _, o := range history {
				t.Log(callModel.DescribeOperation(o.Input, o.Output))
			}
			t.Fatalf("the history is not that of one call: %s", got)
		}
	}
}

func (f *fixture) oneOperation(client int, c *control.Call, q *control.Question, record func(int, callInput, func() callOutput) callOutput, look func(int) (*control.Policy, callOutput)) {
	ctx := f.t.Context()
	decide := func(op string, v control.Verdict) {
		record(client, callInput{op: op}, func() callOutput {
			d, err := f.Inbox.Decide(ctx, decision(q, v))
			if err != nil {
				f.t.Error(err)
			}
			return callOutput{result: string(d.Outcome)}
		})
	}
	switch rand.IntN(12) {
	case 0, 1:
		decide("approve", control.Approve)
	case 2:
		decide("deny", control.Refuse)
	case 3:
		from := []journal.State{journal.Asking, journal.Approved}[rand.IntN(2)]
		record(client, callInput{op: "cancel", from: from}, func() callOutput {
			row := *c
			row.State = from
			got, err := f.Call.Advance(ctx, f.step(&row, journal.OnCancel, journal.Cancelled))
			if err != nil {
				f.t.Error(err)
			}
			return callOutput{result: string(got)}
		})
	case 5, 6:
		f.settleOnce(client, c, record)
	case 7:
		step := control.Step{From: journal.Uncertain, Event: journal.OnResolveDone, To: journal.ResolvedDone, Attempt: 1, Actor: string(owner)}
		record(client, callInput{op: "resolve", from: step.From, to: step.To}, func() callOutput {
			got, err := f.Call.Resolve(ctx, &call.Resolution{Call: c.ID, Attempt: 1, By: owner, Note: "looked", Step: step})
			if err != nil {
				f.t.Error(err)
			}
			return callOutput{result: string(got)}
		})
	case 4:
		record(client, callInput{op: "revoke"}, func() callOutput {
			if err := f.Revocation.Throw(ctx, &control.Switch{Org: control.Org, ID: control.NewID(), Kind: control.SwitchTool, Name: "x/y", By: owner}); err != nil {
				f.t.Error(err)
			}
			return callOutput{}
		})
	default:
		p, out := look(client)
		if p == nil {
			return
		}
		record(client, callInput{op: "commit", generation: out.generation}, func() callOutput {
			row := *c
			row.State = journal.Approved
			b := f.barrier(&row, approvalOf(q))
			b.Guard.Generation = p.Generation
			got, err := f.Call.Commit(ctx, b)
			if err != nil {
				f.t.Error(err)
			}
			return callOutput{result: string(got)}
		})
	}
}

// settleOnce writes what a dispatch came to: an answer, its loss, or an answer after the loss.
func (f *fixture) settleOnce(client int, c *control.Call, record func(int, callInput, func() callOutput) callOutput) {
	way := []struct {
		from  journal.State
		event journal.Event
		to    journal.State
	}{
		{journal.Dispatching, journal.OnAnswer, journal.Answered},
		{journal.Dispatching, journal.OnLost, journal.Uncertain},
		{journal.Dispatching, journal.OnLost, journal.Uncertain},
		{journal.Uncertain, journal.OnAnswer, journal.Answered},
	}[rand.IntN(4)]
	record(client, callInput{op: "settle", from: way.from, to: way.to}, func() callOutput {
		row := *c
		row.State, row.Attempt = way.from, 1
		got, err := f.Call.Advance(f.t.Context(), f.step(&row, way.event, way.to))
		if err != nil {
			f.t.Error(err)
		}
		return callOutput{result: string(got)}
	})
}

package sqlstore

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"sallyport.dev/control"
	"sallyport.dev/control/call"
	"sallyport.dev/control/journal"
)

// What happens to a few approved writes at once: barriers, cancels, revocations. The model is the specification in a dozen lines.
type linearInput struct {
	op         string // policy | throw | barrier | cancel
	call       int
	generation int64 // that a barrier evaluated
}

type linearOutput struct {
	result     call.Result
	generation int64 // that policy returned
}

const (
	linearCalls = 5
	linearLimit = 3 // of the counter that all barriers take from
)

type linearState struct {
	generation int64
	used       int
	gone       [linearCalls]bool // dispatched or cancelled
}

func linearModel(first int64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return linearState{generation: first} },
		Step: func(state, input, output any) (bool, any) {
			s, in, out := state.(linearState), input.(linearInput), output.(linearOutput)
			switch in.op {
			case "policy":
				return out.generation == s.generation, s
			case "throw":
				s.generation++
				return true, s
			case "cancel":
				if s.gone[in.call] {
					return out.result == call.Fenced, s
				}
				s.gone[in.call] = true
				return out.result == call.Done, s
			}
			switch {
			case s.gone[in.call]:
				return out.result == call.Fenced, s
			case in.generation != s.generation:
				return out.result == call.Stale, s
			case s.used >= linearLimit:
				return out.result == call.Limited, s
			}
			s.gone[in.call], s.used = true, s.used+1
			return out.result == call.Done, s
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprint(input, output) },
	}
}

func TestBarriersCancelsAndRevocationsAreInOneOrder(t *testing.T) {
	s := openTest(t, testOptions(t, t.TempDir()))
	w := newWorld(t, s)
	for round := range 15 {
		key := fmt.Sprint("round", round)
		var calls []*control.Call
		var questions []*control.Question
		for range linearCalls {
			w.session = control.NewID()
			w.open(w.session)
			c, q := w.approved()
			calls, questions = append(calls, c), append(questions, q)
		}
		first := w.reload().Generation
		history := linearRound(w, calls, questions, key, first)
		if res := porcupine.CheckOperationsTimeout(linearModel(first), history, time.Minute); res != porcupine.Ok {
			t.Fatalf("round %d: %v: no order explains %v", round, res, history)
		}
		if _, err := s.Restore(t.Context(), control.SwitchTool, "tracker/other", ada); err != nil {
			t.Fatal(err)
		}
	}
}

func linearRound(w *world, calls []*control.Call, questions []*control.Question, key string, first int64) []porcupine.Operation {
	var mu sync.Mutex
	var history []porcupine.Operation
	began := time.Now()
	var wg sync.WaitGroup
	start := make(chan struct{})
	for client := range 6 {
		rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
		wg.Go(func() {
			<-start
			generation := first
			for range 6 {
				in := linearInput{call: rng.IntN(linearCalls), generation: generation}
				in.op = []string{"policy", "throw", "barrier", "barrier", "barrier", "cancel"}[rng.IntN(6)]
				at := time.Since(began).Nanoseconds()
				out := w.linearOp(in, calls[in.call], questions[in.call], key)
				op := porcupine.Operation{ClientId: client, Input: in, Call: at, Output: out, Return: time.Since(began).Nanoseconds()}
				if in.op == "policy" {
					generation = out.generation
				}
				mu.Lock()
				history = append(history, op)
				mu.Unlock()
			}
		})
	}
	close(start)
	wg.Wait()
	return history
}

func (w *world) linearOp(in linearInput, c *control.Call, q *control.Question, key string) linearOutput {
	ctx := w.t.Context()
	var out linearOutput
	var err error
	switch in.op {
	case "policy":
		var p *control.Policy
		if p, err = w.Policy(ctx, nil); err == nil {
			out.generation = p.Generation
		}
	case "throw":
		err = w.Throw(ctx, &control.Switch{ID: control.NewID(), Kind: control.SwitchTool, Name: "tracker/other", By: ada})
	case "barrier":
		b := w.barrier(c, q)
		b.Guard.Generation, b.Guard.Session = in.generation, c.Session
		b.Guard.Takes = []call.Take{{Key: key, Calls: linearLimit, ExpectUsed: -1}}
		out.result, err = w.Commit(ctx, b)
	case "cancel":
		out.result, err = w.Advance(ctx, &call.Advance{
			Call: c.ID, From: journal.Approved, Lease: c.Lease, Durable: true,
			Step: control.Step{From: journal.Approved, Event: journal.OnCancel, To: journal.Cancelled, Actor: theRun},
		})
	}
	if err != nil {
		w.t.Error(err)
	}
	return out
}

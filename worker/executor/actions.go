package executor

import (
	sallyportv1 "sallyport.dev/api/sallyport/v1"
	"sallyport.dev/intent"
)

// do takes one action of a transition, under the lock.
func (x *Executor) do(e *entry, a action) {
	switch a {
	case begin:
		job := e.job
		x.work.Go(func() { x.dispatch(e, job) })
	case release:
		close(e.released)
	case drop:
		e.cancel()
	case abort:
		if e.in.Effect == intent.Read {
			e.cancel()
		}
	case announce:
		x.push(e, &sallyportv1.WorkerFrame{Frame: &sallyportv1.WorkerFrame_Ready{Ready: e.ready}})
	case report:
		if e.link != nil && !e.link.PushBody(outcomeFrames(e.outcome)...) {
			e.link = nil
		}
	case reportLost:
		x.push(e, outcomeFrame(&sallyportv1.Outcome{
			Intent: e.in.ID, Transport: sallyportv1.Transport_TRANSPORT_SENT, Failure: "forgotten", Detail: "control acknowledged the outcome earlier",
		}))
	case attestNotStarted:
		x.push(e, x.attested(e, sallyportv1.AttestState_ATTEST_STATE_NOT_STARTED))
	case attestRunning:
		x.push(e, x.attested(e, sallyportv1.AttestState_ATTEST_STATE_RUNNING))
	case attestFinished:
		x.push(e, x.attested(e, sallyportv1.AttestState_ATTEST_STATE_FINISHED))
	}
}

func (x *Executor) push(e *entry, f *sallyportv1.WorkerFrame) {
	if e.link != nil && !e.link.Push(f) {
		e.link = nil
	}
}

func (x *Executor) attested(e *entry, s sallyportv1.AttestState) *sallyportv1.WorkerFrame {
	return &sallyportv1.WorkerFrame{Frame: &sallyportv1.WorkerFrame_Attested{Attested: &sallyportv1.Attested{Intent: e.in.ID, State: s, Run: x.cfg.Run}}}
}

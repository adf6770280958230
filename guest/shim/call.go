package shim

import (
	"context"
	"math"
	"strconv"
	"sync"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/relay"
	"sallyport.dev/relay/strictjson"
)

// unclaimedPatience is how long a record may lie in new/ before it is taken back. A host claims at once; one that is restarted is back long
// before this.
const unclaimedPatience = 30 * time.Second

// giveUpAfter is when the shim answers by itself. A host that lives has answered before: it asks control for what is known at
// [relay.AskAt]. Two thirds of the time between that and the timeout are left to it, so that the harness still gets words instead of its own
// timeout.
func giveUpAfter(timeout time.Duration) time.Duration {
	asked := relay.AskAt(timeout)
	return asked + (timeout-asked)*2/3
}

// callTool serves tools/call.
func (s *Server) callTool(r *request, to answers) {
	tool, arguments, e := callParams(r.params)
	if e != nil {
		to.answer(appendError(nil, r.id, e), nil)
		return
	}
	fail := func(text string) { to.answer(appendResult(nil, r, r.id, failure(text), s.build), nil) }
	session, err := s.dir.now()
	if err != nil {
		s.logf("tools/call: %v", err)
		fail(textNotServed("the tool", err))
		return
	}
	offered, err := s.dir.offers(tool)
	if err != nil {
		s.logf("tools/call: %v", err)
		fail(textNotServed("the tool", err))
		return
	}
	if !offered {
		// Neither the names of others nor whether this one exists elsewhere.
		s.tell(errs.UnknownTool, tool)
		to.answer(appendError(nil, r.id, newError(codeInvalidParams, "unknown tool: use a name that tools/list gives")), nil)
		return
	}
	switch {
	case int64(len(arguments)) > session.Limits.Arguments:
		s.tell(errs.Oversize, tool)
		fail(textTooLong(tool, strconv.Itoa(len(arguments)), strconv.FormatInt(session.Limits.Arguments, 10)))
		return
	case int64(s.open.calls()) >= session.Limits.InFlight:
		fail(textBusy(tool))
		return
	}
	s.submit(r, to, &session, tool, arguments)
}

// submit publishes the call and leaves a goroutine waiting for its answer.
func (s *Server) submit(r *request, to answers, session *relay.Session, tool string, arguments []byte) {
	// The line that r aliases is gone once this returns.
	w := &waiter{s: s, tool: tool, session: session.Session, await: session.Await, timeout: time.Duration(session.TimeoutMS) * time.Millisecond}
	w.request = request{era: r.era, projection: r.projection}
	w.open = &openRequest{id: cloneBytes(r.id), answers: to}
	w.open.key = idKey(w.open.id)
	if isProgressToken(r.meta.progress) {
		w.token = cloneBytes(r.meta.progress)
	}
	ctx, stop := context.WithCancel(context.Background())
	opened, err := s.open.publish(w.open, stop, func() (p *relay.Pending, err error) {
		w.pending, err = s.dir.guest.Call(&relay.Call{
			Session:     session.Session,
			Epoch:       session.Epoch,
			Tool:        tool,
			Arguments:   arguments,
			TimeoutMS:   session.TimeoutMS,
			Progress:    w.token != nil,
			Trace:       traceparent(r.meta.trace),
			HarnessCall: harnessCall(r.meta),
		})
		return w.pending, err
	})
	switch {
	case err != nil:
		stop()
		s.logf("tools/call: %v", err)
		to.answer(appendResult(nil, r, r.id, failure(textNotPublished(tool, err)), s.build), nil)
	case !opened:
		stop()
		to.skip() // the pipe has ended
	default:
		s.serving.Go(func() {
			defer stop()
			w.wait(ctx)
		})
	}
}

// waiter waits for the answer to one call.
type waiter struct {
	s       *Server
	request request
	open    *openRequest
	pending *relay.Pending
	tool    string
	token   []byte // progress token, nil for none
	timeout time.Duration
	session string
	await   string // the tool that waits for an earlier call
}

// id is the call's id as control knows it, and so its journal, a person and the tool that waits.
func (w *waiter) id() string { return relay.CallID(w.session, w.pending.ID()) }

// wait ends with an answer, or silently where the request was cancelled or the pipe ended.
func (w *waiter) wait(ctx context.Context) {
	defer w.pending.Close()
	ctx, stop := context.WithTimeout(ctx, giveUpAfter(w.timeout))
	defer stop()
	var progress sync.WaitGroup
	if w.token != nil {
		progress.Go(func() { w.report(ctx) })
	}
	unclaimed := time.AfterFunc(min(w.s.unclaimed, giveUpAfter(w.timeout)), func() {
		if back, err := w.pending.Withdraw(); back && err == nil {
			w.finish(failure(textUnclaimed(w.tool)), nil)
			stop()
		}
	})
	defer unclaimed.Stop()
	result, err := w.pending.Wait(ctx)
	stop()
	progress.Wait() // none of it may follow the answer
	switch {
	case err == nil:
		w.finish(result.Result, w.acknowledge)
	case errs.CodeOf(err) != errs.Internal: // the relay's own: the answer was there and was refused
		if w.finish(failure(textBrokenAnswer(w.tool, w.id(), err)), nil) {
			w.s.logf("call %s: %v", w.pending.ID(), err)
		}
	case ctx.Err() == context.DeadlineExceeded:
		if w.finish(failure(textNoAnswer(w.tool, w.id(), w.await)), nil) {
			w.s.cancel(w.pending, relay.WhyClosed) // whoever asks again is told to wait for this one
		}
	}
}

// finish answers with a CallToolResult, unless the request was taken out meanwhile. It reports whether it did.
func (w *waiter) finish(result []byte, after func()) bool {
	if !w.s.open.take(w.open) {
		return false
	}
	line := make([]byte, 0, len(result)+len(w.open.id)+512)
	w.open.answers.answer(appendResult(line, &w.request, w.open.id, result, w.s.build), after)
	return true
}

func (w *waiter) acknowledge() {
	if err := w.s.dir.guest.Ack(w.pending.ID()); err != nil {
		w.s.logf("call %s: its result stays unacknowledged: %v", w.pending.ID(), err)
	}
}

// report passes progress on until ctx ends. Values that do not grow are left out: the specification wants growth.
func (w *waiter) report(ctx context.Context) {
	last := math.Inf(-1)
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-w.pending.Progress():
			if p.Progress <= last {
				continue
			}
			last = p.Progress
			w.s.out.line(appendProgress(nil, w.token, &p))
		}
	}
}

func appendProgress(dst, token []byte, p *relay.Progress) []byte {
	dst = append(append(dst, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`...), token...)
	dst = appendFloat(append(dst, `,"progress":`...), p.Progress)
	if p.Total != 0 {
		dst = appendFloat(append(dst, `,"total":`...), p.Total)
	}
	if p.Message != "" {
		dst = strictjson.AppendQuote(append(dst, `,"message":`...), p.Message)
	}
	return append(dst, '}', '}')
}

// callParams reads what tools/call is given. Arguments alias params; absent ones are an empty object.
func callParams(params []byte) (tool string, arguments []byte, e *rpcError) {
	var name []byte
	arguments = []byte("{}")
	for n, value := range strictjson.Each(params) {
		switch string(n) {
		case "name":
			name = value
		case "arguments":
			if string(value) != "null" {
				arguments = value
			}
		case "inputResponses", "requestState":
			// Questions of a server go to people, never to the agent, so there is nothing to continue; serving it would run the call again.
			return "", nil, newError(codeInvalidParams, "this server never asks for input: leave out inputResponses and requestState")
		}
	}
	tool, ok := strictjson.Unquote(name)
	switch {
	case !ok || tool == "":
		return "", nil, newError(codeInvalidParams, "name is the name of a tool")
	case arguments[0] != '{':
		return "", nil, newError(codeInvalidParams, "arguments is an object")
	}
	return tool, arguments, nil
}

// isProgressToken reports whether raw is a token: a string or a number.
func isProgressToken(raw []byte) bool { return isID(raw) && len(raw) <= maxID }

// harnessCall returns the harness's own id of a call: a hint, dropped where it is none.
func harnessCall(m meta) string {
	for _, raw := range [][]byte{m.claude, m.callID} {
		if id, ok := strictjson.Unquote(raw); ok && id != "" && len(id) <= relay.MaxHarnessCall {
			return id
		}
	}
	return ""
}

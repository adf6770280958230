package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"sallyport.dev/relay"
)

// flood keeps as many calls in flight as a session may have, each a good one whose answer it reads.
func flood(ctx context.Context, a *attacker) {
	var all sync.WaitGroup
	for range relay.MaxInFlight {
		all.Go(func() {
			for ctx.Err() == nil {
				p, err := a.guest.Call(a.call("flood"))
				if err == nil {
					if _, err = p.Wait(ctx); err == nil {
						err = a.guest.Ack(p.ID())
					}
					p.Close()
				}
				if ctx.Err() == nil {
					a.count(err)
				}
			}
		})
	}
	all.Wait()
}

// publish writes good calls where they are taken, the shortest way, and reads nothing, until it is killed for that.
func publish(_ context.Context, a *attacker) {
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				c := a.call("publish")
				record, err := relay.AppendCall(nil, c)
				if err == nil {
					err = os.WriteFile(name(relay.CallName(c.ID)), record, 0o600)
				}
				a.count(err)
			}
		})
	}
	all.Wait()
}

// notes publishes acknowledgments, cancels and refusals of calls that never were.
func notes(ctx context.Context, a *attacker) {
	for ctx.Err() == nil {
		id := relay.NewID()
		a.count(a.guest.Ack(id))
		record, err := relay.AppendCancel(nil, &relay.Cancel{V: 1, Session: a.Session.Session, Epoch: a.Epoch, ID: id, Why: relay.WhyHarness})
		if err == nil {
			err = put(relay.CancelName(id), record)
		}
		a.count(err)
		a.count(put(relay.RefusedName(id), []byte(`{"v":1,"session":"`)))
	}
}

// lies publishes records that are none.
func lies(ctx context.Context, a *attacker) {
	c := a.call("lies")
	good, err := relay.AppendCall(nil, c)
	if err != nil {
		a.count(err)
		return
	}
	id := relay.NewID()
	with := func(old, new string) []byte { return []byte(strings.Replace(string(good), old, new, 1)) }
	session := fmt.Sprintf("%q", a.Session.Session)
	records := [][]byte{
		[]byte(strings.Replace(string(good), c.ID, id, 1)), // of another id than its name
		good[:len(good)/2],
		with(`{"v":1`, `{"v":1,"v":1`),
		with(`"v":1`, `"v":0`),
		with(`"v":1`, `"v":2`),
		with(`"v":1`, `"v":1e0`),
		with(session, `"`+id+`"`),
		with(`"epoch":`, `"epoch":9`),
		with(`"arguments":{`, `"arguments":[`),
		with(`"arguments":{`, `"extra":1,"arguments":{`),
		with(`"text":`, "\"text\xff\":"),
		with(`"arguments":{`, `"arguments":{"deep":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`,`),
		with(`tracker_echo`, strings.Repeat("t", 10_000)),
		with(`tracker_echo`, `../../../etc/passwd`),
		with(`tracker_echo`, "tracker_echo\u0000\u202e"),
		with(`"timeout_ms":`, `"timeout_ms":-`),
		append(good[:len(good):len(good)], make([]byte, 2<<20)...),
		nil,
	}
	for n := 0; ctx.Err() == nil; n++ {
		id := relay.NewID()
		a.count(put(relay.CallName(id), bytes.Replace(records[n%len(records)], []byte(c.ID), []byte(id), 1)))
	}
}

// forged says that it is another session, whose id is its argument, and that its calls are the other's: by the harness's own id of a call, its second
// argument, and by one id for two calls.
func forged(ctx context.Context, a *attacker) {
	other := a.call("as another session")
	other.Session = a.args[0]
	record, err := relay.AppendCall(nil, other)
	if err == nil {
		err = put(relay.CallName(other.ID), record)
	}
	a.count(err)
	as := a.call("with the id of another's call")
	as.HarnessCall = a.args[1]
	got := a.answer(ctx, as)
	// The same id from two processes, with other bytes: whichever is first is the call.
	first, second := a.call("first"), a.call("second")
	second.ID = first.ID
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		record, err := relay.AppendCall(nil, second)
		for ctx.Err() == nil && (err != nil || put(relay.CallName(second.ID), record) != nil) {
			continue // until the first was taken
		}
	}()
	a.got.Store(got + "\n" + a.answer(ctx, first))
	<-taken
}

// answer makes a call and returns its result as it came.
func (a *attacker) answer(ctx context.Context, c *relay.Call) string {
	p, err := a.guest.Call(c)
	if a.count(err); err != nil {
		return err.Error()
	}
	defer p.Close()
	result, err := p.Wait(ctx)
	if a.count(err); err != nil {
		return err.Error()
	}
	return string(result.Result)
}

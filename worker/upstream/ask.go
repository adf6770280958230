package upstream

import (
	"context"
	"strconv"
	"sync"
	"time"

	"sallyport.dev/relay/strictjson"
)

// askTime is how long a person has for a question of an old-era server; then it is declined.
const askTime = 2 * time.Minute

// questions answers what an old-era server asks on the stream of a call. Each answer is a POST of its own on another connection: the call's
// connection is busy with the call.
type questions struct {
	p      *Prepared
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	turn   sync.Mutex // one question to a person at a time
}

func (c *Client) answerQuestions(ctx context.Context, p *Prepared) *questions {
	a := &questions{p: p}
	a.ctx, a.cancel = context.WithCancel(ctx)
	return a
}

// put answers m in the background.
func (a *questions) put(m message, done func()) {
	a.wg.Go(func() {
		member := a.reply(&m)
		a.p.c.background.Go(func() {
			defer done()
			a.post(m.id, member)
		})
	})
}

// end tells people that the call is over, and waits until nobody asks them any more. Answers on their way go on.
func (a *questions) end() {
	a.cancel()
	a.wg.Wait()
}

// reply is the member of the response: what this side can do, or an error that says that it cannot.
func (a *questions) reply(m *message) []byte {
	switch m.method {
	case "ping":
		return []byte(`"result":{}`)
	case "elicitation/create":
		if !a.p.elicit || a.p.hooks.Ask == nil {
			break
		}
		a.turn.Lock()
		defer a.turn.Unlock()
		ctx, cancel := context.WithTimeout(a.ctx, askTime)
		defer cancel()
		answer := a.p.hooks.Ask(ctx, m.params)
		if answer == nil || strictObject(answer) != nil {
			answer = []byte(`{"action":"decline"}`)
		}
		return append([]byte(`"result":`), answer...)
	}
	return []byte(`"error":{"code":` + strconv.Itoa(codeMethod) + `,"message":"not supported by this client"}`)
}

func (a *questions) post(id, member []byte) {
	body := append([]byte(`{"jsonrpc":"2.0","id":`), id...)
	body = append(body, ',')
	body = append(body, member...)
	body = append(body, '}')
	if strictjson.Check(body) != nil {
		return
	}
	p := a.p
	head := appendHead(nil, "POST", p.r, "application/json, text/event-stream")
	if p.revision >= headerSince {
		head = appendHeader(head, "MCP-Protocol-Version", p.revision)
	}
	if p.s.id != "" {
		head = appendHeader(head, "Mcp-Session-Id", p.s.id)
	}
	x := &exchange{wire: endHead(head, body), kind: kindNotice, answer: p.r.limits.Answer, silence: p.r.limits.Silence, result: p.r.limits.Result, secret: p.r.credential}
	// Whether it arrives shows on the stream; the call's outcome does not depend on it.
	_, _ = p.c.ask(p.c.stopped, p.r, x)
}

package upstream

import (
	"context"
	"crypto/rand"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sync/semaphore"

	"sallyport.dev/worker/netguard"
)

// Client prepares dispatches. It may be used by many goroutines; close it when nothing uses it any more.
type Client struct {
	guard   *netguard.Guard
	version string
	dial    func(context.Context, *route) (*meter, net.Conn, netip.AddrPort, error)

	pool     pool
	sessions sessions
	eras     eras

	room *semaphore.Weighted // of long answers

	background sync.WaitGroup // watches and drains of connections
	stop       context.CancelFunc
	stopped    context.Context
}

// New makes a client that dials through guard. version is the worker's build, told to servers beside the name sallyport.
func New(guard *netguard.Guard, version string) *Client {
	c := &Client{guard: guard, version: version, room: semaphore.NewWeighted(longAnswers)}
	c.dial = c.dialGuarded
	c.stopped, c.stop = context.WithCancel(context.Background())
	return c
}

// Close closes all resting connections and waits for the background work to end. Dispatches under way keep theirs until they end.
func (c *Client) Close() {
	c.stop()
	c.pool.close()
	c.background.Wait()
}

// newExchange is a JSON-RPC exchange on r, with the headers of its revision.
func (c *Client) newExchange(r *route, q *rpc, revision, session, name string, extra [][2]string) *exchange {
	head := appendHead(make([]byte, 0, 1024), "POST", r, "application/json, text/event-stream")
	if revision >= headerSince {
		head = appendHeader(head, "MCP-Protocol-Version", revision)
	}
	if revision == Modern {
		head = appendHeader(head, "Mcp-Method", q.method)
		if name != "" {
			head = appendHeader(head, "Mcp-Name", headerText(name))
		}
	}
	if session != "" {
		head = appendHeader(head, "Mcp-Session-Id", session)
	}
	for _, h := range extra {
		head = appendHeader(head, h[0], h[1])
	}
	x := &exchange{
		wire: endHead(head, q.bytes()), id: q.id, revision: revision, secret: r.credential,
		answer: r.limits.Answer, silence: r.limits.Silence, result: r.limits.Result,
	}
	if q.id == "" {
		x.kind = kindNotice
	}
	return x
}

// askID is an id for a question: never used before in its session, whichever worker opened that.
func askID(what string) string { return what + "." + rand.Text() }

// askedBytes is what the answer to a question other than a call may have: a page of a list is the longest.
const askedBytes = 4 << 20

// ask makes a harmless exchange before or beside a call (discover, initialize, ping, list, an answer to the server): it may use a connection that
// rests, and is made once more on a fresh one when a used one turns out to be dead. Never a call. The error is of opening a connection.
func (c *Client) ask(ctx context.Context, r *route, x *exchange) (reply, error) {
	x.result = min(x.result, askedBytes)
	if !x.patient {
		x.answer = min(x.answer, r.limits.Connect)
	}
	if k := c.pool.take(r.key, false); k != nil {
		rep := k.roundTrip(ctx, x)
		c.settle(k, &rep)
		if rep.failure != FailReset && rep.failure != FailWrite {
			return rep, nil
		}
	}
	k, err := c.open(ctx, r)
	if err != nil {
		return reply{}, err
	}
	rep := k.roundTrip(ctx, x)
	c.settle(k, &rep)
	return rep, nil
}

// settle lets a connection rest after an answer, or closes it. What a server still writes behind the answer on an event stream is read for a
// moment, because most end the stream right then, and the connection is good afterwards.
func (c *Client) settle(k *conn, r *reply) {
	switch {
	case r.reusable:
		c.rest(k)
	case r.rest != nil && c.stopped.Err() == nil:
		rest := r.rest
		c.background.Go(func() { c.drain(k, rest) })
	default:
		k.close()
	}
}

// openSpare opens a connection ahead of the next write, where writes follow each other: the handshake is then off its path. Nothing depends on it.
func (c *Client) openSpare(r *route) {
	if c.stopped.Err() != nil || !c.pool.wrote(r.key) {
		return
	}
	c.background.Go(func() {
		if k, err := c.open(c.stopped, r); err == nil {
			c.pool.put(k)
		}
	})
}

func (c *Client) rest(k *conn) {
	k.src.rest()
	k.watch(&c.background, c.pool.drop)
	c.pool.put(k)
}

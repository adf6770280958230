package gate

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox/proc"
	"sallyport.dev/identity/unixsock"
)

// Pauses between two tries to reach the host.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// Client is a supervisor's end: it proves itself to its host, waits for the gate, and comes back whenever the host was restarted. Its methods
// may be called concurrently, but for Open and Close.
type Client struct {
	dial  func(ctx context.Context) (net.Conn, error)
	key   Key
	proof Proof

	stops  chan StopReason
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex
	conn *conn
}

// NewClient returns a client that reaches its host with dial.
func NewClient(dial func(ctx context.Context) (net.Conn, error)) (*Client, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	return &Client{dial: dial, key: key, stops: make(chan StopReason, 1)}, nil
}

// Dial returns a dial function for a Unix socket.
func Dial(path string) func(ctx context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		c, err := unixsock.Dial(ctx, path)
		if err != nil {
			return nil, errs.Wrap(errs.Unreachable, "the host does not answer; start it with sallyport up", err)
		}
		return c, nil
	}
}

// Open proves this process and its sandbox to the host and waits until the gate is open. After an error the sandbox must be ended. The
// connection is kept until Close, and made again whenever it is lost. Errors: the host's refusal; [errs.Unreachable].
func (c *Client) Open(ctx context.Context, p Proof) error {
	self, err := proc.Self()
	if err != nil {
		return errs.Wrap(errs.Internal, "this process cannot be read", err)
	}
	p.Supervisor, p.Key = self, c.key.Public()
	c.proof = p
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	c.done = make(chan struct{})
	go c.listen(ctx, conn)
	return nil
}

// Stops gives what the host wants ended, at most once.
func (c *Client) Stops() <-chan StopReason { return c.stops }

// connect reaches the host and goes through the gate.
func (c *Client) connect(ctx context.Context) (*conn, error) {
	nc, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	conn := newConn(nc)
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	e, err := conn.receive()
	if err == nil {
		var statement, signature []byte
		statement, signature, err = c.key.sign(c.proof, e.Challenge)
		if err == nil {
			err = conn.send(envelope{Statement: statement, Signature: signature})
		}
		if err == nil {
			e, err = conn.receive()
		}
	}
	switch {
	case err != nil:
		nc.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, errs.Wrap(errs.Unreachable, "the host went away", err)
	case e.Refused != nil:
		c.keep(conn) // the host waits for the end
		return nil, &errs.Error{Code: e.Refused.Code, Message: e.Refused.Message, Detail: refusedError(e.Refused.Reason)}
	case !e.Open:
		nc.Close()
		return nil, errs.New(errs.Invalid, "the host said something else than open")
	}
	c.keep(conn)
	return conn, nil
}

func (c *Client) keep(conn *conn) {
	c.mu.Lock()
	c.conn = conn
	c.mu.Unlock()
}

// refusedError tells a host's refusal from a host that cannot be reached.
type refusedError Reason

func (r refusedError) Error() string { return string(r) }

// listen reads what the host says, and comes back to it when it was lost.
func (c *Client) listen(ctx context.Context, conn *conn) {
	defer close(c.done)
	for conn != nil {
		c.hear(ctx, conn)
		c.keep(nil)
		conn = c.comeBack(ctx)
	}
}

// hear reads one connection to its end.
func (c *Client) hear(ctx context.Context, conn *conn) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	for {
		e, err := conn.receive()
		if err != nil {
			return
		}
		if e.Stop != nil {
			c.stop(e.Stop.reason())
		}
	}
}

// comeBack tries until the host is there again, refuses, or ctx ends. A host that refuses fenced this sandbox: it must end.
func (c *Client) comeBack(ctx context.Context) *conn {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		conn, err := c.connect(ctx)
		if err == nil {
			return conn
		}
		var refused refusedError
		if errors.As(err, &refused) {
			c.stop(StopReason{Message: errs.Message(err)})
			<-ctx.Done() // the connection is kept for the last word
			return nil
		}
	}
}

func (c *Client) stop(why StopReason) {
	select {
	case c.stops <- why:
	default:
	}
}

// Close says how the sandbox ended and lets go of the host.
func (c *Client) Close(end Ended) {
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		_ = conn.send(envelope{Ended: &end})
	}
	if c.cancel != nil {
		c.cancel() // before the connection ends, or it would be made again
	}
	if conn != nil {
		_ = conn.Close()
	}
	if c.done != nil {
		<-c.done
	}
}

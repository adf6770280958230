package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
)

// proxy stands between the worker and the upstream and can stop in the middle of one exchange, byte by byte. What it took from one side it always hands
// to the other, even when that side's peer died meanwhile: as a kernel does, which is the worst that can happen to a dead worker's request.
type proxy struct {
	listener net.Listener
	to       string
	work     sync.WaitGroup

	mu    sync.Mutex
	trap  *trap
	conns map[net.Conn]bool
	over  bool
}

// trap is one stop of one exchange.
type trap struct {
	token string // stands in the request
	step  step
	here  func() // called once, at the step; nothing goes on before it returns
	once  sync.Once
}

// step is a place of an exchange on the wire.
type step string

// Steps.
const (
	firstByte    step = "first byte"
	halfRequest  step = "half the request"
	wholeRequest step = "whole request"
	halfAnswer   step = "half the answer"
	wholeAnswer  step = "whole answer"
)

// proxyHost is where the proxy listens, with the upstream's port: so the upstream takes the Host header for its own.
const proxyHost = "127.0.0.2"

func startProxy(ctx context.Context, to string) (*proxy, error) {
	_, port, err := net.SplitHostPort(to)
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(proxyHost, port))
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener, to: to, conns: map[net.Conn]bool{}}
	p.work.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.serve(ctx, c) })
		}
	})
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) set(t *trap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trap = t
}

func (p *proxy) close() error {
	err := p.listener.Close()
	p.mu.Lock()
	p.over = true
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.work.Wait()
	return err
}

func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	p.conns[c] = true
	return true
}

func (p *proxy) serve(ctx context.Context, c net.Conn) {
	defer p.end(c)
	u, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.to)
	if err != nil {
		return // the upstream is down
	}
	defer p.end(u)
	if !p.keep(c) || !p.keep(u) {
		return
	}
	x := &passing{p: p, answered: make(chan struct{})}
	p.work.Go(func() {
		defer close(x.answered)
		x.pass(c, u, x.answer)
		closeWrite(c)
	})
	x.pass(u, c, x.request)
	closeWrite(u)
	<-x.answered
}

func (p *proxy) end(c net.Conn) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func closeWrite(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.CloseWrite() //nolint:errcheck // the other side may be gone
	}
}

// passing is one connection.
type passing struct {
	p        *proxy
	answered chan struct{}

	mu     sync.Mutex
	caught *trap // the request of a trap went through here
}

// pass hands on what comes, through split, until either side ends.
func (x *passing) pass(to, from net.Conn, split func(chunk []byte, write func([]byte))) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			failed := false
			split(buffer[:n], func(b []byte) {
				if _, err := to.Write(b); err != nil {
					failed = true
				}
			})
			if failed {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (x *passing) request(chunk []byte, write func([]byte)) {
	x.p.mu.Lock()
	t := x.p.trap
	x.p.mu.Unlock()
	if t == nil || !bytes.Contains(chunk, []byte(t.token)) || !bytes.Contains(chunk, []byte("tools/call")) {
		write(chunk)
		return
	}
	x.mu.Lock()
	x.caught = t
	x.mu.Unlock()
	cut := map[step]int{firstByte: 1, halfRequest: len(chunk) / 2, wholeRequest: len(chunk)}
	n, now := cut[t.step]
	if !now {
		write(chunk)
		return
	}
	write(chunk[:n])
	t.once.Do(t.here)
	if n < len(chunk) {
		write(chunk[n:])
	}
}

func (x *passing) answer(chunk []byte, write func([]byte)) {
	x.mu.Lock()
	t := x.caught
	x.mu.Unlock()
	switch {
	case t == nil:
		write(chunk)
	case t.step == halfAnswer:
		write(chunk[:len(chunk)/2])
		t.once.Do(t.here)
		write(chunk[len(chunk)/2:])
	case t.step == wholeAnswer:
		write(chunk)
		t.once.Do(t.here)
	default:
		write(chunk)
	}
}

var errNotReached = errors.New("the point was not reached")

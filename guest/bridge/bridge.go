// Package bridge joins the sandbox's loopback to one Unix socket, and to nothing else.
//
// A sandbox has no interface but lo. What may leave it (the model gateway, the allowlist proxy) is behind one socket that the host
// binds in the relay directory. The bridge copies bytes between the two; it reads none of them, so nothing that the guest writes can
// choose a destination: there is one, given at start.
package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Defaults of a sandbox: see the directory layout of the relay.
const (
	DefaultPort   = 4180
	DefaultSocket = "/run/sallyport/in/bridge.sock"
)

// MaxConns bounds the connections served at once. Further ones wait in the kernel's accept queue, which bounds itself.
const MaxConns = 256

// dialPatience is how long one connection waits for the host to bind its socket again: a host daemon that restarts is back well
// within it, and a client sees a slow answer instead of a failure.
const dialPatience = 10 * time.Second

// dialPause is the time between two tries to reach the socket.
const dialPause = 50 * time.Millisecond

// Bridge forwards loopback connections to one Unix socket.
type Bridge struct {
	socket string
	ln     *net.TCPListener
	slots  chan struct{}
}

// Listen binds 127.0.0.1:port (0: any free port) for a bridge to socket.
func Listen(port int, socket string) (*Bridge, error) {
	// The address is a constant: 127.0.0.1 and never a name, so that neither a flag nor a hosts file widens it.
	ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return nil, fmt.Errorf("listen on 127.0.0.1:%d: %w", port, err)
	}
	return &Bridge{socket: socket, ln: ln, slots: make(chan struct{}, MaxConns)}, nil
}

// Addr returns the address that the bridge listens on.
func (b *Bridge) Addr() *net.TCPAddr { return b.ln.Addr().(*net.TCPAddr) }

// Serve forwards connections until ctx ends, then closes the listener and every connection, and returns when all are gone. It
// returns nil then, and the listener's error if that fails on its own.
func (b *Bridge) Serve(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = b.ln.Close() })
	defer stop()
	for {
		select {
		case b.slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		c, err := b.ln.AcceptTCP()
		if err != nil {
			<-b.slots
			if ctx.Err() != nil {
				return nil
			}
			if !temporary(err) {
				return fmt.Errorf("accept: %w", err)
			}
			if !pause(ctx, dialPause) {
				return nil
			}
			continue
		}
		wg.Go(func() {
			defer func() { <-b.slots }()
			b.forward(ctx, c)
		})
	}
}

// temporary reports whether an accept error passes by itself: a client that left at once, or no descriptor free for the moment.
func temporary(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && !errors.Is(err, net.ErrClosed)
}

// forward serves one connection from dial to close.
func (b *Bridge) forward(ctx context.Context, c *net.TCPConn) {
	u, err := b.dial(ctx)
	if err != nil {
		// Nobody reads a log in a sandbox, and its terminal is the agent's: the client sees a reset, the host knows when it is away.
		reset(c)
		return
	}
	stop := context.AfterFunc(ctx, func() { closeBoth(c, u) })
	defer stop()
	join(c, u)
}

// dial connects to the socket, anew for every connection: the host may bind another one under the same name at any time.
func (b *Bridge) dial(ctx context.Context) (*net.UnixConn, error) {
	deadline := time.Now().Add(dialPatience)
	for {
		u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: b.socket, Net: "unix"})
		if err == nil {
			return u, nil
		}
		if !time.Now().Before(deadline) || !pause(ctx, dialPause) {
			return nil, err
		}
	}
}

// join copies both ways until both directions ended, then closes both connections. The end of one direction is passed on as the end
// of that direction only; a broken one breaks both, so that a cut answer never looks like a whole one.
func join(c *net.TCPConn, u *net.UnixConn) {
	var wg sync.WaitGroup
	defer func() { wg.Wait(); closeBoth(c, u) }()
	cut := func() { reset(c); closeBoth(c, u) }
	wg.Go(func() {
		if _, err := io.Copy(u, c); err != nil {
			cut()
			return
		}
		_ = u.CloseWrite() // fails where the host has gone: the other direction tells
	})
	wg.Go(func() {
		if _, err := io.Copy(c, u); err != nil {
			cut()
			return
		}
		_ = c.CloseWrite()
	})
}

// closeBoth closes what may be closed already; there is nothing to be done about an error.
func closeBoth(c *net.TCPConn, u *net.UnixConn) {
	_ = c.Close()
	_ = u.Close()
}

// reset closes c so that its client sees a reset and no end.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// pause waits d, and reports whether ctx still lives.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

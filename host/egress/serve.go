package egress

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/identity/unixsock"
)

// Bounds of one session's bridge.
const (
	maxConnections = 64
	readTime       = 2 * time.Minute
)

// Listen binds a session's bridge socket anew: a former one of a daemon that is gone is replaced. mode lets the sandbox's user connect; the
// directory above decides who sees it at all.
func Listen(path string, mode os.FileMode) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errs.Wrap(errs.NotAllowed, "the bridge's socket cannot be replaced", err)
	}
	l, err := unixsock.Listen(path)
	if err != nil {
		return nil, errs.Wrap(errs.NotAllowed, "the bridge's socket cannot be bound", err)
	}
	if err := os.Chmod(path, mode); err != nil {
		l.Close()
		return nil, errs.Wrap(errs.NotAllowed, "the bridge's socket cannot be opened to the sandbox", err)
	}
	return l, nil
}

// Serve serves a session's bridge until ctx ends. It owns l. HTTP/1.1 only: one request a connection at a time, at most 64 connections.
func Serve(ctx context.Context, l net.Listener, g *Gateway, log *slog.Logger) error {
	server := &http.Server{
		Handler: g, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: readTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := server.Serve(&bounded{Listener: l, slots: make(chan struct{}, maxConnections)})
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// bounded accepts a bounded number of connections at once; more wait in the kernel's queue.
type bounded struct {
	net.Listener
	slots chan struct{}
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	b.slots <- struct{}{}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.slots
		return nil, err
	}
	return &slotConn{Conn: c, free: func() { <-b.slots }}, nil
}

type slotConn struct {
	net.Conn
	once sync.Once
	free func()
}

// Close implements net.Conn.
func (c *slotConn) Close() error {
	c.once.Do(c.free)
	return c.Conn.Close()
}

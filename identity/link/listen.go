// Package link is the transport of the Links: mTLS with exact SPIFFE ids over TCP or a Unix socket, for gRPC, with the TLS session's state in reach of
// both ends (a key exported from it authenticates intents of reads).
//
// One listener of control serves two kinds of peers. Who offers only HTTP/2 is a Link, and must show a certificate; who offers HTTP/1.1 or nothing
// (Join, Renew, curl --http1.1) need not, because a joiner has none.
package link

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/identity"
)

// Bounds of a listener: a peer that does not finish its handshake costs one of handshakes for handshakeTime.
const (
	handshakeTime = 10 * time.Second
	handshakes    = 256
)

// Listener accepts TLS connections and sorts them. Links and Joins are ordinary listeners: the first for a gRPC server with [ServerOptions], the
// second for an http.Server.
type Listener struct {
	Links net.Listener
	Joins net.Listener

	inner net.Listener
	log   *slog.Logger
	slots chan struct{}
	stop  context.CancelFunc
	done  sync.WaitGroup
}

// Listen serves inner, which it owns, as src. authorize decides about every certificate that is shown; it is asked once a handshake, so calls must ask
// again. Close ends it.
func Listen(inner net.Listener, src *identity.Source, authorize identity.Authorize, log *slog.Logger) *Listener {
	links, joins := identity.LinkServer(src, authorize), identity.JoinServer(src, authorize)
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			if slices.Contains(hello.SupportedProtos, "h2") && !slices.Contains(hello.SupportedProtos, "http/1.1") {
				return links, nil
			}
			return joins, nil
		},
	}
	ctx, stop := context.WithCancel(context.Background())
	l := &Listener{
		Links: newQueue(inner.Addr()), Joins: newQueue(inner.Addr()),
		inner: inner, log: log, slots: make(chan struct{}, handshakes), stop: stop,
	}
	l.done.Add(1)
	go l.serve(ctx, config)
	return l
}

// Close stops accepting, ends unfinished handshakes, and closes both listeners. Connections that were accepted live on.
func (l *Listener) Close() error {
	l.stop()
	err := l.inner.Close()
	l.done.Wait()
	l.Links.Close()
	l.Joins.Close()
	return err
}

func (l *Listener) serve(ctx context.Context, config *tls.Config) {
	defer l.done.Done()
	pause := 5 * time.Millisecond
	for {
		raw, err := l.inner.Accept()
		if errors.Is(err, net.ErrClosed) {
			l.Links.Close()
			l.Joins.Close()
			return
		}
		if err != nil {
			// Out of descriptors, most likely: the listener must outlive it.
			l.log.Warn("connection not accepted", "err", err, "again_in", pause)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, time.Second)
			continue
		}
		pause = 5 * time.Millisecond
		select {
		case l.slots <- struct{}{}:
		case <-ctx.Done():
			raw.Close()
			continue
		}
		l.done.Add(1)
		go func() {
			defer l.done.Done()
			defer func() { <-l.slots }()
			l.handshake(ctx, tls.Server(newBelow(raw), config))
		}()
	}
}

func (l *Listener) handshake(ctx context.Context, conn *tls.Conn) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		l.log.Info("handshake refused", "remote", conn.RemoteAddr().String(), "err", err)
		_ = conn.Close()
		return
	}
	to := l.Joins.(*queue)
	if conn.ConnectionState().NegotiatedProtocol == "h2" {
		to = l.Links.(*queue)
	}
	if !to.put(ctx, conn) {
		_ = conn.Close()
	}
}

// queue is a net.Listener that is fed with connections.
type queue struct {
	addr  net.Addr
	conns chan net.Conn
	end   chan struct{}
	once  sync.Once
}

func newQueue(addr net.Addr) *queue {
	return &queue{addr: addr, conns: make(chan net.Conn), end: make(chan struct{})}
}

func (q *queue) put(ctx context.Context, c net.Conn) bool {
	select {
	case q.conns <- c:
		return true
	case <-q.end:
	case <-ctx.Done():
	}
	return false
}

// Accept implements net.Listener.
func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.end:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (q *queue) Close() error {
	q.once.Do(func() { close(q.end) })
	return nil
}

// Addr implements net.Listener.
func (q *queue) Addr() net.Addr { return q.addr }

// errNoTLS is what a connection gets that did not come through [Listen].
var errNoTLS = errs.New(errs.NotAllowed, "the connection is not TLS of this listener")

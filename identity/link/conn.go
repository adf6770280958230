package link

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"

	"sallyport.dev/errs"
	"sallyport.dev/identity/rawio"
)

// below is a connection of a Link beneath TLS. Between hold and flush it keeps what is written: TLS writes each record of 16 KiB by itself, and each
// write wakes the peer; so a large message leaves as a whole instead.
type below struct {
	net.Conn

	mu      sync.Mutex // a read may write too: an alert, a key update
	held    bool
	waiting []byte
}

// keptBelow bounds what stays allocated for the next message.
const keptBelow = 512 << 10

func newBelow(c net.Conn) *below { return &below{Conn: rawio.New(c)} }

// Write implements net.Conn.
func (b *below) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held {
		b.waiting = append(b.waiting, p...)
		return len(p), nil
	}
	return b.Conn.Write(p)
}

func (b *below) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = true
}

// flush ends a hold and writes what was kept.
func (b *below) flush() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = false
	if len(b.waiting) == 0 {
		return nil
	}
	_, err := b.Conn.Write(b.waiting)
	if b.waiting = b.waiting[:0]; cap(b.waiting) > keptBelow {
		b.waiting = nil
	}
	return err
}

// session is the TLS connection of a Link. One goroutine writes.
type session struct {
	*tls.Conn
	below *below
}

// sessionOf is t as a Link uses it.
func sessionOf(t *tls.Conn) net.Conn {
	if b, ok := t.NetConn().(*below); ok {
		return &session{t, b}
	}
	return t
}

// Write implements net.Conn: p leaves in as few system calls as the kernel takes it.
func (s *session) Write(p []byte) (int, error) {
	s.below.hold()
	n, err := s.Conn.Write(p)
	if ferr := s.below.flush(); err == nil && ferr != nil {
		return 0, ferr
	}
	return n, err
}

// dialer is what a Link is dialed with: TLS over [below].
type dialer struct {
	credentials.TransportCredentials
}

// ClientHandshake implements credentials.TransportCredentials.
func (d dialer) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := d.TransportCredentials.ClientHandshake(ctx, authority, newBelow(raw))
	if err != nil {
		return nil, nil, err
	}
	t, ok := conn.(*tls.Conn)
	if !ok {
		_ = conn.Close()
		return nil, nil, errs.New(errs.Internal, "the handshake of a link gave no TLS connection")
	}
	return sessionOf(t), info, nil
}

// Clone implements credentials.TransportCredentials.
func (d dialer) Clone() credentials.TransportCredentials {
	return dialer{d.TransportCredentials.Clone()}
}

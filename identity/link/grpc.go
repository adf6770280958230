package link

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"

	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/identity/enrol"
)

// Sizes in bytes. MaxMessage bounds one message of a Link, a batch of frames; bodies over ChunkSize travel in chunks, so that no batch comes near it.
const (
	MaxMessage = 8 << 20
	ChunkSize  = 256 << 10
)

// Windows: how many bytes may be under way unread, on a stream and on a connection. They are fixed because gRPC, where it finds them out by itself,
// begins at 64 KiB, so that a chunk takes several round trips, and sends a ping along with nearly every message to measure.
const (
	streamWindow     = 2 << 20
	connectionWindow = 4 << 20
	// A chunk leaves in one write, and wakes the peer once.
	writeBuffer = 320 << 10
)

// Keepalive: a peer that is gone is noticed within 15 s.
const (
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	// A Link does not outlive the certificate that it was opened with (24 h, renewed at half): it is opened anew in time, and nothing is lost but a moment.
	maxAge   = 10 * time.Hour
	ageGrace = time.Minute
)

// ServerOptions are the options of the gRPC server behind [Listener.Links].
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(handshaken{}),
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxSendMsgSize(MaxMessage),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connectionWindow),
		grpc.WriteBufferSize(writeBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, MaxConnectionAge: maxAge, MaxConnectionAgeGrace: ageGrace,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
	}
}

// handshaken are the credentials of connections whose handshake [Listen] finished: gRPC learns the TLS state and does nothing more.
type handshaken struct{}

// ServerHandshake implements credentials.TransportCredentials.
func (handshaken) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t, ok := conn.(*tls.Conn)
	if !ok || !t.ConnectionState().HandshakeComplete {
		return nil, nil, errNoTLS
	}
	return sessionOf(t), credentials.TLSInfo{
		State:          t.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// ClientHandshake implements credentials.TransportCredentials: these credentials only serve.
func (handshaken) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errNoTLS
}

// Info implements credentials.TransportCredentials.
func (handshaken) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (c handshaken) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements credentials.TransportCredentials: names of hosts mean nothing here.
func (handshaken) OverrideServerName(string) error { return nil }

// Dial makes a client of the control node control at address ("host:port" or "unix:PATH"). It connects when it is first used, and uses no proxy of
// the environment. Errors: [errs.Invalid].
func Dial(src *identity.Source, control spiffeid.ID, address string) (*grpc.ClientConn, error) {
	cc, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(dialer{credentials.NewTLS(identity.LinkClient(src, control))}),
		grpc.WithContextDialer(enrol.Dial),
		grpc.WithNoProxy(),
		// A Link names no host: who is on the other side is decided by its SPIFFE id.
		grpc.WithAuthority("control"),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: 10 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connectionWindow),
		grpc.WithWriteBufferSize(writeBuffer),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, "control's address "+address+" cannot be used", err)
	}
	return cc, nil
}

// Other is who is at the other end of a stream.
type Other struct {
	ID    spiffeid.ID
	State tls.ConnectionState // for intent.ExportLinkKey
}

// OtherEnd returns who is at the other end of the stream or call whose context is ctx. On the client's side it is known only after the first message or
// header came. Errors: [errs.NotAllowed].
func OtherEnd(ctx context.Context) (Other, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Other{}, errs.New(errs.NotAllowed, "nothing is known of the other end of the link")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return Other{}, errs.New(errs.NotAllowed, "the link is not TLS")
	}
	id, err := identity.Peer(&info.State)
	if err != nil {
		return Other{}, err
	}
	return Other{ID: id, State: info.State}, nil
}

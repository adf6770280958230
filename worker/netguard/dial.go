package netguard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"sallyport.dev/errs"
)

// Resolver turns a name into addresses. [net.Resolver] is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Step is a part of opening a connection: which one failed says what a person should look at.
type Step string

// Steps, in their order.
const (
	StepResolve Step = "resolve"
	StepAddress Step = "address" // an answer is one that this connection may not reach
	StepConnect Step = "connect"
	StepTLS     Step = "tls"
)

// Error is a connection that was not opened. Nothing was sent.
type Error struct {
	Step    Step
	Address netip.Addr // the refused address, for StepAddress
	Verdict Verdict    // its kind, for StepAddress
	err     *errs.Error
}

// Error returns code, message and detail, for logs.
func (e *Error) Error() string { return string(e.Step) + ": " + e.err.Error() }

// Unwrap gives the [errs.Error] with the code ([errs.NotAllowed] for an address, else [errs.Unreachable]) and the safe message.
func (e *Error) Unwrap() error { return e.err }

// Bounds of one opening.
const (
	maxAnswers = 32                     // more addresses than that is an attack, or a mistake
	maxDials   = 6                      // addresses that are tried
	dialDelay  = 250 * time.Millisecond // before the next address is tried beside the last, RFC 8305
)

// Guard opens connections. Its zero value uses the system's resolver and certificate roots. It may be used by many goroutines; its fields
// must not change after the first use.
type Guard struct {
	Resolver Resolver       // nil: the system's
	RootCAs  *x509.CertPool // nil: the system's
}

// Every step ends after stepBound, however patient the caller's context is; requests of [Guard.HTTPClient] give each step clientStep.
const (
	stepBound  = 30 * time.Second
	clientStep = 5 * time.Second
)

// Checked is an origin with addresses that all passed. Only [Guard.Resolve] makes one, and only its addresses are ever dialed.
type Checked struct {
	Origin Origin
	policy Policy
	addrs  []netip.AddrPort
}

// Addresses are the checked addresses in the order in which they are tried.
func (c Checked) Addresses() []netip.AddrPort { return slices.Clone(c.addrs) }

// Resolve asks for the addresses of o once and checks every answer: one bad answer refuses all, because whoever mixes them chooses which is
// used. Errors: *[Error] of StepResolve or StepAddress.
func (g *Guard) Resolve(ctx context.Context, o Origin, p Policy) (Checked, error) {
	c := Checked{Origin: o, policy: p}
	if !o.TLS && !p.PlainHTTP {
		return c, &Error{Step: StepAddress, err: errs.New(errs.NotAllowed, "plain http needs network.http on this connection")}
	}
	addrs := []netip.Addr{o.addr}
	if !o.addr.IsValid() {
		var r Resolver = net.DefaultResolver
		if g.Resolver != nil {
			r = g.Resolver
		}
		ctx, cancel := context.WithTimeout(ctx, stepBound)
		defer cancel()
		var err error
		addrs, err = r.LookupNetIP(ctx, "ip", o.Host)
		if err != nil || len(addrs) == 0 {
			return c, &Error{Step: StepResolve, err: errs.Wrap(errs.Unreachable, "the host name has no address", err)}
		}
		if len(addrs) > maxAnswers {
			return c, &Error{Step: StepResolve, err: errs.Newf(errs.Unreachable, "the host name has %d addresses; at most %d", len(addrs), maxAnswers)}
		}
		for i, a := range addrs {
			addrs[i] = a.Unmap() // the resolver hands IPv4 in its mapped form
		}
	}
	for _, a := range addrs {
		if v, ok := p.Permits(a); !ok {
			return c, refused(a, v)
		}
		if ap := netip.AddrPortFrom(a, o.Port); !slices.Contains(c.addrs, ap) {
			c.addrs = append(c.addrs, ap)
		}
	}
	return c, nil
}

func refused(a netip.Addr, v Verdict) *Error {
	msg := fmt.Sprintf("the address %s is %s", a, v)
	if v.Nameable() {
		msg += "; an administrator can name its prefix in the connection's network.allow"
	} else {
		msg += ", which no connection may reach"
	}
	return &Error{Step: StepAddress, Address: a, Verdict: v, err: errs.New(errs.NotAllowed, msg)}
}

// Dial opens a TCP connection to one of c's addresses: the first, and 250 ms later the next beside it, until one answers (RFC 8305). The
// connections that lose are closed without a byte. Errors: *[Error] of StepConnect or StepAddress.
func (g *Guard) Dial(ctx context.Context, c Checked) (net.Conn, netip.AddrPort, error) {
	if len(c.addrs) == 0 {
		return nil, netip.AddrPort{}, &Error{Step: StepConnect, err: errs.New(errs.Unreachable, "no address to connect to")}
	}
	ctx, cancel := context.WithTimeout(ctx, stepBound)
	defer cancel()
	type result struct {
		conn net.Conn
		addr netip.AddrPort
		err  error
	}
	addrs := c.addrs[:min(len(c.addrs), maxDials)]
	results := make(chan result, len(addrs))
	started, open := 0, 0
	next := time.NewTimer(0)
	defer next.Stop()
	var errAll error
	for {
		select {
		case <-next.C:
			if started < len(addrs) {
				addr := addrs[started]
				started++
				open++
				go func() {
					conn, err := c.dialOne(ctx, addr)
					results <- result{conn, addr, err}
				}()
				next.Reset(dialDelay)
			}
		case r := <-results:
			open--
			if r.err == nil {
				go func() { // the losers: cancelled with ctx, or already open
					for range open {
						if late := <-results; late.conn != nil {
							late.conn.Close()
						}
					}
				}()
				return r.conn, r.addr, nil
			}
			errAll = errors.Join(errAll, r.err)
			if open == 0 && started == len(addrs) {
				var refusal *Error
				if errors.As(errAll, &refusal) {
					return nil, r.addr, refusal
				}
				return nil, r.addr, &Error{Step: StepConnect, err: errs.Wrap(errs.Unreachable, "the server does not answer", errAll)}
			}
			next.Reset(0)
		}
	}
}

// dialOne connects to exactly addr. The check runs once more on the socket's own view of the address, after the dialer's last word and before
// the connect: whatever this package or the dialer might get wrong above, the system call is guarded.
func (c Checked) dialOne(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{
		Control: func(network, address string, _ syscall.RawConn) error {
			got, err := netip.ParseAddrPort(address)
			if err != nil || got != addr || (network != "tcp4" && network != "tcp6") {
				return &Error{Step: StepAddress, Address: got.Addr(), err: errs.New(errs.NotAllowed, "the dialer turned to an address that was not checked")}
			}
			if v, ok := c.policy.Permits(got.Addr()); !ok {
				return refused(got.Addr(), v)
			}
			return nil
		},
	}
	return d.DialContext(ctx, "tcp", addr.String())
}

// tlsConfig is what every TLS connection of a worker uses: 1.2 or newer, verification by the origin's host, HTTP/1.1 only, so that one
// connection carries one request at a time and its bytes can be counted.
func tlsConfig(o Origin, authorities *x509.CertPool) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.Host, RootCAs: authorities, NextProtos: []string{"http/1.1"}}
}

// Handshake makes a TLS connection of conn to a connection's own origin and closes conn when it fails. Errors: *[Error] of StepTLS.
func (g *Guard) Handshake(ctx context.Context, conn net.Conn, o Origin, trust Trust) (*tls.Conn, error) {
	config := tlsConfig(o, trust.at(g.RootCAs))
	if trust.own != nil {
		config.Certificates = []tls.Certificate{*trust.own}
	}
	return handshake(ctx, conn, config)
}

func handshake(ctx context.Context, conn net.Conn, config *tls.Config) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, stepBound)
	defer cancel()
	t := tls.Client(conn, config)
	if err := t.HandshakeContext(ctx); err != nil {
		conn.Close()
		msg := "the TLS handshake failed"
		var cert *tls.CertificateVerificationError
		if errors.As(err, &cert) {
			msg = "the server's certificate is not trusted for this host"
		}
		return nil, &Error{Step: StepTLS, err: errs.Wrap(errs.Unreachable, msg, err)}
	}
	return t, nil
}

// HTTPClient is for the worker's other requests (discovery, OAuth, notifications): the same guard, no proxy, no cookie, no redirect, and a
// connection for each request, so that the transport has nothing on which it could send again. The origin's scheme is checked by p. trust holds for
// the connection's own origin as in [Guard.Handshake]; everywhere else its authorities are trusted beside the guard's, and no certificate is shown.
// The caller bounds the body, and closes it.
func (g *Guard) HTTPClient(p Policy, own Origin, trust Trust) *http.Client {
	dial := func(ctx context.Context, address string, secure bool) (net.Conn, error) {
		scheme := "http://"
		if secure {
			scheme = "https://"
		}
		o, err := ParseOrigin(scheme + address)
		if err != nil {
			return nil, err
		}
		resolving, cancel := context.WithTimeout(ctx, clientStep)
		defer cancel()
		c, err := g.Resolve(resolving, o, p)
		if err != nil {
			return nil, err
		}
		connecting, cancel := context.WithTimeout(ctx, clientStep)
		defer cancel()
		conn, _, err := g.Dial(connecting, c)
		if err != nil || !secure {
			return conn, err
		}
		shaking, cancel := context.WithTimeout(ctx, clientStep)
		defer cancel()
		if o == own {
			return g.Handshake(shaking, conn, o, trust)
		}
		return handshake(shaking, conn, tlsConfig(o, trust.beside(g.RootCAs)))
	}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:            func(ctx context.Context, _, address string) (net.Conn, error) { return dial(ctx, address, false) },
			DialTLSContext:         func(ctx context.Context, _, address string) (net.Conn, error) { return dial(ctx, address, true) },
			DisableKeepAlives:      true,
			DisableCompression:     true,
			ForceAttemptHTTP2:      false,
			MaxResponseHeaderBytes: 64 << 10,
			ResponseHeaderTimeout:  30 * time.Second,
		},
	}
}

package identity

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"sallyport.dev/errs"
)

// Authorize decides about one exact id, whose certificate already verified. The answer is for the handshake only: revocation is checked on every
// call as well.
type Authorize func(spiffeid.ID) error

// Exactly authorizes the ids given and no other.
func Exactly(ids ...spiffeid.ID) Authorize {
	return Authorize(spiffeid.MatchOneOf(ids...))
}

func (a Authorize) tls() tlsconfig.Authorizer { return tlsconfig.AdaptMatcher(spiffeid.Matcher(a)) }

// LinkServer is the configuration of control's side of the Links: TLS 1.3, a certificate from both, HTTP/2.
func LinkServer(src *Source, authorize Authorize) *tls.Config {
	c := tlsconfig.MTLSServerConfig(src, src, authorize.tls())
	harden(c)
	c.NextProtos = []string{"h2"}
	return c
}

// LinkClient is the configuration of a host's or worker's side: it meets exactly the control node that it dials.
func LinkClient(src *Source, control spiffeid.ID) *tls.Config {
	c := tlsconfig.MTLSClientConfig(src, src, Exactly(control).tls())
	harden(c)
	c.NextProtos = []string{"h2"}
	return c
}

// JoinServer is the configuration of control's side for Join and Renew: no certificate is needed, one that is shown must verify, and the root is
// part of the chain, so that a joiner can compare its key with the token's.
func JoinServer(src *Source, authorize Authorize) *tls.Config {
	verify := tlsconfig.VerifyPeerCertificate(src, authorize.tls())
	c := &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			svid, err := src.GetX509SVID()
			if err != nil {
				return nil, err
			}
			cert := &tls.Certificate{PrivateKey: svid.PrivateKey}
			for _, x := range svid.Certificates {
				cert.Certificate = append(cert.Certificate, x.Raw)
			}
			cert.Certificate = append(cert.Certificate, src.roots()...)
			return cert, nil
		},
		ClientAuth: tls.RequestClientCert,
		VerifyPeerCertificate: func(raw [][]byte, chains [][]*x509.Certificate) error {
			if len(raw) == 0 {
				return nil
			}
			return verify(raw, chains)
		},
		NextProtos: []string{"http/1.1"},
	}
	harden(c)
	return c
}

// RenewClient is the configuration of a process that renews its own identity.
func RenewClient(src *Source, control spiffeid.ID) *tls.Config {
	c := LinkClient(src, control)
	c.NextProtos = []string{"http/1.1"}
	return c
}

// JoinClient is the configuration of a process that has no identity yet: it trusts the one root whose key has caKeyHash, and of it exactly control.
func JoinClient(caKeyHash string, control spiffeid.ID, now func() time.Time) *tls.Config {
	c := &tls.Config{
		// Names in certificates are SPIFFE ids, not host names: VerifyPeerCertificate does the whole verification.
		InsecureSkipVerify: true, //nolint:gosec // see VerifyPeerCertificate
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			return verifyPinned(raw, caKeyHash, control, now())
		},
		NextProtos: []string{"http/1.1"},
	}
	harden(c)
	return c
}

// harden: TLS 1.3 has the exporter that Links use; without tickets no handshake skips the certificate checks (VerifyPeerCertificate does not run on
// a resumed one).
func harden(c *tls.Config) {
	c.MinVersion = tls.VersionTLS13
	c.SessionTicketsDisabled = true
}

func verifyPinned(raw [][]byte, caKeyHash string, control spiffeid.ID, now time.Time) error {
	if _, err := hex.DecodeString(caKeyHash); err != nil || len(caKeyHash) != 64 {
		return errs.New(errs.Invalid, "the token's CA key hash is not a SHA-256")
	}
	var certs, roots []*x509.Certificate
	for _, der := range raw {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return errs.Wrap(errs.NotAllowed, "control shows a certificate that cannot be read", err)
		}
		if c.IsCA && keyHash(c) == caKeyHash {
			roots = append(roots, c)
			continue
		}
		certs = append(certs, c)
	}
	if len(roots) == 0 || len(certs) == 0 {
		return errs.New(errs.NotAllowed, "this is not the control plane that made the token: its CA has another key; check the address, or ask for a new token")
	}
	bundle := x509bundle.FromX509Authorities(control.TrustDomain(), roots)
	id, _, err := x509svid.Verify(certs, bundle, x509svid.WithTime(now))
	if err != nil {
		return errs.Wrap(errs.NotAllowed, "control's certificate does not verify; compare the clocks of both machines", err)
	}
	if id != control {
		return errs.Newf(errs.NotAllowed, "the address leads to %s, the token names %s", id, control)
	}
	return nil
}

// Peer returns who is on the other side of a finished handshake. Its chain was verified in the handshake. Errors: [errs.NotAllowed] when it showed
// no certificate.
func Peer(state *tls.ConnectionState) (spiffeid.ID, error) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return spiffeid.ID{}, errs.New(errs.NotAllowed, "this needs a client certificate; enrol this machine first")
	}
	id, err := x509svid.IDFromCert(state.PeerCertificates[0])
	if err != nil {
		return spiffeid.ID{}, errs.Wrap(errs.NotAllowed, "the client certificate names no SPIFFE id", err)
	}
	return id, nil
}

package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"sallyport.dev/errs"
)

// Request is a fresh key and the certificate request for it. The key never leaves the process that made it.
type Request struct {
	key *ecdsa.PrivateKey
	CSR []byte // PKCS #10, DER
}

// NewRequest makes a key and its request.
func NewRequest() (*Request, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "no randomness for a key", err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "sallyport"}}, key)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "the certificate request cannot be made", err)
	}
	return &Request{key: key, CSR: csr}, nil
}

// Material is an identity in the form of its files.
type Material struct {
	Key   []byte // PEM, PKCS #8: identity.key
	Chain []byte // PEM: identity.crt
	CA    []byte // PEM: the roots that vouch for the others
}

// String redacts.
func (m Material) String() string { return "identity material" }

// GoString redacts.
func (m Material) GoString() string { return "identity material" }

// Accept joins the request's key with the chain and roots that came for it, verified at now. want is the id that was asked for. Errors:
// [errs.NotAllowed] when the chain is of another key, another id or another root.
func (r *Request) Accept(chain, ca []byte, want spiffeid.ID, now time.Time) (Material, error) {
	key, err := marshalKey(r.key)
	if err != nil {
		return Material{}, err
	}
	m := Material{Key: key, Chain: chain, CA: ca}
	id, err := m.check(now)
	if err != nil {
		return Material{}, err
	}
	if id != want {
		return Material{}, errs.Newf(errs.NotAllowed, "control issued the identity %s, not %s", id, want)
	}
	return m, nil
}

func (m Material) parse() (*x509svid.SVID, *x509bundle.Bundle, error) {
	svid, err := x509svid.Parse(m.Chain, m.Key)
	if err != nil {
		return nil, nil, errs.Wrap(errs.Invalid, "the identity's key and certificate do not belong together; enrol again", err)
	}
	roots, err := parseChain(m.CA)
	if err != nil {
		return nil, nil, err
	}
	return svid, x509bundle.FromX509Authorities(svid.ID.TrustDomain(), roots), nil
}

// Paired reports whether key and certificate belong together.
func (m Material) Paired() bool {
	_, err := x509svid.Parse(m.Chain, m.Key)
	return err == nil
}

func (m Material) check(now time.Time) (spiffeid.ID, error) {
	svid, bundle, err := m.parse()
	if err != nil {
		return spiffeid.ID{}, err
	}
	if now.After(svid.Certificates[0].NotAfter) {
		return spiffeid.ID{}, errs.Newf(errs.NotAllowed, "the identity %s expired at %s; enrol again: sallyport enrol, then --join TOKEN",
			svid.ID, svid.Certificates[0].NotAfter.UTC().Format(time.RFC3339))
	}
	if _, _, err := x509svid.Verify(svid.Certificates, bundle, x509svid.WithTime(now)); err != nil {
		return spiffeid.ID{}, errs.Wrap(errs.NotAllowed, "the identity's certificate is not signed by the CA that came with it", err)
	}
	return svid.ID, nil
}

// Source is a process's own identity and the roots that it trusts, replaced in place by renewal. It is the x509svid.Source and x509bundle.Source
// of every TLS configuration here, so that each handshake uses the newest. Safe for concurrent use.
type Source struct {
	mu       sync.RWMutex
	material Material
	svid     *x509svid.SVID
	bundle   *x509bundle.Bundle
}

// NewSource verifies m at now and makes a source of it. Errors: [errs.Invalid], [errs.NotAllowed] (expired, or of another root).
func NewSource(m Material, now time.Time) (*Source, error) {
	s := &Source{}
	if err := s.Replace(m, now); err != nil {
		return nil, err
	}
	return s, nil
}

// Replace takes a renewed identity; the id must stay the same. An identity that does not verify changes nothing. Errors: as [NewSource].
func (s *Source) Replace(m Material, now time.Time) error {
	id, err := m.check(now)
	if err != nil {
		return err
	}
	svid, bundle, err := m.parse()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.svid != nil && s.svid.ID != id {
		return errs.Newf(errs.NotAllowed, "the renewed identity is %s, this process is %s", id, s.svid.ID)
	}
	s.material, s.svid, s.bundle = m, svid, bundle
	return nil
}

// GetX509SVID implements x509svid.Source.
func (s *Source) GetX509SVID() (*x509svid.SVID, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.svid, nil
}

// GetX509BundleForTrustDomain implements x509bundle.Source: no roots but those of the own domain.
func (s *Source) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.bundle.GetX509BundleForTrustDomain(td)
}

// ID returns who this process is.
func (s *Source) ID() spiffeid.ID {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.svid.ID
}

// CA returns the roots as PEM.
func (s *Source) CA() []byte {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.material.CA
}

// Validity returns when the certificate began and when it ends.
func (s *Source) Validity() (notBefore, notAfter time.Time) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.svid.Certificates[0].NotBefore, s.svid.Certificates[0].NotAfter
}

// roots returns the roots' certificates in DER, for a handshake that shows them.
func (s *Source) roots() [][]byte {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var ders [][]byte
	for _, c := range s.bundle.X509Authorities() {
		ders = append(ders, c.Raw)
	}
	return ders
}

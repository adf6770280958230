package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"net/url"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"sallyport.dev/errs"
)

// Lives of certificates. Clocks may differ by Backdate.
const (
	CertificateLife = 24 * time.Hour
	RootLife        = 10 * 365 * 24 * time.Hour
	Backdate        = 5 * time.Minute
)

const (
	pemPrivateKey  = "PRIVATE KEY"
	pemCertificate = "CERTIFICATE"
)

// CA issues the identities of one trust domain. Safe for concurrent use.
type CA struct {
	domain string
	key    *ecdsa.PrivateKey
	cert   *x509.Certificate
}

// NewCA makes the CA of a trust domain: ECDSA P-256, path length 0, name-constrained by its URI. Errors: [errs.Invalid] for the domain.
func NewCA(domain string, now time.Time) (*CA, error) {
	td, err := trustDomain(domain)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "no randomness for a key", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "sallyport " + td.Name()},
		URIs:                  []*url.URL{td.ID().URL()},
		NotBefore:             now.Add(-Backdate),
		NotAfter:              now.Add(RootLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
		PermittedURIDomains:   []string{td.Name()},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "the CA's certificate cannot be made", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "the CA's certificate cannot be read", err)
	}
	return &CA{domain: td.Name(), key: key, cert: cert}, nil
}

// ParseCA reads root.key and root.crt. Errors: [errs.Invalid].
func ParseCA(keyPEM, certPEM []byte) (*CA, error) {
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, err
	}
	e, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errs.New(errs.Invalid, "the CA's key is not an ECDSA key")
	}
	certs, err := parseChain(certPEM)
	if err != nil {
		return nil, err
	}
	if len(certs) != 1 || !certs[0].IsCA || !e.PublicKey.Equal(certs[0].PublicKey) {
		return nil, errs.New(errs.Invalid, "the CA's certificate does not belong to its key; restore both files together")
	}
	if len(certs[0].URIs) != 1 {
		return nil, errs.New(errs.Invalid, "the CA's certificate names no trust domain")
	}
	td, err := spiffeid.TrustDomainFromURI(certs[0].URIs[0])
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, "the CA's certificate names no trust domain", err)
	}
	return &CA{domain: td.Name(), key: e, cert: certs[0]}, nil
}

// MarshalPEM returns the content of root.key and root.crt.
func (ca *CA) MarshalPEM() (keyPEM, certPEM []byte, err error) {
	keyPEM, err = marshalKey(ca.key)
	return keyPEM, ca.Bundle(), err
}

// Domain returns the trust domain.
func (ca *CA) Domain() string { return ca.domain }

// Bundle returns the CA's certificate as PEM.
func (ca *CA) Bundle() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: ca.cert.Raw})
}

// KeyHash returns the hex SHA-256 of the CA's public key (SubjectPublicKeyInfo): what an enrolment token pins.
func (ca *CA) KeyHash() string { return keyHash(ca.cert) }

// String returns the domain only.
func (ca *CA) String() string { return "CA of " + ca.domain }

// GoString returns the domain only.
func (ca *CA) GoString() string { return ca.String() }

func keyHash(c *x509.Certificate) string {
	d := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(d[:])
}

// Issue gives the requester of csr (PKCS #10, DER) a certificate for id, from which alone the certificate's names come: what the request says about
// names is ignored. It returns the chain as PEM. Errors: [errs.Invalid] for the request, [errs.NotAllowed] for an id of another domain.
func (ca *CA) Issue(csr []byte, id spiffeid.ID, now time.Time) ([]byte, error) {
	if id.TrustDomain().Name() != ca.domain {
		return nil, errs.New(errs.NotAllowed, "the CA issues for its own trust domain only")
	}
	if _, err := ParseID(id); err != nil {
		return nil, err
	}
	public, err := CheckRequest(csr)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		URIs:                  []*url.URL{id.URL()},
		NotBefore:             now.Add(-Backdate),
		NotAfter:              minTime(now.Add(CertificateLife), ca.cert.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, public, ca.key)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "the certificate cannot be made", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}), nil
}

// CheckRequest verifies a certificate request's own signature and returns its key: ECDSA P-256 only. Errors: [errs.Invalid].
func CheckRequest(csr []byte) (crypto.PublicKey, error) {
	if len(csr) > 16<<10 {
		return nil, errs.New(errs.Invalid, "the certificate request is too long")
	}
	r, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, "the certificate request cannot be read", err)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, errs.Wrap(errs.Invalid, "the certificate request is not signed by its own key", err)
	}
	k, ok := r.PublicKey.(*ecdsa.PublicKey)
	if !ok || k.Curve != elliptic.P256() {
		return nil, errs.New(errs.Invalid, "the certificate request has a key that is not ECDSA P-256")
	}
	return k, nil
}

func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "no randomness for a serial number", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func marshalKey(k crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "the key cannot be encoded", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPrivateKey, Bytes: der}), nil
}

func parseKey(b []byte) (crypto.Signer, error) {
	block, rest := pem.Decode(b)
	if block == nil || block.Type != pemPrivateKey || len(rest) != 0 {
		return nil, errs.New(errs.Invalid, "the key file is not one PEM private key")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, "the key file is not a PKCS #8 private key", err)
	}
	s, ok := k.(crypto.Signer)
	if !ok {
		return nil, errs.New(errs.Invalid, "the key file does not hold a signing key")
	}
	return s, nil
}

func parseChain(b []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for len(b) > 0 {
		block, rest := pem.Decode(b)
		if block == nil || block.Type != pemCertificate {
			return nil, errs.New(errs.Invalid, "the certificate file is not a list of PEM certificates")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, errs.Wrap(errs.Invalid, "the certificate file has a certificate that cannot be read", err)
		}
		certs, b = append(certs, c), rest
	}
	if len(certs) == 0 {
		return nil, errs.New(errs.Invalid, "the certificate file is empty")
	}
	return certs, nil
}

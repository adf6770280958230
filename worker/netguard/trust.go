package netguard

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"time"

	"sallyport.dev/errs"
)

// Trust is what the TLS of one connection rests on beside the guard's authorities. The zero value adds nothing.
type Trust struct {
	authorities []*x509.Certificate
	own         *tls.Certificate
	key         string
}

// ParseTrust reads authorities, and a certificate with its key, both in PEM; either may be empty. A certificate that is out of date at now is refused
// here: over TLS 1.3 a server refuses it only after our handshake is complete, when the bytes of a write may have left. Errors: [errs.Invalid].
func ParseTrust(authorities string, certificate []byte, now time.Time) (Trust, error) {
	var t Trust
	sum := sha256.New()
	for rest := []byte(authorities); len(rest) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return Trust{}, errs.New(errs.Invalid, "the connection's authorities are not certificates in PEM")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return Trust{}, errs.Wrap(errs.Invalid, "an authority of the connection cannot be read", err)
		}
		t.authorities = append(t.authorities, c)
		sum.Write(c.Raw)
	}
	if len(certificate) > 0 {
		pair, err := tls.X509KeyPair(certificate, certificate)
		if err != nil {
			// Not wrapped: an error of parsing a key may quote it.
			return Trust{}, errs.New(errs.Invalid, "the connection's certificate and key do not fit together; store them again")
		}
		if now.Before(pair.Leaf.NotBefore) || now.After(pair.Leaf.NotAfter) {
			return Trust{}, errs.Newf(errs.Invalid, "the certificate that the connection shows is valid from %s to %s; store another one",
				pair.Leaf.NotBefore.UTC().Format(time.DateOnly), pair.Leaf.NotAfter.UTC().Format(time.DateOnly))
		}
		t.own = &pair
		sum.Write(pair.Leaf.Raw)
	}
	if len(t.authorities) > 0 || t.own != nil {
		t.key = hex.EncodeToString(sum.Sum(nil))
	}
	return t, nil
}

// Key tells connections apart that rest on different trust.
func (t Trust) Key() string { return t.key }

// String redacts.
func (t Trust) String() string { return "trust " + t.key }

// GoString redacts.
func (t Trust) GoString() string { return t.String() }

// at is the pool for the connection's own origin: its authorities alone, where it names any.
func (t Trust) at(guard *x509.CertPool) *x509.CertPool {
	if len(t.authorities) == 0 {
		return guard
	}
	pool := x509.NewCertPool()
	for _, c := range t.authorities {
		pool.AddCert(c)
	}
	return pool
}

// beside is the pool for every other address: the guard's authorities and the connection's.
func (t Trust) beside(guard *x509.CertPool) *x509.CertPool {
	if len(t.authorities) == 0 {
		return guard
	}
	pool := guard
	if pool == nil {
		var err error
		if pool, err = x509.SystemCertPool(); err != nil {
			pool = x509.NewCertPool()
		}
	} else {
		pool = pool.Clone()
	}
	for _, c := range t.authorities {
		pool.AddCert(c)
	}
	return pool
}

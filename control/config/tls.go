package config

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"strings"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

const (
	maxAuthorities     = 32
	maxAuthoritiesText = 64 << 10
)

func (r *resolver) tls(p string, t *TLS, out *control.Connection) {
	if t == nil {
		return
	}
	if !strings.HasPrefix(out.Origin, "https://") {
		r.problem(p, "stands with https, and only there")
	}
	out.TLS.Certificate = t.Certificate
	if t.CA == "" {
		return
	}
	certs, err := authorities(t.CA)
	if err != nil {
		r.problem(p+".ca", "%s", errs.Message(err))
		return
	}
	var b strings.Builder
	for _, c := range certs {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}) // a Builder takes everything
	}
	out.TLS.Authorities = b.String()
}

// authorities reads certificates in PEM, and nothing else.
func authorities(text string) ([]*x509.Certificate, error) {
	if len(text) > maxAuthoritiesText {
		return nil, errs.Newf(errs.Invalid, "must be at most %s", Bytes(maxAuthoritiesText))
	}
	var out []*x509.Certificate
	rest := []byte(strings.TrimSpace(text))
	for len(rest) > 0 {
		block, after := pem.Decode(rest)
		if block == nil || block.Type != "CERTIFICATE" || !strings.HasPrefix(string(rest), "-----BEGIN") {
			return nil, errs.New(errs.Invalid, "must be certificates in PEM, and nothing else")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, errs.Wrap(errs.Invalid, "holds a certificate that cannot be read", err)
		}
		out = append(out, c)
		rest = []byte(strings.TrimSpace(string(after)))
	}
	if len(out) == 0 || len(out) > maxAuthorities {
		return nil, errs.Newf(errs.Invalid, "must be 1 to %d certificates", maxAuthorities)
	}
	return out, nil
}

// viewTLS shows authorities by their subject and digest: nobody reads PEM.
func viewTLS(v *view, t control.TLS) {
	if t.Authorities != "" {
		certs, _ := authorities(t.Authorities) // it was read when it was applied
		var names []string
		for _, c := range certs {
			sum := sha256.Sum256(c.Raw)
			names = append(names, c.Subject.String()+" (SHA-256 "+hex.EncodeToString(sum[:8])+"…, until "+c.NotAfter.UTC().Format("2006-01-02")+")")
		}
		v.texts("tls.ca", names)
	}
	v.yes("tls.certificate", t.Certificate)
}

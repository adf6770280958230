package control

import (
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/intent"
)

// Trust is what travels beside an intent of a connection whose TLS rests on more than the system's authorities; nil where it does not. certificate is
// the newest version of the connection's own certificate, nil for none. Errors: [errs.NotConnected] when one is needed and cannot be shown at now.
func (c *Connection) Trust(certificate *Credential, now time.Time) ([]byte, error) {
	t := intent.Trust{Authorities: c.TLS.Authorities}
	if c.TLS.Certificate {
		switch {
		case certificate == nil || !certificate.Usable() || len(certificate.Sealed) == 0:
			return nil, errs.Newf(errs.NotConnected, "%s has no certificate to show; store it with: sallyport credentials set %s --certificate", c.Name, c.Name)
		case certificate.Expired(now):
			return nil, errs.Newf(errs.NotConnected, "the certificate that %s shows is out of date; store another one with: sallyport credentials set %s --certificate", c.Name, c.Name)
		}
		t.Version, t.Certificate = certificate.Version, certificate.Sealed
	}
	return t.Encode()
}

package identity

import (
	"time"

	"sallyport.dev/errs"
)

const (
	caKeyFile  = "root.key"
	caCertFile = "root.crt"
)

// Files is a private directory: [sallyport.dev/identity/statefile.Dir]. Read answers [errs.NotFound] for what is not there; Write is whole or not at
// all.
type Files interface {
	Read(name string) ([]byte, error)
	Write(name string, data []byte) error
}

// OpenCA reads the CA from root.key and root.crt, and makes it for domain at the first start. A later start with another domain is refused: every
// identity would change. Errors: [errs.Invalid], [errs.Conflict], and those of files.
func OpenCA(files Files, domain string, now time.Time) (*CA, error) {
	cert, err := files.Read(caCertFile)
	if errs.Is(err, errs.NotFound) {
		return createCA(files, domain, now)
	}
	if err != nil {
		return nil, err
	}
	key, err := files.Read(caKeyFile)
	if err != nil {
		return nil, err
	}
	ca, err := ParseCA(key, cert)
	if err != nil {
		return nil, err
	}
	switch {
	case ca.domain != domain:
		return nil, errs.Newf(errs.Conflict, "the CA is of the domain %s; start with that domain, or remove the CA's directory and enrol every machine again", ca.domain)
	case now.After(ca.cert.NotAfter):
		return nil, errs.New(errs.NotAllowed, "the CA's certificate has expired; remove the CA's directory and enrol every machine again")
	}
	return ca, nil
}

// createCA writes the certificate last: a start that was cut short begins again.
func createCA(files Files, domain string, now time.Time) (*CA, error) {
	ca, err := NewCA(domain, now)
	if err != nil {
		return nil, err
	}
	key, cert, err := ca.MarshalPEM()
	if err != nil {
		return nil, err
	}
	if err := files.Write(caKeyFile, key); err != nil {
		return nil, err
	}
	return ca, files.Write(caCertFile, cert)
}

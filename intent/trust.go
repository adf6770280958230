package intent

import (
	"github.com/go-json-experiment/json"

	"sallyport.dev/errs"
)

// CertificateSubject is the subject under which the certificate and key of a connection's own side are kept, beside the credentials of people. Its
// associated data names no header, issuer or account.
const CertificateSubject = "certificate"

// MaxTrust bounds an encoded [Trust], in bytes.
const MaxTrust = 256 << 10

// Trust is what a connection's TLS rests on beside the system's authorities. It travels beside an intent, which holds its digest.
type Trust struct {
	// Authorities, in PEM, are trusted in place of the system's at the connection's own origin, and beside them at the addresses of its sign-in.
	Authorities string `json:"authorities"`
	Version     int64  `json:"version"` // of the sealed certificate and key; 0: none
	Certificate []byte `json:"certificate"`
}

// Encode returns strict JSON, nil for the zero value. Errors: [errs.Oversize].
func (t Trust) Encode() ([]byte, error) {
	if t.Authorities == "" && t.Version == 0 {
		return nil, nil
	}
	b, err := json.Marshal(t)
	switch {
	case err != nil:
		return nil, errs.Wrap(errs.Invalid, "the connection's authorities are not text", err)
	case len(b) > MaxTrust:
		return nil, errs.Newf(errs.Oversize, "a connection's authorities and certificate have at most %d bytes, these have %d", MaxTrust, len(b))
	}
	return b, nil
}

// ParseTrust reads what [Trust.Encode] wrote; nothing is the zero value. Errors: [errs.Invalid].
func ParseTrust(b []byte) (Trust, error) {
	var t Trust
	if len(b) == 0 {
		return t, nil
	}
	if len(b) > MaxTrust {
		return t, errs.New(errs.Invalid, "the connection's authorities and certificate are too long")
	}
	if err := json.Unmarshal(b, &t, json.RejectUnknownMembers(true)); err != nil {
		return Trust{}, errs.Wrap(errs.Invalid, "the connection's authorities and certificate are not strict JSON", err)
	}
	if (t.Version > 0) != (len(t.Certificate) > 0) || t.Version < 0 {
		return Trust{}, errs.New(errs.Invalid, "a certificate comes with its version")
	}
	return t, nil
}

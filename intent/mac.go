package intent

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"

	"sallyport.dev/errs"
)

const (
	domain = "sallyport intent v1\n"

	// ExporterLabel is the label of the key that both ends of a Link export from its TLS session (RFC 8446 section 7.5, RFC 5705 section 4).
	// Labels of applications begin with EXPORTER.
	ExporterLabel = "EXPORTER-sallyport-intent-v1"

	// LinkKeyID stands in IntentJob.key_id when the intent carries a MAC.
	LinkKeyID = "link"
)

// LinkKey authenticates intents of reads on one TLS session. Both ends export the same one; nobody else can. Safe for concurrent use.
type LinkKey struct{ key []byte }

// ExportLinkKey derives the Link's key. state must be of a finished TLS 1.3 handshake with certificates on both sides. Errors: [errs.NotAllowed].
func ExportLinkKey(state tls.ConnectionState) (LinkKey, error) {
	if !state.HandshakeComplete || state.Version < tls.VersionTLS13 || len(state.PeerCertificates) == 0 {
		return LinkKey{}, errs.New(errs.NotAllowed, "a link needs TLS 1.3 with certificates on both sides")
	}
	k, err := state.ExportKeyingMaterial(ExporterLabel, nil, sha256.Size)
	if err != nil {
		return LinkKey{}, errs.Wrap(errs.NotAllowed, "the link's TLS session exports no key", err)
	}
	return LinkKey{key: k}, nil
}

// MAC returns the HMAC-SHA-256 of an encoded intent.
func (k LinkKey) MAC(encoded []byte) []byte {
	h := hmac.New(sha256.New, k.key)
	h.Write([]byte(domain))
	h.Write(encoded)
	return h.Sum(nil)
}

// VerifyMAC reports whether mac is of encoded. A zero key verifies nothing.
func (k LinkKey) VerifyMAC(encoded, mac []byte) bool {
	return len(k.key) > 0 && hmac.Equal(k.MAC(encoded), mac)
}

// String redacts.
func (k LinkKey) String() string { return "link key" }

// GoString redacts.
func (k LinkKey) GoString() string { return "link key" }

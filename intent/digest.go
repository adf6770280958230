package intent

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Join is the preimage of every digest and signature of ours: the domain line ("sallyport node key v1\n"), then each part prefixed by its
// length as 8 bytes, big-endian. Two different lists of parts, or two domains, never give the same bytes. Vectors: docs/digests.md.
func Join(domain string, parts ...[]byte) []byte {
	n := len("sallyport ") + len(domain) + 1
	for _, p := range parts {
		n += 8 + len(p)
	}
	b := make([]byte, 0, n)
	b = append(b, "sallyport "...)
	b = append(b, domain...)
	b = append(b, '\n')
	for _, p := range parts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	return b
}

// Digest is the lower-case hex SHA-256 of b, as the intent's members hold it; "" when nothing travels beside the intent.
func Digest(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	d := sha256.Sum256(b)
	return hex.EncodeToString(d[:])
}

package control

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
)

// IDLength is the length of session, call, record, question and intent ids: 128 bits in lower-case base32.
const IDLength = 26

var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewID returns a random id.
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return idEncoding.EncodeToString(b[:])
}

// CallID is the id of the call that a session's record makes: there is one call for one (session, record), for ever.
func CallID(session, record string) string {
	d := SumParts("call id v1", []byte(session), []byte(record))
	return idEncoding.EncodeToString(d[:16])
}

// ValidID reports whether s has the form of an id.
func ValidID(s string) bool {
	if len(s) != IDLength {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !('a' <= c && c <= 'z' || '2' <= c && c <= '7') {
			return false
		}
	}
	return true
}

// Sum is the plain SHA-256 of bytes that stand alone: a record, arguments, a body.
func Sum(b []byte) Digest { return sha256.Sum256(b) }

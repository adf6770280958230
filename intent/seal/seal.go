// Package seal puts a secret under a public key so that only its holder can read it: credentials under a pool's key, egress credentials under a
// host's key. Control carries what is sealed and cannot open it.
//
// HPKE (RFC 9180, base mode) with DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and AES-256-GCM. What the secret is for is the info string, what it is
// bound to is the associated data; both are authenticated, and the associated data travels readable in the envelope. Format and vectors:
// docs/keys.md.
package seal

import (
	"crypto/ecdh"
	"crypto/hpke"
	"encoding/binary"

	"sallyport.dev/errs"
)

// Purpose is what a sealed secret is for. Nothing sealed for one purpose opens for another.
type Purpose string

// Purposes.
const (
	Credential Purpose = "credential"
	Egress     Purpose = "egress credential"
	OAuthState Purpose = "oauth state"
)

// MaxSecret bounds a secret, MaxBound its associated data, both in bytes.
const (
	MaxSecret = 64 << 10
	MaxBound  = 16 << 10
)

const (
	magic        = "SPS1"
	encapsulated = 32 // X25519
	tag          = 16 // AES-GCM
)

// Seal seals secret to the holder of to, bound to associatedData. Two seals of the same secret differ. Errors: [errs.Invalid], [errs.Oversize].
func Seal(to PublicKey, purpose Purpose, associatedData, secret []byte) ([]byte, error) {
	switch {
	case to.key == nil:
		return nil, errs.New(errs.Invalid, "there is no public key to seal to")
	case len(secret) == 0:
		return nil, errs.New(errs.Invalid, "the secret is empty")
	case len(secret) > MaxSecret:
		return nil, errs.Newf(errs.Oversize, "a secret has at most %d bytes, this has %d", MaxSecret, len(secret))
	case len(associatedData) > MaxBound:
		return nil, errs.Newf(errs.Oversize, "associated data has at most %d bytes, this has %d", MaxBound, len(associatedData))
	}
	enc, s, err := hpke.NewSender(to.key, hpke.HKDFSHA256(), hpke.AES256GCM(), info(purpose))
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "sealing failed", err)
	}
	ct, err := s.Seal(associatedData, secret)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "sealing failed", err)
	}
	b := make([]byte, 0, len(magic)+4+len(associatedData)+len(enc)+len(ct))
	b = append(b, magic...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(associatedData)))
	b = append(b, associatedData...)
	b = append(b, enc...)
	return append(b, ct...), nil
}

func info(p Purpose) []byte { return []byte("sallyport sealed " + string(p) + " v1\n") }

// AssociatedData returns what an envelope says that it is bound to. It is proven only when the envelope was opened. Errors: [errs.Invalid].
func AssociatedData(sealed []byte) ([]byte, error) {
	bound, _, err := split(sealed)
	return bound, err
}

func split(sealed []byte) (bound, rest []byte, err error) {
	if len(sealed) < len(magic)+4 || string(sealed[:len(magic)]) != magic {
		return nil, nil, errs.New(errs.Invalid, "this is not a sealed secret")
	}
	n := binary.BigEndian.Uint32(sealed[len(magic):])
	rest = sealed[len(magic)+4:]
	if n > MaxBound || int(n) > len(rest) {
		return nil, nil, errs.New(errs.Invalid, "the sealed secret is cut")
	}
	bound, rest = rest[:n], rest[n:]
	if len(rest) <= encapsulated+tag || len(rest) > encapsulated+tag+MaxSecret {
		return nil, nil, errs.New(errs.Invalid, "the sealed secret is cut or too long")
	}
	return bound, rest, nil
}

// Open opens an envelope and returns what it is bound to, now proven, and the secret, which the caller wipes. Errors: [errs.Invalid] for a
// malformed envelope, [errs.NotAllowed] when the key, the purpose or a byte is wrong.
func (k PrivateKey) Open(purpose Purpose, sealed []byte) (associatedData, secret []byte, err error) {
	bound, rest, err := split(sealed)
	if err != nil {
		return nil, nil, err
	}
	if k.key == nil {
		return nil, nil, errs.New(errs.Invalid, "there is no private key to open with")
	}
	r, err := hpke.NewRecipient(rest[:encapsulated], k.key, hpke.HKDFSHA256(), hpke.AES256GCM(), info(purpose))
	if err != nil {
		return nil, nil, errs.Wrap(errs.NotAllowed, "the sealed secret does not open", err)
	}
	secret, err = r.Open(bound, rest[encapsulated:])
	if err != nil {
		return nil, nil, errs.Wrap(errs.NotAllowed, "the sealed secret does not open: it was sealed to another key or for another purpose, or it was changed", err)
	}
	return bound, secret, nil
}

func kem() hpke.KEM { return hpke.DHKEM(ecdh.X25519()) }

package keyring

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"

	"sallyport.dev/errs"
	"sallyport.dev/intent"
)

const (
	sessionMagic = "SPU1"
	sessionKey   = 32
	sessionSalt  = 16
	maxSession   = 64 << 10
)

// SealSession seals an exported session of an old server for the next dispatch of the same Sallyport session and connection. Only workers of the pool
// can open it, and only for an intent of the same owner. It travels from the pool to itself, so a symmetric key does, derived for each envelope: no
// nonce can repeat, however many there are. Nil stays nil. Errors: [errs.Oversize].
func (k *Keyring) SealSession(in *intent.Intent, exported []byte) ([]byte, error) {
	if len(exported) == 0 {
		return nil, nil
	}
	if len(exported) > maxSession {
		return nil, errs.New(errs.Oversize, "the upstream session is too long to be carried")
	}
	b := make([]byte, 0, len(sessionMagic)+sessionSalt+len(exported)+16)
	b = append(b, sessionMagic...)
	b = b[:len(b)+sessionSalt]
	salt := b[len(sessionMagic):]
	if _, err := rand.Read(salt); err != nil {
		return nil, errs.Wrap(errs.Internal, "no randomness for an upstream session", err)
	}
	aead, err := k.sessionAEAD(salt)
	if err != nil {
		return nil, err
	}
	return aead.Seal(b, make([]byte, aead.NonceSize()), exported, sessionBound(in)), nil
}

// Session opens the upstream session that travelled beside in. It belongs to one session, connection, origin and credential version: an old server's
// session is never shared. Nil stays nil. Errors: [errs.Invalid] for a malformed envelope, [errs.NotAllowed] for another owner's or another pool's.
func (k *Keyring) Session(in *intent.Intent, sealed []byte) ([]byte, error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	const head = len(sessionMagic) + sessionSalt
	if len(sealed) < head || len(sealed) > head+maxSession+16 || string(sealed[:len(sessionMagic)]) != sessionMagic {
		return nil, errs.New(errs.Invalid, "this is not a sealed upstream session")
	}
	aead, err := k.sessionAEAD(sealed[len(sessionMagic):head])
	if err != nil {
		return nil, err
	}
	exported, err := aead.Open(nil, make([]byte, aead.NonceSize()), sealed[head:], sessionBound(in))
	if err != nil {
		return nil, errs.Wrap(errs.NotAllowed, "the upstream session belongs to another session, connection, credential or pool", err)
	}
	return exported, nil
}

func (k *Keyring) sessionAEAD(salt []byte) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, k.sessions, salt, "sallyport upstream session v1", sessionKey)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "no key can be derived", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "no key can be derived", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "no key can be derived", err)
	}
	return aead, nil
}

func sessionBound(in *intent.Intent) []byte {
	return intent.Join("upstream session v1", []byte(in.Org), []byte(in.Session), []byte(in.Connection), []byte(in.Origin), []byte(in.Path),
		[]byte(in.Subject), binary.BigEndian.AppendUint64(nil, uint64(in.Version)))
}

package seal

import (
	"crypto/hkdf"
	"crypto/hpke"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"strings"

	"sallyport.dev/errs"
)

const pemPrivateKey = "SALLYPORT SEALING KEY"

// PublicKey is what secrets are sealed to. The zero value seals nothing.
type PublicKey struct{ key hpke.PublicKey }

// ParsePublicKey reads the 32 bytes of an X25519 public key. Errors: [errs.Invalid].
func ParsePublicKey(b []byte) (PublicKey, error) {
	k, err := kem().NewPublicKey(b)
	if err != nil {
		return PublicKey{}, errs.Wrap(errs.Invalid, "this is not an X25519 public key", err)
	}
	return PublicKey{k}, nil
}

// Bytes returns the 32 bytes of the key.
func (p PublicKey) Bytes() []byte {
	if p.key == nil {
		return nil
	}
	return p.key.Bytes()
}

// Fingerprint returns what a person compares and the CLI pins: the first 20 bytes of SHA-256 over "sallyport sealing key v1\n" and the key, as
// groups of four hex characters with dashes.
func (p PublicKey) Fingerprint() string {
	d := sha256.Sum256(append([]byte("sallyport sealing key v1\n"), p.Bytes()...))
	h := hex.EncodeToString(d[:20])
	groups := make([]string, 0, len(h)/4)
	for i := 0; i < len(h); i += 4 {
		groups = append(groups, h[i:i+4])
	}
	return strings.Join(groups, "-")
}

// String returns the key in base64, as configuration names it.
func (p PublicKey) String() string { return base64.StdEncoding.EncodeToString(p.Bytes()) }

// PrivateKey opens what was sealed to its public key. It prints as its fingerprint. Safe for concurrent use.
type PrivateKey struct{ key hpke.PrivateKey }

// GenerateKey makes a key.
func GenerateKey() (PrivateKey, error) {
	k, err := kem().GenerateKey()
	if err != nil {
		return PrivateKey{}, errs.Wrap(errs.Internal, "no randomness for a key", err)
	}
	return PrivateKey{k}, nil
}

// ParsePrivateKey reads the PEM form that [PrivateKey.MarshalPEM] writes. Errors: [errs.Invalid].
func ParsePrivateKey(b []byte) (PrivateKey, error) {
	block, rest := pem.Decode(b)
	if block == nil || block.Type != pemPrivateKey || len(rest) != 0 || len(block.Headers) != 0 {
		return PrivateKey{}, errs.New(errs.Invalid, "the key file is not one PEM block of type "+pemPrivateKey)
	}
	k, err := kem().NewPrivateKey(block.Bytes)
	if err != nil {
		return PrivateKey{}, errs.Wrap(errs.Invalid, "the key file does not hold an X25519 private key", err)
	}
	return PrivateKey{k}, nil
}

// MarshalPEM returns the PEM form, for a file of mode 0600.
func (k PrivateKey) MarshalPEM() ([]byte, error) {
	b, err := k.key.Bytes()
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "the key cannot be encoded", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPrivateKey, Bytes: b}), nil
}

// Public returns the public key.
func (k PrivateKey) Public() PublicKey {
	if k.key == nil {
		return PublicKey{}
	}
	return PublicKey{k.key.PublicKey()}
}

// Derive returns n bytes that only the holder of the private key can compute, for the use that info names (HKDF-SHA256): a symmetric key for what a
// pool seals to itself. Errors: [errs.Internal].
func (k PrivateKey) Derive(info string, n int) ([]byte, error) {
	b, err := k.key.Bytes()
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "the key cannot be encoded", err)
	}
	defer clear(b)
	out, err := hkdf.Key(sha256.New, b, nil, "sallyport "+info, n)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "no key can be derived", err)
	}
	return out, nil
}

// String redacts.
func (k PrivateKey) String() string { return "sealing key " + k.Public().Fingerprint() }

// GoString redacts.
func (k PrivateKey) GoString() string { return k.String() }

package intent

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"sync"
	"time"

	"sallyport.dev/errs"
)

// NodeKeyLife is how long a node key is certified for. Control certifies a fresh one when half of it is over.
const NodeKeyLife = 30 * 24 * time.Hour

const pemPrivateKey = "PRIVATE KEY"

// KeyID names an Ed25519 public key: the first 16 bytes of SHA-256 over Join("key id v1", key), in lower-case hex.
func KeyID(public ed25519.PublicKey) string {
	d := sha256.Sum256(Join("key id v1", public))
	return hex.EncodeToString(d[:16])
}

// SigningKey is an Ed25519 private key: of the intent root, or of a control node. It prints as its id. Safe for concurrent use.
type SigningKey struct {
	id  string
	key ed25519.PrivateKey
}

// GenerateKey makes a signing key.
func GenerateKey() (SigningKey, error) {
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return SigningKey{}, errs.Wrap(errs.Internal, "no randomness for a key", err)
	}
	return newSigningKey(k), nil
}

func newSigningKey(k ed25519.PrivateKey) SigningKey {
	return SigningKey{id: KeyID(k.Public().(ed25519.PublicKey)), key: k}
}

// ParseSigningKey reads the PEM form (PKCS #8). Errors: [errs.Invalid].
func ParseSigningKey(b []byte) (SigningKey, error) {
	block, rest := pem.Decode(b)
	if block == nil || block.Type != pemPrivateKey || len(rest) != 0 {
		return SigningKey{}, errs.New(errs.Invalid, "the key file is not one PEM private key")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return SigningKey{}, errs.Wrap(errs.Invalid, "the key file is not a PKCS #8 private key", err)
	}
	e, ok := k.(ed25519.PrivateKey)
	if !ok {
		return SigningKey{}, errs.New(errs.Invalid, "the key file does not hold an Ed25519 key")
	}
	return newSigningKey(e), nil
}

// MarshalPEM returns the PEM form (PKCS #8), for a file of mode 0600.
func (k SigningKey) MarshalPEM() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k.key)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "the key cannot be encoded", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPrivateKey, Bytes: der}), nil
}

// ID returns the key's id.
func (k SigningKey) ID() string { return k.id }

// Public returns the public key.
func (k SigningKey) Public() ed25519.PublicKey { return k.key.Public().(ed25519.PublicKey) }

// Sign signs an encoded intent.
func (k SigningKey) Sign(encoded []byte) []byte {
	return ed25519.Sign(k.key, append([]byte(domain), encoded...))
}

// String returns the id only.
func (k SigningKey) String() string { return "key " + k.id }

// GoString returns the id only.
func (k SigningKey) GoString() string { return k.String() }

// NodeKey is a control node's public key, certified by the intent root.
type NodeKey struct {
	ID        string
	Public    ed25519.PublicKey
	NotAfter  time.Time // seconds
	Signature []byte    // by the root
}

func (n NodeKey) signed() []byte {
	return Join("node key v1", []byte(n.ID), n.Public, binary.BigEndian.AppendUint64(nil, uint64(n.NotAfter.Unix())))
}

// Certify makes the certificate of a node key. k is the intent root.
func (k SigningKey) Certify(node ed25519.PublicKey, notAfter time.Time) NodeKey {
	n := NodeKey{ID: KeyID(node), Public: node, NotAfter: notAfter.UTC().Truncate(time.Second)}
	n.Signature = ed25519.Sign(k.key, n.signed())
	return n
}

// VerifyNodeKey checks a node key against the pinned root. Errors: [errs.NotAllowed].
func VerifyNodeKey(root ed25519.PublicKey, n NodeKey, now time.Time) error {
	switch {
	case len(root) != ed25519.PublicKeySize || len(n.Public) != ed25519.PublicKeySize:
		return errs.New(errs.NotAllowed, "the control node's key has a wrong length")
	case n.ID != KeyID(n.Public):
		return errs.New(errs.NotAllowed, "the control node's key does not have the id that it claims")
	case !ed25519.Verify(root, n.signed(), n.Signature):
		return errs.New(errs.NotAllowed, "the control node's key is not signed by the intent root that came with enrolment")
	case now.After(n.NotAfter):
		return errs.New(errs.NotAllowed, "the control node's key has expired; restart that control node")
	}
	return nil
}

// Ring holds the node keys that a worker knows, all under one pinned root: the union of what each control node's Link said last, so that a
// node with an older list cannot take away a newer node's key, and a key that every node dropped is gone. Safe for concurrent use.
type Ring struct {
	root ed25519.PublicKey

	mu    sync.RWMutex
	lists map[string]map[string]NodeKey // by control node, then key id
}

// NewRing makes an empty ring under root.
func NewRing(root ed25519.PublicKey) *Ring {
	return &Ring{root: root, lists: map[string]map[string]NodeKey{}}
}

// Replace takes keys as the whole list of one control node. A list with one bad key changes nothing (validate first, advance second).
// Errors: [errs.NotAllowed].
func (r *Ring) Replace(node string, keys []NodeKey, now time.Time) error {
	next := make(map[string]NodeKey, len(keys))
	for _, k := range keys {
		if err := VerifyNodeKey(r.root, k, now); err != nil {
			return err
		}
		next[k.ID] = k
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lists[node] = next
	return nil
}

// Verify reports whether signature is of encoded under a known key that has not expired at now.
func (r *Ring) Verify(keyID string, encoded, signature []byte, now time.Time) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, list := range r.lists {
		if k, ok := list[keyID]; ok && !now.After(k.NotAfter) {
			return ed25519.Verify(k.Public, append([]byte(domain), encoded...), signature)
		}
	}
	return false
}

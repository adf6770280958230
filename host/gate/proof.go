package gate

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/go-json-experiment/json"

	"sallyport.dev/errs"
	"sallyport.dev/host/sandbox"
	"sallyport.dev/host/sandbox/proc"
)

// Proof is how a supervisor is known: its key, its process, and the sandbox that it is the parent of.
type Proof struct {
	Session    string          `json:"session"`
	Epoch      int64           `json:"epoch"`
	Key        []byte          `json:"key"` // Ed25519
	Supervisor proc.ID         `json:"supervisor"`
	Sandbox    sandbox.Process `json:"sandbox"`
}

// Fingerprint is the SHA-256 of the key in hex.
func (p Proof) Fingerprint() string {
	sum := sha256.Sum256(p.Key)
	return hex.EncodeToString(sum[:])
}

// Parent is the proof as control records it: key fingerprint, process, start time and network namespace.
func (p Proof) Parent() string {
	return fmt.Sprintf("key=%s pid=%d start=%d net=%s", p.Fingerprint(), p.Supervisor.PID, p.Supervisor.Start, p.Sandbox.NetNS)
}

// Key is a supervisor's key. It lives and dies with the process.
type Key struct {
	private ed25519.PrivateKey
}

// NewKey makes a key.
func NewKey() (Key, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Key{}, errs.Wrap(errs.Internal, "no key could be made", err)
	}
	return Key{private}, nil
}

// Public is the part that others may know.
func (k Key) Public() []byte { return k.private.Public().(ed25519.PublicKey) }

// String keeps the key out of logs.
func (Key) String() string { return "key(hidden)" }

// GoString keeps the key out of logs.
func (Key) GoString() string { return "gate.Key(hidden)" }

// domain keeps a signature for this purpose from being one for another.
const domain = "sallyport supervisor v1\n"

// challengeSize is the length of a challenge.
const challengeSize = 32

func newChallenge() []byte {
	c := make([]byte, challengeSize)
	rand.Read(c) // never fails
	return c
}

// sign returns the proof's bytes and the signature over them and the challenge.
func (k Key) sign(p Proof, challenge []byte) (statement, signature []byte, err error) {
	if statement, err = json.Marshal(p); err != nil {
		return nil, nil, errs.Wrap(errs.Internal, "the proof cannot be written", err)
	}
	return statement, ed25519.Sign(k.private, message(challenge, statement)), nil
}

// readProof reads a statement and says whether its own key signed it for this challenge.
func readProof(statement, signature, challenge []byte) (Proof, bool, error) {
	var p Proof
	if err := json.Unmarshal(statement, &p, json.RejectUnknownMembers(true)); err != nil {
		return p, false, errs.Wrap(errs.Invalid, "the supervisor's proof cannot be read", err)
	}
	if len(p.Key) != ed25519.PublicKeySize || len(challenge) != challengeSize {
		return p, false, nil
	}
	return p, ed25519.Verify(p.Key, message(challenge, statement), signature), nil
}

func message(challenge, statement []byte) []byte {
	return append(append([]byte(domain), challenge...), statement...)
}

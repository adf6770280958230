package audit

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"

	"github.com/go-json-experiment/json"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// Checkpoint states where a chain stood when every row up to Seq was durable.
type Checkpoint struct {
	V           int    `json:"v"` // 1
	Org         string `json:"org"`
	Incarnation string `json:"incarnation"`
	Counter     int64  `json:"counter"` // durable commits
	Run         string `json:"run"`
	Seq         int64  `json:"seq"`
	Link        string `json:"link"` // hex
	At          int64  `json:"at"`
}

// Signed is a checkpoint as it travels: the exact bytes that were signed, the key's id and the signature.
type Signed struct {
	Body      []byte `json:"body"` // JSON of a Checkpoint, kept as bytes
	Key       string `json:"key"`
	Signature []byte `json:"sig"`
}

const (
	checkpointDomain = "sallyport checkpoint v1\n"
	witnessDomain    = "sallyport witness v1\n"
	maxSigned        = 4 << 10
)

// KeyID names an audit key: 16 hex digits of the SHA-256 of the public key.
func KeyID(public ed25519.PublicKey) string {
	sum := sha256.Sum256(public)
	return hex.EncodeToString(sum[:8])
}

// Sign signs c with the audit key.
func Sign(key ed25519.PrivateKey, c Checkpoint) (Signed, error) {
	c.V = 1
	body, err := json.Marshal(c)
	if err != nil {
		return Signed{}, errs.Wrap(errs.Internal, "a checkpoint could not be written", err)
	}
	return Signed{
		Body:      body,
		Key:       KeyID(key.Public().(ed25519.PublicKey)),
		Signature: ed25519.Sign(key, append([]byte(checkpointDomain), body...)),
	}, nil
}

// Encode returns the bytes that hosts and workers keep and countersign.
func (s Signed) Encode() ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "a checkpoint could not be written", err)
	}
	return b, nil
}

// DecodeSigned reads what [Signed.Encode] wrote. It checks the form, not the signature. Errors: [errs.Invalid], [errs.Oversize].
func DecodeSigned(b []byte) (Signed, error) {
	var s Signed
	if len(b) > maxSigned {
		return s, errs.Newf(errs.Oversize, "a checkpoint has at most %d bytes", maxSigned)
	}
	if err := json.Unmarshal(bytes.TrimSpace(b), &s, json.RejectUnknownMembers(true)); err != nil {
		return s, errs.Wrap(errs.Invalid, "this is no checkpoint", err)
	}
	return s, nil
}

// Checkpoint reads the body. It does not check the signature. Errors: [errs.Invalid].
func (s Signed) Checkpoint() (Checkpoint, error) {
	var c Checkpoint
	if err := json.Unmarshal(s.Body, &c, json.RejectUnknownMembers(true)); err != nil {
		return c, errs.Wrap(errs.Invalid, "this is no checkpoint", err)
	}
	if c.V != 1 {
		return c, errs.Newf(errs.Invalid, "checkpoint version %d is not known here; use a newer build", c.V)
	}
	if _, err := control.ParseDigest(c.Link); err != nil {
		return c, err
	}
	if c.Seq < 1 || c.Run == "" {
		return c, errs.New(errs.Invalid, "a checkpoint names a run and a row")
	}
	return c, nil
}

// Verify checks the signature against one of the keys and returns the checkpoint. Errors: [errs.Invalid] (form, unknown key, signature).
func (s Signed) Verify(keys ...ed25519.PublicKey) (Checkpoint, error) {
	for _, k := range keys {
		if KeyID(k) != s.Key {
			continue
		}
		if !ed25519.Verify(k, append([]byte(checkpointDomain), s.Body...), s.Signature) {
			return Checkpoint{}, errs.New(errs.Invalid, "the signature of this checkpoint is wrong: it was changed, or another key signed it")
		}
		return s.Checkpoint()
	}
	return Checkpoint{}, errs.Newf(errs.Invalid, "no given key has the id %s; give the audit key that signed this checkpoint", s.Key)
}

// WitnessMessage is what a host or worker signs with its identity's key: that it holds exactly this checkpoint.
func WitnessMessage(signed []byte) []byte {
	return append([]byte(witnessDomain), signed...)
}

// VerifyWitness checks a countersignature by an Ed25519 or ECDSA identity key (ECDSA: ASN.1 over SHA-256). Errors: [errs.Invalid].
func VerifyWitness(public crypto.PublicKey, signed, signature []byte) error {
	msg := WitnessMessage(signed)
	ok := false
	switch k := public.(type) {
	case ed25519.PublicKey:
		ok = ed25519.Verify(k, msg, signature)
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(msg)
		ok = ecdsa.VerifyASN1(k, sum[:], signature)
	}
	if !ok {
		return errs.New(errs.Invalid, "the countersignature does not fit this checkpoint and identity")
	}
	return nil
}

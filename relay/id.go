package relay

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"strings"

	"sallyport.dev/errs"
)

// IDLength is the length of an id: 128 bits in base32.
const IDLength = 26

const alphabet = "abcdefghijklmnopqrstuvwxyz234567"

var encoding = base32.NewEncoding(alphabet).WithPadding(base32.NoPadding)

// NewID returns 128 random bits as 26 characters of lower-case base32 (RFC 4648 alphabet, no padding).
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) //nolint:errcheck // crypto/rand never fails
	return encoding.EncodeToString(b[:])
}

// ValidID reports whether s is a canonical id: two different ids never mean the same 128 bits.
func ValidID(s string) bool {
	if len(s) != IDLength {
		return false
	}
	for i := range len(s) {
		if !idByte[s[i]] {
			return false
		}
	}
	// 26 characters carry 130 bits: the last two are zero in the canonical form.
	last := strings.IndexByte(alphabet, s[IDLength-1])
	return last&3 == 0
}

// CallID is the id under which control knows the call that a session's record makes: the first 128 bits of SHA-256 over "sallyport call id v1\n"
// and both parts, each prefixed by its length as 8 bytes, big-endian. It is what the model passes to the tool that waits.
func CallID(session, record string) string {
	h := sha256.New()
	h.Write([]byte("sallyport call id v1\n"))
	for _, part := range []string{session, record} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	return encoding.EncodeToString(h.Sum(nil)[:16])
}

var idByte = func() (t [256]bool) {
	for _, c := range []byte(alphabet) {
		t[c] = true
	}
	return t
}()

// Kind is what a name in new/ announces.
type Kind int

// Kinds of names in new/.
const (
	KindNone Kind = iota
	KindCall
	KindCancel
	KindAck
	KindGate
	KindRefused
)

// GateName is the one name in new/ that carries no id.
const GateName = "gate.json"

// ParseName reads a name in new/ strictly: ID.call, ID.cancel, ID.ack, ID.refused or gate.json. Anything else is KindNone.
func ParseName(name string) (kind Kind, id string) {
	if name == GateName {
		return KindGate, ""
	}
	id, suffix, _ := strings.Cut(name, ".")
	switch suffix {
	case "call":
		kind = KindCall
	case "cancel":
		kind = KindCancel
	case "ack":
		kind = KindAck
	case "refused":
		kind = KindRefused
	default:
		return KindNone, ""
	}
	if !ValidID(id) {
		return KindNone, ""
	}
	return kind, id
}

// CallName is the name in new/ of a call.
func CallName(id string) string { return id + ".call" }

// CancelName is the name in new/ of a cancel.
func CancelName(id string) string { return id + ".cancel" }

// AckName is the name in new/ of an ack.
func AckName(id string) string { return id + ".ack" }

// RefusedName is the name in new/ of what a guest refused by itself.
func RefusedName(id string) string { return id + ".refused" }

// ResultName is the name in results/ of a result, and in progress/ of a call's progress.
func ResultName(id string) string { return id + ".json" }

// ParseResultName reads a name in results/ or progress/. Errors: [errs.Invalid].
func ParseResultName(name string) (id string, err error) {
	id, ok := strings.CutSuffix(name, ".json")
	if !ok || !ValidID(id) {
		return "", errs.New(errs.Invalid, "not the name of a result")
	}
	return id, nil
}

package control

import "encoding/binary"

// Binding is everything that a decision is bound to (I7). The session's epoch is not in it: park and resume keep an approval. The account is,
// the credential's version is not: a refresh keeps an approval, another account voids it.
type Binding struct {
	Org            string
	Session        string
	Profile        string
	ProfileVersion int64 // frozen in the session
	Connection     string
	Revision       int64
	Catalog        Digest
	Tool           string
	Effect         Effect
	Account        string
	Subject        string
	Arguments      []byte
	// Of a continuation: what the upstream asked with, and what a person answered.
	RequestState   []byte
	InputResponses []byte
}

// Digest is the binding digest: SumParts("binding v1", ...) over the members in the order of the struct, numbers as 8 bytes,
// big-endian, the catalog digest as its 32 bytes; a continuation adds the SHA-256 of requestState and of inputResponses, 32 bytes each. Vectors: docs/digests.md.
func (b *Binding) Digest() Digest {
	parts := [][]byte{
		[]byte(b.Org), []byte(b.Session), []byte(b.Profile), number(b.ProfileVersion), []byte(b.Connection),
		number(b.Revision), b.Catalog[:], []byte(b.Tool), []byte(b.Effect), []byte(b.Account), []byte(b.Subject), b.Arguments,
	}
	if len(b.RequestState) > 0 || len(b.InputResponses) > 0 {
		state, responses := Sum(b.RequestState), Sum(b.InputResponses)
		parts = append(parts, state[:], responses[:])
	}
	return SumParts("binding v1", parts...)
}

func number(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// BindingOf is the binding of a call as its row stands: with the answer of the coming attempt, where there is one.
func BindingOf(c *Call) *Binding {
	return &Binding{
		Org: c.Org, Session: c.Session, Profile: c.Profile, ProfileVersion: c.ProfileVersion, Connection: c.Connection, Revision: c.Revision,
		Catalog: c.Catalog, Tool: c.Tool, Effect: c.Effect, Account: c.Account, Subject: c.Subject, Arguments: c.Arguments,
		RequestState: c.RequestState, InputResponses: c.Answer,
	}
}

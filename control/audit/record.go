// Package audit is the tamper-evident record of the control plane: transition rows (digests only, never a body), hash-linked per committed
// batch in one chain per control run, with signed checkpoints that hosts and workers countersign. It is pure: the store writes the rows, this
// package says what links them, and [Verify] checks an export without a store, a network or a clock. Format and vectors: docs/audit.md.
//
// What the chain proves: whoever holds one checkpoint (a host, a worker, a person with a copy) can tell whether any row up to it was changed,
// left out or put in. What it does not prove: that control wrote the truth in the first place, and anything after the last checkpoint that
// somebody else holds.
package audit

import (
	"crypto/sha256"
	"encoding/binary"

	"sallyport.dev/control"
)

// Kinds of subjects whose transitions are recorded.
const (
	KindRun        = "run" // one process of control over this store
	KindCall       = "call"
	KindQuestion   = "question"
	KindSession    = "session"
	KindGrant      = "grant"
	KindSwitch     = "switch"
	KindConnection = "connection"
	KindCatalog    = "catalog"
	KindProfile    = "profile"
	KindCredential = "credential"
	KindMachine    = "machine"
	KindPerson     = "person" // and the links, sessions and tokens that stand for one
	KindStore      = "store"  // quarantine, accept-restore, backup, purge
)

// Record is one transition. Detail holds digests, counts, codes and names; never arguments, results or a secret.
type Record struct {
	Seq     int64  `json:"seq"`     // grows by one over all runs of a store
	Run     string `json:"run"`     // the control run that wrote it
	At      int64  `json:"at"`      // Unix milliseconds, the store's time
	Org     string `json:"org"`     //
	Kind    string `json:"kind"`    // what the subject is
	Subject string `json:"subject"` // its id or name
	Attempt int64  `json:"attempt"` // of a call; 0 otherwise
	From    string `json:"from"`    // state before, "" for a new subject
	Event   string `json:"event"`   //
	To      string `json:"to"`      // state after
	Actor   string `json:"actor"`   // control:NODE, local:USER, worker:ID, host:ID
	Detail  string `json:"detail"`  //
}

// Digest is the record's own digest: SumParts("audit record v1", members in the order of the struct, numbers as 8 bytes big-endian).
func (r *Record) Digest() control.Digest {
	b := make([]byte, 0, 512)
	b = append(b, "sallyport audit record v1\n"...)
	b = appendNumber(b, r.Seq)
	b = appendPart(b, r.Run)
	b = appendNumber(b, r.At)
	b = appendPart(b, r.Org)
	b = appendPart(b, r.Kind)
	b = appendPart(b, r.Subject)
	b = appendNumber(b, r.Attempt)
	b = appendPart(b, r.From)
	b = appendPart(b, r.Event)
	b = appendPart(b, r.To)
	b = appendPart(b, r.Actor)
	b = appendPart(b, r.Detail)
	return sha256.Sum256(b)
}

func appendPart(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}

func appendNumber(b []byte, n int64) []byte {
	b = binary.BigEndian.AppendUint64(b, 8)
	return binary.BigEndian.AppendUint64(b, uint64(n))
}

// RunStart is the link before the first batch of a run: every run's chain has its own beginning.
func RunStart(run string) control.Digest {
	return control.SumParts("audit run v1", []byte(run))
}

// Link returns the link of a batch: SumParts("audit link v1", link before, digest of each record in order).
func Link(before control.Digest, batch []Record) control.Digest {
	b := make([]byte, 0, 64+40*(len(batch)+1))
	b = append(b, "sallyport audit link v1\n"...)
	b = binary.BigEndian.AppendUint64(b, sha256.Size)
	b = append(b, before[:]...)
	for i := range batch {
		d := batch[i].Digest()
		b = binary.BigEndian.AppendUint64(b, sha256.Size)
		b = append(b, d[:]...)
	}
	return sha256.Sum256(b)
}

// After is the detail of a run's first record: it ties the run to the end of the one before it, so that a whole run cannot be left out.
// Both are empty for a store's first run.
func After(run string, link control.Digest) string {
	if run == "" {
		return "first run of this store"
	}
	return "after run " + run + " link " + link.String()
}

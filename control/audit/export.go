package audit

import (
	"io"

	"github.com/go-json-experiment/json"

	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// Line is one line of an export: exactly one member is set.
type Line struct {
	Head       *Head    `json:"head,omitempty"`       // first line of an export
	Record     *Record  `json:"record,omitempty"`     //
	Link       *Linked  `json:"link,omitempty"`       // after the last record of each batch
	Checkpoint *Signed  `json:"checkpoint,omitempty"` // after the link of the row that it states
	Witness    *Witness `json:"witness,omitempty"`    // after its checkpoint
}

// Head says where an export begins. Rows before Seq are not in it: they were retained no longer, or not asked for.
type Head struct {
	V    int    `json:"v"`    // 1
	Org  string `json:"org"`  //
	Seq  int64  `json:"seq"`  // the last row that is left out; 0: nothing is
	Run  string `json:"run"`  // of that row
	Link string `json:"link"` // of that row's batch; "" when Seq is 0
}

// Linked closes a batch.
type Linked struct {
	Run  string `json:"run"`
	Seq  int64  `json:"seq"`
	Link string `json:"link"`
}

// Witness is a countersignature: By held the checkpoint whose bytes have this digest.
type Witness struct {
	By         string `json:"by"`         // SPIFFE id
	Checkpoint string `json:"checkpoint"` // hex SHA-256 of Signed.Encode
	Signature  []byte `json:"sig"`
	At         int64  `json:"at"`
}

// WriteLine writes one line of an export.
func WriteLine(w io.Writer, l Line) error {
	b, err := MarshalLine(l)
	if err != nil {
		return err
	}
	if _, err := w.Write(append(b, '\n')); err != nil {
		return errs.Wrap(errs.Unavailable, "the export cannot be written", err)
	}
	return nil
}

// MarshalLine returns one line of an export, without its newline.
func MarshalLine(l Line) ([]byte, error) {
	b, err := json.Marshal(l)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "an audit line could not be written", err)
	}
	return b, nil
}

// Digest names a signed checkpoint: SHA-256 of its encoded bytes, domain-separated.
func (s Signed) Digest() (control.Digest, error) {
	b, err := s.Encode()
	if err != nil {
		return control.Digest{}, err
	}
	return control.SumParts("signed checkpoint v1", b), nil
}

// Package enrol gives a machine its identity: by a one-time token over the network, or on the machine of the CA itself. Both end with the same
// files, in the directory of the process:
//
//	identity.key  identity.crt   the key and the certificate (24 h)
//	enrolment.json               who it is, the roots, control's nodes, the intent root
//	identity.next                a renewed identity of a process that may open no file (see Slot); taken over at the next start
package enrol

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/identity/statefile"
)

const (
	keyFile  = "identity.key"
	certFile = "identity.crt"
	nextKey  = "identity.key.next"
	nextFile = "identity.next"
	mainFile = "enrolment.json"
)

// Node is one control node.
type Node struct {
	ID      string `json:"id"`      // SPIFFE
	Address string `json:"address"` // host:port, or unix:PATH
}

// Enrolment is what a machine learned when it joined.
type Enrolment struct {
	V          int    `json:"v"`
	ID         string `json:"id"`
	Control    []Node `json:"control"`
	CA         string `json:"ca"`          // PEM
	IntentRoot []byte `json:"intent_root"` // Ed25519 public key
}

func (e Enrolment) validate() error {
	id, err := spiffeid.FromString(e.ID)
	if err == nil {
		_, err = identity.ParseID(id)
	}
	if err != nil {
		return errs.Wrap(errs.Invalid, "the enrolment names no identity of ours", err)
	}
	switch {
	case e.V != 1:
		return errs.New(errs.Invalid, "the enrolment is of another version; enrol again")
	case len(e.Control) == 0:
		return errs.New(errs.Invalid, "the enrolment names no control node; enrol again")
	case len(e.IntentRoot) != ed25519.PublicKeySize:
		return errs.New(errs.Invalid, "the enrolment has no intent root; enrol again")
	}
	for _, n := range e.Control {
		id, err := spiffeid.FromString(n.ID)
		if err != nil || n.Address == "" {
			return errs.Wrap(errs.Invalid, "the enrolment has a control node without id or address; enrol again", err)
		}
		if name, err := identity.ParseID(id); err != nil || name.Role != identity.Control {
			return errs.New(errs.Invalid, "the enrolment names a control node that is none; enrol again")
		}
	}
	return nil
}

// Load reads the identity of the process that owns dir, verified at now, and takes over a renewed one that a confined process left behind. Errors:
// [errs.NotFound] when the machine was never enrolled, [errs.NotAllowed] when the identity expired or a file is open to others, [errs.Invalid].
func Load(dir *statefile.Dir, now time.Time) (*identity.Source, Enrolment, error) {
	var e Enrolment
	b, err := dir.Read(mainFile)
	if errs.Is(err, errs.NotFound) {
		return nil, e, errs.Wrap(errs.NotFound, "this machine is not enrolled; on control type: sallyport enrol, then start with --join TOKEN", err)
	}
	if err != nil {
		return nil, e, err
	}
	if err := json.Unmarshal(b, &e, json.RejectUnknownMembers(true)); err != nil {
		return nil, e, errs.Wrap(errs.Invalid, dir.Path(mainFile)+" cannot be read; enrol again", err)
	}
	if err := e.validate(); err != nil {
		return nil, e, err
	}
	if err := takeOver(dir, &e, now); err != nil {
		return nil, e, err
	}
	m, err := read(dir, e)
	if err != nil {
		return nil, e, err
	}
	src, err := identity.NewSource(m, now)
	if err != nil {
		return nil, e, err
	}
	if src.ID().String() != e.ID {
		return nil, e, errs.New(errs.Invalid, "the identity's certificate is not of the machine that was enrolled; enrol again")
	}
	return src, e, nil
}

// read finds the key that belongs to the certificate: a crash between the two renames of Keep leaves it under the other name.
func read(dir *statefile.Dir, e Enrolment) (identity.Material, error) {
	m := identity.Material{CA: []byte(e.CA)}
	var err error
	if m.Chain, err = dir.Read(certFile); err != nil {
		return m, err
	}
	if m.Key, err = dir.Read(nextKey); err == nil && m.Paired() {
		return m, dir.Rename(nextKey, keyFile)
	}
	if err != nil && !errs.Is(err, errs.NotFound) {
		return m, err
	}
	m.Key, err = dir.Read(keyFile)
	return m, err
}

// Keep stores a renewed identity: the new key beside the old one, then the certificate, then the key in its place. A crash at any point leaves one
// whole pair. Errors: [errs.Unavailable].
func Keep(dir *statefile.Dir, e Enrolment, m identity.Material) error {
	if !bytes.Equal(m.CA, []byte(e.CA)) {
		e.CA = string(m.CA)
		if err := writeEnrolment(dir, e); err != nil {
			return err
		}
	}
	if err := dir.Write(nextKey, m.Key); err != nil {
		return err
	}
	if err := dir.Write(certFile, m.Chain); err != nil {
		return err
	}
	return dir.Rename(nextKey, keyFile)
}

func writeEnrolment(dir *statefile.Dir, e Enrolment) error {
	if err := e.validate(); err != nil {
		return err
	}
	b, err := json.Marshal(e)
	if err != nil {
		return errs.Wrap(errs.Internal, "the enrolment cannot be written", err)
	}
	return dir.Write(mainFile, append(b, '\n'))
}

// Slot keeps a renewed identity in a file that was opened before the process was confined. Its content carries its own digest: a torn write is no
// identity, and the one in identity.crt still is.
type Slot struct{ file *os.File }

// OpenSlot opens dir's slot for writing. Errors: [errs.NotAllowed], [errs.Unavailable].
func OpenSlot(dir *statefile.Dir) (*Slot, error) {
	f, err := dir.OpenSlot(nextFile)
	if err != nil {
		return nil, err
	}
	return &Slot{f}, nil
}

// Close releases the file.
func (s *Slot) Close() error { return s.file.Close() }

type slotJSON struct {
	Key   string `json:"key"`
	Chain string `json:"chain"`
	CA    string `json:"ca"`
}

// Keep writes m over what the slot held. Errors: [errs.Unavailable].
func (s *Slot) Keep(m identity.Material) error {
	b, err := json.Marshal(slotJSON{string(m.Key), string(m.Chain), string(m.CA)})
	if err != nil {
		return errs.Wrap(errs.Internal, "the identity cannot be written", err)
	}
	d := sha256.Sum256(b)
	b = append(b, '\n')
	b = append(b, hex.EncodeToString(d[:])...)
	err = s.file.Truncate(0)
	if err == nil {
		_, err = s.file.WriteAt(b, 0)
	}
	if err == nil {
		err = s.file.Sync()
	}
	if err != nil {
		return errs.Wrap(errs.Unavailable, "the renewed identity cannot be written", err)
	}
	return nil
}

// takeOver moves a whole identity from the slot into the usual files, and empties the slot.
func takeOver(dir *statefile.Dir, e *Enrolment, now time.Time) error {
	b, err := dir.Read(nextFile)
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if m, ok := parseSlot(b); ok {
		src, err := identity.NewSource(m, now)
		if err == nil && src.ID().String() == e.ID {
			if err := Keep(dir, *e, m); err != nil {
				return err
			}
			e.CA = string(m.CA)
		}
	}
	if len(b) == 0 {
		return nil
	}
	return dir.Empty(nextFile)
}

func parseSlot(b []byte) (identity.Material, bool) {
	body, sum, ok := bytes.Cut(b, []byte{'\n'})
	d := sha256.Sum256(body)
	if !ok || string(sum) != hex.EncodeToString(d[:]) {
		return identity.Material{}, false
	}
	var j slotJSON
	if err := json.Unmarshal(body, &j, json.RejectUnknownMembers(true)); err != nil {
		return identity.Material{}, false
	}
	return identity.Material{Key: []byte(j.Key), Chain: []byte(j.Chain), CA: []byte(j.CA)}, true
}

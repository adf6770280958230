// Package journalkey seals the bodies of the journal (arguments, results, what an upstream asked) to a key that is kept apart from the database:
// a copy of the database, or a backup, shows digests and names and no body. Whoever holds both reads both.
//
// A body is AES-256-GCM under a random nonce; the associated data names what it is and of which call, so that a body put in another's place does
// not open. One key seals fewer than 2^32 bodies (NIST SP 800-38D); [Ring.Rotate] makes a new one long before, and the old ones stay to open
// what they sealed until retention has removed it. Losing the file loses every body and nothing else.
package journalkey

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sallyport.dev/errs"
)

// Ring is the journal's keys: the last one seals, all open. It is safe for concurrent use and never prints a key.
type Ring struct {
	keys []key
}

type key struct {
	id   uint32
	raw  [32]byte
	aead cipher.AEAD
}

const (
	header    = "sallyport journal key v1"
	version   = 1
	nonceSize = 12
	prefix    = 1 + 4 + nonceSize
	// Overhead is how many bytes a sealed body is longer than the body.
	Overhead = prefix + 16
)

// New makes a ring with one fresh key.
func New() (*Ring, error) {
	r := &Ring{}
	return r, r.add()
}

func (r *Ring) add() error {
	k := key{id: 1}
	if n := len(r.keys); n > 0 {
		k.id = r.keys[n-1].id + 1
	}
	rand.Read(k.raw[:]) // never fails (crypto/rand)
	if err := k.open(); err != nil {
		return err
	}
	r.keys = append(r.keys, k)
	return nil
}

func (k *key) open() error {
	block, err := aes.NewCipher(k.raw[:])
	if err == nil {
		k.aead, err = cipher.NewGCM(block)
	}
	if err != nil {
		return errs.Wrap(errs.Internal, "this build cannot seal: AES-256-GCM is not available", err)
	}
	return nil
}

// Rotate returns a ring with one more key, which seals from now on. Write it before use.
func (r *Ring) Rotate() (*Ring, error) {
	next := &Ring{keys: append([]key(nil), r.keys...)}
	return next, next.add()
}

// Seal seals body. about names what it is; the same must be given to open it.
func (r *Ring) Seal(body []byte, about string) []byte {
	k := &r.keys[len(r.keys)-1]
	out := make([]byte, prefix, len(body)+Overhead)
	out[0] = version
	binary.BigEndian.PutUint32(out[1:], k.id)
	rand.Read(out[5:prefix])
	return k.aead.Seal(out, out[5:prefix], body, []byte(about))
}

// Open opens what [Ring.Seal] sealed. Errors: [errs.Internal] when it was changed, is another's, or its key is not in the ring.
func (r *Ring) Open(sealed []byte, about string) ([]byte, error) {
	return r.AppendOpen([]byte{}, sealed, about)
}

// AppendOpen is [Ring.Open] that appends to dst, which sealed must not overlap.
func (r *Ring) AppendOpen(dst, sealed []byte, about string) ([]byte, error) {
	if len(sealed) < Overhead || sealed[0] != version {
		return nil, errs.New(errs.Internal, "a body of the journal cannot be read: it is no sealed body of this version")
	}
	id := binary.BigEndian.Uint32(sealed[1:])
	for i := range r.keys {
		if r.keys[i].id != id {
			continue
		}
		body, err := r.keys[i].aead.Open(dst, sealed[5:prefix], sealed[prefix:], []byte(about))
		if err != nil {
			return nil, errs.New(errs.Internal, "a body of the journal does not open: it was changed, or another journal key sealed it")
		}
		return body, nil
	}
	return nil, errs.Newf(errs.Internal, "a body of the journal was sealed by key %d, which is not in the journal key file", id)
}

// String redacts.
func (r *Ring) String() string { return "journal key (" + strconv.Itoa(len(r.keys)) + " versions)" }

// GoString redacts.
func (r *Ring) GoString() string { return r.String() }

// MarshalJSON redacts.
func (r *Ring) MarshalJSON() ([]byte, error) { return []byte(strconv.Quote(r.String())), nil }

// LogValue redacts.
func (r *Ring) LogValue() slog.Value { return slog.StringValue(r.String()) }

// Read reads the key file. Errors: [errs.NotFound]; [errs.Invalid] when others can read it or its form is wrong.
func Read(path string) (*Ring, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errs.Newf(errs.NotFound, "there is no journal key at %s; run sallyport init", path)
	}
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, "the journal key cannot be read", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, errs.Newf(errs.Invalid, "the journal key %s can be read by others; chmod 600 it, and think about who had it", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, "the journal key cannot be read", err)
	}
	r, ok := parse(string(b))
	if !ok {
		return nil, errs.Newf(errs.Invalid, "%s is no journal key file", path) // no detail: it could quote a key
	}
	return r, nil
}

func parse(s string) (*Ring, bool) {
	lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	if len(lines) < 2 || lines[0] != header {
		return nil, false
	}
	r := &Ring{}
	for _, l := range lines[1:] {
		num, enc, ok := strings.Cut(l, " ")
		id, err := strconv.ParseUint(num, 10, 32)
		if !ok || err != nil || len(r.keys) > 0 && uint32(id) <= r.keys[len(r.keys)-1].id {
			return nil, false
		}
		raw, err := base64.StdEncoding.Strict().DecodeString(enc)
		if err != nil || len(raw) != 32 {
			return nil, false
		}
		k := key{id: uint32(id), raw: [32]byte(raw)}
		if err := k.open(); err != nil {
			return nil, false
		}
		r.keys = append(r.keys, k)
	}
	return r, true
}

// Create writes a new key file (0600) and never replaces one. Errors: [errs.Conflict] when there is one.
func Create(path string) (*Ring, error) {
	if _, err := os.Lstat(path); err == nil {
		return nil, errs.Newf(errs.Conflict, "%s is there already; replacing it would lose every body of the journal", path)
	}
	r, err := New()
	if err != nil {
		return nil, err
	}
	return r, r.Write(path)
}

// Write writes the ring to path: a whole new file in place of the old one, on stable storage when it returns.
func (r *Ring) Write(path string) error {
	var b strings.Builder
	b.WriteString(header + "\n")
	for i := range r.keys {
		b.WriteString(strconv.FormatUint(uint64(r.keys[i].id), 10) + " " + base64.StdEncoding.EncodeToString(r.keys[i].raw[:]) + "\n")
	}
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return errs.Wrap(errs.Unavailable, "the journal key cannot be written", err)
	}
	_, err = f.WriteString(b.String())
	err = errors.Join(err, f.Chmod(0o600), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return errs.Wrap(errs.Unavailable, "the journal key cannot be written", err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

package audit

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sallyport.dev/errs"
)

// ReadKey reads the audit key (PKCS #8, PEM, not readable by others). Errors: [errs.NotFound], [errs.Invalid].
func ReadKey(path string) (ed25519.PrivateKey, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errs.Newf(errs.NotFound, "there is no audit key at %s; run sallyport init", path)
	}
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, "the audit key cannot be read", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, errs.Newf(errs.Invalid, "the audit key %s can be read by others; chmod 600 it, and think about who had it", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, "the audit key cannot be read", err)
	}
	block, rest := pem.Decode(b)
	if block == nil || block.Type != "PRIVATE KEY" || len(rest) != 0 {
		return nil, errs.Newf(errs.Invalid, "%s is no private key in PEM form", path)
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errs.Newf(errs.Invalid, "%s holds a key that cannot be read", path) // no detail: it could quote the key
	}
	key, ok := k.(ed25519.PrivateKey)
	if !ok {
		return nil, errs.Newf(errs.Invalid, "%s is no Ed25519 key", path)
	}
	return key, nil
}

// CreateKey makes an audit key at path (0600) and its public half at path + ".pub" (0644), and never replaces one. Errors: [errs.Conflict]
// when there is one.
func CreateKey(path string) (ed25519.PrivateKey, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "no audit key could be made", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "no audit key could be made", err)
	}
	pub, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "no audit key could be made", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, errs.Wrap(errs.Unavailable, "the directory of the audit key cannot be made", err)
	}
	if err := writeNew(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600); err != nil {
		return nil, err
	}
	if err := writeNew(path+".pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub}), 0o644); err != nil {
		return nil, err
	}
	return key, nil
}

// ParsePublicKeys reads one or more public audit keys in PEM form, as [CreateKey] writes them. Errors: [errs.Invalid].
func ParsePublicKeys(b []byte) ([]ed25519.PublicKey, error) {
	var keys []ed25519.PublicKey
	for {
		block, rest := pem.Decode(b)
		if block == nil {
			break
		}
		b = rest
		k, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, errs.Wrap(errs.Invalid, "a public audit key cannot be read", err)
		}
		ed, ok := k.(ed25519.PublicKey)
		if !ok {
			return nil, errs.New(errs.Invalid, "an audit key is an Ed25519 key")
		}
		keys = append(keys, ed)
	}
	if len(keys) == 0 {
		return nil, errs.New(errs.Invalid, "there is no public key in PEM form in this file")
	}
	return keys, nil
}

func writeNew(path string, b []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return errs.Newf(errs.Conflict, "%s is there already; an audit key is never replaced by itself", path)
	}
	if err != nil {
		return errs.Wrap(errs.Unavailable, fmt.Sprintf("%s cannot be written", path), err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return errs.Wrap(errs.Unavailable, fmt.Sprintf("%s cannot be written", path), err)
	}
	return nil
}

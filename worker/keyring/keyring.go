// Package keyring holds the pool's private key, the one thing that opens the credentials of a pool's connections, in memory. It opens a credential
// for one intent, and only when everything that the credential is bound to agrees with that intent.
package keyring

import (
	"crypto/sha256"
	"sync"
	"time"

	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/intent/seal"
)

const keyFile = "pool.key"

// Files is a private directory. Read answers [errs.NotFound] for what is not there; Write is whole or not at all.
type Files interface {
	Read(name string) ([]byte, error)
	Write(name string, data []byte) error
}

// Opened credentials are kept for a short while: opening one costs more than all else that a worker computes for a read. A withdrawn credential is
// not used from here, because no intent names it any more.
const (
	keep     = 30 * time.Second
	keepMost = 256
)

// Keyring opens what was sealed to the pool. Safe for concurrent use.
type Keyring struct {
	key      seal.PrivateKey
	sessions []byte // derived: seals upstream sessions from the pool to itself

	mu     sync.Mutex
	opened map[[sha256.Size]byte]*opened
}

type opened struct {
	bound  seal.Bound
	secret []byte
	wipe   *time.Timer
}

// Open reads pool.key, and makes it at the first start; created says so, so that its fingerprint is printed where a person can see it. All workers of a
// pool have the same file. Errors: [errs.Invalid], and those of files.
func Open(files Files) (k *Keyring, created bool, err error) {
	k = &Keyring{opened: map[[sha256.Size]byte]*opened{}}
	b, err := files.Read(keyFile)
	switch {
	case err == nil:
		k.key, err = seal.ParsePrivateKey(b)
		clear(b)
	case errs.Is(err, errs.NotFound):
		created = true
		err = k.create(files)
	}
	if err == nil {
		k.sessions, err = k.key.Derive("upstream session key v1", sessionKey)
	}
	if err != nil {
		return nil, false, err
	}
	return k, created, nil
}

func (k *Keyring) create(files Files) (err error) {
	if k.key, err = seal.GenerateKey(); err != nil {
		return err
	}
	b, err := k.key.MarshalPEM()
	if err != nil {
		return err
	}
	defer clear(b)
	return files.Write(keyFile, b)
}

// Public returns the pool's public key, to which the CLI seals.
func (k *Keyring) Public() seal.PublicKey { return k.key.Public() }

// Credential opens the sealed credential that travelled beside in. An intent without authentication has none, and gets the empty secret. The caller
// wipes what it gets. Errors: [errs.NotAllowed] when the credential does not open or is bound to something else, [errs.Invalid] when it is malformed,
// missing, or there without need.
func (k *Keyring) Credential(in *intent.Intent, sealed []byte) (Secret, error) {
	if in.AuthType == intent.AuthNone {
		if len(sealed) != 0 {
			return Secret{}, errs.New(errs.Invalid, "a credential came for a connection without authentication")
		}
		return Secret{}, nil
	}
	if len(sealed) == 0 {
		return Secret{}, errs.New(errs.Invalid, "no credential came for a connection with authentication")
	}
	bound, secret, err := k.open(sealed)
	if err != nil {
		return Secret{}, err
	}
	if err := bound.Covers(in); err != nil {
		clear(secret)
		return Secret{}, err
	}
	return Secret{secret}, nil
}

// open returns what an envelope is bound to and a copy of its secret.
func (k *Keyring) open(sealed []byte) (seal.Bound, []byte, error) {
	name := sha256.Sum256(sealed)
	k.mu.Lock()
	if o := k.opened[name]; o != nil {
		defer k.mu.Unlock()
		return o.bound, append([]byte(nil), o.secret...), nil
	}
	k.mu.Unlock()
	ad, secret, err := k.key.Open(seal.Credential, sealed)
	if err != nil {
		return seal.Bound{}, nil, err
	}
	bound, err := seal.ParseBound(ad)
	if err != nil {
		clear(secret)
		return seal.Bound{}, nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.opened[name] == nil && len(k.opened) < keepMost {
		o := &opened{bound: bound, secret: append([]byte(nil), secret...)}
		o.wipe = time.AfterFunc(keep, func() { k.forget(name, o) })
		k.opened[name] = o
	}
	return bound, secret, nil
}

func (k *Keyring) forget(name [sha256.Size]byte, o *opened) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.opened[name] == o {
		delete(k.opened, name)
	}
	clear(o.secret)
}

// Given holds the pool key of a process that gets it from outside its own directory, such as from systemd's LoadCredential=. Read answers the key, and
// never asks for another file; there is nothing to write.
type Given struct{ PEM []byte }

// Read implements [Files].
func (g Given) Read(name string) ([]byte, error) {
	if name != keyFile {
		return nil, errs.New(errs.NotFound, "only the pool key was given")
	}
	return append([]byte(nil), g.PEM...), nil
}

// Write implements [Files]: a key that was given is never made anew.
func (Given) Write(string, []byte) error {
	return errs.New(errs.NotAllowed, "the pool key was given, so none is written")
}

// Close wipes every opened credential.
func (k *Keyring) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, o := range k.opened {
		o.wipe.Stop()
		delete(k.opened, name)
		clear(o.secret)
	}
}

// String redacts.
func (k *Keyring) String() string { return "keyring " + k.key.Public().Fingerprint() }

// GoString redacts.
func (k *Keyring) GoString() string { return k.String() }

package main

import (
	"crypto/ed25519"
	"time"

	"sallyport.dev/control/audit"
	"sallyport.dev/control/journalkey"
	"sallyport.dev/errs"
	"sallyport.dev/identity"
	"sallyport.dev/identity/statefile"
	"sallyport.dev/intent"
)

// controlKeys are everything that control keeps apart from its database. docs/keys.md says what each is for, and what its loss means.
type controlKeys struct {
	dir     *statefile.Dir
	ca      *identity.CA
	root    intent.SigningKey
	node    intent.SigningKey
	journal *journalkey.Ring
	audit   ed25519.PrivateKey
}

// openKeys reads the keys under STATE/control, and makes what a new installation lacks.
func openKeys(state, domain string) (*controlKeys, error) {
	base, err := statefile.Open(state)
	if err != nil {
		return nil, err
	}
	defer base.Close()
	k := &controlKeys{}
	if k.dir, err = base.Sub("control"); err != nil {
		return nil, err
	}
	caDir, err := k.dir.Sub("ca")
	if err != nil {
		return nil, err
	}
	defer caDir.Close()
	if k.ca, err = identity.OpenCA(caDir, domain, time.Now()); err != nil {
		return nil, err
	}
	intentDir, err := k.dir.Sub("intent")
	if err != nil {
		return nil, err
	}
	defer intentDir.Close()
	if k.root, err = signingKey(intentDir, "root.key"); err != nil {
		return nil, err
	}
	if k.node, err = signingKey(intentDir, "node.key"); err != nil {
		return nil, err
	}
	if k.journal, err = journalkey.Read(k.dir.Path("journal.key")); errs.Is(err, errs.NotFound) {
		k.journal, err = journalkey.Create(k.dir.Path("journal.key"))
	}
	if err != nil {
		return nil, err
	}
	auditDir, err := k.dir.Sub("audit")
	if err != nil {
		return nil, err
	}
	defer auditDir.Close()
	if k.audit, err = audit.ReadKey(auditDir.Path("audit.key")); errs.Is(err, errs.NotFound) {
		k.audit, err = audit.CreateKey(auditDir.Path("audit.key"))
	}
	return k, err
}

func signingKey(dir *statefile.Dir, name string) (intent.SigningKey, error) {
	b, err := dir.Read(name)
	if err == nil {
		k, err := intent.ParseSigningKey(b)
		if err != nil {
			return k, errs.Wrap(errs.Invalid, dir.Path(name)+" is not a signing key any more; put a copy of it back. A new one would make every worker enrol again", err)
		}
		return k, nil
	}
	if !errs.Is(err, errs.NotFound) {
		return intent.SigningKey{}, err
	}
	k, err := intent.GenerateKey()
	if err != nil {
		return k, err
	}
	pem, err := k.MarshalPEM()
	if err != nil {
		return k, err
	}
	return k, dir.Write(name, pem)
}
